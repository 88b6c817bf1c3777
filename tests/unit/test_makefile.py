"""make's own behaviour: the list of targets, the variables it exports, what clean spares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from env import variables
from env.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = ["help", "env", "demo", "data", "model", "train", "monitor", "doctor"]
TARGETS += ["base", "build"]
TARGETS += ["test", "lint", "lock", "lock-check", "clean"]


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
    assert without == ["help", "env", "train", "base", "build", "clean"]


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


def test_ci_runs_the_test_target_with_gsm8k_from_beside_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "main"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci")
    (checkout / "Makefile").write_text("test:\n\t@echo tested with $$GSM8K_DIR; cat\n")
    environment = {"PATH": os.environ["PATH"], "CI": "true"}

    def ci() -> str:
        done = subprocess.run(
            [checkout / ".ci" / "run"], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert ci() == "tested with\n"
    (tmp_path / "shared" / "gsm8k").mkdir(parents=True)
    assert ci() == f"tested with {tmp_path.resolve()}/shared/gsm8k\n"
