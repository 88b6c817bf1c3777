"""verl-patches/0006 and 0007: the rollout samples from the policy that the trainer scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.conftest import prompts

SAMPLING = (
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.rollout.micro_batch_size=2",
    "actor_rollout_ref.rollout.n=3",
)


def generate(worker: Any, batch: Any, **meta: Any) -> Any:
    batch.meta_info.update({"global_steps": 1, **meta})
    output = worker.generate_sequences(batch)
    output.meta_info.pop("timing", None)
    return output


def delta_log_probs(worker: Any, output: Any) -> torch.Tensor:
    """|log-prob of the rollout - log-prob of the trainer| of every response token."""
    scored = worker.compute_log_prob(output).batch["old_log_probs"]
    mask = output.batch["attention_mask"][:, -scored.size(1) :].bool()
    assert mask.any(dim=1).all()
    return (output.batch["rollout_log_probs"] - scored).abs()[mask]


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
@pytest.mark.parametrize(
    "sampling",
    [
        ("actor_rollout_ref.rollout.temperature=1.0",),
        ("actor_rollout_ref.rollout.temperature=0.7",),
        (
            "actor_rollout_ref.rollout.temperature=1.3",
            "actor_rollout_ref.rollout.top_p=0.9",
            "actor_rollout_ref.rollout.top_k=20",
        ),
    ],
    ids=["plain", "temperature", "truncated"],
)
def test_the_trainer_gives_the_rollouts_log_probs(
    make_worker: Callable[..., Any],
    sharpened_model: Path,
    strategy: str,
    sampling: tuple[str, ...],
) -> None:
    strategies = (
        f"actor_rollout_ref.actor.strategy={strategy}",
        f"critic.strategy={strategy}",
    )
    worker = make_worker(sharpened_model, *SAMPLING, *sampling, *strategies)
    output = generate(worker, prompts(7, repeat=3))
    delta = delta_log_probs(worker, output)
    assert delta.mean() <= 1e-5
    assert delta.max() <= 1e-3


def test_the_check_sees_another_policy(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    output = generate(worker, prompts(7, repeat=3))
    with torch.no_grad():
        next(worker.actor_module_fsdp.parameters()).mul_(1.01)
    assert delta_log_probs(worker, output).mean() > 1e-3


def test_three_samples_give_three_rows_a_prompt_in_order(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    batch = prompts(7, repeat=3)
    asked = batch.batch["input_ids"].clone()
    output = generate(worker, batch)
    assert len(output) == 21
    assert torch.equal(output.batch["prompts"], asked)
    responses = output.batch["responses"].view(7, 3, -1)
    assert all(len({tuple(row) for row in group.tolist()}) == 3 for group in responses)


def test_positions_go_on_after_the_prompt(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    output = generate(worker, prompts(7))
    last = output.batch["position_ids"][:, 39:40]
    expected = last + torch.arange(25)
    assert torch.equal(output.batch["position_ids"][:, 39:], expected)


def test_greedy_decoding_follows_the_scored_policy(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    output = generate(worker, prompts(5), do_sample=False, validate=True)
    with torch.no_grad():
        logits = worker.actor_module_fsdp(
            input_ids=output.batch["input_ids"],
            attention_mask=output.batch["attention_mask"],
            position_ids=output.batch["position_ids"],
        ).logits[:, 39:-1]
    mask = output.batch["attention_mask"][:, 40:].bool()
    assert torch.equal(logits.argmax(-1)[mask], output.batch["responses"][mask])


def test_padding_after_the_end_has_log_prob_zero(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING, "actor_rollout_ref.rollout.temperature=3.0")
    output = generate(worker, prompts(7, repeat=3))
    mask = output.batch["attention_mask"][:, 40:].bool()
    assert not mask.all(), "no response ended early: the test shows nothing"
    assert (output.batch["rollout_log_probs"][~mask] == 0).all()


def test_a_checkpoint_without_a_pad_token_generates(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    worker.generation_config.pad_token_id = None
    assert len(generate(worker, prompts(5))) == 5


def test_the_same_seed_and_step_give_the_same_samples(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    first = generate(worker, prompts(5)).batch["responses"]
    again = generate(worker, prompts(5)).batch["responses"]
    later = generate(worker, prompts(5), global_steps=2).batch["responses"]
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_sampling_leaves_the_trainers_random_numbers_alone(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    generate(worker, prompts(5))
    assert torch.equal(torch.rand(3), expected)
