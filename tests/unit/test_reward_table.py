"""One table for both readers: what strict (verl's own) and normalised make of a response."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from run.reward import graded, normalised, strict

FULL_WIDTH_18 = "\uff11\uff18"

# (response, truth, normalised, strict)
TABLE = [
    # The letter of GSM8K's own format.
    ("#### 18", "18", 1, 1),
    ("She sells 16 - 7 = 9 eggs.\n#### 18", "18", 1, 1),
    ("#### 1,234", "1234", 1, 1),
    ("#### 12,345,678", "12345678", 1, 1),
    ("#### -5", "-5", 1, 1),
    ("#### 0", "0", 1, 1),
    ("#### 18%", "18", 1, 1),
    ("#### 18 dollars", "18", 1, 1),
    ("#### 17\nNo, wait.\n#### 18", "18", 1, 1),
    ("#### 18\nNo, wait.\n#### 17", "18", 0, 0),
    ("#### 0.5", "0.5", 1, 1),
    # Right, and strict does not see it.
    ("####18", "18", 1, 0),
    ("#### $18", "18", 1, 0),
    ("#### $1,234.00", "1234", 1, 0),
    ("#### \\$18", "18", 1, 0),
    ("#### €18", "18", 1, 0),
    ("#### 18.", "18", 1, 0),
    ("#### 18.0", "18", 1, 0),
    ("#### 18.00 dollars.", "18", 1, 0),
    ("#### 018", "18", 1, 0),
    ("#### .5", "0.5", 1, 0),
    ("#### +5", "5", 1, 0),
    ("#### **18**", "18", 1, 0),
    ("#### __18__", "18", 1, 0),
    ("#### `18`", "18", 1, 0),
    ("#### **-18**", "-18", 1, 0),
    ("#### \u22125", "-5", 1, 0),
    ("#### -$5", "-5", 1, 0),
    ("#### $-5", "-5", 1, 0),
    (f"#### {FULL_WIDTH_18}", "18", 1, 0),
    ("#### \uff0d\uff15", "-5", 1, 0),
    ("#### \uff11\uff0c\uff12\uff13\uff14", "1234", 1, 0),
    ("\\boxed{18}", "18", 1, 0),
    ("\\boxed{\\text{18 apples}}", "18", 1, 0),
    ("\\boxed{1{,}234}", "1234", 1, 0),
    ("\\boxed{1,\\!234}", "1234", 1, 0),
    ("$\\boxed{18\\%}$ is what remains of 40.", "18", 1, 0),
    ("#### 17, or rather \\boxed{18}", "18", 1, 0),
    ("#### \\boxed{18}", "18", 1, 0),
    ("####\n18", "18", 1, 0),
    ("####\u00a018", "18", 1, 0),
    ("#### Answer: 18", "18", 1, 0),
    ("#### x = 18", "18", 1, 0),
    ("#### 答案是18元", "18", 1, 0),
    ("#### 18kg", "18", 1, 1),
    ("#### 18 m2", "18", 1, 1),
    ("#### 18 m^2", "18", 1, 1),
    ("#### 18\nThe answer is 18.", "18", 1, 1),
    ("#### 1000", "1,000", 1, 0),
    ("\\boxed{17}\n#### 18", "18", 1, 1),
    # LaTeX that only sets a type, a unit's exponent, or groups of thousands.
    ("\\boxed{18\\text{ cm}^2}", "18", 1, 0),
    ("\\boxed{18\\,\\mathrm{m}^{2}}", "18", 1, 0),
    ("\\boxed{18 m^{3}}", "18", 1, 0),
    ("\\boxed{x_1 = 18}", "18", 1, 0),
    ("\\boxed{x_{1} = 18}", "18", 1, 0),
    ("\\boxed{1\\,234}", "1234", 1, 0),
    ("#### _18_", "18", 1, 0),
    # Thin and hard spaces between thousands, Arabic separators.
    ("#### 1\u202f234\u202f567", "1234567", 1, 0),
    ("#### 1\u00a0234", "1234", 1, 0),
    ("#### \u0661\u066c\u0662\u0663\u0664", "1234", 1, 0),
    ("#### \u0663\u066b\u0665", "3.5", 1, 0),
    # An unclosed box is no box.
    ("\\boxed{18", "18", 0, 0),
    ("\\boxed{18} and then \\boxed{17", "18", 1, 0),
    # Wrong or unclear, and normalised says so.
    ("", "18", 0, 0),
    ("18", "18", 0, 0),
    ("The answer is 18.", "18", 0, 0),
    ("####", "18", 0, 0),
    ("#### ", "18", 0, 0),
    ("#### eighteen", "18", 0, 0),
    ("\\boxed{}", "18", 0, 0),
    ("#### 18 \\boxed{}", "18", 0, 1),
    ("#### 18.5", "18", 0, 0),
    ("#### -18", "18", 0, 0),
    ("#### \u221218", "18", 0, 0),
    ("#### - 18", "18", 0, 0),
    ("#### --18", "18", 0, 0),
    ("#### ±18", "18", 0, 0),
    ("#### 180", "18", 0, 0),
    ("#### 118", "18", 0, 0),
    ("#### 18 or 19", "18", 0, 1),
    ("#### 18 or 19", "19", 0, 0),
    ("#### 18-20", "18", 0, 1),
    ("#### 18\n19", "18", 1, 1),
    ("#### 19\n18", "18", 0, 0),
    ("#### 18\n\nExplanation: 5 apples and 13 pears.", "18", 1, 1),
    ("####\n\n18\nThat is all 3 of them.", "18", 1, 0),
    ("#### 9 + 9", "18", 0, 0),
    ("#### 9 + 9", "9", 0, 1),
    ("#### 9 + 9 = 18", "18", 0, 0),
    ("#### 1,23", "123", 0, 1),
    ("#### 1,2345", "12345", 0, 1),
    ("#### 0,018", "18", 0, 0),
    ("#### 1.234.567", "1234567", 0, 0),
    ("#### 1 234", "1234", 0, 0),
    ("#### 18/2", "18", 0, 1),
    ("#### 1/2", "0.5", 0, 0),
    ("#### 18:30", "18", 0, 1),
    ("#### 2e3", "2", 0, 1),
    ("#### 18k", "18", 0, 1),
    ("#### 18 million", "18", 0, 1),
    ("#### 18\u00bd", "18", 0, 1),
    ("#### 18\u00b2", "18", 0, 1),
    ("#### 18\u4e07", "18", 0, 1),
    ("#### 18^2", "18", 0, 1),
    ("\\boxed{18^{2}}", "18", 0, 0),
    ("\\boxed{10^{2}}", "102", 0, 0),
    ("\\boxed{\\sqrt{18}}", "18", 0, 0),
    ("#### \u221a18", "18", 0, 0),
    ("\\boxed{18\\pi}", "18", 0, 0),
    ("#### 18\u03c0", "18", 0, 1),
    ("\\boxed{\\pm 18}", "18", 0, 0),
    ("\\boxed{18\\,000\\,0}", "180000", 0, 0),
    ("#### 18\u00a02345", "182345", 0, 0),
    ("#### COVID-18", "18", 0, 0),
    ("#### ...", "18", 0, 0),
    ("#### nan", "nan", 0, 0),
    ("#### Infinity", "Infinity", 0, 0),
    ("\\boxed{18}\n#### 19", "18", 0, 0),
    ("#### 18\n\\boxed{19}", "18", 0, 1),
    # Floats would call these equal.
    ("#### 9007199254740993", "9007199254740992", 0, 0),
    ("#### 0.1000000000000000055511151231257827", "0.1", 0, 0),
    # verl reads only the last 300 characters.
    ("#### 18" + " apples" * 100, "18", 1, 0),
]


@pytest.mark.parametrize(("text", "truth", "expected", "_strict"), TABLE)
def test_normalised_reads_the_marked_answer_as_a_person_does(
    text: str, truth: str, expected: int, _strict: int
) -> None:
    result = normalised("openai/gsm8k", text, truth)
    assert result["score"] == result["acc"] == expected


def test_strict_gives_what_verls_own_scorer_gives() -> None:
    from verl.utils.reward_score import default_compute_score

    for text, truth, _, expected in TABLE:
        score = strict("openai/gsm8k", text, truth)["score"]
        assert score == default_compute_score("openai/gsm8k", text, truth), text
        assert score == expected, text


def test_graded_reports_the_accuracy_of_normalised_and_gives_one_only_to_it() -> None:
    for text, truth, expected, _ in TABLE:
        result = graded("generated", text, truth)
        assert result["acc"] == expected, text
        assert (result["score"] == 1.0) == bool(expected), text
        assert result["format"] == normalised("generated", text, truth)["format"]


@pytest.mark.gsm8k
@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_every_official_solution_is_right(gsm8k: Path, split: str, rows: int) -> None:
    with (gsm8k / f"{split}.jsonl").open(encoding="utf-8") as lines:
        solutions = [json.loads(line)["answer"] for line in lines]
    assert len(solutions) == rows
    for solution in solutions:
        truth = solution.rpartition("####")[2].strip().replace(",", "")
        for scorer in (strict, normalised, graded):
            result = scorer("openai/gsm8k", solution, truth)
            assert result == {"score": 1.0, "acc": 1.0, "format": 1.0}, (scorer.__name__, solution)
