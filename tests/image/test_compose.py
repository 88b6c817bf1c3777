"""docker compose up on a machine without a GPU, from nothing, as a caller who is not root.

One session of preprocess, train and monitor, in a folder of its own; then training again in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from env.paths import ROOT
from tests.image.engine import OUT, Engine, check_log

UID, GID = (12345, 23456) if os.getuid() == 0 else (os.getuid(), os.getgid())
STEPS = 4


@dataclass(frozen=True)
class Project:
    """A checkout's compose files and scripts in a folder that the caller owns.

    Args:
        folder: with ``out/`` in it, once it was settled.
        name: of the compose project, so that nothing of another one is touched.
        profile: of the image.
    """

    folder: Path
    name: str
    profile: str

    def do(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if k not in ("PRESET", "DEVICE")}
        given = {"COMPOSE_PROJECT_NAME": self.name, "DEVICE": "cpu", "PROFILE": self.profile}
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**inherited, **given, **variables},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.do("docker", "compose", *arguments)

    def log(self, service: str) -> str:
        return self.compose("logs", "--no-color", "--no-log-prefix", service).stdout

    def run(self, preset: str) -> Path:
        """Folder of the one run with ``preset``."""
        (found,) = (self.folder / "out" / "runs").glob(f"*-{preset}*")
        return found


def settle(folder: Path) -> None:
    """What make build does for compose, as the caller."""
    subprocess.run(
        ["bash", "env/image/settle.sh"],
        cwd=folder,
        env={**os.environ, "DEVICE": "cpu", "PROFILE": PROFILES[folder], "DOCKER": "true"},
        check=True,
        **({"user": UID, "group": GID, "extra_groups": []} if os.getuid() == 0 else {}),
    )


PROFILES: dict[Path, str] = {}


@pytest.fixture(scope="module")
def empty(engine: Engine) -> Iterator[Project]:
    """Compose files, scripts, and nothing that was made."""
    folder = Path(tempfile.mkdtemp(prefix="verl-p40-compose-"))
    for name in ROOT.glob("docker-compose*.yml"):
        shutil.copy(name, folder)
    shutil.copytree(ROOT / "env" / "image", folder / "env" / "image")
    os.chown(folder, UID, GID)
    PROFILES[folder] = engine.profile
    project = Project(folder, f"vp40-{os.getpid()}", engine.profile)
    yield project
    project.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def missing_out(empty: Project) -> subprocess.CompletedProcess[str]:
    """An `up` before anything made out/."""
    return empty.compose("up", "--detach", "preprocess")


@pytest.fixture(scope="module")
def ended(empty: Project, missing_out: object) -> Project:
    """The project after train has ended; the monitor goes on."""
    settle(empty.folder)
    up = empty.compose("up", "--detach")
    assert up.returncode == 0, up.stderr + empty.log("preprocess")
    waited = empty.compose("wait", "train")
    assert waited.returncode == 0, empty.log("train")
    return empty


@pytest.fixture(scope="module")
def again(ended: Project) -> subprocess.CompletedProcess[str]:
    """The second run, as make train starts it."""
    caller = {"RUN_UID": str(UID), "RUN_GID": str(GID)}
    return ended.do("bash", "env/image/train.sh", "--preset", "cpu-gsm8k", **caller)


def state(project: Project, service: str) -> dict[str, Any]:
    listed = project.compose("ps", "--all", "--format", "json", service).stdout
    told: dict[str, Any] = json.loads(listed.splitlines()[0])
    return told


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in metrics(run) if "actor/grad_norm" in line["metrics"]]


def test_without_out_nothing_is_made_as_root(missing_out: subprocess.CompletedProcess[str]) -> None:
    assert missing_out.returncode != 0
    assert "bind source path does not exist" in missing_out.stderr


def test_preprocess_brings_model_and_data_before_training(ended: Project) -> None:
    assert state(ended, "preprocess")["ExitCode"] == 0
    assert "ready for cpu-demo" in ended.log("preprocess")
    assert (ended.folder / "out/models/smollm2-135m-instruct/model.safetensors").is_file()
    assert list((ended.folder / "out/data").glob("demo*/train.parquet"))


def test_train_runs_the_demo_to_its_end(ended: Project) -> None:
    assert state(ended, "train")["ExitCode"] == 0, ended.log("train")
    assert steps(ended.run("cpu-demo")) == list(range(1, STEPS + 1))


def test_it_is_validated_on_the_baked_gsm8k(ended: Project) -> None:
    last = metrics(ended.run("cpu-demo"))[-1]["metrics"]
    assert any(re.match(r"val-\w+/openai/gsm8k/", key) for key in last), sorted(last)


def test_the_monitor_samples_while_it_trains(ended: Project) -> None:
    log = ended.log("monitor")
    assert re.search(r"no card, host [\d.]+/[\d.]+ GiB, run [\d.]+ GiB", log), log
    recorded = (ended.run("cpu-demo") / "vram.jsonl").read_text().splitlines()
    # 1 Hz through a run of a minute at the very least
    assert len(recorded) > 30
    assert state(ended, "monitor")["Health"] == "healthy"


def test_all_that_was_made_belongs_to_the_caller(
    ended: Project, again: subprocess.CompletedProcess[str]
) -> None:
    made = list((ended.folder / "out").rglob("*"))
    assert len(made) > 20
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in made} == {(UID, GID)}


def test_a_second_run_takes_two_steps_on_gsm8k(
    ended: Project, again: subprocess.CompletedProcess[str]
) -> None:
    assert again.returncode == 0, again.stdout + again.stderr
    first = again.stdout.splitlines()[0]
    assert first.startswith(f"training in the image verl-p40:{ended.profile}: ")
    assert steps(ended.run("cpu-gsm8k")) == [1, 2]


@pytest.mark.parametrize("service", ["preprocess", "train", "monitor"])
def test_no_service_complains(ended: Project, service: str) -> None:
    check_log(ended.log(service), service)


@pytest.mark.parametrize("service", ["preprocess", "train", "monitor"])
def test_every_service_is_fenced_in(ended: Project, engine: Engine, service: str) -> None:
    found = engine.client.containers.get(state(ended, service)["ID"]).attrs
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert not host["Privileged"]
    assert host["Memory"] > 0
    assert found["Config"]["User"] == f"{UID}:{GID}"
    assert [mount["Destination"] for mount in found["Mounts"] if mount["RW"]] == [OUT]
    published = [one for ports in host["PortBindings"].values() for one in ports]
    assert {one["HostIp"] for one in published} <= {"127.0.0.1"}


def test_a_name_that_is_taken_is_told(ended: Project, engine: Engine) -> None:
    ended.compose("rm", "--stop", "--force", "monitor")
    name = f"{ended.name}-monitor-1"
    other = engine.client.containers.create(engine.tag, ["true"], name=name)
    try:
        up = ended.compose("up", "--detach", "monitor")
        assert up.returncode != 0
        assert f'The container name "/{name}" is already in use' in up.stderr
    finally:
        other.remove()


@pytest.mark.parametrize("files", ["", "cpu", "ca", "cpu ca"])
def test_compose_reads_its_files_alone_and_together(empty: Project, files: str) -> None:
    options = ["--file", "docker-compose.yml"]
    for name in files.split():
        options += ["--file", f"docker-compose.{name}.yml"]
    done = empty.do("docker", "compose", *options, "config", CA_BUNDLE="/dev/null")
    assert done.returncode == 0, done.stderr
    assert ("capabilities" in done.stdout) == ("cpu" not in files)
    assert ("/run/ca.pem" in done.stdout) == ("ca" in files)
