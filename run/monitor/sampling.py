"""One sample of cards, processes and host memory. NVML may fail at any time and is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pynvml


@dataclass
class Sampler:
    """Samples what is used now.

    Args:
        nvml: pynvml, or what behaves like it.
    """

    nvml: Any = pynvml
    _peaks: dict[str, int] = field(default_factory=dict)
    _is_up: bool = False

    def sample(self) -> dict[str, Any]:
        """``{"time", "cards", "host", "processes"}``, bytes and seconds since the epoch.

        Where NVML fails, ``error`` tells it, of the whole or of one card, and the rest is there.
        """
        line: dict[str, Any] = {"time": time.time(), "cards": []}
        try:
            if not self._is_up:
                self.nvml.nvmlInit()
                self._is_up = True
            line["cards"] = [self._card(index) for index in range(self.nvml.nvmlDeviceGetCount())]
        except self.nvml.NVMLError as error:
            self._is_up = False  # the driver may come back
            line["error"] = str(error)
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        line["host"] = {"used_bytes": used, "total_bytes": memory.total}
        line["processes"] = ray_processes()
        return line

    def _card(self, index: int) -> dict[str, Any]:
        card: dict[str, Any] = {"index": index}
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            card["uuid"] = uuid = _text(self.nvml.nvmlDeviceGetUUID(handle))
            card["name"] = _text(self.nvml.nvmlDeviceGetName(handle))
            memory = self.nvml.nvmlDeviceGetMemoryInfo(handle)
            self._peaks[uuid] = max(self._peaks.get(uuid, 0), memory.used)
            card |= {"used_bytes": memory.used, "total_bytes": memory.total}
            card["peak_bytes"] = self._peaks[uuid]
            card["processes"] = [
                {"pid": process.pid, "used_bytes": process.usedGpuMemory, **_who(process.pid)}
                for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]
        except self.nvml.NVMLError as error:
            card["error"] = str(error)
            return card
        card |= self._extras(handle)
        return card

    def _extras(self, handle: Any) -> dict[str, Any]:
        """What some cards cannot tell: percent, watts, degrees Celsius."""
        nvml = self.nvml
        asked: dict[str, Callable[[], Any]] = {
            "utilisation_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
        }
        told: dict[str, Any] = {}
        for name, ask in asked.items():
            try:
                told[name] = ask()
            except nvml.NVMLError:
                told[name] = None
        return told

    def forget_peaks(self) -> None:
        """Another run began."""
        self._peaks.clear()


def ray_processes() -> list[dict[str, Any]]:
    """Host memory of every process that Ray names by its role (``ray::WorkerDict...``)."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "memory_info"]):
        title = " ".join(process.info["cmdline"] or [])
        memory = process.info["memory_info"]
        if title.startswith("ray::") and memory is not None:
            found.append(
                {"pid": process.info["pid"], "role": _role(title), "rss_bytes": memory.rss}
            )
    return found


def _who(pid: int) -> dict[str, str]:
    try:
        title = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return {}  # of another container, or gone
    return {"role": _role(title)} if title.startswith("ray::") else {"name": title[:80]}


def _role(title: str) -> str:
    """``WorkerDict`` of ``ray::WorkerDict.actor_rollout_update_actor``."""
    return title.removeprefix("ray::").split(".")[0].split("(")[0].strip()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
