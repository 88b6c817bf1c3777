"""verl-patches/0007: the random numbers of a rollout are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.conftest import prompts
from tests.verl.test_hf_rollout import SAMPLING, generate


def keys(rows: int, *counts: int) -> torch.Tensor:
    from verl.workers.rollout.sampling import row_keys

    same = torch.full((rows,), 12345)
    return row_keys(same, torch.arange(rows), *counts)


def test_draws_follow_the_softmax() -> None:
    from verl.workers.rollout.sampling import gumbel_noise

    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, 0.5])
    rows = 40_000
    drawn = (logits + gumbel_noise(keys(rows, 1), 7, 6)).argmax(-1)
    expected = logits.softmax(-1) * rows
    found = torch.bincount(drawn, minlength=6)
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 99.9 % of a chi-square with 5 degrees of freedom


def test_noise_is_gumbel_along_rows_positions_and_tokens() -> None:
    from verl.workers.rollout.sampling import gumbel_noise

    along = {
        "rows": gumbel_noise(keys(20_000, 1), 0, 1).flatten(),
        "tokens": gumbel_noise(keys(1, 1), 0, 20_000).flatten(),
        "positions": torch.cat([gumbel_noise(keys(1, 1), p, 1).flatten() for p in range(5_000)]),
    }
    for name, noise in along.items():
        assert noise.isfinite().all()
        assert noise.mean() == pytest.approx(0.5772, abs=0.06), name
        assert noise.var() == pytest.approx(1.6449, abs=0.15), name
        neighbours = torch.corrcoef(torch.stack([noise[:-1], noise[1:]]))[0, 1]
        assert abs(neighbours) < 0.04, name


def test_a_key_depends_on_every_count() -> None:
    found = [
        keys(1, *counts).item() for counts in ((1, 2), (2, 1), (1, 3), (0, 2), (1,), (1, 2, 0))
    ]
    assert len(set(found)) == len(found)


def test_padding_on_the_left_changes_no_key() -> None:
    from verl.workers.rollout.sampling import prompt_keys

    ids = torch.tensor([[5, 6, 7], [5, 6, 7], [0, 6, 7], [7, 6, 5]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    padded = torch.nn.functional.pad(ids, (4, 0), value=9)
    found = prompt_keys(ids, mask)
    assert torch.equal(prompt_keys(padded, torch.nn.functional.pad(mask, (4, 0))), found)
    assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("top_k", [-1, 5, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_filtering_keeps_what_transformers_keeps(
    temperature: float, top_k: int, top_p: float
) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
    from verl.workers.rollout.sampling import filter_logits

    logits = 3 * torch.randn(50, 200, generator=torch.Generator().manual_seed(0))
    expected = TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1 else logits
    if top_k > 0:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = filter_logits(logits, temperature, top_k, top_p)
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.allclose(found[found.isfinite()], expected[expected.isfinite()])


def test_samples_do_not_depend_on_batch_size_or_order(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(sharpened_model, *SAMPLING)
    batch = prompts(7, repeat=3)
    whole = generate(worker, batch).batch["responses"]
    worker.config.rollout.micro_batch_size = 21
    assert torch.equal(generate(worker, prompts(7, repeat=3)).batch["responses"], whole)
    shuffled = prompts(7, repeat=3)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    shuffled.reorder(order)
    assert torch.equal(generate(worker, shuffled).batch["responses"], whole[order])
    alone = generate(worker, prompts(7, repeat=3)[4:5]).batch["responses"]
    assert torch.equal(alone, whole[4:5])


def test_validation_that_samples_draws_other_numbers_than_training(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    worker = make_worker(
        sharpened_model, *SAMPLING, "actor_rollout_ref.rollout.val_kwargs.temperature=1.0"
    )
    train = generate(worker, prompts(5)).batch["responses"]
    validation = generate(worker, prompts(5), validate=True, do_sample=True).batch["responses"]
    assert not torch.equal(train, validation)


def test_another_seed_gives_other_samples(
    make_worker: Callable[..., Any], sharpened_model: Path
) -> None:
    found = []
    for seed in (1, 2):
        worker = make_worker(sharpened_model, *SAMPLING, f"actor_rollout_ref.rollout.seed={seed}")
        found.append(generate(worker, prompts(5)).batch["responses"])
    assert not torch.equal(*found)


def test_the_trainer_numbers_the_samples_of_a_prompt() -> None:
    from verl.trainer.ppo.ray_trainer import sample_index

    assert sample_index(prompts(2, repeat=3), 3).tolist() == [0, 1, 2, 0, 1, 2]
