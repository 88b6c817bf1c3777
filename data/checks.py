"""Which rows are good: every check that one row must pass, and how a bad row is told.

A bad row is never repaired and never skipped in silence.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from env.errors import Problem

SHOWN_VALUE = 80
SHOWN_PROBLEMS = 50
MARKER = "####"
# Thousands may be grouped by commas, as in GSM8K.
_NUMBER = re.compile(r"-?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)(\.[0-9]+)?")

EXPECTED = {
    "line too long": "at most 1 MiB a line",
    "invalid UTF-8": "text in UTF-8",
    "invalid JSON": "one JSON object a line",
    "missing field": 'an object with "question" and "answer"',
    "wrong type": "a string",
    "empty question": "a question",
    "no ####": "an answer that ends in #### and a number",
    "answer is no number": "a number such as 18, -5, 1,234 or 2.5 after the last ####",
    "duplicate question": "each question once, in train and test together",
}

MISSING = object()


@dataclass(frozen=True)
class BadRow:
    """One reason why a row is refused.

    Args:
        file: the source's file, as the manifest names it.
        line: line of a text file, row of a parquet or Arrow file; from 1.
        field: ``question``, ``answer`` or ``line``.
        value: what stands there, shortened.
        reason: a key of :data:`EXPECTED`.
        detail: what the reason does not say by itself.
    """

    file: str
    line: int
    field: str
    value: str
    reason: str
    detail: str = ""

    def problem(self) -> Problem:
        what = f"{self.reason}: {self.value!r}" + (f" ({self.detail})" if self.detail else "")
        where = f"{self.file}, line {self.line}, {self.field}"
        return Problem(where, what, EXPECTED[self.reason])


@dataclass(frozen=True)
class RawRow:
    """One row as its file has it, before any check.

    Args:
        file: as in :class:`BadRow`.
        line: as in :class:`BadRow`.
        question: any JSON value, or :data:`MISSING`.
        answer: any JSON value, or :data:`MISSING`.
        bad: what the reader found; with it, ``question`` and ``answer`` may be missing.
    """

    file: str
    line: int
    question: object = MISSING
    answer: object = MISSING
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True)
class Row:
    """A good row; ``ground_truth`` is what follows the last ``####``, without commas."""

    question: str
    answer: str
    ground_truth: str


def check(raw: RawRow) -> tuple[Row | None, list[BadRow]]:
    """The good row, or None and every reason why it is bad."""
    if raw.bad:
        return None, list(raw.bad)
    bad: list[BadRow] = []
    question = _text(raw, "question", raw.question, bad)
    answer = _text(raw, "answer", raw.answer, bad)
    if question is not None and not question.strip():
        bad.append(_bad(raw, "question", question, "empty question"))
    truth = ""
    if answer is not None:
        _, marker, after = answer.rpartition(MARKER)
        truth = after.strip()
        if not marker:
            bad.append(_bad(raw, "answer", answer, "no ####"))
        elif not _NUMBER.fullmatch(truth):
            bad.append(_bad(raw, "answer", truth, "answer is no number"))
    if bad or question is None or answer is None:
        return None, bad
    return Row(question, answer, truth.replace(",", "")), []


def fingerprint(question: object) -> bytes | None:
    """16 bytes that are equal for questions equal but for white space; None if it is no text."""
    if not isinstance(question, str) or not question.strip():
        return None
    plain = " ".join(question.split()).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(plain, digest_size=16).digest()


def duplicate(raw: RawRow, first: str) -> BadRow:
    """The same question stands in a row before (``first`` says where)."""
    return _bad(raw, "question", str(raw.question), "duplicate question", f"as in {first}")


def shorten(value: object) -> str:
    """At most :data:`SHOWN_VALUE` characters of a value, as text that can be written as UTF-8."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_VALUE else text[: SHOWN_VALUE - 1] + "…"


@dataclass
class Report:
    """The first bad rows in full and the count of all: bounded, however many there are."""

    problems: list[Problem] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    rows: int = 0

    def add(self, bad: Sequence[BadRow]) -> None:
        self.rows += 1
        for one in bad:
            self.reasons[one.reason] += 1
            if len(self.problems) < SHOWN_PROBLEMS:
                self.problems.append(one.problem())

    def all_problems(self) -> list[Problem]:
        """What is shown, and at the end how many there are of each kind and what to do."""
        hidden = self.reasons.total() - len(self.problems)
        counts = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        what = f"refused for {self.rows} bad rows: {counts}"
        if hidden:
            what += f"; {hidden} of these not shown"
        do = "correct these rows, or keep the good ones: --quarantine FILE takes the bad ones"
        return [*self.problems, Problem("the whole source", what, "no bad row", do)]


def _text(raw: RawRow, name: str, value: object, bad: list[BadRow]) -> str | None:
    if value is MISSING:
        bad.append(_bad(raw, name, "", "missing field"))
        return None
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        bad.append(_bad(raw, name, value, "wrong type", f"found {kind}"))
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # A lone surrogate, which JSON can write as an escape and UTF-8 cannot.
        detail = f"lone surrogate at character {error.start + 1}"
        bad.append(_bad(raw, name, value, "invalid UTF-8", detail))
        return None
    return value


def _bad(raw: RawRow, name: str, value: object, reason: str, detail: str = "") -> BadRow:
    return BadRow(raw.file, raw.line, name, shorten(value), reason, detail)
