"""verl-patches/0011: the gradient of a mini-batch does not depend on how its rows are cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.conftest import prompts

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
ROWS, LENGTH = 8, 24
CUTS: list[tuple[str, ...]] = [
    *((f"ppo_micro_batch_size_per_gpu={rows}",) for rows in (8, 4, 2, 1)),
    ("use_dynamic_bsz=true", "ppo_max_token_len_per_gpu=150"),
]


@pytest.fixture(scope="module")
def batch() -> Any:
    """Eight rows with responses of 1 to 24 tokens."""
    generator = torch.Generator().manual_seed(0)
    data = prompts(ROWS)
    responses = torch.randint(10, 500, (ROWS, LENGTH), generator=generator)
    lengths = torch.tensor([1, 24, 3, 17, 2, 9, 24, 5])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    tensors = data.batch
    position = tensors["position_ids"][:, -1:] + 1 + torch.arange(LENGTH)
    tensors["input_ids"] = torch.cat([tensors["input_ids"], responses], dim=1)
    tensors["attention_mask"] = torch.cat([tensors["attention_mask"], mask], dim=1)
    tensors["position_ids"] = torch.cat([tensors["position_ids"], position], dim=1)
    tensors["responses"], tensors["response_mask"] = responses, mask
    for name in ("old_log_probs", "ref_log_prob"):
        tensors[name] = -6 + 0.1 * torch.randn(ROWS, LENGTH, generator=generator)
    for name in ("advantages", "returns", "values"):
        tensors[name] = torch.randn(ROWS, LENGTH, generator=generator) * mask
    data.meta_info.update(temperature=1.0, global_token_num=[1])
    return data


def gradient(worker: Any, role: str, batch: Any) -> tuple[torch.Tensor, float]:
    """The gradient of one mini-batch as one float64 vector, and the loss that is reported."""
    part = worker.critic if role == "critic" else worker.actor
    module = part.critic_module if role == "critic" else part.actor_module
    module.double()  # so that the order of a sum does not hide a wrong weight
    kept: list[torch.Tensor] = []

    def keep() -> torch.Tensor:
        kept.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        return torch.tensor(0.0)

    part._optimizer_step = keep
    update = part.update_critic if role == "critic" else part.update_policy
    metrics = update(copy.deepcopy(batch))
    (found,) = kept
    name = "critic/vf_loss" if role == "critic" else "actor/pg_loss"
    return found, float(torch.tensor(metrics[name], dtype=torch.float64).mean())


@pytest.mark.parametrize("role", ["actor_rollout_ref", "critic"])
@pytest.mark.parametrize("mode", MODES)
def test_every_cut_of_unequal_rows_gives_one_gradient_and_one_loss(
    make_worker: Callable[..., Any], sharpened_model: Path, batch: Any, mode: str, role: str
) -> None:
    key = "critic" if role == "critic" else "actor_rollout_ref.actor"
    found = []
    for cut in CUTS:
        torch.manual_seed(0)
        worker = make_worker(
            sharpened_model,
            f"actor_rollout_ref.actor.loss_agg_mode={mode}",
            "actor_rollout_ref.actor.kl_loss_coef=0.3",
            "actor_rollout_ref.actor.entropy_coeff=0.1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.rollout.n=1",
            "data.train_batch_size=8",
            *(f"{key}.{setting}" for setting in cut),
            role=role,
        )
        found.append(gradient(worker, role, batch))
    whole, loss = found[0]
    assert whole.norm() > 1e-3
    for cut, (part, reported) in zip(CUTS[1:], found[1:], strict=True):
        assert (part - whole).norm() <= 1e-6 * whole.norm(), cut
        assert reported == pytest.approx(loss, rel=1e-5), cut
