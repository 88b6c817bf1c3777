"""verl-patches/0004: what each card computes in, without owning one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from omegaconf import OmegaConf

from env import cards, hardware
from env.errors import Refused
from env.hardware import CPU, Device, profile_module
from run import auto, config, preset

CARDS = cards.load()
INSTALLED = {"has_flash_attn": True, "has_triton": True}


def device_of(card: Any) -> Device:
    return Device("cuda", card.name, card.capability, card.memory_ecc_off_mib * 2**20, 1)


def detect(device: str, capability: tuple[int, int] | None, **facts: Any) -> Any:
    return profile_module().detect(device, capability, **{**INSTALLED, **facts})


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_every_card_computes_in_what_it_has_units_for(card: Any) -> None:
    profile = detect("cuda", card.capability)
    ampere = card.capability >= (8, 0)
    assert profile.dtype == ("bfloat16" if ampere else "float32")
    assert profile.attn_implementation == ("flash_attention_2" if ampere else "sdpa")
    assert profile.torch_compile == (card.capability >= (7, 0))
    assert profile.remove_padding == ampere
    assert (profile.dtype == "bfloat16") == card.bf16


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_no_card_needs_flash_attn_or_triton(card: Any) -> None:
    profile = detect("cuda", card.capability, has_flash_attn=False, has_triton=False)
    assert profile.attn_implementation == "sdpa"
    assert not profile.torch_compile
    assert not profile.remove_padding


def test_a_cpu_computes_in_fp32_without_compile() -> None:
    profile = detect("cpu", None)
    assert (profile.dtype, profile.attn_implementation) == ("float32", "sdpa")
    assert not profile.torch_compile


@pytest.mark.parametrize(
    ("capability", "override", "reason"),
    [
        ((6, 1), {"dtype": "bfloat16"}, "hardware.dtype=bfloat16 needs capability 8.0"),
        ((7, 5), {"dtype": "bfloat16"}, "hardware.dtype=bfloat16 needs capability 8.0"),
        ((6, 1), {"torch_compile": True}, "hardware.torch_compile=True needs"),
        ((7, 0), {"attn_implementation": "flash_attention_2"}, "needs capability 8.0"),
        ((6, 1), {"dtype": "fp8"}, "none of float32, float16, bfloat16"),
    ],
)
def test_an_override_that_the_card_cannot_serve_is_refused(
    capability: tuple[int, int], override: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        detect("cuda", capability, **override)


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(ValueError, match=r"bfloat16.*flash_attention_2.*torch_compile"):
        detect(
            "cuda",
            (6, 1),
            dtype="bfloat16",
            attn_implementation="flash_attention_2",
            torch_compile=True,
        )


def test_fp16_is_for_those_who_ask_for_it() -> None:
    assert detect("cuda", (7, 0), dtype="float16").dtype == "float16"
    assert detect("cuda", (8, 0), dtype="float32").dtype == "float32"


def test_a_worker_that_was_promised_a_gpu_and_sees_none_fails() -> None:
    from verl.utils.hardware import set_hardware_profile

    with pytest.raises(RuntimeError, match=r"trainer\.device=cuda, but this worker sees only cpu"):
        set_hardware_profile({"device": "cuda"})


def test_padding_removal_without_flash_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="Set use_remove_padding=False"):
        detect("cuda", (6, 1)).require_remove_padding(True)


def test_the_launcher_reads_the_profile_without_importing_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from env import hardware; hardware.profile(hardware.CPU);"
    code += "assert not {'torch', 'verl', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", preset.names())
@pytest.mark.parametrize("card", [name for name in CARDS if CARDS[name].capability < (7, 0)])
def test_a_resolved_configuration_for_pascal_is_fp32_and_nothing_else(name: str, card: str) -> None:
    built = config.build(preset.load(name), ["trainer.device=cuda"])
    auto.resolve(built, device_of(CARDS[card]))
    text = OmegaConf.to_yaml(built, resolve=True)
    # names of verl's keys may say it, no value may: torch_compile: false
    values = "\n".join(line.split(": ", 1)[-1] for line in text.splitlines())
    assert not re.search(r"bf16|bfloat|fp16|float16|half|flash|triton|compile|liger", values, re.I)
    assert "float32" in values
    keys = OmegaConf.to_container(built, resolve=True)
    switches = {
        key: value
        for key, value in config.flatten(keys)  # type: ignore[arg-type]
        if re.search(r"compile|remove_padding|liger|fused_kernels$", key)
    }
    assert len(switches) >= 6
    assert not any(switches.values()), switches


def test_compile_asked_for_on_pascal_is_refused_before_anything_starts() -> None:
    overrides = ["trainer.device=cuda", "actor_rollout_ref.actor.use_torch_compile=true"]
    built = config.build(preset.load("p40-grpo"), overrides)
    with pytest.raises(Refused, match=r"use_torch_compile=true: needs capability 7\.0"):
        auto.resolve(built, device_of(CARDS["tesla-p40"]))


def test_a_gpu_preset_on_a_machine_without_a_card_says_what_to_do() -> None:
    built = config.build(preset.load("p40-grpo"), ["trainer.device=cuda"])
    with pytest.raises(Refused, match="make demo"):
        auto.resolve(built, CPU)


def test_this_machine_is_what_the_driver_says() -> None:
    import torch

    found = hardware.detect_device()
    assert found.device == ("cuda" if torch.cuda.is_available() else "cpu")
