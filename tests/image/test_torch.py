"""GPU code by architecture, the one cuDNN that torch loads, apex, and fp32 alone on a P40."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from env import cards
from env.paths import ROOT
from env.pins import pins
from tests.image import fatbin
from tests.image.conftest import Inside
from tests.image.test_contents import locked

CUDNN_8 = "/usr/local/cudnn-8.9.7"
LOADED = """
import json, torch
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split()[-1] for line in maps if "/" in line})
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "flags": torch._C._cuda_getArchFlags().split(),
    "libraries": mapped,
}))
"""


@pytest.fixture(scope="module")
def torch(inside: Inside) -> dict[str, Any]:
    found: dict[str, Any] = inside(LOADED)
    return found


@pytest.fixture(scope="module")
def code(host: Host, site_packages: str) -> dict[str, dict[str, int]]:
    """GPU code of torch's libraries by architecture, from their bytes."""
    names = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
    return read(host, *(f"{site_packages}/torch/lib/{name}" for name in names))


def read(host: Host, *paths: str) -> dict[str, dict[str, int]]:
    words = " ".join(["%s"] * len(paths))
    told = host.check_output(f"python -c %s {words}", Path(fatbin.__file__).read_text(), *paths)
    return {path.rpartition("/")[2]: found for path, found in json.loads(told).items()}


def serving(names: list[str], capability: tuple[int, int]) -> str | None:
    """The machine code that runs on a card: of its major version, and no larger a minor one."""
    major, minor = capability
    numbers = [(int(name[3:-1]), int(name[-1])) for name in names if name.startswith("sm_")]
    fitting = [number for number in numbers if number[0] == major and number[1] <= minor]
    return "sm_{}{}".format(*max(fitting)) if fitting else None


def test_torch_is_the_profiles(torch: dict[str, Any], manifest: dict[str, Any]) -> None:
    profile = pins()["profiles"][manifest["profile"]]
    assert torch["cuda"] == profile["cuda"]
    version, _, build = torch["version"].partition("+")
    assert version == pins()["python"]["torch"]
    assert build == "cu" + profile["cuda"].replace(".", "")


def test_torchs_code_serves_every_known_card(
    torch: dict[str, Any], code: dict[str, dict[str, int]]
) -> None:
    library = code["libtorch_cuda.so"]
    unserved = {}
    for name, card in cards.load().items():
        found = serving(list(library), card.capability)
        # A kernel that no older card can run has code for newer ones alone; the most have all.
        if found is None or library[found] < 0.9 * library["containers"]:
            unserved[name] = found
    assert unserved == {}
    assert serving(list(library), (6, 1)) in ("sm_60", "sm_61")
    assert serving(list(code["libtorch_cuda_linalg.so"]), (6, 1)) in ("sm_60", "sm_61")


def test_what_torch_says_of_its_code_is_what_the_library_holds(
    torch: dict[str, Any], code: dict[str, dict[str, int]]
) -> None:
    assert set(torch["flags"]) == set(code["libtorch_cuda.so"]) - {"containers"}


def test_the_libraries_that_torch_calls_serve_a_p40_too(host: Host, site_packages: str) -> None:
    found = host.check_output(
        "ls %s/nvidia/*/lib/libcublas.so.* %s/nvidia/*/lib/libcudnn_ops.so.* "
        "%s/nvidia/*/lib/libnccl.so.*" % ((site_packages,) * 3)
    ).split()
    assert len(found) == 3
    for name, held in read(host, *found).items():
        assert serving(list(held), (6, 1)) in ("sm_60", "sm_61"), name


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 0), "sm_60"), ((6, 1), "sm_60"), ((7, 0), None), ((7, 5), "sm_75"), ((9, 0), None)],
)
def test_code_of_another_major_version_or_a_larger_minor_one_serves_nothing(
    capability: tuple[int, int], expected: str | None
) -> None:
    assert serving(["containers", "sm_50", "sm_60", "sm_75", "compute_80"], capability) == expected


def elf(section: bytes, name: str = ".nv_fatbin") -> bytes:
    """An ELF file with two sections: this one, and the names."""
    names = b"\0" + name.encode() + b"\0.shstrtab\0"
    start, table = 64, 64 + len(section) + len(names)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, table, 0, 64,
                       0, 0, 64, 2, 1)  # fmt: skip
    first = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, start, len(section), 0, 0, 1, 0)
    second = struct.pack(
        "<IIQQQQIIQQ", 2 + len(name), 3, 0, 0, start + len(section), len(names), 0, 0, 1, 0
    )
    return head + section + names + first + second


def container(*entries: tuple[int, int]) -> bytes:
    """A fat binary of (kind, architecture), each with 24 bytes of code that hold the magic."""
    payload = struct.pack("<I", fatbin.MAGIC) * 6
    held = b""
    for kind, arch in entries:
        header = fatbin.ENTRY.pack(kind, 0x101, 64, len(payload), len(payload), 0, 0, 0, arch)
        held += header.ljust(64, b"\0") + payload
    return fatbin.CONTAINER.pack(fatbin.MAGIC, 1, 16, len(held)) + held


def test_code_is_read_from_made_up_bytes() -> None:
    two = container((2, 60), (2, 75), (1, 90)) + bytes(8) + container((2, 60))
    expected = {"containers": 2, "sm_60": 2, "sm_75": 1, "compute_90": 1}
    assert fatbin.architectures(elf(two)) == expected
    assert fatbin.architectures(elf(two, ".rodata")) == {}


def test_bytes_that_are_no_code_are_refused() -> None:
    with pytest.raises(ValueError, match="no ELF"):
        fatbin.architectures(container((2, 60)))
    with pytest.raises(ValueError, match="no entry"):
        fatbin.architectures(elf(container((2, 60), (3, 60))))
    cut = fatbin.CONTAINER.pack(fatbin.MAGIC, 1, 16, 64) + container((2, 60))[16:]
    with pytest.raises(ValueError, match="no entry"):
        fatbin.architectures(elf(cut))


def cudnns(libraries: list[str]) -> list[str]:
    return [path for path in libraries if "libcudnn" in path.rpartition("/")[2]]


def test_torch_loads_one_cudnn_and_it_is_the_locked_one(
    torch: dict[str, Any], manifest: dict[str, Any], site_packages: str
) -> None:
    text = (ROOT / "env" / "locks" / f"{manifest['profile']}.txt").read_text()
    lock = locked(text, manifest["python"])
    (version,) = (lock[name] for name in lock if name.startswith("nvidia-cudnn-cu"))
    major, minor, patch = map(int, version.split(".")[:3])
    assert torch["cudnn"] == major * 10000 + minor * 100 + patch
    found = cudnns(torch["libraries"])
    assert found
    assert {path.rpartition("/")[0] for path in found} == {f"{site_packages}/nvidia/cudnn/lib"}
    assert cudnns(["/usr/lib/libcudnn.so.9", "/usr/lib/libc.so.6"]) == ["/usr/lib/libcudnn.so.9"]


def test_no_other_cudnn_lies_where_torch_could_find_it(
    host: Host, manifest: dict[str, Any], site_packages: str
) -> None:
    folders = host.check_output("find / -xdev -name 'libcudnn*' -printf '%h\\n' 2>&1 | sort -u")
    expected = {f"{site_packages}/nvidia/cudnn/lib"}
    if manifest["profile"] == "cu118":
        expected.add(f"{CUDNN_8}/lib")
    known = [line for line in folders.splitlines() if "Permission denied" not in line]
    assert set(known) == expected
    searched = host.check_output("printenv LD_LIBRARY_PATH || true").split(":")
    assert not expected & set(searched)
    assert "libcudnn.so.9" not in host.check_output("/sbin/ldconfig -p")


@pytest.mark.cu118
def test_cudnn_8_is_there_for_other_software(host: Host, inside: Inside) -> None:
    header = host.file(f"{CUDNN_8}/include/cudnn_version.h").content_string
    assert cudnn_version(header) == (8, 9, 7)
    assert host.file(f"{CUDNN_8}/LICENSE").is_file
    assert not host.check_output("find %s -name '*.a'", CUDNN_8)
    code = "import ctypes; print(ctypes.CDLL('libcudnn.so.8').cudnnGetVersion())"
    assert inside(code) == 8907


def cudnn_version(header: str) -> tuple[int, ...]:
    names = ("MAJOR", "MINOR", "PATCHLEVEL")
    found = [re.search(rf"^#define CUDNN_{name} (\d+)$", header, re.M) for name in names]
    return tuple(int(match[1]) for match in found if match)


def test_a_header_of_another_cudnn_is_told() -> None:
    header = "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 9\n#define CUDNN_PATCHLEVEL 6\n"
    assert cudnn_version(header) == (8, 9, 6)
    assert cudnn_version("") == ()


@pytest.mark.cu118
def test_apex_has_its_c_half_and_not_its_cuda_half(inside: Inside) -> None:
    code = """
import importlib.util, json
import torch, apex, apex_C
from apex.multi_tensor_apply import multi_tensor_applier
from apex.optimizers import FusedAdam
parts = [torch.arange(3.0), torch.ones(2, 2)]
flat = apex_C.flatten(parts)
back = apex_C.unflatten(flat, parts)
try:
    FusedAdam([torch.nn.Parameter(torch.zeros(1))])
    raised = ""
except RuntimeError as error:
    raised = str(error)
print(json.dumps({
    "flat": flat.tolist(),
    "same": all(torch.equal(a, b) for a, b in zip(parts, back)),
    "amp_C": importlib.util.find_spec("amp_C") is not None,
    "available": bool(multi_tensor_applier.available),
    "raised": raised,
}))
"""
    found = inside(code)
    assert found["flat"] == [0, 1, 2, 1, 1, 1, 1]
    assert found["same"]
    assert not found["amp_C"]
    assert not found["available"]
    assert "cuda extensions" in found["raised"]


RESOLVED = """
import json, sys
from omegaconf import OmegaConf
from env import cards
from env.hardware import Device
from run import auto, config, preset
card, found = cards.load()[sys.argv[1]], {}
memory = (card.memory_ecc_on_mib or card.memory_ecc_off_mib) << 20
device = Device("cuda", card.nvml_names[0], card.capability, memory, 1)
for name in preset.names():
    if config.build(preset.load(name), []).trainer.device != "cpu":
        settings = config.build(preset.load(name), [])
        auto.resolve(settings, device)
        settings.trainer.device = "cuda"
        found[name] = dict(config.flatten(OmegaConf.to_container(settings, resolve=False)))
print(json.dumps(found))
"""
# Keys that must be off: each runs Triton's kernels, or flash-attn's.
OFF = re.compile(r"use_torch_compile|torch_compile|use_liger|use_fused_kernels|use_remove_padding")
SMALL = re.compile(r"bf16|bfloat16|fp16|float16|half|flash|triton|cudnn", re.IGNORECASE)


def not_plain_fp32(settings: dict[str, Any]) -> list[str]:
    """What of a resolved configuration asks for another dtype than fp32, or for such kernels."""
    return [
        f"{key}={value}"
        for key, value in settings.items()
        if (OFF.fullmatch(key.rpartition(".")[2]) and value is True)
        or (isinstance(value, str) and SMALL.search(value))
    ]


def test_every_preset_is_plain_fp32_on_a_p40(inside: Inside) -> None:
    found = inside(RESOLVED, "tesla-p40")
    assert {"p40-grpo", "p40-ppo", "seed-batch1"} <= found.keys()
    for name, settings in found.items():
        assert not_plain_fp32(settings) == [], name
        assert settings["hardware.dtype"] == "float32", name
        assert settings["hardware.attn_implementation"] in ("sdpa", "eager"), name


def test_on_a_newer_card_the_same_presets_are_not_and_that_is_told(inside: Inside) -> None:
    settings = inside(RESOLVED, "a100-80gb")["p40-grpo"]
    assert "hardware.dtype=bfloat16" in not_plain_fp32(settings)
    # its kernels are compiled while training runs, and the image has no compiler
    assert settings["hardware.torch_compile"] is False


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hardware.torch_compile", True),
        ("actor_rollout_ref.model.use_remove_padding", True),
        ("hardware.attn_implementation", "flash_attention_2"),
        ("critic.model.fsdp_config.dtype", "bf16"),
    ],
)
def test_what_is_not_plain_fp32_is_told(key: str, value: object) -> None:
    fine = {"hardware.dtype": "float32", "trainer.balance_batch": True, "hardware.torch_compile": 0}
    assert not_plain_fp32({**fine, key: value}) == [f"{key}={value}"]
