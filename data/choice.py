"""Which rows are kept: good, short enough, and drawn where only some are wanted."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator

from data.options import Options
from data.survey import Survey
from env.errors import Problem, Refused

FATES = ("kept", "quarantined", "overlong", "not_sampled")
KEPT, QUARANTINED, OVERLONG, NOT_SAMPLED = range(4)


def fates(options: Options, found: Survey) -> bytearray:
    """What becomes of each row, by position: an index of :data:`FATES`.

    Raises:
        Refused: no train row is kept.
    """
    limit = options.max_prompt_tokens
    fate = bytearray(len(found.bad))
    for position in range(len(fate)):
        if not found.good(position):
            fate[position] = QUARANTINED
        elif limit is not None and found.prompt_tokens[position] > limit:
            fate[position] = OVERLONG
    if options.rows is not None:
        for span in found.spans.values():
            kept = (position for position in span if fate[position] == KEPT)
            drawn = _sample(kept, options.rows, options.seed, span.start)
            for position in span:
                if fate[position] == KEPT and position not in drawn:
                    fate[position] = NOT_SAMPLED
    if KEPT not in fate[: found.spans["train"].stop]:
        raise Refused(_nothing_left(fate[: found.spans["train"].stop]))
    return fate


def _nothing_left(fate: bytearray) -> Problem:
    expected = "a good row or more"
    if not fate:
        return Problem("the train split", "holds no row", expected, "correct the source")
    overlong = fate.count(OVERLONG)
    what = (
        f"no row is left of {len(fate):,} ({overlong:,} overlong, {fate.count(QUARANTINED):,} bad)"
    )
    do = "raise --max-prompt-tokens" if overlong else "correct the source"
    return Problem("the train split", what, expected, do)


def _sample(positions: Iterator[int], rows: int, seed: int, start: int) -> set[int]:
    """``rows`` of ``positions`` (all, if there are fewer), drawn without replacement.

    A row is drawn by a hash of (seed, its index in the split), so that neither the other rows nor
    the order of reading matter.
    """

    def key(position: int) -> bytes:
        text = f"{seed}/{position - start}".encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    return set(heapq.nsmallest(rows, positions, key=key))
