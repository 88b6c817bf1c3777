"""Which card training would run on, by NVML and CUDA_VISIBLE_DEVICES; NVML is played."""

from __future__ import annotations

import pynvml
import pytest

from env.hardware import CPU, detect_device

# A newer card beside an old one: (uuid, name, capability).
CARDS = [
    ("GPU-aaaa1111", "NVIDIA GeForce RTX 3090", (8, 6)),
    ("GPU-bbbb2222", "Tesla P40", (6, 1)),
]


class Memory:
    total = 24 * 2**30


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(CARDS),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: CARDS[handle][0],
        "nvmlDeviceGetName": lambda handle: CARDS[handle][1],
        "nvmlDeviceGetCudaComputeCapability": lambda handle: CARDS[handle][2],
        "nvmlDeviceGetMemoryInfo": lambda handle: Memory,
        "nvmlDeviceGetHandleByUUID": lambda uuid: (uuid, 1),
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda slice_: slice_[1],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "name", "count"),
    [
        (None, "NVIDIA GeForce RTX 3090", 2),
        ("0,1", "NVIDIA GeForce RTX 3090", 2),
        ("1", "Tesla P40", 1),
        (" 1 , 0 ", "Tesla P40", 2),
        ("GPU-bbbb", "Tesla P40", 1),
        ("MIG-c", "Tesla P40", 1),
        ("1,7,0", "Tesla P40", 1),
        ("", "cpu", 1),
        ("-1", "cpu", 1),
        ("GPU-", "cpu", 1),
    ],
)
def test_the_card_is_the_first_that_cuda_shows(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str, count: int
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = detect_device()
    assert (found.name, found.count) == (name, count)
    assert found == CPU or found.capability == {card[1]: card[2] for card in CARDS}[name]


def test_a_driver_that_fails_means_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", fail)
    assert detect_device() == CPU
