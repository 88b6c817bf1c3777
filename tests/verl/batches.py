"""Batches as verl's trainer makes them, of a worker's own rollouts, and what a step changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.verl.conftest import prompts
from tests.verl.test_hf_rollout import generate


def rolled_out(worker: Any, data: Any, step: int = 1) -> Any:
    """Rollouts of the prompts ``data``, scored by the policy and by the reference.

    Returns:
        DataProto with response_mask, old_log_probs and ref_log_prob, (bs, response_length).
    """
    batch = generate(worker, data, global_steps=step)
    batch.meta_info.update(temperature=1.0, global_token_num=[1])
    length = batch.batch["responses"].size(1)
    batch.batch["response_mask"] = batch.batch["attention_mask"][:, -length:]
    scored = worker.compute_log_prob(copy.deepcopy(batch)).batch["old_log_probs"]
    reference = worker.compute_ref_log_prob(copy.deepcopy(batch)).batch["ref_log_prob"]
    batch.batch.update({"old_log_probs": scored, "ref_log_prob": reference})
    return batch


def random_batch(worker: Any, rows: int = 4, repeat: int = 4, seed: int = 0) -> Any:
    """The same with random advantages, returns and values: all that a step of a role asks for."""
    batch = rolled_out(worker, prompts(rows, repeat=repeat))
    mask = batch.batch["response_mask"]
    generator = torch.Generator().manual_seed(seed)
    for name in ("advantages", "returns", "values"):
        batch.batch[name] = torch.randn(mask.shape, generator=generator) * mask
    return batch


def step(worker: Any, batch: Any) -> dict[str, Any]:
    """One step of actor or critic on a copy of ``batch``; returns verl's metrics."""
    update = worker.update_actor if hasattr(worker, "actor") else worker.update_critic
    metrics: dict[str, Any] = update(copy.deepcopy(batch)).meta_info["metrics"]
    return metrics


def model(worker: Any) -> Any:
    """The role's model, FSDP's wrapper included."""
    return worker.actor_module_fsdp if hasattr(worker, "actor") else worker.critic_module


def optimizer(worker: Any) -> Any:
    return worker.actor_optimizer if hasattr(worker, "actor") else worker.critic_optimizer


@contextmanager
def whole(worker: Any) -> Iterator[dict[str, torch.nn.Parameter]]:
    """Every parameter by its name without FSDP's prefixes, whole, on each rank."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    module = model(worker)
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module, writeback=False):
            yield {
                name.replace("_fsdp_wrapped_module.", ""): value
                for name, value in module.named_parameters()
            }
    else:
        yield dict(module.named_parameters())


def weights(worker: Any) -> dict[str, torch.Tensor]:
    """A copy of every weight by its name."""
    with whole(worker) as parameters:
        return {name: value.detach().clone() for name, value in parameters.items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of weights that differ in any bit."""
    assert before.keys() == after.keys()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}
