"""The toy reward: the share of digits, and nothing that could be had without them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from run.reward import digits
from tests.unit.test_reward_robust import responses, truths


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("1234567890", 1.0),
        ("7", 1.0),
        ("12ab", 0.5),
        ("a1 b", 0.25),
        ("#### 18", 2 / 7),
        ("no digit", 0.0),
        ("", 0.0),
        (" \n", 0.0),
        # digits of other scripts, superscripts and fractions are none
        ("\uff11\u0663²½", 0.0),
        ("1\ufffd", 0.5),
    ],
)
def test_the_score_is_the_share_of_digits(response: str, score: float) -> None:
    result = digits("source", response, "18")
    assert result == {"score": score, "acc": float(score == 1), "format": float(score > 0)}


@given(text=responses, truth=truths)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_text_and_no_truth_makes_it_raise(text: object, truth: object) -> None:
    result = digits("source", text, truth, extra_info=None, another=1)
    assert list(result) == ["score", "acc", "format"]
    assert all(type(value) is float and 0 <= value <= 1 for value in result.values())
