"""The patch `metrics`: what a step's metrics say of rollout, groups, truncation and speed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from run import phases

EOS = [1, 2]


def step(responses: list[list[int]], scores: list[float], uids: list[str] | None = None) -> Any:
    """What the trainer has of a step: prompts of 2 tokens, ``responses`` padded with 0 to 4.

    The response mask ends with the first of ``EOS``, as the rollouts make it.
    """
    from verl import DataProto
    from verl.utils.torch_functional import get_response_mask

    tokens = torch.tensor([row + [0] * (4 - len(row)) for row in responses])
    mask = get_response_mask(tokens, EOS)
    token_scores = torch.zeros(tokens.shape)
    token_scores[:, 0] = torch.tensor(scores)
    named = {
        "responses": tokens,
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(len(responses), 2, dtype=mask.dtype), mask], dim=1),
        "token_level_scores": token_scores,
        **dict.fromkeys(("token_level_rewards", "advantages", "returns"), token_scores),
    }
    others = {} if uids is None else {"uid": np.array(uids, dtype=object)}
    return DataProto.from_dict(named, non_tensors=others, meta_info={"eos_token_id": EOS})


def data_metrics(batch: Any) -> Any:
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    return compute_data_metrics(batch, use_critic=False)


def rollout_diff(
    rollout: list[list[float]], actor: list[list[float]], mask: list[list[int]]
) -> Any:
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_rollout_diff_metrics

    named = {"rollout_log_probs": rollout, "old_log_probs": actor, "response_mask": mask}
    tensors = {name: torch.tensor(values) for name, values in named.items()}
    return compute_rollout_diff_metrics(DataProto.from_dict(tensors))


def test_groups_whose_responses_all_score_the_same_are_counted() -> None:
    scores = [0.5, 1.0, 0.5, 0.0, 0.5, 0.0]
    metrics = data_metrics(step([[5, 1]] * 6, scores, ["a", "b", "a", "b", "c", "c"]))
    assert metrics["critic/groups/num"] == 3
    assert metrics["critic/groups/equal_scores"] == 1
    assert metrics["critic/groups/equal_scores_ratio"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("uids", [["a", "b"], None])
def test_no_groups_are_reported_with_one_response_a_prompt(uids: list[str] | None) -> None:
    metrics = data_metrics(step([[5, 1]] * 2, [0.5, 0.5], uids))
    assert not [name for name in metrics if name.startswith("critic/groups")]


def test_a_kl_in_the_reward_does_not_hide_that_the_scores_are_equal() -> None:
    batch = step([[5, 1]] * 2, [0.5, 0.5], ["a", "a"])
    batch.batch["token_level_rewards"] = torch.tensor([[0.5, -0.1, 0, 0], [0.5, -0.2, 0, 0]])
    assert data_metrics(batch)["critic/groups/equal_scores"] == 1


def test_a_response_that_ends_exactly_at_the_limit_is_not_truncated() -> None:
    ended, other_end, short, cut = [5, 6, 7, 1], [5, 6, 7, 2], [5, 1], [5, 6, 7, 8]
    metrics = data_metrics(step([ended, other_end, short, cut], [0.0] * 4))
    assert metrics["response_length/clip_ratio"] == 0.75
    assert metrics["response_length/truncated_ratio"] == 0.25


def test_padding_that_is_an_end_token_at_the_limit_hides_no_truncation() -> None:
    # transformers pads with the end token where there is no other
    metrics = data_metrics(step([[5, 1, 1, 1], [5, 6, 7, 8]], [0.0] * 2))
    assert metrics["response_length/truncated_ratio"] == 0.5


@pytest.mark.parametrize("eos", [8, [8], None])
def test_one_end_token_may_come_as_a_number_and_an_unknown_one_is_no_figure(eos: Any) -> None:
    batch = step([[5, 6, 7, 8], [5, 6, 7, 9]], [0.0] * 2)
    batch.meta_info["eos_token_id"] = eos
    expected = None if eos is None else 0.5
    assert data_metrics(batch).get("response_length/truncated_ratio") == expected


def test_the_difference_of_log_probs_is_taken_over_response_tokens_only() -> None:
    metrics = rollout_diff(
        rollout=[[-1.0, -2.0, 0.0], [-8.0, 0.0, -math.inf]],
        actor=[[-1.0, -2.5, -9.0], [-9.0, -9.0, -9.0]],
        mask=[[1, 1, 0], [1, 0, 0]],
    )
    assert metrics["training/rollout_log_probs_diff_mean"] == pytest.approx(0.5)
    assert metrics["training/rollout_log_probs_diff_max"] == pytest.approx(1.0)
    probs = [0, math.exp(-2) - math.exp(-2.5), math.exp(-8) - math.exp(-9)]
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(max(probs))
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(np.mean(probs))
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(np.std(probs))


def test_a_single_token_has_a_difference_too() -> None:
    metrics = rollout_diff([[-1.0, 0.0]], [[-1.25, 0.0]], [[1, 0]])
    assert metrics["training/rollout_log_probs_diff_mean"] == 0.25
    assert metrics["training/rollout_probs_diff_std"] == 0


def test_it_is_warned_once_and_only_above_the_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.ppo import metric_utils

    monkeypatch.setattr(metric_utils, "_warned_of_rollout_diff", False)
    metric_utils.warn_of_rollout_diff(metric_utils.ROLLOUT_LOG_PROBS_DIFF_LIMIT)
    assert capsys.readouterr().out == ""
    metric_utils.warn_of_rollout_diff(0.0123)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("WARNING: ")
    for part in ("0.0123", "0.001", "another policy", "Likely causes"):
        assert part in line
    metric_utils.warn_of_rollout_diff(0.5)
    assert capsys.readouterr().out == ""


def test_a_difference_that_is_no_number_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.ppo import metric_utils

    monkeypatch.setattr(metric_utils, "_warned_of_rollout_diff", False)
    metric_utils.warn_of_rollout_diff(math.nan)
    assert "is nan" in capsys.readouterr().out


def test_the_summary_and_the_progress_warn_at_the_same_limit() -> None:
    from verl.trainer.ppo.metric_utils import ROLLOUT_LOG_PROBS_DIFF_LIMIT

    assert phases.ROLLOUT_DIFF_LIMIT == ROLLOUT_LOG_PROBS_DIFF_LIMIT
    assert phases.ROLLOUT_DIFF in rollout_diff([[-1.0]], [[-1.0]], [[1]])


def test_tokens_per_second_are_of_responses_while_generating_and_of_all_elsewhere() -> None:
    from verl.trainer.ppo.metric_utils import compute_timing_metrics

    batch = step([[5, 1], [5, 6, 7, 8]], [0.0] * 2)  # 2 x 2 prompt tokens, 2 + 4 response tokens
    seconds = {"gen": 2.0, "old_log_prob": 4.0, "update_actor": 0.5, "step": 7.0, "testing": 1.0}
    metrics = compute_timing_metrics(batch, seconds)
    prefix = "perf/tokens_per_second/"
    found = {name[len(prefix) :]: metrics[name] for name in metrics if name.startswith(prefix)}
    assert found == {"gen": 3.0, "old_log_prob": 2.5, "update_actor": 20.0}
    assert metrics["timing_per_token_ms/old_log_prob"] == 400
