"""The scripts around the image: what they refuse, decide and write, asking a played docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from env.paths import ROOT
from env.pins import pins

DOCKERFILE = (ROOT / "Dockerfile").read_text()

# Answers as an engine with the images that stand in $IMAGES; says what else it is asked to do.
DOCKER = """#!/bin/bash
case "$1 $2" in
  "version "*) exit "${NO_ENGINE:-0}" ;;
  "buildx version") exit "${NO_BUILDX:-0}" ;;
  "image inspect") for last; do :; done; [[ " $IMAGES " == *" $last "* ]] && echo 1000000 ;;
  "image ls") ;;
  "pull "*) [ -z "$NO_BASE" ] || { echo "no such host" >&2; exit 1; } ;;
  "compose version") echo "${COMPOSE:-2.26.1}" ;;
  "buildx build") echo "docker $*"; exit "${FAILS:-0}" ;;
  "info "*)
    case $* in
      *RootDir*) echo "${ROOT_DIR:-/nowhere}" ;;
      *Security*) echo "[$SECURITY]" ;;
      *) echo "{$RUNTIMES}" ;;
    esac
    ;;
  "run "*) case $* in *archives.txt) printf "${ARCHIVES:-}" ;; *) echo "docker $*" ;; esac ;;
  *) echo "docker $*" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the scripts read, with a docker that is played."""
    place = tmp_path / "checkout"
    shutil.copytree(ROOT / "env" / "image", place / "env" / "image")
    shutil.copytree(ROOT / "env" / "locks", place / "env" / "locks")
    shutil.copy(ROOT / "Dockerfile", place)
    shutil.copy(ROOT / "pyproject.toml", place)
    (place / "docker").write_text(DOCKER)
    (place / "docker").chmod(0o755)
    return place


def script(
    checkout: Path, name: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        ["bash", f"env/image/{name}.sh", *arguments],
        cwd=checkout,
        env={**kept, "DOCKER": str(checkout / "docker"), "IMAGES": "", **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("name", "arguments", "variables", "complaint"),
    [
        ("build", ["cu999"], {}, "PROFILE=cu999: no such profile; expected cu118 or cu124"),
        ("build", ["cu124"], {"NO_ENGINE": "1"}, "no Docker engine answers"),
        ("build", ["cu124"], {"NO_BUILDX": "1"}, "has no buildx"),
        ("build", ["cu124"], {"BASE_IMAGE": "local/none"}, "make base makes local/debian"),
        ("build", ["cu124"], {"CA_BUNDLE": "/nowhere.pem"}, "CA_BUNDLE=/nowhere.pem"),
        ("build", ["cu124"], {"NETRC": "/nowhere"}, "NETRC=/nowhere: cannot be read"),
        ("build", ["cu118"], {"NO_BASE": "1"}, "cannot be pulled: no such host"),
        # a place of which no byte is free, on any Linux
        ("build", ["cu124"], {"ROOT_DIR": "/sys"}, "/sys: 0 GB are free; expected 25"),
        ("build", ["cu124"], {"PIP_INDEX_URL": "https://me:secret@mirror"}, "NETRC"),
        ("build", ["cu124"], {"MEDIA": "no"}, "MEDIA=no: expected yes, or nothing"),
        ("build", ["cu124"], {"FAILS": "1"}, "verl-p40:cu124 could not be built"),
        ("base", [], {"NO_ENGINE": "1", "PATH": "/usr/bin:/bin"}, "refused:"),
        ("train", [], {"WHERE": "moon"}, "WHERE=moon; expected host, image or nothing"),
        ("train", [], {"WHERE": "image", "NO_ENGINE": "1"}, "no Docker engine answers"),
        ("train", [], {"WHERE": "image"}, "no image verl-p40:cu118 is here (make build)"),
        ("settle", [], {"DEVICE": "tpu"}, "DEVICE=tpu; expected cuda or cpu"),
        ("settle", [], {"COMPOSE": "2.18.1"}, "docker compose is 2.18.1; without a GPU 2.24"),
    ],
)
def test_what_cannot_go_on_is_refused_with_its_reason(
    checkout: Path, name: str, arguments: list[str], variables: dict[str, str], complaint: str
) -> None:
    done = script(checkout, name, *arguments, **variables)
    assert done.returncode == 1, done.stdout
    assert "refused" in done.stderr
    assert complaint in done.stderr
    assert not (checkout / ".env").exists()


def test_all_that_a_build_lacks_is_told_at_once(checkout: Path) -> None:
    done = script(checkout, "build", "cu999", NO_ENGINE="1", CA_BUNDLE="/nowhere.pem")
    assert done.stderr.startswith("refused: 3 problem(s)")


def test_a_build_hands_on_what_was_asked_for(checkout: Path) -> None:
    done = script(
        checkout, "build", "cu124", IMAGES="local/b verl-p40:cu124", BASE_IMAGE="local/b",
        GSM8K_URL="http://127.0.0.1/x",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (command,) = re.findall(r"^docker (buildx build .*)$", done.stdout, re.M)
    for argument in ("PROFILE=cu124", "BASE_IMAGE=local/b", "GSM8K_URL=http://127.0.0.1/x"):
        assert f"--build-arg {argument}" in command
    assert "--build-context downloads=env/downloads" in command
    assert "--tag verl-p40:cu124 ." in command


def test_a_login_in_an_address_is_not_shown(checkout: Path) -> None:
    done = script(checkout, "build", "cu124", APT_MIRROR="https://me:secret@mirror")
    assert "secret" not in done.stdout + done.stderr


def test_what_had_no_pinned_hash_is_recorded_once(checkout: Path) -> None:
    archives = "a1 pinned torch.whl\\nb2 recorded apex.tar.gz\\n"
    for _ in range(2):
        done = script(
            checkout, "build", "cu118", BASE_IMAGE="local/b", ARCHIVES=archives,
            IMAGES="local/b verl-p40:cu118",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (checkout / "env/downloads/recorded.sha256").read_text() == "b2  apex.tar.gz\n"


def test_another_stage_gets_a_name_of_its_own(checkout: Path) -> None:
    done = script(
        checkout, "build", "cu118", TARGET="toolchain", IMAGES="local/b verl-p40:cu118-toolchain",
        BASE_IMAGE="local/b",
    )  # fmt: skip
    assert "--target toolchain --load --tag verl-p40:cu118-toolchain ." in done.stdout
    assert not (checkout / ".env").exists()


def test_training_takes_the_image_where_it_is_and_says_why(checkout: Path) -> None:
    done = script(checkout, "train", "--preset", "tiny", IMAGES="verl-p40:cu124")
    first, _, command = done.stdout.splitlines()
    assert first == "training in the image verl-p40:cu124: an engine and it are here"
    assert command == ("docker compose run --rm --no-deps train python -m run.train --preset tiny")
    assert "PROFILE=cu124" in (checkout / ".env").read_text()


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"NO_ENGINE": "1"}, "no Docker engine answers"),
        ({}, "no image verl-p40:cu118 is here (make build)"),
        ({"WHERE": "host", "IMAGES": "verl-p40:cu118"}, "WHERE=host"),
    ],
)
def test_training_takes_the_host_where_it_must_and_says_why(
    checkout: Path, variables: dict[str, str], why: str
) -> None:
    (checkout / "env" / "install").mkdir()
    (checkout / "env" / "install" / "all.sh").write_text("")
    python = checkout / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\necho "python $*"')
    python.chmod(0o755)
    done = script(checkout, "train", "--preset", "tiny", VERL_P40_VENV="venv", **variables)
    assert done.stdout.splitlines() == [
        f"training on this host, in venv: {why}",
        "python -m run.train --preset tiny",
    ]


@pytest.mark.parametrize(
    ("variables", "preset", "with_cpu"),
    [
        ({"RUNTIMES": '"nvidia":{}'}, "p40-grpo", False),
        ({"RUNTIMES": '"runc":{}'}, "cpu-demo", True),
        ({"RUNTIMES": '"nvidia":{}', "DEVICE": "cpu"}, "cpu-demo", True),
        ({"RUNTIMES": "", "DEVICE": "cuda", "PRESET": "p40-ppo"}, "p40-ppo", False),
    ],
)
def test_compose_is_told_device_preset_and_owner(
    checkout: Path, variables: dict[str, str], preset: str, with_cpu: bool
) -> None:
    done = script(checkout, "settle", **variables)
    assert done.returncode == 0, done.stderr
    said = dict(
        line.split("=", 1)
        for line in (checkout / ".env").read_text().splitlines()
        if not line.startswith("#")
    )
    assert said["PRESET"] == preset
    assert ("docker-compose.cpu.yml" in said["COMPOSE_FILE"]) == with_cpu
    assert (said["RUN_UID"], said["RUN_GID"]) == (str(os.getuid()), str(os.getgid()))
    assert (checkout / "out").is_dir()
    assert [path.name for path in checkout.glob(".env*")] == [".env"]


def settled(checkout: Path, **variables: str) -> dict[str, str]:
    done = script(checkout, "settle", **variables)
    assert done.returncode == 0, done.stderr
    lines = (checkout / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_an_env_file_of_the_users_own_is_left_alone(checkout: Path) -> None:
    (checkout / ".env").write_text("HF_TOKEN=mine\n")
    done = script(checkout, "settle")
    assert done.returncode == 1
    assert "was not written by this project" in done.stderr
    assert (checkout / ".env").read_text() == "HF_TOKEN=mine\n"


def test_what_was_given_once_stays_until_it_is_given_otherwise(checkout: Path) -> None:
    given = {"DEVICE": "cpu", "TRAIN_MEMORY": "5g", "SHM_SIZE": "2gb", "VERL_P40_OUT": "elsewhere"}
    first = settled(checkout, **given)
    assert given.items() <= first.items()
    assert (checkout / "elsewhere").is_dir()
    assert settled(checkout, RUNTIMES='"nvidia":{}') == first
    assert settled(checkout, TRAIN_MEMORY="6g") == {**first, "TRAIN_MEMORY": "6g"}


def test_in_a_rootless_engine_root_is_the_caller(checkout: Path) -> None:
    said = settled(checkout, SECURITY="name=seccomp,profile=builtin name=rootless")
    assert (said["RUN_UID"], said["RUN_GID"]) == ("0", "0")


def test_two_checkouts_have_projects_of_their_own(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "checkout"
    shutil.copytree(checkout, other)
    one, two = (settled(place)["COMPOSE_PROJECT_NAME"] for place in (checkout, other))
    assert one != two


def test_without_a_preset_training_takes_what_fits_the_device(checkout: Path) -> None:
    for runtimes, preset in (("", "cpu-demo"), ('"nvidia":{}', "p40-grpo")):
        done = script(checkout, "train", IMAGES="verl-p40:cu124", RUNTIMES=runtimes)
        assert done.stdout.splitlines()[-1].endswith(f"python -m run.train --preset {preset}")


def test_the_preset_of_one_run_is_none_for_compose(checkout: Path) -> None:
    script(checkout, "train", "--preset", "tiny", IMAGES="verl-p40:cu124", PRESET="tiny")
    assert "PRESET=cpu-demo\n" in (checkout / ".env").read_text()


def test_the_default_base_is_the_pinned_one() -> None:
    base = pins()["profiles"]["cu118"]["base"]["runtime"]
    (default,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", DOCKERFILE, re.M)
    assert default == f"{base['image']}@{base['digest']}"


def test_the_image_has_no_frontend_to_pull_and_no_compiler_in_its_last_stage() -> None:
    assert "# syntax=" not in DOCKERFILE
    assert "FROM base AS runtime" in DOCKERFILE
    assert DOCKERFILE.index("AS runtime") > DOCKERFILE.index("AS toolchain")


def test_every_folder_of_the_project_but_tests_and_docs_is_in_the_image() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "!"))] == [
        "*",
        "/env/downloads",
        "**/__pycache__",
    ]
    taken = {line[2:] for line in lines if line.startswith("!")}
    assert {"env", "data", "run", "verl-patches", "README.md", "LICENSE"} <= taken
    assert all((ROOT / name).exists() for name in taken)
    assert taken.isdisjoint({"tests", "docs", "out", ".git", ".env", ".venv"})
