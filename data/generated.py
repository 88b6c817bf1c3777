"""Word problems with worked solutions in GSM8K's format, written by this project.

A problem is a story of steps on one number: an opening, events, and a question. It depends on
(split, seed, level, position) alone. Levels 0 to 4 grow in steps and in the size of the numbers;
train and test never share a question, whatever their seeds and levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from data import phrases
from data.manifest import SPLITS
from env.errors import Problem, Refused

# Every level has this many distinct problems for each split, and many more.
MOST_ROWS = 50_000

T = TypeVar("T")
Range = tuple[int, int]


@dataclass(frozen=True)
class Level:
    """How hard a level is.

    Args:
        plans: the steps of a story, one plan chosen for each problem: ``groups`` (an opening by
            multiplication), ``add``, ``sub``, ``times`` and ``share`` (a division, always last).
        start: the first number, where the opening is no step.
        change: what is added or taken away.
        factor: of ``times``.
        groups: number of groups.
        each: size of a group.
        parts: of ``share``.
    """

    plans: tuple[str, ...]
    start: Range
    change: Range
    factor: Range = (2, 2)
    groups: Range = (2, 2)
    each: Range = (2, 2)
    parts: Range = (2, 2)


LEVELS = (
    Level(("add", "sub"), start=(2, 9), change=(1, 9)),
    Level(("add add", "add sub", "sub add", "sub sub"), start=(5, 30), change=(2, 20)),
    Level(
        ("groups add", "groups sub", "add times", "sub times", "add share", "sub share"),
        start=(10, 60),
        change=(3, 40),
        factor=(2, 5),
        groups=(2, 9),
        each=(2, 12),
        parts=(2, 9),
    ),
    Level(
        (
            "groups add share",
            "groups sub share",
            "groups add sub",
            "sub times add",
            "add sub share",
            "times sub share",
        ),
        start=(20, 100),
        change=(5, 60),
        factor=(2, 6),
        groups=(2, 12),
        each=(5, 20),
        parts=(2, 12),
    ),
    Level(
        (
            "groups add sub share",
            "groups sub times share",
            "add times sub share",
            "groups add sub times share",
            "groups sub add sub share",
        ),
        start=(50, 300),
        change=(10, 200),
        factor=(2, 9),
        groups=(5, 20),
        each=(10, 40),
        parts=(2, 20),
    ),
)


def check(level: int, counts: Mapping[str, int]) -> None:
    """Raise Refused unless ``level`` exists and has ``counts`` problems for every split."""
    problems = []
    if not 0 <= level < len(LEVELS):
        expected = f"0 to {len(LEVELS) - 1}"
        problems.append(Problem("--level", f"is {level}", expected, "choose another level"))
    for split, rows in counts.items():
        if split not in SPLITS:
            problems.append(Problem("split", f"is {split!r}", " or ".join(SPLITS), "correct it"))
        if not 0 <= rows <= MOST_ROWS:
            expected = f"0 to {MOST_ROWS:,} of one level and split"
            problems.append(Problem(f"--{split}-rows", f"is {rows:,}", expected, "ask for fewer"))
    if problems:
        raise Refused(problems)


def problems(split: str, count: int, seed: int, level: int) -> Iterator[dict[str, str]]:
    """Yield ``count`` distinct problems as ``{"question": ..., "answer": ...}``.

    A longer sequence begins with the shorter one. Questions never repeat, and none of ``train``
    is one of ``test``.

    Raises:
        Refused: no such split or level, or ``count`` above :data:`MOST_ROWS`.
    """
    check(level, {split: count})
    seen: set[bytes] = set()
    position = 0
    while len(seen) < count:
        problem = _problem(LEVELS[level], _Draw(f"{split}/{seed}/{level}/{position}"))
        position += 1
        if problem is None:
            continue
        digest = hashlib.blake2b(problem["question"].encode(), digest_size=16).digest()
        # Half of all questions belong to each split, by their own hash.
        if digest[0] % 2 == SPLITS.index(split) and digest not in seen:
            seen.add(digest)
            yield problem


class _Draw:
    """Random choices that depend on a key alone: its hash, spent as one large number."""

    def __init__(self, key: str) -> None:
        self._left = int.from_bytes(hashlib.blake2b(key.encode()).digest(), "big")

    def below(self, limit: int) -> int:
        self._left, value = divmod(self._left, limit)
        return value

    def within(self, bounds: Range) -> int:
        return bounds[0] + self.below(bounds[1] - bounds[0] + 1)

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]


def _problem(level: Level, draw: _Draw) -> dict[str, str] | None:
    """One problem, or None where the numbers drawn do not make one."""
    plan = draw.one_of(level.plans).split()
    name, pronoun = draw.one_of(phrases.NAMES)
    friend = draw.one_of([other for other, _ in phrases.NAMES if other != name])
    thing = draw.one_of(phrases.THINGS)
    words = phrases.words(name, pronoun, friend, thing)
    story, solution = [], []
    told: set[str] = set()

    if plan[0] == "groups":
        groups, each = draw.within(level.groups), draw.within(level.each)
        total = groups * each
        plan = plan[1:]
        calculation = _calculation(groups, "*", each, total)
        story.append(draw.one_of(phrases.GROUPS).format(**words, k=groups, n=each))
        solution.append(draw.one_of(phrases.SOLVED["groups"]).format(**words, is_=calculation))
    else:
        total = draw.within(level.start)
        story.append(draw.one_of(phrases.OPENINGS).format(**words, n=total))

    for kind in plan:
        number = _number(level, kind, total, draw)
        if number is None:
            return None
        before, (operator, total) = total, _apply(kind, total, number)
        phrase = draw.one_of([text for text in phrases.EVENTS[kind] if text not in told])
        told.add(phrase)
        counted = phrases.counted(number, thing)
        story.append(phrase.format(**words, n=number, **counted))
        calculation = _calculation(before, operator, number, total)
        things = thing[0] if total == 1 else thing[1]
        line = draw.one_of(phrases.SOLVED[kind])
        solution.append(line.format(**{**words, "things": things}, n=number, is_=calculation))

    if plan[-1:] != ["share"]:
        story.append(draw.one_of(phrases.QUESTIONS).format(**words))
    return {"question": " ".join(story), "answer": "\n".join([*solution, f"#### {total}"])}


def _number(level: Level, kind: str, total: int, draw: _Draw) -> int | None:
    """The number of one step, such that something is left and a division comes out whole."""
    if kind == "times":
        return draw.within(level.factor)
    if kind == "share":
        low, high = level.parts
        parts = [part for part in range(low, high + 1) if total % part == 0 and part < total]
        return draw.one_of(parts) if parts else None
    low, high = level.change
    if kind == "sub":
        high = min(high, total - 1)
    return draw.within((low, high)) if low <= high else None


def _apply(kind: str, total: int, number: int) -> tuple[str, int]:
    if kind == "add":
        return "+", total + number
    if kind == "sub":
        return "-", total - number
    if kind == "times":
        return "*", total * number
    return "/", total // number


def _calculation(left: int, operator: str, right: int, result: int) -> str:
    """``3+4=<<3+4=7>>7``, as GSM8K annotates its solutions."""
    return f"{left}{operator}{right}=<<{left}{operator}{right}={result}>>{result}"
