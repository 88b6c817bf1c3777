"""KL in the loss and in the reward acts: with a large coefficient the policy stays near.

verl's workers and functions in the order of verl's trainer, in this process, on the toy presets'
reward, the share of digits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from run.reward.digits import digits
from tests.verl.batches import rolled_out, step
from tests.verl.conftest import prompts
from tests.verl.test_strategy_single import strategy

STEPS = 14
GROUP = 8
COMMON = (
    *strategy("single"),
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "critic.ppo_micro_batch_size_per_gpu=32",
    "critic.optim.lr=1e-2",
)
LORA = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.actor.optim.lr=1e-2")


Course = tuple[list[float], list[float]]


@pytest.fixture
def learn(
    make_worker: Callable[..., Any], tiny_model: Path, sharpened_model: Path
) -> Callable[..., Course]:
    """Trains ``STEPS`` steps, by GRPO or with a critic by PPO.

    Returns:
        The KL to the reference and the mean reward, each of the rollouts of every step.
    """

    def run(*overrides: str, lora: bool = False, kl_coef: float | None = None) -> Course:
        # an adapter of small weights changes next to nothing
        model = sharpened_model if lora else tiny_model
        overrides = (*COMMON, *(LORA if lora else ()), *overrides)
        actor = make_worker(
            model, *overrides, role="actor_rollout" if lora else "actor_rollout_ref"
        )
        critic = None
        if kl_coef is not None:
            critic = make_worker(model, *overrides, role="critic")
        distances, rewards = [], []
        for number in range(STEPS):
            batch = rolled_out(actor, prompts(4, repeat=GROUP), step=number)
            rewards.append(score(batch, actor.tokenizer))
            distances.append(distance(batch))
            if kl_coef is None:
                advantages_of_grpo(batch)
            else:
                advantages_of_ppo(batch, critic, kl_coef)
                step(critic, batch)
            step(actor, batch)
        return distances, rewards

    return run


def score(batch: Any, tokenizer: Any) -> float:
    """Put each response's share of digits at its last token; returns their mean."""
    mask = batch.batch["response_mask"]
    texts = tokenizer.batch_decode(batch.batch["responses"], skip_special_tokens=True)
    found = [digits("toy", text, None)["score"] for text in texts]
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(mask)), mask.sum(-1) - 1] = torch.tensor(found)
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = scores
    return mean(found)


def distance(batch: Any) -> float:
    """KL from the policy to the reference, estimated (k3) on the policy's own samples."""
    mask = batch.batch["response_mask"].bool()
    ratio = (batch.batch["ref_log_prob"] - batch.batch["old_log_probs"])[mask]
    return float((ratio.exp() - ratio - 1).mean())


def advantages_of_grpo(batch: Any) -> None:
    from verl.trainer.ppo.ray_trainer import compute_advantage

    batch.non_tensor_batch["uid"] = (
        torch.arange(len(batch)).div(GROUP, rounding_mode="floor").numpy()
    )
    compute_advantage(batch, "grpo")


def advantages_of_ppo(batch: Any, critic: Any, kl_coef: float) -> None:
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

    batch.union(critic.compute_values(batch))
    apply_kl_penalty(batch, FixedKLController(kl_coef))
    compute_advantage(batch, "gae", config={})


def assert_near(near: Course, free: Course) -> None:
    assert near[0][:1] == free[0][:1] == [0.0]
    assert near[0][-1] < free[0][-1] / 4
    # what is free to leave the reference learns; what is held does not
    assert free[1][-1] > 3 * free[1][0]
    assert near[1][-1] < free[1][-1] / 2


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_grpo_stays_near_the_reference_with_kl_in_the_loss(
    learn: Callable[..., Course], lora: bool
) -> None:
    key = "actor_rollout_ref.actor.kl_loss_coef"
    free, near = (learn(f"{key}={value}", lora=lora) for value in (0, 3))
    assert_near(near, free)


def test_ppo_stays_near_the_reference_with_kl_in_the_reward(learn: Callable[..., Course]) -> None:
    off = "actor_rollout_ref.actor.use_kl_loss=false"
    free, near = (learn(off, kl_coef=value) for value in (0.0, 1.0))
    assert_near(near, free)
