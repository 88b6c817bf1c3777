"""Looks at this machine: the only part of the doctor that does. Every look has an end."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from env import hardware, paths
from env.doctor.facts import (
    Card,
    Computed,
    Driver,
    DriverState,
    Engine,
    EngineState,
    Facts,
    PciCard,
    Room,
    Torch,
)

NVIDIA = "0x10de"
TORCH_SECONDS = 180.0
ENGINE_SECONDS = 20.0
PROBE = (sys.executable, "-m", "env.doctor.probe")


def gather() -> Facts:
    """All facts; about ten seconds, nearly all of it torch's import."""
    found, cards = driver()
    return Facts(
        python=".".join(platform.python_version_tuple()[:2]),
        is_container=any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
        is_image="VERL_P40_PROFILE" in os.environ,
        installed_profile=installed_profile(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        pci=pci(),
        driver=found,
        cards=cards,
        torch=torch(),
        engine=engine(os.environ.get("DOCKER") or "docker"),
        shm=room(Path("/dev/shm")) if os.path.isdir("/dev/shm") else None,
        disk=room(paths.out()),
        memory_bytes=psutil.virtual_memory().available,
    )


def installed_profile() -> str | None:
    """The profile of this environment; the image tells it by VERL_P40_PROFILE."""
    given = os.environ.get("VERL_P40_PROFILE")
    if given:
        return given
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(Path(sys.prefix, "verl-p40.json").read_text())["profile"])
    return None


def pci(bus: Path = Path("/sys/bus/pci/devices")) -> tuple[PciCard, ...] | None:
    """NVIDIA's display and 3D controllers; their sound and USB functions do not count."""
    try:
        places = sorted(bus.iterdir())
    except OSError:
        return None
    cards = []
    for place in places:
        with suppress(OSError):
            vendor, kind, device = (
                (place / name).read_text().strip() for name in ("vendor", "class", "device")
            )
            if vendor == NVIDIA and kind.startswith("0x03"):
                served = place / "driver"
                name = served.resolve().name if served.exists() else None
                cards.append(PciCard(place.name, device.removeprefix("0x"), name))
    return tuple(cards)


def driver() -> tuple[Driver, tuple[Card, ...]]:
    """What NVML tells of driver and cards."""
    import pynvml

    states: dict[int, DriverState] = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no library",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "not loaded",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
        pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    }
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(states.get(error.value, "failed"), str(error), kernel_driver_version()), ()
    try:
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        visible = visible_uuids(pynvml)
        cards = [_card(pynvml, index, visible) for index in range(pynvml.nvmlDeviceGetCount())]
        return Driver("answers", version=version), tuple(cards)
    except pynvml.NVMLError as error:
        return Driver("failed", str(error), kernel_driver_version()), ()
    finally:
        pynvml.nvmlShutdown()


def visible_uuids(nvml: Any) -> set[str] | None:
    """UUIDs of the cards that CUDA_VISIBLE_DEVICES leaves; None: all of them."""
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return None
    try:
        return {_text(nvml.nvmlDeviceGetUUID(each)) for each in hardware.visible_handles(nvml)}
    except nvml.NVMLError:
        return None  # a card that is lost cannot be matched; it is told as such


def _card(nvml: Any, index: int, visible: set[str] | None) -> Card:
    uuid = ""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        name = _text(nvml.nvmlDeviceGetName(handle))
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        return Card(index, uuid, error=str(error))
    capability = (int(major), int(minor))
    total, free = int(memory.total), int(memory.free)
    is_visible = visible is None or uuid in visible
    return Card(index, uuid, name, capability, total, free, is_visible, decided(name, capability))


def decided(name: str, capability: tuple[int, int]) -> str | None:
    """``float32, attention sdpa, torch.compile off``; None without verl."""
    try:
        profile = hardware.profile(hardware.Device("cuda", name, capability, 0, 1))
    except (ModuleNotFoundError, FileNotFoundError):
        return None
    compiles = "on" if profile.torch_compile else "off"
    return f"{profile.dtype}, attention {profile.attn_implementation}, torch.compile {compiles}"


def kernel_driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the kernel's module, which a container sees too."""
    with suppress(OSError):
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", proc.read_text())
        if found:
            return found[1]
    return None


def torch(command: Sequence[str] = PROBE, seconds: float = TORCH_SECONDS) -> Torch:
    """What ``command``, by default :mod:`env.doctor.probe`, tells before it ends or is ended."""
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    # Files and no pipes: what a process wrote that then hangs in the driver can still be read.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
        )
        ended = ""
        try:
            code = process.wait(seconds)
            if code < 0:
                ended = f"was killed by {signal.Signals(-code).name}"
            elif code > 0:
                ended = f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"did not answer within {seconds:.0f} s"
        finally:
            process.kill()
            # A process that hangs in the kernel does not even die.
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        for stream in (out, err):
            stream.seek(0)
        return read_probe(out.read(), err.read(), ended)


def read_probe(out: str, err: str, ended: str) -> Torch:
    """The probe's lines; the last may be half a one.

    Args:
        err: its stderr, whose last line says why Python gave up.
        ended: how it failed; empty where it did not.
    """
    found: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                found.update(json.loads(line))
    doing = found.pop("doing", "") or "its start"
    last = [line.strip() for line in err.splitlines() if line.strip()][-1:]
    if ended:
        ended = ": ".join([f"{ended} during {doing}", *last])
    return Torch(
        **{
            **found,
            "arch_flags": tuple(found.get("arch_flags", ())),
            "computed": tuple(map(_computed, found.get("computed", ()))),
            "ended": ended,
        }
    )


def _computed(found: Mapping[str, Any]) -> Computed:
    capability = found.get("capability")
    return Computed(**{**found, "capability": tuple(capability) if capability else None})


def _python_path() -> str:
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(paths.ROOT)]))


def engine(client: str) -> Engine:
    """The engine that ``client`` (``docker``, or a path) reaches."""
    if shutil.which(client) is None:
        return Engine("no client")
    code, version, error = _ask(client, "version", "--format", "{{.Server.Version}}")
    missing = tuple(p for p in ("buildx", "compose") if _ask(client, p, "version")[0] != 0)
    tools = ("nvidia-ctk", "nvidia-container-runtime-hook", "nvidia-container-runtime")
    has_toolkit = any(map(shutil.which, tools))
    if code != 0:
        return Engine(_engine_state(error), error, has_toolkit=has_toolkit, missing_plugins=missing)
    code, runtimes, _ = _ask(client, "info", "--format", "{{json .Runtimes}}")
    listed = _ask(client, "image", "ls", "--format", "{{.Tag}}", "verl-p40")[1]
    return Engine(
        "answers",
        version=version,
        has_nvidia_runtime='"nvidia"' in runtimes if code == 0 else None,
        has_toolkit=has_toolkit,
        missing_plugins=missing,
        images=tuple(sorted(listed.split())),
    )


def _engine_state(error: str) -> EngineState:
    if "permission denied" in error.lower():
        return "no permission"
    if "cannot connect" in error.lower() or "is the docker daemon running" in error.lower():
        return "not running"
    return "failed"


def _ask(*command: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and the last line of stderr; None: no answer."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ENGINE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, "", str(error)
    return done.returncode, done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]


def room(path: Path) -> Room | None:
    """The file system that holds ``path``, or will: its nearest folder that exists."""
    while not path.exists():
        path = path.parent
    try:
        usage = os.statvfs(path)
    except OSError:
        return None
    total, free = usage.f_frsize * usage.f_blocks, usage.f_frsize * usage.f_bavail
    return Room(str(path), total, free, os.access(path, os.W_OK | os.X_OK))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
