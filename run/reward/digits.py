"""A toy scorer that knows no right answer: how much of a response is digits.

A random two-layer model learns it within a minute or two, by PPO with a critic as well as by GRPO,
so that one can see on any machine whether an algorithm learns at all.
"""

from __future__ import annotations

DIGITS = frozenset("0123456789")


def digits(
    data_source: object,
    solution_str: object,
    ground_truth: object,
    extra_info: object = None,
    **kwargs: object,
) -> dict[str, float]:
    """The share of digits among all characters of the response, white space included.

    Only 0 to 9 are digits. An empty response scores 0, so that saying nothing is not rewarded; a
    single digit scores as much as many. ``acc`` is 1.0 for a response of digits alone, ``format``
    for one with any digit. The truth is not looked at. Never raises; linear in the text's length.
    """
    text = solution_str if isinstance(solution_str, str) else ""
    found = sum(char in DIGITS for char in text)
    score = found / len(text) if text else 0.0
    return {"score": score, "acc": float(score == 1), "format": float(found > 0)}
