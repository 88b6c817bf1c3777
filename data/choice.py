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
        overlong = fate.count(OVERLONG)
        what = f"no row is left of {len(found.spans['train'])} ({overlong} overlong in all)"
        raise Refused(
            Problem("the train split", what, "a row or more", "raise --max-prompt-tokens")
        )
    return fate


def _sample(positions: Iterator[int], rows: int, seed: int, start: int) -> set[int]:
    """``rows`` of ``positions`` (all, if there are fewer), drawn without replacement.

    A row is drawn by a hash of (seed, its index in the split), so that neither the other rows nor
    the order of reading matter.
    """

    def key(position: int) -> bytes:
        text = f"{seed}/{position - start}".encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    return set(heapq.nsmallest(rows, positions, key=key))
