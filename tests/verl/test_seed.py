"""verl-patches/0015: one seed decides what is drawn, and no other one draws the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from run import config, preset


def value_head(worker: Any) -> torch.Tensor:
    heads = [v for k, v in worker.critic_module.state_dict().items() if k.startswith("score")]
    assert heads
    assert heads[0].std() > 0
    return heads[0].clone()


def adapter(worker: Any) -> torch.Tensor:
    state = worker.actor_module_fsdp.state_dict()
    return torch.cat([v.flatten() for k, v in state.items() if "lora_A" in k])


def test_a_value_head_is_drawn_by_the_seed(
    make_worker: Callable[..., Any], tiny_model: Path
) -> None:
    heads = []
    for seed in (1, 1, 2):
        torch.rand(seed * 3)  # whatever was drawn before
        heads.append(value_head(make_worker(tiny_model, f"seed={seed}", role="critic")))
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_an_adapter_is_drawn_by_the_seed(make_worker: Callable[..., Any], tiny_model: Path) -> None:
    lora = "actor_rollout_ref.model.lora_rank=4"
    found = [adapter(make_worker(tiny_model, lora, f"seed={seed}")) for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def order(seed: str) -> list[int]:
    from verl.trainer.main_ppo import create_rl_sampler

    built = config.build(preset.load("tiny"), [f"seed={seed}"])
    return list(create_rl_sampler(built.data, range(64)))


def test_the_order_of_the_data_is_drawn_by_the_seed() -> None:
    assert sorted(order("3")) == list(range(64))
    assert order("3") == order("3") != order("4")


def test_without_a_seed_the_order_of_the_data_is_that_of_1() -> None:
    assert order("null") == order("1")


def test_samples_are_drawn_by_the_seed_unless_the_rollout_has_its_own() -> None:
    assert config.build(preset.load("tiny"), ["seed=3"]).actor_rollout_ref.rollout.seed == 3
    own = ["seed=3", "actor_rollout_ref.rollout.seed=5"]
    assert config.build(preset.load("tiny"), own).actor_rollout_ref.rollout.seed == 5
