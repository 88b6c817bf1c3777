"""One sample of cards and host memory. NVML may fail at any time and is asked again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pynvml

from run.monitor.processes import who

# A card that was lost is found again only after NVML was opened anew, which is no cheap call.
REOPEN_SECONDS = 30.0


@dataclass
class Sampler:
    """Samples what is used now.

    Args:
        nvml: pynvml, or what behaves like it.
        clock: seconds; any zero.
    """

    nvml: Any = pynvml
    clock: Callable[[], float] = time.monotonic
    _peaks: dict[str, int] = field(default_factory=dict)
    _is_open: bool = False
    _opened_at: float = 0.0

    def sample(self) -> dict[str, Any]:
        """``{"time", "cards", "host"}``, bytes and seconds since the epoch.

        Where NVML fails, ``error`` tells it, of the whole or of one card, and the rest is there.
        """
        line: dict[str, Any] = {"time": time.time(), "cards": []}
        try:
            self._open()
            line["cards"] = [self._card(index) for index in range(self.nvml.nvmlDeviceGetCount())]
        except self.nvml.NVMLError as error:
            self._close()  # the driver may come back
            line["error"] = str(error)
        is_lost = any("error" in card for card in line["cards"])
        if is_lost and self.clock() - self._opened_at >= REOPEN_SECONDS:
            self._close()
        memory = psutil.virtual_memory()
        line["host"] = {
            "used_bytes": memory.total - memory.available,
            "total_bytes": memory.total,
            "available_bytes": memory.available,
        }
        return line

    def forget_peaks(self) -> None:
        """Another run began."""
        self._peaks.clear()

    def _open(self) -> None:
        if not self._is_open:
            self.nvml.nvmlInit()
            self._is_open = True
            self._opened_at = self.clock()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self.nvml.NVMLError):
                self.nvml.nvmlShutdown()

    def _card(self, index: int) -> dict[str, Any]:
        card: dict[str, Any] = {"index": index}
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            card["uuid"] = uuid = _text(self.nvml.nvmlDeviceGetUUID(handle))
            card["name"] = _text(self.nvml.nvmlDeviceGetName(handle))
            memory = self.nvml.nvmlDeviceGetMemoryInfo(handle)
        except self.nvml.NVMLError as error:
            return {**card, "error": str(error)}
        self._peaks[uuid] = max(self._peaks.get(uuid, 0), memory.used)
        card |= {"used_bytes": memory.used, "total_bytes": memory.total}
        card["peak_bytes"] = self._peaks[uuid]
        return {**card, **self._extras(handle)}

    def _extras(self, handle: Any) -> dict[str, Any]:
        """What some cards cannot tell, None there: percent, watts, degrees Celsius, processes."""
        nvml = self.nvml
        asked: dict[str, Callable[[], Any]] = {
            "utilisation_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "processes": lambda: [
                {"pid": process.pid, "used_bytes": process.usedGpuMemory, **_who(process.pid)}
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ],
        }
        told: dict[str, Any] = {}
        for name, ask in asked.items():
            try:
                told[name] = ask()
            except nvml.NVMLError:
                told[name] = None
        return told


def _who(pid: int) -> dict[str, str]:
    try:
        return who(psutil.Process(pid))
    except psutil.Error:
        return {}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
