r"""Where the answer stands in a response: after the last ``####`` or in the last ``\boxed{}``."""

from __future__ import annotations

import re

MARKER = "####"
BOX = r"\boxed{"
# Escaped characters come second, so that `\{` and `\}` never count as braces.
_BRACES = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)


def marked_answer(text: str) -> str | None:
    r"""What follows the last ``####`` or stands in the last closed ``\boxed{}``.

    The one that begins later in the text counts. A box that is never closed is no box. Of what
    follows ``####``, the first line with anything in it: an explanation below it is not the answer.

    Returns:
        The marked text, as it stands and perhaps empty; None where nothing is marked.
    """
    marker = text.rfind(MARKER)
    after = marker + len(MARKER) if marker >= 0 else 0
    box = _last_box(text, after)
    if box is not None:
        return box
    return _first_line(text[after:]) if marker >= 0 else None


def _first_line(text: str) -> str:
    return text.lstrip().split("\n", 1)[0]


def _last_box(text: str, start: int) -> str | None:
    if text.find(BOX, start) < 0:
        return None
    opened: list[int | None] = []  # where a box's content begins, None for a plain brace
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text, start):
        token = brace.group()
        if token == BOX:
            opened.append(brace.end())
        elif token == "{":
            opened.append(None)
        elif token == "}" and opened:
            begin = opened.pop()
            if begin is not None and (last is None or begin > last[0]):
                last = (begin, brace.start())
    return text[slice(*last)] if last else None
