"""What the monitor samples, writes and survives. NVML is played, since there may be no card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from run.monitor.__main__ import line
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
    assert card["processes"][0]["pid"] == os.getpid()
    sampler.forget_peaks()
    assert sampler.sample()["cards"][0]["peak_bytes"] == 300 * MIB


def test_without_a_driver_the_host_is_told_and_the_reason() -> None:
    nvml = PlayedNvml()
    nvml.broken = {"nvmlInit"}
    sample = Sampler(nvml).sample()
    assert sample["cards"] == []
    assert sample["error"] == "nvmlInit failed"
    assert 0 < sample["host"]["used_bytes"] < sample["host"]["total_bytes"]
    assert "no card" in line(sample)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_card_that_fails_ends_nothing_and_comes_back(call: str) -> None:
    nvml = PlayedNvml(MIB, MIB)
    sampler = Sampler(nvml)
    nvml.broken = {call}
    sample = sampler.sample()
    assert [card["error"] for card in sample["cards"]] == [f"{call} failed"] * 2
    assert f"card 1: {call} failed" in line(sample)
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


def test_what_a_card_cannot_tell_is_left_open() -> None:
    nvml = PlayedNvml(MIB)
    nvml.broken = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}
    sample = Sampler(nvml).sample()
    (card,) = sample["cards"]
    assert card["power_watts"] is None
    assert card["temperature_celsius"] == 71
    assert "%" not in line(sample)


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


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    record = Record(tmp_path, said.append)
    record.follow()
    (tmp_path / FILE).mkdir()
    record.write({})
    record.write({})
    assert len(said) == 1
    assert FILE in said[0]


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


def test_it_imports_neither_verl_nor_torch() -> None:
    code = "import sys, run.monitor.__main__; print({'torch', 'verl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
