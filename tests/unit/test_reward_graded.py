"""The graded score: what earns more than what, and that weak responses differ."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from run.reward import graded, scorers


def score(text: str, truth: str = "18") -> float:
    return graded("generated", text, truth)["score"]


def test_better_responses_earn_strictly_more() -> None:
    ladder = [
        "I cannot tell.",
        "It is 18000.",
        "It is 30.",
        "It is 19.",
        "#### 19",
        "It is 18.",
        "#### 18",
    ]
    scores = [score(text) for text in ladder]
    assert scores[0] == 0
    assert scores[-1] == 1
    assert all(worse < better for worse, better in pairwise(scores))


def test_the_parts_add_up_as_documented() -> None:
    parts = [scorers.EXACT, scorers.CLOSENESS, scorers.FORMAT, scorers.ENDING]
    assert sum(parts) == pytest.approx(1)
    assert score("#### 36") == pytest.approx(0.4 / 2 + 0.15 + 0.05)
    assert score("36" + " " * 4 + "x" * 28) == pytest.approx(0.4 / 2 + 0.05 / 2)
    assert score("18") == pytest.approx(0.4 + 0.4 + 0.05)
    assert score("-1", "0") == pytest.approx(0.4 / 2 + 0.05)


@given(
    truth=st.integers(-10_000, 10_000),
    near=st.integers(0, 10_000),
    far=st.integers(0, 10_000),
    form=st.sampled_from(["#### {}", "So it is {}.", "\\boxed{{{}}}", "{} of them, I think"]),
)
@settings(derandomize=True)
def test_in_one_form_the_nearer_answer_earns_more(
    truth: int, near: int, far: int, form: str
) -> None:
    assume(near < far)
    for sign in (1, -1):
        nearer = score(form.format(truth + near), str(truth))
        assert nearer > score(form.format(truth + sign * far), str(truth))
        assert score(form.format(truth + sign * far), str(truth)) > 0


@given(st.text(st.sampled_from("abc de\n."), max_size=400))
@settings(derandomize=True)
def test_padding_before_the_number_changes_nothing(padding: str) -> None:
    assert score(padding + "\nIt is 20") == score("\nIt is 20")
    assert score(padding + "\n#### 18") == 1


def test_listing_guesses_earns_what_one_of_them_earns() -> None:
    guesses = "\n".join(str(n) for n in range(100))
    assert score(guesses) == score("99")
    assert score("#### " + guesses) == score("#### 0")


# Four kinds of continuation that a weak model gives one prompt: rambling, cut off by the length
# limit, repeating the question's numbers, and code. None of them marks an answer.
WEAK_GROUPS = [
    (
        "12",
        [
            "To solve this, we add 5 and 7. 5 + 7 = 12. So there are 12 apples in the basket.",
            "Tom has 5 apples and buys 7 more. 5 + 7 = 13",
            "The total number of apples is 5 + 7 = 12 apples",
            "Let's break it down step by step:\n\n1. Tom has 5 apples.\n2. He buys 7",
        ],
    ),
    (
        "24",
        [
            "Sara has 8 boxes with 3 pens each, so",
            "8 x 3 = 24 pens. Then she",
            "Sara has 8 boxes with 3 pens each, so the number of pens is 8 + 3 = 11.",
            "def pens(boxes, each):\n    return boxes * each\n\nprint(pens(8, 3))",
        ],
    ),
]


@pytest.mark.parametrize(("truth", "group"), WEAK_GROUPS)
def test_the_responses_of_a_weak_model_do_not_tie(truth: str, group: list[str]) -> None:
    scores = [score(text, truth) for text in group]
    assert all(a != b for a, b in combinations(scores, 2))
