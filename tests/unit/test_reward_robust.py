"""What a scorer may never do: raise, depend on its thread, or take more than linear time."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import run.reward
from run.preset import REWARDS
from run.reward import graded, normalised, scorers, strict
from run.reward.number import last_number, plain, sole_number

MIB = 2**20
SCORERS = [strict, normalised, graded]
OUR_SCORERS = [normalised, graded]

any_char = st.characters(blacklist_categories=[])  # surrogates and NUL too
tricky = st.text(
    st.sampled_from("0189\uff11\u0663.,+-\u2212±$#{}\\ \n^ekmMx*½²\x00\ud800"), max_size=60
)
snippet = st.sampled_from(["#### ", "\\boxed{", "}", "{,}", "\\!", "\\text{", "thousand"])
responses = st.one_of(
    st.text(any_char),
    st.binary(),
    st.none(),
    st.integers(),
    st.lists(st.one_of(tricky, snippet), max_size=12).map("".join),
)
truths = st.one_of(
    responses,
    st.floats(),
    st.decimals(),
    st.booleans(),
    st.fractions(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.none()),
)


@pytest.mark.parametrize("scorer", SCORERS)
@given(text=responses, truth=truths)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_text_and_no_truth_makes_a_scorer_raise(
    scorer: object, text: object, truth: object
) -> None:
    result = scorer("source", text, truth, extra_info=None, another=1)  # type: ignore[operator]
    assert list(result) == ["score", "acc", "format"]
    assert all(type(value) is float and 0 <= value <= 1 for value in result.values())


ADVERSARIAL = {
    "digits": "7" * MIB,
    "zeros": "0" * MIB + "18",
    "points": "." * MIB,
    "commas": "1," * (MIB // 2),
    "groups": "1" + ",000" * (MIB // 4),
    "minus signs": "-" * MIB,
    "minus numbers": "-1" * (MIB // 2),
    "equal lines": "18\n" * (MIB // 3),
    "long equal fraction": "1." + "0" * (MIB // 2) + "\n1" * (MIB // 4),
    "spaces": " " * MIB + "18",
    "currency": "$" * MIB + "18",
    "letters": "18" + "k" * MIB,
    "escapes": "{,}" * (MIB // 3) + "\\!" * (MIB // 2),
    "open types": "\\text{" * (MIB // 6),
    "exponents": "^{1" * (MIB // 3),
    "thousands": "1" + "\\,000" * (MIB // 5),
    "open boxes": "\\boxed{" * (MIB // 7),
    "nested boxes": "\\boxed{" * (MIB // 8) + "18" + "}" * (MIB // 8),
    "open braces": "\\boxed{18}" + "{" * MIB,
    "backslashes": "\\boxed{" + "\\" * MIB,
    "markers": "####" * (MIB // 4),
    "marked numbers": "#### 18 " * (MIB // 8),
    "full-width digits": "\uff11" * MIB,
    "words with digits": "a1" * (MIB // 2),
    "nul": "\x00" * MIB,
    "surrogates": "\ud800" * MIB,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_mebibyte_of_an_adversarial_text_is_scored(name: str) -> None:
    # Anything worse than linear needs hours for one of these.
    text = ADVERSARIAL[name]
    for response, truth in ((text, "18"), ("#### " + text, text)):
        assert 0 <= graded("source", response, truth)["score"] <= 1


def test_a_million_digits_are_compared_exactly() -> None:
    digits = "123456789" * 111_112
    other = digits[:-1] + "8"
    assert normalised("source", "#### " + digits, digits)["score"] == 1
    assert normalised("source", "#### " + other, digits)["score"] == 0
    assert normalised("source", "#### " + digits, Decimal(digits))["score"] == 1
    assert 0 < graded("source", "#### " + other, digits)["score"] < 1
    assert 0 < graded("source", "#### 18", digits)["score"] < 1
    assert 0 < graded("source", "#### " + digits, "18")["score"] < 1


@pytest.mark.parametrize("truth", ["18", b"18", 18, 18.0, Decimal("18.00"), "18.0", " $18 "])
def test_a_truth_may_be_text_or_a_number(truth: object) -> None:
    assert normalised("source", "#### 18", truth)["score"] == 1
    assert graded("source", "#### 18", truth)["score"] == 1


@pytest.mark.parametrize("scorer", OUR_SCORERS)
def test_a_truth_that_is_no_number_scores_zero_and_is_logged_once(
    scorer: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scorers, "_first_bad_truth", threading.Lock())
    with caplog.at_level(logging.WARNING):
        for truth in ("eighteen \ud800", None, True, [18], float("nan"), "18 or 19"):
            result = scorer("source", "#### 18", truth)  # type: ignore[operator]
            assert (result["score"], result["acc"]) == (0, 0)
    assert len(caplog.records) == 1
    assert "eighteen" in caplog.records[0].getMessage()


def test_scorers_give_the_same_in_many_threads_as_in_one() -> None:
    texts = [f"We get {n}.\n#### {n}" for n in range(200)]

    def score(text: str) -> list[dict[str, float]]:
        return [scorer("source", text, "100") for scorer in SCORERS]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(score, texts)) == [score(text) for text in texts]


def test_verl_can_load_a_scorer_by_its_file() -> None:
    path = run.reward.__file__
    assert path is not None
    spec = importlib.util.spec_from_file_location("custom_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in REWARDS:
        function = getattr(module, name)
        first = list(inspect.signature(function).parameters)[:4]
        assert first == ["data_source", "solution_str", "ground_truth", "extra_info"]


def test_importing_and_scoring_needs_neither_torch_nor_verl() -> None:
    code = (
        "import sys; from run.reward import graded, normalised\n"
        "graded('s', '#### 1', '1'); normalised('s', '#### 1', '1')\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'verl')))"
    )
    root = Path(run.__file__ or "").parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@given(value=st.decimals(allow_nan=False, allow_infinity=False, places=3))
@settings(derandomize=True)
def test_a_number_written_with_separators_is_read_back(value: Decimal) -> None:
    for written in (f"{value}", f"{value:,}", f"**{value:,}** dollars.", f"{value}00"):
        assert sole_number(written) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 + 13 = 18", ("18", 0)),
        ("She has 20-2", ("2", 0)),
        ("She has 20 - 2", ("2", 0)),
        ("- 5 apples\n- 3 pears", ("3", 6)),
        ("It is -3 today. \n", ("-3", 7)),
        ("18k or 4 of 1,23", ("4", 8)),
        ("no number", None),
        ("...", None),
    ],
)
def test_the_last_number_of_free_text_is_found(text: str, expected: tuple[str, int] | None) -> None:
    found = last_number(text)
    assert found == (None if expected is None else (Decimal(expected[0]), expected[1]))


def test_plain_leaves_ascii_alone() -> None:
    text = "".join(map(chr, range(128)))
    assert plain(text) == text
