"""Generated problems: right, distinct, as hard as their level says, the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import phrases
from data.checks import RawRow, check
from data.generated import LEVELS, MOST_ROWS, problems
from data.prepare import Options, prepare
from env.errors import Refused
from tests import data_helpers

CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=<<(\d+[-+*/]\d+)=(\d+)>>(\d+)")
COMPUTE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
LEVEL = range(len(LEVELS))
GOLDEN = "9077c0dfaedfd364226ded15e234611fc0c73fc61dd69c5b1dbe696a6379baf8"


def many(level: int, count: int = 400) -> list[dict[str, str]]:
    return list(chain(*(problems(split, count, 0, level) for split in ("train", "test"))))


def calculations(answer: str) -> list[tuple[int, str, int, int]]:
    """(left, operator, right, result) of each line but the last, after checking their form."""
    *lines, last = answer.split("\n")
    found = []
    for line in lines:
        (match,) = CALCULATION.finditer(line)
        left, operator, right, annotated, result, shown = match.groups()
        assert annotated == f"{left}{operator}{right}"
        assert result == shown
        found.append((int(left), operator, int(right), int(result)))
    assert last == f"#### {found[-1][3]}"
    return found


@pytest.mark.parametrize("level", LEVEL)
def test_every_calculation_is_right_and_goes_on_from_the_one_before(level: int) -> None:
    for problem in many(level):
        result = None
        for left, operator, right, shown in calculations(problem["answer"]):
            assert result in (None, left)
            result = COMPUTE[operator](left, right)
            assert result == shown
            assert result >= 1


@pytest.mark.parametrize("level", LEVEL)
def test_every_given_number_stands_in_the_question_in_order(level: int) -> None:
    for problem in many(level):
        steps = calculations(problem["answer"])
        used = [steps[0][0], *(step[2] for step in steps)]
        told = list(map(int, re.findall(r"\d+", problem["question"].replace("twice", "2"))))
        # An opening by groups may name the size of a group before their number.
        assert told[2:] == used[2:]
        assert sorted(told[:2]) == sorted(used[:2])


@pytest.mark.parametrize(
    ("level", "steps", "largest", "operators"),
    [
        (0, {1}, 9, "+-"),
        (1, {2}, 30, "+-"),
        (2, {2}, 60, "+-*/"),
        (3, {3}, 100, "+-*/"),
        (4, {4, 5}, 300, "+-*/"),
    ],
)
def test_a_level_has_its_steps_numbers_and_operators(
    level: int, steps: set[int], largest: int, operators: str
) -> None:
    solutions = [calculations(problem["answer"]) for problem in many(level)]
    assert {len(solution) for solution in solutions} == steps
    assert {step[1] for solution in solutions for step in solution} == set(operators)
    numbers = [number for solution in solutions for number in (solution[0][0], solution[0][2])]
    assert largest / 2 < max(numbers) <= largest
    if level == 4:
        assert all({"*", "/"} <= {step[1] for step in solution} for solution in solutions)


@pytest.mark.parametrize("level", LEVEL)
def test_every_problem_passes_the_checks_of_data(level: int) -> None:
    for problem in many(level, 100):
        row, bad = check(RawRow("", 1, problem["question"], problem["answer"]))
        assert (row is None, bad) == (False, [])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(), level=st.sampled_from(LEVEL), count=st.integers(1, 60))
def test_no_question_is_repeated_and_a_longer_sequence_begins_with_the_shorter(
    seed: int, level: int, count: int
) -> None:
    train = [problem["question"] for problem in problems("train", count, seed, level)]
    assert len(set(train)) == count
    assert [p["question"] for p in problems("train", count // 2, seed, level)] == train[
        : count // 2
    ]


def test_train_and_test_share_no_question_whatever_their_seeds() -> None:
    # The easiest level has the fewest questions, so here a shared one would be found first.
    train = {p["question"] for seed in range(4) for p in problems("train", 5000, seed, 0)}
    test = {p["question"] for seed in range(4) for p in problems("test", 5000, seed, 0)}
    assert len(train) > 19_000
    assert not train & test


def test_seeds_and_levels_give_other_problems() -> None:
    def first(seed: int, level: int) -> str:
        return next(problems("train", 1, seed, level))["question"]

    assert len({first(seed, level) for seed in range(5) for level in LEVEL}) == 25


def test_the_easiest_level_has_as_many_problems_as_promised() -> None:
    questions = {problem["question"] for problem in problems("test", MOST_ROWS, 1, 0)}
    assert len(questions) == MOST_ROWS


def test_more_than_a_level_has_is_refused_with_the_maximum() -> None:
    with pytest.raises(Refused, match=f"{MOST_ROWS:,} of one level"):
        next(problems("train", MOST_ROWS + 1, 0, 0))
    with pytest.raises(Refused, match="is 'validation'"):
        next(problems("validation", 1, 0, 0))
    with pytest.raises(Refused, match="is 5; expected 0 to 4"):
        next(problems("train", 1, 0, 5))


def test_problems_are_the_same_on_every_python_and_hash_seed() -> None:
    code = (
        "import json; from data.generated import problems;"
        "print(json.dumps([list(problems('train', 50, 7, level)) for level in range(5)]))"
    )
    texts = [data_helpers.child(["-c", code], PYTHONHASHSEED=seed).stdout for seed in "01"]
    here = [list(problems("train", 50, 7, level)) for level in LEVEL]
    assert json.loads(texts[0]) == json.loads(texts[1]) == here
    digest = hashlib.sha256(json.dumps(here).encode()).hexdigest()
    # Written down once; other words or numbers make other data sets, and change it.
    assert digest == GOLDEN


def test_every_kind_of_step_has_twelve_sentences_or_more_and_all_are_used() -> None:
    kinds = {"openings": phrases.OPENINGS, "groups": phrases.GROUPS, **phrases.EVENTS}
    assert min(map(len, kinds.values())) >= 12
    text = "\n".join(problem["question"] for level in LEVEL for problem in many(level))
    for sentences in kinds.values():
        assert len(set(sentences)) == len(sentences)
        for sentence in sentences:
            # Placeholders may be anything.
            pattern = re.sub(r"\\\{\w+\\\}", r"[\\w ']+", re.escape(sentence))
            assert re.search(pattern, text), sentence


def test_the_english_is_clean() -> None:
    for level in LEVEL:
        for problem in many(level):
            question = problem["question"]
            assert not re.search(r"[{}]|  ", question), question
            assert question[0].isupper()
            assert question.endswith("?")
            assert all(sentence[0].isupper() for sentence in re.split(r"(?<=[.?]) ", question))


def test_one_is_singular() -> None:
    assert phrases.counted(1, ("peach", "peaches"))["more"] == "1 more peach"
    assert phrases.counted(2, ("peach", "peaches"))["more"] == "2 more peaches"
    ones = [p["answer"] for p in many(0) if p["answer"].endswith("#### 1")]
    assert ones
    assert all(re.search(r">>1 (\w+ )?\w*[^s\W]( left)?\.", answer) for answer in ones)


def test_nobody_gives_to_themselves() -> None:
    for problem in many(0, 2000):
        assert not re.search(r"\b([A-Z][a-z]+)\b.*\. \1 gives", problem["question"])


def test_the_source_generated_writes_what_was_asked_for(tmp_path: Path) -> None:
    options = Options("generated", out=tmp_path, level=3, train_rows=30, test_rows=10, seed=5)
    written = prepare(options)
    assert data_helpers.read(tmp_path / "raw" / "train.parquet") == list(
        problems("train", 30, 5, 3)
    )
    assert (written.name, written.data_source) == ("generated", "verl-p40/generated")
    assert written.source["kind"] == "generated"
    assert (written.source["level"], written.source["seed"]) == (3, 5)
    assert written.splits["test"].kept == 10
    done = data_helpers.prepare_cli(
        *("--source", "generated", "--out", tmp_path, "--level", 3, "--seed", 5),
        *("--train-rows", 30, "--test-rows", 10),
    )
    assert done.stdout == f"{tmp_path} is up to date\n"
