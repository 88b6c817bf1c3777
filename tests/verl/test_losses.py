"""verl-patches/0011: gradient and metrics of a mini-batch do not depend on how its rows are cut."""

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
# Of one mini-batch; each must say something, so each must differ from 0 on this batch.
REPORTED = {
    "actor_rollout_ref": ("pg_loss", "kl_loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"),
    "critic": ("vf_loss", "vf_clipfrac", "vpred_mean"),
}
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


def update(worker: Any, role: str, batch: Any) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Each mini-batch's gradient as one float64 vector; the metrics as the trainer reduces them."""
    from verl.utils.metric import reduce_metrics

    part = worker.critic if role == "critic" else worker.actor
    module = part.critic_module if role == "critic" else part.actor_module
    module.double()  # so that the order of a sum does not hide a wrong weight
    gradients: list[torch.Tensor] = []

    def keep() -> torch.Tensor:
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        return torch.tensor(0.0)

    part._optimizer_step = keep
    run = part.update_critic if role == "critic" else part.update_policy
    return gradients, reduce_metrics(run(copy.deepcopy(batch)))


@pytest.fixture
def update_cut(
    make_worker: Callable[..., Any], sharpened_model: Path, batch: Any
) -> Callable[..., tuple[list[torch.Tensor], dict[str, float]]]:
    """``update_cut(role, mode, mini_batch_size, cut)`` updates a worker of its own on ``batch``."""

    def run(
        role: str, mode: str, mini_batch_size: int, cut: tuple[str, ...]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        key = "critic" if role == "critic" else "actor_rollout_ref.actor"
        torch.manual_seed(0)
        worker = make_worker(
            sharpened_model,
            f"actor_rollout_ref.actor.loss_agg_mode={mode}",
            "actor_rollout_ref.actor.kl_loss_coef=0.3",
            "actor_rollout_ref.actor.entropy_coeff=0.1",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch_size}",
            "actor_rollout_ref.rollout.n=1",
            "data.train_batch_size=8",
            *(f"{key}.{setting}" for setting in cut),
            role=role,
        )
        return update(worker, role, batch)

    return run


def assert_same_report(
    role: str, found: list[dict[str, float]], cuts: list[tuple[str, ...]]
) -> None:
    prefix = "critic" if role == "critic" else "actor"
    for name in (f"{prefix}/{metric}" for metric in REPORTED[role]):
        whole = found[0][name]
        assert abs(whole) > 1e-3, name
        for cut, metrics in zip(cuts[1:], found[1:], strict=True):
            assert metrics[name] == pytest.approx(whole, rel=1e-6), (name, cut)


@pytest.mark.parametrize("role", ["actor_rollout_ref", "critic"])
@pytest.mark.parametrize("mode", MODES)
def test_every_cut_of_unequal_rows_gives_one_gradient_and_one_report(
    update_cut: Callable[..., Any], mode: str, role: str
) -> None:
    found = [update_cut(role, mode, 8, cut) for cut in CUTS]
    ((whole,), _), *others = found
    assert whole.norm() > 1e-3
    for cut, ((part,), _) in zip(CUTS[1:], others, strict=True):
        assert (part - whole).norm() <= 1e-6 * whole.norm(), cut
    assert_same_report(role, [metrics for _, metrics in found], CUTS)


@pytest.mark.parametrize("role", ["actor_rollout_ref", "critic"])
def test_mini_batches_cut_into_unlike_numbers_of_parts_count_the_same(
    update_cut: Callable[..., Any], role: str
) -> None:
    cuts = CUTS[1:]
    found = [update_cut(role, "token-mean", 4, cut) for cut in cuts]
    assert {len(gradients) for gradients, _ in found} == {2}
    assert_same_report(role, [metrics for _, metrics in found], cuts)
