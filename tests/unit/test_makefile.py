"""make's own behaviour: the list of targets, the variables it exports, what clean spares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from env import variables
from env.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = ["help", "env", "demo", "data", "model", "train", "monitor", "doctor"]
TARGETS += ["base", "build"]
TARGETS += ["test", "test-all", "lint", "lock", "lock-check", "clean"]


def make(*arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    # A make that runs this test must not hand its own flags on; nor may `clean` reach an
    # environment or an output folder that the user has moved.
    own = ("MAKE", "MFLAGS", "VERL_P40_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    for name in variables.variables():
        inherited.pop(name, None)
    done = subprocess.run(
        ["make", *arguments],
        cwd=cwd,
        env={**inherited, **(env or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_make_alone_lists_every_target_with_a_line_each() -> None:
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make(), re.M))
    assert list(listed) == TARGETS
    assert make() == make("help")


def test_every_target_is_phony_so_that_a_file_of_its_name_hides_none() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert phony.split() == TARGETS


def test_every_target_that_needs_the_environment_makes_it_first() -> None:
    without = re.findall(r"^([a-z-]+):(?! env\b)", MAKEFILE, re.M)
    # training makes it where it does not run in the image
    assert without == ["help", "env", "train", "base", "build", "test-all", "clean"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["demo"], "-m run.train --preset cpu-demo"),
        (["monitor"], "-m run.monitor"),
        (["data", "DATA=--source dir"], "-m data.prepare --source dir"),
        (["model", "MODEL=tiny"], "-m env.models tiny"),
        (["test", "ARGS=tests/unit"], "-m pytest tests/unit"),
        (["lock-check"], "-m env.lock --check"),
    ],
)
def test_a_target_starts_its_module(arguments: list[str], command: str) -> None:
    assert f".venv/bin/python {command}" in make("--dry-run", *arguments)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["train", "PRESET=p40-ppo", "OVERRIDES=a=1 b=2"], "train.sh --preset p40-ppo a=1 b=2"),
        (["train", "RESUME=latest"], "train.sh --resume latest"),
        # argparse refuses both
        (["train", "RESUME=latest", "PRESET=tiny"], "train.sh --resume latest --preset tiny"),
        (["base"], "base.sh local/debian:bookworm"),
        (["build"], "build.sh cu118"),
        (["build", "PROFILE=cu124"], "build.sh cu124"),
    ],
)
def test_a_target_starts_its_script(arguments: list[str], command: str) -> None:
    assert f"bash env/image/{command}" in make("--dry-run", *arguments)


def exported(**variables: str) -> dict[str, str]:
    shown = make("--eval=show: ; @env", "show", env=variables)
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def test_make_exports_the_variables_of_every_run_and_the_checkout() -> None:
    seen = exported()
    assert variables.variables().items() <= seen.items()
    assert seen["PYTHONPATH"] == str(ROOT)


def test_what_the_user_has_set_wins_in_make_and_in_python() -> None:
    assert exported(CUDA_DEVICE_ORDER="FASTEST_FIRST")["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    environment = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    variables.apply(environment)
    assert environment == {**variables.variables(), "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


@pytest.fixture
def used_checkout(tmp_path: Path) -> Path:
    (tmp_path / "env").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "env" / "vars.env", tmp_path / "env")
    for folder in (".venv", ".ruff_cache", "out/runs/a", "out/models/b", "data", "run", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env" / "__pycache__").mkdir()
    return tmp_path


def test_clean_spares_environment_runs_models_and_data(used_checkout: Path) -> None:
    said = make("clean", cwd=used_checkout)
    assert not (used_checkout / ".ruff_cache").exists()
    assert not (used_checkout / "env" / "__pycache__").exists()
    assert (used_checkout / ".venv").exists()
    assert (used_checkout / "out/runs/a").exists()
    assert (used_checkout / "out/models/b").exists()
    assert "removing" in said
    assert ".ruff_cache" in said
    assert "kept: .venv and out/" in said


def test_clean_all_removes_what_was_made_and_says_so(used_checkout: Path) -> None:
    said = make("clean", "ALL=1", cwd=used_checkout)
    assert sorted(path.name for path in used_checkout.iterdir()) == [
        "Makefile",
        "data",
        "env",
        "run",
        "tests",
    ]
    assert re.search(r"removing \S+ out$", said, re.M)


CI_MAKE = """
%:
	@echo $@ $(PROFILE) $$TARGET $$BASE_IMAGE
test-all:
	@echo tested $(IMAGE) with $$GSM8K_DIR; cat
"""


@pytest.fixture
def ci(tmp_path: Path) -> Callable[..., str]:
    """.ci/run in a checkout of its own; engine and make are played."""
    checkout, bin_ = tmp_path / "main", tmp_path / "bin"
    (checkout / ".ci").mkdir(parents=True)
    bin_.mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci")
    engine = (
        'echo "engine $1"; test -d "$VERL_P40_ENGINE"; [ $1 = start ] || rmdir "$VERL_P40_ENGINE"'
    )
    (checkout / ".ci" / "engine").write_text(f"{engine}\n")
    (checkout / "Makefile").write_text(CI_MAKE)
    for tool in ("docker", "mmdebstrap"):
        (bin_ / tool).write_text('#!/bin/bash\nexit "$NO_ENGINE"\n')
        (bin_ / tool).chmod(0o755)

    def run(no_engine: int) -> str:
        environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "NO_ENGINE": str(no_engine)}
        done = subprocess.run(
            [checkout / ".ci" / "run"], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    return run


MADE_BY_CI = """\
base local/debian:bookworm
build cu124 local/debian:bookworm
build cu118 toolchain local/debian:bookworm
build cu118 packages local/debian:bookworm
tested cu124 with"""


def test_ci_builds_the_images_and_runs_all_tests(ci: Callable[..., str]) -> None:
    said = "\n".join(" ".join(line.split()) for line in ci(no_engine=0).splitlines())
    assert said == MADE_BY_CI


def test_ci_starts_an_engine_where_none_answers_and_takes_it_away(ci: Callable[..., str]) -> None:
    said = ci(no_engine=1).splitlines()
    assert (said[0], said[-1]) == ("engine start", "engine remove")


def test_ci_takes_gsm8k_from_beside_the_checkout(ci: Callable[..., str], tmp_path: Path) -> None:
    beside = tmp_path / "shared" / "gsm8k"
    beside.mkdir(parents=True)
    for split in ("train", "test"):
        (beside / f"{split}.jsonl").write_text(split)
    assert f"tested cu124 with {beside.resolve()}" in ci(no_engine=0)
    assert (tmp_path / "main/env/downloads/train.jsonl").read_text() == "train"
