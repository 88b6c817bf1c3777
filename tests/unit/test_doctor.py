"""The doctor on machines that nobody here owns, and its looks at what is really there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from env import paths
from env.doctor import gather
from env.doctor.__main__ import as_json, exit_code, report
from env.doctor.checks import examine
from env.doctor.checks_room import DEMO_BYTES, PPO_BYTES
from env.doctor.checks_torch import serving
from env.doctor.facts import Card, Computed, Driver, Engine, Facts, PciCard, Room, Torch
from env.doctor.finding import GIB, Finding, recommended
from run import config, preset

MIB = 2**20
CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
DECIDED = "float32, attention sdpa, torch.compile off"

P40 = Card(0, "GPU-a", "Tesla P40", (6, 1), 22919 * MIB, 22800 * MIB, True, DECIDED)
ON_BUS = PciCard("0000:03:00.0", "1b38", "nvidia")
H200 = Card(1, "GPU-b", "NVIDIA H200", (9, 0), 143771 * MIB, 143000 * MIB)
ON_P40 = Computed("cuda:0", "Tesla P40", (6, 1), 4e-7, 9e-7, True)
ON_CPU = Computed("cpu", "cpu", None, 6e-7, 1e-6)
TORCH = Torch("2.6.0+cu124", "12.4", CU124, computed=(ON_P40,), verl="0.5.0")
NO_DRIVER = "Found no NVIDIA driver on your system."

# A host with one P40 on which all is well.
GOOD = Facts(
    python="3.11",
    is_container=False,
    is_image=False,
    installed_profile="cu124",
    cuda_visible_devices=None,
    pci=(ON_BUS,),
    driver=Driver("answers", version="580.95.05"),
    cards=(P40,),
    torch=TORCH,
    engine=Engine("answers", version="26.1.5", has_nvidia_runtime=True, has_toolkit=True),
    shm=Room("/dev/shm", 64 * GIB, 64 * GIB),
    disk=Room("/srv/verl-p40", 500 * GIB, 100 * GIB),
    memory_bytes=120 * GIB,
)
NO_CARD = replace(
    GOOD,
    pci=(),
    driver=Driver("no library", "NVML Shared Library Not Found"),
    cards=(),
    torch=replace(TORCH, cuda_error=NO_DRIVER, computed=(ON_CPU,)),
)


def on_driver(version: str, facts: Facts = GOOD) -> Facts:
    return replace(facts, driver=Driver("answers", version=version))


def findings(facts: Facts, profile: str = "cu124") -> dict[str, list[Finding]]:
    """By check, those that are more than ok."""
    found: dict[str, list[Finding]] = {}
    for finding in examine(facts, profile):
        if finding.level != "ok":
            found.setdefault(finding.check, []).append(finding)
    return found


def only(facts: Facts, check: str, profile: str = "cu124") -> Finding:
    """The one thing that is wrong, and it belongs to ``check``."""
    found = findings(facts, profile)
    assert list(found) == [check]
    (finding,) = found[check]
    return finding


def test_nothing_is_wrong_with_a_good_p40() -> None:
    assert findings(GOOD) == {}
    checks = [finding.check for finding in examine(GOOD, "cu124")]
    assert checks == (
        [
            "engine",
            "toolkit",
            "driver",
            "profile",
            "capability",
            "torch",
            "arch",
            "compute",
            "vram",
            "shm",
            "disk",
            "gold",
        ]
    )
    told = {finding.check: finding.what for finding in examine(GOOD, "cu124")}
    assert told["capability"] == f"Tesla P40, capability 6.1: {DECIDED}"
    assert told["arch"] == "torch's sm_60 code serves Tesla P40 (6.1)"
    assert told["vram"].endswith("of 22.4 GiB, ECC on")
    assert told["gold"] == "torch.cuda is available: Tesla P40 (6, 1); verl 0.5.0 imports"


def test_a_machine_without_a_card_is_fine_and_told_what_works_there() -> None:
    assert findings(NO_CARD) == {}
    assert exit_code(examine(NO_CARD, "cu124")) == 0
    told = {finding.check: finding.what for finding in examine(NO_CARD, "cu124")}
    assert not {"arch", "vram", "toolkit"} & set(told)
    assert "fp32 on cpu" in told["compute"]
    trains, refuses = told["capability"].split(";")
    for name in preset.names():
        device = config.build(preset.load(name), []).trainer.device
        stands_in = refuses if device == "cuda" else trains
        family = name.partition("-")[0]
        assert name in stands_in or f"{family}-*" in stands_in, name


def test_a_bus_that_cannot_be_read_is_said() -> None:
    (driver,) = (f for f in examine(replace(NO_CARD, pci=None), "cu124") if f.check == "driver")
    assert driver.level == "ok"
    assert "would not be noticed" in driver.why


@pytest.mark.parametrize(
    ("version", "best", "is_served"),
    [
        ("440.33.01", "cu118", {"cu118": False, "cu124": False}),
        ("450.80.02", "cu118", {"cu118": True, "cu124": False}),
        ("520.61.05", "cu118", {"cu118": True, "cu124": False}),
        ("525.60.12", "cu118", {"cu118": True, "cu124": False}),
        ("525.60.13", "cu124", {"cu118": True, "cu124": True}),
        ("580.95.05", "cu124", {"cu118": True, "cu124": True}),
    ],
)
def test_the_driver_decides_which_profile(
    version: str, best: str, is_served: Mapping[str, bool]
) -> None:
    facts = on_driver(version)
    assert recommended(facts) == best
    for profile, serves in is_served.items():
        assert ("driver" not in findings(facts, profile)) == serves, profile


def test_an_old_driver_is_cured_by_the_other_profile_or_by_a_driver_that_still_serves_pascal() -> (
    None
):
    driver = only(on_driver("470.256.02"), "driver")
    assert driver.level == "problem"
    assert driver.why == "it needs 525.60.13 or newer"
    assert driver.cure == (
        "make env PROFILE=cu118 PYTHON=python3.10, or a driver of branch 525 or newer, R580 at most"
    )
    in_image = replace(on_driver("470.256.02"), is_container=True, is_image=True)
    assert only(in_image, "driver").cure.startswith("on the host: make build PROFILE=cu118")
    assert "PROFILE" not in only(on_driver("440.33.01"), "driver").cure


def test_a_card_may_ask_for_a_newer_driver_than_its_profile() -> None:
    torch = replace(TORCH, computed=(replace(ON_P40, name="NVIDIA H200", capability=(9, 0)),))
    facts = replace(on_driver("470.256.02"), cards=(H200,), torch=torch)
    assert only(facts, "driver", "cu118").why == "it needs 525.60.13 or newer"


def test_a_driver_that_ignores_pascal_is_told_from_the_bus() -> None:
    torch = replace(TORCH, cuda_error="No CUDA GPUs are available", computed=(ON_CPU,))
    alone = replace(on_driver("590.48.01"), cards=(), torch=torch)
    driver = only(alone, "driver")
    assert (driver.level, driver.cure) == ("problem", "install a driver of branch 580")
    assert driver.what == "590.48.01 shows 0 of 1 NVIDIA card (10de:1b38)"
    assert driver.why == "drivers after R580 ignore Pascal, Volta"

    beside = PciCard("0000:04:00.0", "2335", "nvidia")
    on_h200 = replace(TORCH, computed=(replace(ON_P40, name="NVIDIA H200", capability=(9, 0)),))
    both = replace(alone, pci=(ON_BUS, beside), cards=(H200,), torch=on_h200)
    assert only(both, "driver").level == "warning"


def test_a_card_that_a_newer_driver_still_lists_is_no_longer_served_either() -> None:
    driver = only(on_driver("590.48.01"), "driver")
    assert (driver.level, driver.cure) == ("problem", "install a driver of branch 580")


@pytest.mark.parametrize(
    ("kernel_driver", "driver", "is_container", "what", "cure"),
    [
        (None, Driver("no library", "Not Found"), False, "no NVIDIA driver", "R580 at most"),
        ("nouveau", Driver("no library", "Not Found"), False, "nouveau", "restart"),
        (None, Driver("not loaded", "Not Loaded"), False, "not loaded", "modprobe nvidia"),
        ("nvidia", Driver("mismatch", "mismatch", "580.1"), False, "two versions", "restart"),
        ("nvidia", Driver("no permission", "denied"), False, "may not reach", "/dev/nvidia"),
        ("nvidia", Driver("no library", "", "580.1"), False, "no libnvidia-ml", "libnvidia"),
        ("nvidia", Driver("no library", "", "580.1"), True, "not given the card", "--gpus all"),
        ("nvidia", Driver("failed", "Unknown Error", "580.1"), False, "not answer", "dmesg"),
    ],
)
def test_a_card_whose_driver_is_silent_stops_training_on_it(
    kernel_driver: str | None, driver: Driver, is_container: bool, what: str, cure: str
) -> None:
    pci = (PciCard("0000:03:00.0", "1b38", kernel_driver),)
    facts = replace(NO_CARD, pci=pci, driver=driver, is_container=is_container)
    finding = only(facts, "driver")
    assert finding.level == "problem"
    assert what in finding.what
    assert cure in finding.cure
    # who means the CPU can say so
    for value in ("", "-1"):
        hidden = replace(facts, cuda_visible_devices=value)
        assert exit_code(examine(hidden, "cu124")) == 0


def test_a_card_that_is_kept_for_a_virtual_machine_is_not_missed() -> None:
    assert findings(replace(NO_CARD, pci=(PciCard("0000:03:00.0", "1b38", "vfio-pci"),))) == {}


@pytest.mark.parametrize("value", ["", "-1", "7"])
def test_hidden_cards_are_a_warning_and_nothing_is_asked_of_them(value: str) -> None:
    facts = replace(
        on_driver("470.256.02", NO_CARD),
        pci=GOOD.pci,
        cards=(replace(P40, is_visible=False, free_bytes=0),),
        cuda_visible_devices=value,
        engine=replace(GOOD.engine, has_nvidia_runtime=False, images=("cu124",)),
    )
    found = findings(facts)
    assert {f.level for each in found.values() for f in each} == {"warning"}
    assert found["capability"][0].what == f"CUDA_VISIBLE_DEVICES={value!r} hides every card"
    assert set(found) == {"driver", "capability"}


@pytest.mark.parametrize(
    ("flags", "capability", "code"),
    [
        (CU124, (6, 1), "sm_60"),
        (("sm_60", "sm_61"), (6, 1), "sm_61"),
        (("sm_61",), (6, 0), None),
        (CU124, (8, 9), "sm_86"),
        (CU124, (9, 0), "sm_90"),
        (CU124, (12, 0), None),
        (CU128, (6, 1), None),
        (CU128, (7, 0), None),
        (CU128, (12, 1), "sm_120"),
        (("sm_90a",), (9, 0), "sm_90a"),
        (("sm_100a",), (10, 3), None),
        (("sm_100f",), (10, 3), "sm_100f"),
        (("sm_50", "compute_50"), (6, 1), "compute_50"),
        (("compute_50", "sm_60"), (6, 1), "sm_60"),
        (("compute_70",), (6, 1), None),
        (("gfx90a", ""), (9, 0), None),
    ],
)
def test_code_is_compared_by_major_and_minor(
    flags: tuple[str, ...], capability: tuple[int, int], code: str | None
) -> None:
    assert serving(flags, capability) == code


def test_torch_built_for_cuda_12_8_has_nothing_for_pascal() -> None:
    failed = replace(
        ON_P40, matmul=None, sdpa=None, is_efficient=None, error="no kernel image is available"
    )
    torch = replace(TORCH, version="2.9.0+cu128", cuda="12.8", arch_flags=CU128, computed=(failed,))
    found = findings(replace(GOOD, torch=torch))
    assert set(found) == {"torch", "arch", "compute"}
    assert found["arch"][0].what == "torch 2.9.0+cu128 holds no code for Tesla P40 (6.1)"
    assert found["arch"][0].cure == "make env PROFILE=cu124"
    assert "no kernel image" in found["compute"][0].what


def test_a_card_too_new_for_the_pinned_torch_is_not_told_to_install_it_again() -> None:
    new = Card(0, "GPU-c", "NVIDIA B200", (10, 0), 180 * GIB, 180 * GIB)
    (arch,) = findings(replace(GOOD, cards=(new,)))["arch"]
    assert "use another card, or the CPU" in arch.cure


def test_torch_for_the_cpu_alone_is_a_problem_where_a_card_is() -> None:
    torch = Torch("2.6.0+cpu", computed=(ON_CPU,), verl="0.5.0")
    found = findings(replace(GOOD, torch=torch))
    assert {check: each[0].level for check, each in found.items()} == {
        "torch": "problem",
        "gold": "problem",
    }
    assert findings(replace(NO_CARD, torch=torch)) == {}


def test_cuda_that_cannot_be_initialised_is_told_in_its_own_words() -> None:
    torch = replace(TORCH, cuda_error="CUDA unknown error", computed=(ON_CPU,))
    found = findings(replace(GOOD, torch=torch))
    assert set(found) == {"compute", "gold"}
    assert found["compute"][0].why == "CUDA unknown error"


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"matmul": 1e-3}, "problem"),
        ({"sdpa": 1e30}, "problem"),
        ({"sdpa": None, "error": "CUDA error: out of memory"}, "problem"),
        ({"is_efficient": False}, "warning"),
    ],
)
def test_fp32_has_to_be_fp32(changes: dict[str, Any], level: str) -> None:
    torch = replace(TORCH, computed=(replace(ON_P40, **changes),))
    assert only(replace(GOOD, torch=torch), "compute").level == level


def test_a_torch_that_crashes_keeps_what_it_told_before() -> None:
    torch = replace(TORCH, computed=(), verl=None, ended="was killed by SIGSEGV during CUDA")
    finding = only(replace(GOOD, torch=torch), "torch")
    assert finding.level == "problem"
    assert "SIGSEGV" in finding.what


def test_no_torch_and_no_verl_are_problems() -> None:
    without = replace(GOOD, torch=Torch(ended="ended with exit code 1 during import torch"))
    assert only(without, "torch").cure == "make env PROFILE=cu124"
    broken = replace(TORCH, verl=None, verl_error="No module named 'verl'")
    assert only(replace(GOOD, torch=broken), "gold").why == "No module named 'verl'"


def test_a_card_that_is_not_known_is_said_and_used() -> None:
    p4 = replace(P40, name="Tesla P4", total_bytes=7611 * MIB, free_bytes=7600 * MIB)
    told = {finding.check: finding for finding in examine(replace(GOOD, cards=(p4,)), "cu124")}
    assert told["capability"].level == "ok"
    assert told["capability"].why.endswith("its speed is not known here")
    assert told["vram"].level == "warning"
    assert "made for 24 GB" in told["vram"].why
    m40 = replace(P40, name="Tesla M40 24GB", capability=(5, 2))
    told = {finding.check: finding for finding in examine(replace(GOOD, cards=(m40,)), "cu124")}
    assert "last driver branch are not known" in told["capability"].why


def test_a_card_that_others_fill_is_a_warning() -> None:
    vram = only(replace(GOOD, cards=(replace(P40, free_bytes=5 * GIB),)), "vram")
    assert vram.level == "warning"
    assert "17.4 GiB are taken" in vram.why


def test_a_card_that_is_lost_is_a_problem_when_it_is_the_only_one() -> None:
    lost = Card(0, "", error="GPU is lost")
    alone = replace(GOOD, cards=(lost,), torch=replace(TORCH, computed=(ON_CPU,)))
    assert only(alone, "capability").level == "problem"
    beside = replace(GOOD, cards=(P40, replace(lost, index=1)), pci=(ON_BUS, ON_BUS))
    assert only(beside, "capability").level == "warning"


def test_dockers_small_shared_memory_is_a_warning_with_the_size_to_ask_for() -> None:
    small = Room("/dev/shm", 64 * MIB, 64 * MIB)
    shm = only(replace(GOOD, shm=small, is_container=True), "shm")
    assert (shm.level, shm.what) == ("warning", "/dev/shm: 64 MiB free of 64 MiB")
    assert "--shm-size=11g" in shm.cure
    assert "remount" in only(replace(GOOD, shm=small), "shm").cure
    # Ray wants less where there is less memory
    little = replace(GOOD, shm=Room("/dev/shm", 8 * GIB, 8 * GIB), memory_bytes=16 * GIB)
    assert findings(little) == {}
    assert only(replace(GOOD, shm=None), "shm").level == "warning"


def test_little_disk_is_a_warning_and_none_a_problem() -> None:
    def disk(free: int, is_writable: bool = True) -> Facts:
        return replace(GOOD, disk=Room("/out", 500 * GIB, free, is_writable))

    assert findings(disk(PPO_BYTES)) == {}
    little = only(disk(PPO_BYTES - 1), "disk")
    assert little.level == "warning"
    assert little.why == "with checkpoints p40-grpo takes 17.5 GiB, p40-ppo 34.0 GiB"
    assert only(disk(DEMO_BYTES - 1), "disk").level == "problem"
    assert only(disk(PPO_BYTES, is_writable=False), "disk").what == "/out cannot be written"
    assert only(replace(GOOD, disk=None), "disk").level == "warning"


@pytest.mark.parametrize(
    ("engine", "cure"),
    [
        (Engine("no client"), "install Docker Engine"),
        (Engine("not running", "Cannot connect"), "systemctl start docker"),
        (Engine("no permission", "permission denied"), "usermod -aG docker"),
        (Engine("failed", "timed out"), "docker version"),
        (replace(GOOD.engine, missing_plugins=("buildx",)), "docker-buildx-plugin"),
    ],
)
def test_without_an_engine_training_takes_the_environment(engine: Engine, cure: str) -> None:
    finding = only(replace(GOOD, engine=engine), "engine")
    assert finding.level == "warning"
    assert cure in finding.cure


def test_a_container_needs_no_engine() -> None:
    assert findings(replace(GOOD, engine=Engine("no client"), is_container=True)) == {}


def test_an_engine_that_cannot_give_the_card_stops_training_once_the_image_is_there() -> None:
    bare = replace(GOOD.engine, has_nvidia_runtime=False, has_toolkit=False)
    toolkit = only(replace(GOOD, engine=bare), "toolkit")
    assert toolkit.level == "warning"
    assert 'could not select device driver "nvidia"' in toolkit.why
    assert toolkit.cure.startswith("install nvidia-container-toolkit, then sudo nvidia-ctk")
    unregistered = replace(bare, has_toolkit=True, images=("cu124",))
    toolkit = only(replace(GOOD, engine=unregistered), "toolkit")
    assert toolkit.level == "problem"
    assert toolkit.cure.startswith("sudo nvidia-ctk runtime configure")
    assert toolkit.cure.endswith("make train WHERE=host")
    silent = replace(bare, has_nvidia_runtime=None)
    assert only(replace(GOOD, engine=silent), "toolkit").level == "warning"
    assert findings(replace(NO_CARD, engine=bare)) == {}


def test_every_problem_and_warning_that_can_be_cured_says_how() -> None:
    bad = replace(
        on_driver("440.33.01"),
        engine=Engine("not running", "Cannot connect"),
        shm=Room("/dev/shm", 64 * MIB, 64 * MIB),
        disk=Room("/out", GIB, GIB // 2),
        torch=replace(TORCH, cuda_error="driver too old", computed=(ON_CPU,)),
    )
    found = examine(bad, "cu124")
    assert exit_code(found) == 1
    assert all(finding.cure for finding in found if finding.level != "ok")


def test_the_report_has_a_line_a_check_and_its_cure_below() -> None:
    facts = replace(GOOD, engine=Engine("no permission", "permission denied"))
    found = examine(facts, "cu124")
    lines = report(found, "cu124").splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0] == "warning  engine     this user may not reach the Docker engine"
    assert lines[1].startswith(" " * 20 + "permission denied (make train takes .venv;")
    assert lines[2].startswith(" " * 20 + "-> sudo usermod")
    assert lines[-1] == "0 problems, 1 warning; recommended profile: cu124"


def test_the_json_holds_findings_and_facts_by_its_schema() -> None:
    told = json.loads(as_json(GOOD, examine(GOOD, "cu124"), "cu124"))
    assert set(told) == {"schema", "exit_code", "profile", "findings", "facts"}
    assert (told["schema"], told["exit_code"]) == (1, 0)
    assert told["profile"] == {"installed": "cu124", "checked": "cu124", "recommended": "cu124"}
    assert set(told["findings"][0]) == {"check", "level", "what", "why", "cure"}
    assert told["facts"]["cards"][0]["capability"] == [6, 1]


# ------------------------------------------------------------------ the looks at a machine


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "env.doctor", *arguments],
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), **variables},
        capture_output=True,
        text=True,
    )


def test_this_machine_computes_in_fp32_and_imports_verl(tmp_path: Path) -> None:
    out = tmp_path / "not" / "yet"
    done = doctor("--json", VERL_P40_OUT=str(out), DOCKER=str(tmp_path / "nowhere"))
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"], done.stderr
    assert told["facts"]["disk"]["path"] == str(tmp_path)
    assert not out.exists()
    levels: dict[str, set[str]] = {}
    for finding in told["findings"]:
        levels.setdefault(finding["check"], set()).add(finding["level"])
    assert levels["compute"] == levels["gold"] == {"ok"}
    assert told["facts"]["torch"]["ended"] == ""


def test_a_wrong_command_line_is_exit_code_2() -> None:
    done = doctor("--profile", "cu999")
    assert done.returncode == 2
    assert "cu118" in done.stderr
    told = " ".join(doctor("--help").stdout.split())
    assert "0 nothing stops it (there may be warnings), 1 a problem does, 2 wrong" in told


def probe(program: str, seconds: float = 60) -> Torch:
    return gather.torch((sys.executable, "-c", program), seconds)


def test_a_torch_that_aborts_is_told_with_what_it_was_doing() -> None:
    lines = ['{"doing": "import torch"}', '{"version": "2.6.0"}', '{"doing": "fp32"}']
    torch = probe(f"import os; print(*{lines!r}, sep='\\n', flush=True); os.abort()")
    assert torch == Torch(version="2.6.0", ended="was killed by SIGABRT during fp32")


def test_a_torch_that_cannot_be_imported_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gather.torch().ended == (
        "ended with exit code 1 during import torch: ImportError: libcudart.so.12: cannot open"
    )


def test_a_torch_that_hangs_is_ended() -> None:
    torch = probe("import signal; signal.pause()", seconds=0.2)
    assert torch == Torch(ended="did not answer within 0 s during its start")


def test_half_a_line_and_other_output_do_no_harm() -> None:
    told = 'a warning\n3\n{"doing": "fp32"}\n{"arch_flags": ["sm_60"]}\n{"computed": [{"dev'
    assert gather.read_probe(told, "", "") == Torch(arch_flags=("sm_60",))


def test_a_signal_without_words_is_named() -> None:
    program = f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})"
    assert probe(program).ended == "was killed by SIGSEGV during its start"


DOCKER = """#!/bin/bash
case "$1 $2" in
  "version "*) [ -z "$ERROR" ] || { echo "$ERROR" >&2; exit 1; }; echo 26.1.5 ;;
  "buildx version") exit 1 ;;
  "compose version") ;;
  "info "*) echo '{"io.containerd.runc.v2":{},"nvidia":{}}' ;;
  "image ls") printf 'cu124\\ncu118\\n' ;;
esac
"""


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("permission denied while trying to connect to the Docker daemon socket", "no permission"),
        ("Cannot connect to the Docker daemon. Is the docker daemon running?", "not running"),
        ("error during connect: EOF", "failed"),
    ],
)
def test_why_an_engine_is_silent_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, state: str
) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("ERROR", error)
    found = gather.engine(str(tmp_path / "docker"))
    assert (found.state, found.error) == (state, error)


def test_an_engine_tells_runtimes_plugins_and_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("ERROR", "")
    found = gather.engine(str(tmp_path / "docker"))
    assert (found.state, found.version, found.has_nvidia_runtime) == ("answers", "26.1.5", True)
    assert (found.missing_plugins, found.images) == (("buildx",), ("cu118", "cu124"))
    assert gather.engine(str(tmp_path / "nowhere")).state == "no client"


def test_the_bus_shows_nvidia_cards_and_who_serves_them(tmp_path: Path) -> None:
    drivers = tmp_path / "drivers" / "nouveau"
    drivers.mkdir(parents=True)
    functions = {
        "0000:01:00.0": ("0x10de", "0x030200", "0x1b38"),
        "0000:01:00.1": ("0x10de", "0x040300", "0x10ef"),
        "0000:02:00.0": ("0x8086", "0x030000", "0x3e9b"),
        "0000:03:00.0": ("0x10de", "0x030000", "0x1b06"),
    }
    bus = tmp_path / "devices"
    for address, values in functions.items():
        (bus / address).mkdir(parents=True)
        for name, value in zip(("vendor", "class", "device"), values, strict=True):
            (bus / address / name).write_text(value + "\n")
    (bus / "0000:03:00.0" / "driver").symlink_to(drivers)
    assert gather.pci(bus) == (
        PciCard("0000:01:00.0", "1b38", None),
        PciCard("0000:03:00.0", "1b06", "nouveau"),
    )
    assert gather.pci(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 2024\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  470.256.02  Release Build\n",
    ],
)
def test_the_kernel_tells_its_driver_s_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "version").write_text(text + "GCC version:  gcc version 12.2.0\n")
    assert gather.kernel_driver_version(tmp_path / "version") == "470.256.02"
    assert gather.kernel_driver_version(tmp_path / "nowhere") is None


class Memory:
    total, free = 22919 * MIB, 22800 * MIB


def two_p40s(
    monkeypatch: pytest.MonkeyPatch,
    memory: object,
    handle: Callable[[int], int] = lambda index: index,
) -> None:
    """An NVML with two cards, whose handles are given by ``handle``."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.95.05",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: "Tesla P40",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (6, 1),
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


@pytest.mark.parametrize(
    ("visible", "shown"), [(None, [True, True]), ("1", [False, True]), ("", [False, False])]
)
def test_cards_are_told_with_which_of_them_cuda_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, shown: list[bool]
) -> None:
    two_p40s(monkeypatch, Memory)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver, cards = gather.driver()
    assert driver == Driver("answers", version="580.95.05")
    assert [card.is_visible for card in cards] == shown
    assert replace(cards[0], is_visible=True) == replace(P40, uuid="GPU-0")


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_UNKNOWN, "failed"),
    ],
)
def test_why_nvml_is_silent_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, code: int, state: str
) -> None:
    def init() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    driver, cards = gather.driver()
    assert driver.state == state
    assert driver.error
    assert cards == ()


def test_a_lost_card_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    two_p40s(monkeypatch, Memory, handle)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    _, (first, second) = gather.driver()
    assert first.name == "Tesla P40"
    assert first.is_visible
    assert second.error == "GPU is lost"
