"""What the monitor samples, writes and survives. NVML is played, since there may be no card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from run.monitor.__main__ import line
from run.monitor.processes import SEARCH_SECONDS, Tree
from run.monitor.record import FILE, Record, is_alive
from run.monitor.sampling import Sampler
from tests.processes import as_from_a_terminal

MIB = 2**20


class PlayedNvml:
    """Cards that use what ``used`` says; ``broken`` names the calls that fail."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *used: int) -> None:
        self.used = list(used)
        self.broken: set[str] = set()
        self.inits = 0

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit": lambda: setattr(self, "inits", self.inits + 1),
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.used),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
            "nvmlDeviceGetName": lambda index: "Tesla P40",
            "nvmlDeviceGetMemoryInfo": lambda i: SimpleNamespace(
                used=self.used[i], total=22919 * MIB
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda index: [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 * MIB)
            ],
            "nvmlDeviceGetUtilizationRates": lambda index: SimpleNamespace(gpu=97),
            "nvmlDeviceGetPowerUsage": lambda index: 180_500,
            "nvmlDeviceGetTemperature": lambda index, kind: 71,
        }

        def call(*arguments: Any) -> Any:
            if name in self.broken:
                raise self.NVMLError(f"{name} failed")
            return answers[name](*arguments)

        return call


def test_a_card_is_told_with_its_peak() -> None:
    nvml = PlayedNvml(100 * MIB)
    sampler = Sampler(nvml)
    sampler.sample()
    nvml.used = [900 * MIB]
    sampler.sample()
    nvml.used = [300 * MIB]
    (card,) = sampler.sample()["cards"]
    assert (card["used_bytes"], card["peak_bytes"]) == (300 * MIB, 900 * MIB)
    assert card["total_bytes"] == 22919 * MIB
    assert (card["power_watts"], card["temperature_celsius"]) == (180.5, 71)
    process = {"pid": os.getpid(), "used_bytes": 5 * MIB, "name": psutil.Process().name()}
    assert card["processes"] == [process]
    sampler.forget_peaks()
    assert sampler.sample()["cards"][0]["peak_bytes"] == 300 * MIB


def test_without_a_driver_the_host_is_told_and_the_reason() -> None:
    nvml = PlayedNvml()
    nvml.broken = {"nvmlInit"}
    sample = Sampler(nvml).sample()
    assert sample["cards"] == []
    assert sample["error"] == "nvmlInit failed"
    host = sample["host"]
    assert 0 < host["used_bytes"] < host["total_bytes"]
    assert host["used_bytes"] + host["available_bytes"] == host["total_bytes"]
    assert "no card" in line({**sample, "processes": []})


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_card_that_fails_ends_nothing_and_comes_back(call: str) -> None:
    nvml = PlayedNvml(MIB, MIB)
    sampler = Sampler(nvml)
    nvml.broken = {call}
    sample = sampler.sample()
    assert [card["error"] for card in sample["cards"]] == [f"{call} failed"] * 2
    assert f"card 1: {call} failed" in line({**sample, "processes": []})
    nvml.broken = set()
    assert all("error" not in card for card in sampler.sample()["cards"])


def test_a_driver_that_goes_away_is_asked_anew() -> None:
    nvml = PlayedNvml(MIB)
    sampler = Sampler(nvml)
    sampler.sample()
    nvml.broken = {"nvmlDeviceGetCount"}
    assert "error" in sampler.sample()
    nvml.broken = set()
    assert "error" not in sampler.sample()
    assert nvml.inits == 2


def test_a_lost_card_has_nvml_opened_anew_every_half_minute() -> None:
    nvml = PlayedNvml(MIB, MIB)
    seconds = iter(range(1000))
    sampler = Sampler(nvml, clock=lambda: next(seconds))
    nvml.broken = {"nvmlDeviceGetMemoryInfo"}
    inits = []
    for _ in range(70):
        sampler.sample()
        inits.append(nvml.inits)
    assert inits[0] == 1
    assert inits[-1] == 3


def test_what_a_card_cannot_tell_is_left_open() -> None:
    nvml = PlayedNvml(MIB)
    nvml.broken = {
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses",
    }
    sample = Sampler(nvml).sample()
    (card,) = sample["cards"]
    assert (card["power_watts"], card["processes"]) == (None, None)
    assert (card["used_bytes"], card["temperature_celsius"]) == (MIB, 71)
    assert "%" not in line({**sample, "processes": []})


def test_samples_go_to_the_run_that_is_the_latest_just_now(tmp_path: Path) -> None:
    record = Record(tmp_path / "latest", pytest.fail)
    assert record.follow() is False
    record.write({"n": 0})
    for number, name in enumerate(("first", "second"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / "latest").unlink(missing_ok=True)
        (tmp_path / "latest").symlink_to(name)
        assert record.follow() is True
        assert record.follow() is False
        record.write({"n": number})
    assert json.loads((tmp_path / "first" / FILE).read_text()) == {"n": 1}
    assert json.loads((tmp_path / "second" / FILE).read_text()) == {"n": 2}
    assert is_alive(tmp_path, 10)


def test_a_link_that_cannot_be_followed_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("x" * 300)
    record = Record(tmp_path / "latest", pytest.fail)
    assert record.follow() is False
    record.write({})
    assert record.run is None


@pytest.mark.parametrize("reason", ["Is a directory", "No space left on device"])
def test_what_cannot_be_written_is_said_once(reason: str, tmp_path: Path) -> None:
    said: list[str] = []
    run = tmp_path / "one"
    run.mkdir()
    if reason == "Is a directory":
        (run / FILE).mkdir()
    else:
        (run / FILE).symlink_to("/dev/full")
    record = Record(run, said.append)
    record.follow()
    record.write({})
    record.write({})
    assert said == [f"nothing can be recorded: {run / FILE}: {reason}"]
    assert not is_alive(tmp_path, 10)


def test_a_line_that_does_not_fit_leaves_no_half(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from run.monitor.record import Record
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
record = Record(Path(sys.argv[1]), print)
record.follow()
for number in range(3):
    record.write({"n": number, "text": "x" * 600})
"""
    (tmp_path / "one").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "one")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("No space left on device") == 1
    (only,) = (tmp_path / "one" / FILE).read_text().splitlines()
    assert json.loads(only)["n"] == 0


def test_a_full_disk_below_its_output_ends_nothing() -> None:
    code = "from run.monitor.__main__ import say; say('one'); say('two')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_check_finds_a_monitor_that_waits_for_the_first_run(tmp_path: Path) -> None:
    def check() -> int:
        command = [sys.executable, "-m", "run.monitor", "--check"]
        return subprocess.run(command, env={**os.environ, "VERL_P40_OUT": str(tmp_path)}).returncode

    assert check() == 1
    Record(tmp_path / "runs" / "latest", pytest.fail).write({})
    assert check() == 0


def test_no_monitor_is_no_sign_of_life(tmp_path: Path) -> None:
    assert not is_alive(tmp_path, 10)
    (tmp_path / ".monitor").touch()
    os.utime(tmp_path / ".monitor", (0, 0))
    assert not is_alive(tmp_path, 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("one")
    process = subprocess.Popen(
        [sys.executable, "-m", "run.monitor"],
        env={**os.environ, "VERL_P40_OUT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("following")
    assert "host" in process.stdout.readline()
    process.send_signal(number)
    _, complained = process.communicate()
    assert process.returncode == code
    assert "Traceback" not in complained
    assert (tmp_path / "runs" / "one" / FILE).exists()


WORKER = ["ray::WorkerDict.update_actor", "60"]
DRIVER = f"""
import subprocess
process = subprocess.Popen({WORKER}, executable="/bin/sleep")
print("ready", flush=True)
process.wait()
"""
DRIVEN = [sys.executable, "-c", DRIVER, "verl.trainer.main_ppo", "--config-path", "/else/runs/one"]
LAUNCHER = f"import subprocess; subprocess.Popen({DRIVEN}).wait()"


@pytest.fixture
def training() -> Iterator[subprocess.Popen[str]]:
    """A launcher, its driver of run ``one`` and a worker: the processes of a run, without Ray."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "run.train"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_run_is_told_with_its_processes_and_no_others(training: subprocess.Popen[str]) -> None:
    launcher, driver, worker = Tree("one").sample()
    assert launcher["pid"] == training.pid
    assert "role" not in driver
    assert worker["role"] == "WorkerDict"
    assert all(process["rss_bytes"] > 0 for process in (launcher, driver, worker))
    assert Tree("two").sample() == []
    sample = Sampler(PlayedNvml()).sample()
    sample["processes"] = [{**launcher, "rss_bytes": 2**30}, {**worker, "rss_bytes": 2**31}]
    assert line(sample).endswith("run 3.0 GiB (WorkerDict 2.0)")


def test_a_driver_without_its_launcher_is_told_with_its_own_processes(
    training: subprocess.Popen[str],
) -> None:
    training.kill()
    training.wait()
    driver, worker = Tree("one").sample()
    assert "role" not in driver
    assert worker["role"] == "WorkerDict"


def test_a_run_that_was_killed_has_no_processes(training: subprocess.Popen[str]) -> None:
    tree = Tree("one")
    assert tree.sample()
    os.killpg(training.pid, signal.SIGKILL)
    os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)  # a zombie still
    assert tree.sample() == []


def test_a_run_that_is_resumed_is_found_soon(
    training: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    tree = Tree("one", clock=lambda: now)
    with monkeypatch.context() as without:
        without.setattr(psutil, "process_iter", lambda attributes: iter(()))
        assert tree.sample() == []
    now = SEARCH_SECONDS / 2
    assert tree.sample() == []
    now = SEARCH_SECONDS
    assert len(tree.sample()) == 3


def test_it_imports_neither_verl_nor_torch() -> None:
    code = "import sys, run.monitor.__main__; print({'torch', 'verl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
