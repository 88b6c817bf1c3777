"""What is known about a machine. None everywhere: it could not be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DriverState = Literal["answers", "no library", "not loaded", "mismatch", "no permission", "failed"]
EngineState = Literal["answers", "no client", "no permission", "not running", "failed"]


@dataclass(frozen=True)
class PciCard:
    """An NVIDIA display or 3D controller on the PCI bus, whether a driver serves it or not.

    Args:
        device_id: as ``1b38`` in ``10de:1b38``.
        kernel_driver: the kernel's driver for it, such as nvidia, nouveau or vfio-pci.
    """

    address: str
    device_id: str
    kernel_driver: str | None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Args:
        state: what NVML, the driver's library, said.
        error: NVML's own words; empty where it answers.
        version: None where neither NVML nor the kernel tells it.
    """

    state: DriverState
    error: str = ""
    version: str | None = None


@dataclass(frozen=True)
class Card:
    """A card as NVML tells it.

    Args:
        is_visible: whether CUDA_VISIBLE_DEVICES leaves it to CUDA.
        decided: what the capability profile computes in and with; None without verl.
        error: NVML's words, where the card does not answer; then only index and uuid count.
    """

    index: int
    uuid: str
    name: str = ""
    capability: tuple[int, int] | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    is_visible: bool = True
    decided: str | None = None
    error: str = ""


@dataclass(frozen=True)
class Computed:
    """fp32 on one device against the same in fp64; largest difference over largest value.

    Args:
        device: ``cuda:0`` or ``cpu``.
        capability: None on a CPU.
        matmul: of a 256 x 256 product.
        sdpa: of causal attention, its output and gradients.
        is_efficient: whether the memory-efficient attention kernel did it; None on a CPU.
        error: why nothing, or not all, was computed.
    """

    device: str
    name: str
    capability: tuple[int, int] | None = None
    matmul: float | None = None
    sdpa: float | None = None
    is_efficient: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class Torch:
    """What a process that imported torch told.

    Args:
        cuda: the CUDA version torch was built for; None: for the CPU alone, or never told.
        arch_flags: ``sm_60``, ``compute_90``...: the code that the build holds.
        cuda_error: why CUDA cannot be initialised.
        verl: verl's version, as imported.
        ended: how the process failed, and while doing what; empty where it came to its end.
    """

    version: str | None = None
    cuda: str | None = None
    arch_flags: tuple[str, ...] = ()
    cuda_error: str = ""
    computed: tuple[Computed, ...] = ()
    verl: str | None = None
    verl_error: str = ""
    ended: str = ""


@dataclass(frozen=True)
class Engine:
    """The Docker engine.

    Args:
        error: the client's own words; empty where an engine answers.
        has_nvidia_runtime: whether NVIDIA's runtime is registered with the engine.
        has_toolkit: whether NVIDIA's container toolkit is on this machine's PATH.
        missing_plugins: of buildx and compose.
        images: tags of ``verl-p40`` that are here.
    """

    state: EngineState
    error: str = ""
    version: str | None = None
    has_nvidia_runtime: bool | None = None
    has_toolkit: bool = False
    missing_plugins: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Room:
    """A file system, at ``path``."""

    path: str
    total_bytes: int
    free_bytes: int
    is_writable: bool = True


@dataclass(frozen=True)
class Facts:
    """Everything that the checks look at.

    Args:
        python: ``3.11``.
        is_container: any; is_image: this project's own.
        installed_profile: of the environment or image this runs in.
        cuda_visible_devices: the variable; None: not set.
        pci: None: the bus cannot be read.
        cards: all that NVML shows, in its order.
        memory_bytes: of the host, available now.
    """

    python: str
    is_container: bool
    is_image: bool
    installed_profile: str | None
    cuda_visible_devices: str | None
    pci: tuple[PciCard, ...] | None
    driver: Driver
    cards: tuple[Card, ...]
    torch: Torch
    engine: Engine
    shm: Room | None
    disk: Room | None
    memory_bytes: int
