"""The first of two readings: looks at every row and keeps a few bytes of each.

The second reading (:mod:`data.writer`) writes. Between them it is known which rows are bad or
repeated, how long each one is in tokens, and which ones are kept, without holding any row.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from data import checks
from data.checks import BadRow, RawRow, Row
from data.sources import Source
from data.tokens import Counter


@dataclass
class Survey:
    """What is known of every row, by its position over all splits; 33 bytes a row.

    Args:
        spans: first position and number of rows of each split.
        files: first position of each file, in order, with its name.
        bad: 1 where a check refused the row.
        digests: 16 bytes of the question; see :func:`data.checks.fingerprint`.
        prompt_tokens: 0 where not counted.
        answer_tokens: 0 where not counted.
        content: sha256 over the questions and answers of each split.
        first: position of the row that keeps this question: the row's own, unless repeated.
    """

    spans: dict[str, range] = field(default_factory=dict)
    files: list[tuple[int, str]] = field(default_factory=list)
    bad: bytearray = field(default_factory=bytearray)
    digests: bytearray = field(default_factory=bytearray)
    prompt_tokens: array[int] = field(default_factory=lambda: array("i"))
    answer_tokens: array[int] = field(default_factory=lambda: array("i"))
    content: dict[str, str] = field(default_factory=dict)
    first: array[int] = field(default_factory=lambda: array("q"))

    def good(self, position: int) -> bool:
        return not self.bad[position] and self.first[position] == position

    def any_bad(self) -> bool:
        return not all(map(self.good, range(len(self.bad))))

    def judge(self, raw: RawRow, position: int) -> tuple[Row | None, list[BadRow]]:
        """As :func:`data.checks.check`, with repeated questions known."""
        row, bad = checks.check(raw)
        first = self.first[position]
        if first != position:
            row = None
            bad.append(checks.duplicate(raw, self._place(first)))
        return row, bad

    def _place(self, position: int) -> str:
        start, name = max(one for one in self.files if one[0] <= position)
        return f"{name}, line {position - start + 1}"


def survey(source: Source, batch_size: int, instruction: str, counter: Counter | None) -> Survey:
    """Read every row once.

    Raises:
        Refused: a file cannot be read at all; bad rows only stand in the result.
    """
    found = Survey()
    for split, read in source.splits.items():
        start = len(found.bad)
        content = hashlib.sha256()
        rows = read(batch_size)
        while batch := list(islice(rows, batch_size)):
            good = [_look(found, raw) for raw in batch]
            for row in filter(None, good):
                for text in (row.question.encode(), row.answer.encode()):
                    content.update(len(text).to_bytes(8, "big") + text)
            _count(found, good, instruction, counter)
        found.spans[split] = range(start, len(found.bad))
        found.content[split] = content.hexdigest()
    found.first = _repeated(found)
    return found


def messages(row: Row, instruction: str) -> list[dict[str, str]]:
    """The conversation that verl renders and the model answers."""
    return [{"role": "user", "content": f"{row.question} {instruction}"}]


def _look(found: Survey, raw: RawRow) -> Row | None:
    position = len(found.bad)
    if not found.files or found.files[-1][1] != raw.file:
        found.files.append((position, raw.file))
    row, _ = checks.check(raw)
    found.bad.append(row is None)
    unlike_any = hashlib.blake2b(position.to_bytes(8, "big"), digest_size=16, person=b"no question")
    found.digests += checks.fingerprint(raw.question) or unlike_any.digest()
    return row


def _count(
    found: Survey, good: list[Row | None], instruction: str, counter: Counter | None
) -> None:
    rows = [row for row in good if row is not None]
    prompts = answers = [0] * len(rows)
    if counter is not None and rows:
        prompts = counter.prompts([messages(row, instruction) for row in rows])
        answers = counter.answers([row.answer for row in rows])
    counts = iter(zip(prompts, answers, strict=True))
    for row in good:
        prompt, answer = (0, 0) if row is None else next(counts)
        found.prompt_tokens.append(prompt)
        found.answer_tokens.append(answer)


def _repeated(found: Survey) -> array[int]:
    """For each row the first row with its question; a good one, if any of these is good."""
    halves = np.frombuffer(found.digests, dtype=np.uint64).reshape(-1, 2)
    bad = np.frombuffer(found.bad, dtype=np.uint8)
    # Stable, so among equal questions good rows come first, and those in their order.
    order = np.lexsort((bad, halves[:, 0], halves[:, 1]))
    same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    first = array("q", range(len(bad)))
    for at in np.flatnonzero(same):
        first[order[at + 1]] = first[order[at]]
    return first
