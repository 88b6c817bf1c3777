"""Numbers as people and models write them, read as exact decimals in linear time.

Nothing here converts through ``int`` or ``float``: Python refuses to convert long digit strings to
``int``, and ``float`` would call unequal numbers equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

# LaTeX's commands that only set their argument's type, and braces that only hold an exponent.
_SET_TYPE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit)\{([^{}]*)\}")
_EXPONENT = re.compile(r"([\^_])\{(\w*)\}")
# Spaces that only ever stand between groups of thousands where digits are on both sides.
_GROUPED = re.compile(r"(?<=\d)(?:\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
# What makes another number, or none, of the number beside it.
_CHANGED = re.compile(r"[√π]|\\(?:sqrt|pi|pm|mp)(?![A-Za-z])")
# One character class and nothing after it: a match never backtracks.
_TOKEN = re.compile(r"[\d.,]+")
_NEXT_WORD = re.compile(r"([^\S\n]?)([A-Za-z]+)(\d?)")
_CURRENCY = frozenset("$€£¥₹\\")
_SPACES = frozenset(" \t\u00a0\u2009\u202f")
_SIGNS = frozenset("-+±")
_SCALES = frozenset(
    ["k", "K", "M", "B", "bn", "hundred", "thousand", "million", "billion", "trillion"]
)
_PLAIN = {full: full - 0xFEE0 for full in range(0xFF01, 0xFF5F)}  # full-width to ASCII
_PLAIN |= {0x066B: ord("."), 0x066C: ord(",")}  # Arabic decimal and thousands separators
_PLAIN |= dict.fromkeys([0x2010, 0x2011, 0x2012, 0x2013, 0x2212, 0xFE63], ord("-"))


@dataclass(frozen=True)
class Number:
    """A number found in a text.

    Args:
        value: exact value; None for what looks like a number and is none or not only one
            (``1,23``, ``1.2.3``, ``--5``, ``±5``, ``2e3``, ``18k``, ``18½``).
        start: index of its first digit or of the point before it.
        end: index after its last digit.
        clear: False where a dash before it may be a sign or a bullet (``- 5``); ``value`` then
            leaves it out.
    """

    value: Decimal | None
    start: int
    end: int
    clear: bool = True


def plain(text: str) -> str:
    r"""Write other scripts' and LaTeX's ways to write a number as ASCII does.

    These are full-width characters, Unicode minus signs, Arabic separators, thin and hard spaces
    between thousands, ``{,}``, ``\!``, ``\,``, ``\text{}`` and its like, and ``^{2}``.
    """
    if not text.isascii():
        text = text.translate(_PLAIN)
    text = text.replace("{,}", ",").replace("\\!", "")
    text = _EXPONENT.sub(r"\1\2", _SET_TYPE.sub(r"\1", text))
    return _GROUPED.sub(",", text)


def find_numbers(text: str) -> Iterator[Number]:
    """Every number of ``text`` (made :func:`plain`) in order.

    Digits that belong to a word are no numbers: ``m2``, ``m^2``, ``x_1``, ``COVID-19``. A sign
    counts where it touches the number, a currency sign between them or not.
    """
    previous = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        body = token.rstrip(".,")
        if not body:
            continue
        end = match.start() + len(body)
        body = body.lstrip(".,")
        start = end - len(body)
        if start > match.start() and text[start - 1] == "." and text[start - 2 : start - 1] != ".":
            start, body = start - 1, "." + body
        floor, previous = previous, end
        if _in_word(text, match.start(), floor):
            continue
        sign = _sign(text, start, floor)
        if sign is None or _goes_on(text, end):
            yield Number(None, start, end)
        else:
            yield Number(_decimal(sign.strip("?") + body), start, end, clear=sign != "?")


def sole_number(text: str) -> Decimal | None:
    r"""The one number that ``text`` states, or None.

    It may stand again, equal, on another line; on one line a second number is a sum, a range or a
    choice, and says nothing certain; neither does a root, a multiple of pi, or ``\pm``.
    """
    text = plain(text)
    if _CHANGED.search(text):
        return None
    first: Decimal | None = None
    end = 0
    for number in find_numbers(text):
        if number.value is None or not number.clear:
            return None
        if first is None:
            first = number.value
        elif number.value != first or text.find("\n", end, number.start) < 0:
            return None
        end = number.end
    return first


def last_number(text: str) -> tuple[Decimal, int] | None:
    """The last readable number of ``text`` and how many characters come after it.

    White space at the end of the text is not counted.
    """
    text = plain(text).rstrip()
    last = None
    for number in find_numbers(text):
        if number.value is not None:
            last = (number.value, len(text) - number.end)
    return last


def _cased(char: str) -> bool:
    # Scripts without case write no space between a word and a number, so only cased letters
    # bind digits into a word.
    return char.lower() != char.upper()


def _in_word(text: str, start: int, floor: int) -> bool:
    before = start - 1
    if before > floor and text[before] in "^_-":
        before -= 1
    return before >= floor and _cased(text[before])


def _sign(text: str, start: int, floor: int) -> str | None:
    """The sign of the number at ``start``: ``-``, nothing, ``?`` (unclear) or None (impossible).

    ``floor`` is where the number before ends.
    """
    at = start
    spaced = False
    while at > floor and (text[at - 1] in _CURRENCY or text[at - 1] in _SPACES):
        at -= 1
        spaced = spaced or text[at] in _SPACES
    mark = text[at - 1] if at > floor else ""
    if mark not in _SIGNS:
        return ""
    before = text[at - 2] if at - 2 >= floor else ""
    if mark == "±" or before in _SIGNS:
        return None
    follows_number = floor > 0 and text.find("\n", floor, at) < 0
    between_numbers = follows_number and (spaced or not before)
    if mark == "+" or between_numbers or (spaced and _cased(before)):
        return ""
    return "?" if spaced else "-"


def _goes_on(text: str, end: int) -> bool:
    """Whether what follows the digits changes their value."""
    if text[end : end + 1].isnumeric():
        return True  # a superscript, a vulgar fraction, a numeral of another script
    word = _NEXT_WORD.match(text, end)
    if word is None:
        return False
    space, letters, digit = word.groups()
    return bool(digit and not space) or letters in _SCALES or letters.lower() in _SCALES


def _decimal(body: str) -> Decimal | None:
    if not body.isascii():
        body = "".join(char if char in "+-.," else str(unicodedata.decimal(char)) for char in body)
    sign = "-" if body.startswith("-") else ""
    whole, _, fraction = body[len(sign) :].partition(".")
    if "." in fraction or "," in fraction:
        return None
    first, *groups = whole.split(",")
    if groups:
        if not 1 <= len(first) <= 3 or first.startswith("0") or any(len(g) != 3 for g in groups):
            return None
        whole = "".join([first, *groups])
    # Without idle zeros equal numbers have equal digits, which keeps comparing them linear.
    return Decimal(f"{sign}{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}")
