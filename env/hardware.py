"""Which device is here, and what verl's capability profile makes of it. Imports no torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Device:
    """What training would run on.

    Args:
        device: "cuda" or "cpu", as verl names it.
        name: as the driver reports it; "cpu" where there is none.
        capability: compute capability, None on a CPU.
        memory_bytes: of the card; 0 on a CPU.
        count: how many cards training may use; 1 on a CPU.
    """

    device: str
    name: str
    capability: tuple[int, int] | None
    memory_bytes: int
    count: int


CPU = Device("cpu", "cpu", None, 0, 1)


def detect_device() -> Device:
    """The first card that CUDA would use, by NVML and CUDA_VISIBLE_DEVICES, else :data:`CPU`."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return CPU
    try:
        handles = visible_handles(pynvml)
        if not handles:
            return CPU
        name = _text(pynvml.nvmlDeviceGetName(handles[0]))
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handles[0])
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handles[0]).total)
        return Device("cuda", name, (int(major), int(minor)), memory, len(handles))
    except pynvml.NVMLError:
        return CPU
    finally:
        pynvml.nvmlShutdown()


def visible_handles(nvml: Any) -> list[Any]:
    """NVML's handles of the cards that CUDA shows, in its order (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    handles = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return handles
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    visible = []
    for entry in chosen.split(","):
        word = entry.strip()
        if word.startswith("MIG-"):
            visible.append(
                nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
                    nvml.nvmlDeviceGetHandleByUUID(word)
                )
            )
            continue
        is_meant = [
            word == str(index) or (word.startswith("GPU-") and uuid.startswith(word))
            for index, uuid in enumerate(uuids)
        ]
        if is_meant.count(True) != 1:
            break  # as CUDA does: an entry that names no card hides those after it
        visible.append(handles[is_meant.index(True)])
    return visible


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def profile_module() -> ModuleType:
    """verl's ``verl/utils/hardware.py``, loaded from its file.

    ``import verl.utils.hardware`` would run ``verl/__init__.py``, which imports torch and
    transformers: 10 to 20 seconds that a launcher should not cost. The module itself needs the
    standard library alone.
    """
    path = verl_root() / "utils" / "hardware.py"
    spec = importlib.util.spec_from_file_location("verl_p40_hardware", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def verl_root() -> Path:
    """Folder of the installed package verl, found without importing it."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("verl is not installed in this environment: run `make env`")
    return Path(spec.origin).parent


def lacks_for_triton() -> str:
    """What this machine lacks to build the launchers of Triton's kernels; empty if nothing.

    Triton compiles a small C file for each kernel at its first launch, against Python's headers.
    The image has neither, so a card that could compile runs there without.
    """
    if not os.environ.get("CC") and not any(map(shutil.which, ("clang", "gcc"))):
        return "no C compiler (gcc or clang)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h (Debian's python3-dev)"
    return ""


def profile(device: Device, **overrides: Any) -> Any:
    """verl's HardwareProfile for ``device``.

    Args:
        overrides: dtype, attn_implementation, torch_compile; None means: decide.

    Raises:
        ValueError: an override that the device cannot serve.
    """
    module = profile_module()
    return module.detect(
        device.device, device.capability, **module.installed_kernels(), **overrides
    )
