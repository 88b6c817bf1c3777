"""The three scorers. Each returns the same keys for every response, as verl requires:

- ``score``: what is trained on, 0 to 1.
- ``acc``: 1.0 for a right answer, else 0.0; verl reports it as ``val-core/<source>/acc/mean@1``.
- ``format``: 1.0 where an answer can be read in the place that is asked for, else 0.0.

None of them raises, whatever the text or the truth, or depends on the thread it runs in; each takes
time linear in the length of both.
"""

from __future__ import annotations

import logging
import numbers
import threading
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from run.reward.extract import marked_answer
from run.reward.number import last_number, sole_number

log = logging.getLogger(__name__)

# Parts of the graded score; together 1.
EXACT, CLOSENESS, FORMAT, ENDING = 0.4, 0.4, 0.15, 0.05
ENDING_CHARS = 32

# Taken once and never given back: whoever gets it says what is wrong, all others stay silent.
_first_bad_truth = threading.Lock()


def strict(
    data_source: object,
    solution_str: object,
    ground_truth: object,
    extra_info: object = None,
    **kwargs: object,
) -> dict[str, float]:
    """verl's own GSM8K scorer: ``#### 18`` to the letter, within the last 300 characters.

    ``acc`` is its verdict and ``format`` says whether it found an answer at all.
    """
    from verl.utils.reward_score import gsm8k

    text = _text(solution_str)
    # It compares with a string, so a truth of another type is never met.
    truth = ground_truth if isinstance(ground_truth, str) else None
    score = float(gsm8k.compute_score(text, truth, method="strict"))
    found = gsm8k.extract_solution(text, method="strict") is not None
    return {"score": score, "acc": score, "format": float(found)}


def normalised(
    data_source: object,
    solution_str: object,
    ground_truth: object,
    extra_info: object = None,
    **kwargs: object,
) -> dict[str, float]:
    r"""Right or wrong, with the marked answer read as a person reads it.

    Only what follows the last ``####`` or stands in the last ``\boxed{}`` is read, whichever comes
    last. It must state one number: currency and percent signs, thousands separators, markdown,
    units, a final period, an equal decimal (``18.0``), a Unicode minus, full-width digits and a
    plus sign are fine; two numbers (``18 or 19``, ``1/2``, ``9 + 9``), malformed ones (``1,23``)
    and scaled ones (``18k``, ``2e3``) are no answer. Numbers are compared exactly.
    """
    answer = _marked_number(_text(solution_str))
    acc = float(answer is not None and answer == _truth(ground_truth))
    return {"score": acc, "acc": acc, "format": float(answer is not None)}


def graded(
    data_source: object,
    solution_str: object,
    ground_truth: object,
    extra_info: object = None,
    **kwargs: object,
) -> dict[str, float]:
    r"""Partial credit, so that the responses of a weak model differ and GRPO has a signal.

    Let x be the marked number (see :func:`normalised`) or, where none is marked, the last number
    of the response, t the truth, and tail the number of characters after x. Then::

        score = 0.40 * [x = t]
              + 0.40 / (1 + |x - t| / max(1, |t|))
              + 0.15 * [x is marked]
              + 0.05 * (1 if x is marked else 1 / (1 + tail / 32))

    and 0 where there is no number. So 1.0 is reached by the right answer in the right format and
    by nothing else; among answers of one form a nearer one earns more; a right number without a
    marker (at most 0.85) beats any wrong one (below 0.60); no number earns least.

    The last part rewards a response that ends with its number, the step before marking it, and
    parts responses that end in the same number. No part grows or shrinks with the length of a
    response: padding before x changes nothing, padding after x only costs, and listing many
    numbers helps not at all, since only one is read. ``acc`` is that of :func:`normalised`.
    """
    text = _text(solution_str)
    truth = _truth(ground_truth)
    marked = _marked_number(text)
    result = {"score": 0.0, "acc": float(marked is not None and marked == truth)}
    result["format"] = float(marked is not None)
    found = (marked, 0) if marked is not None else last_number(text)
    if truth is None or found is None:
        return result
    number, tail = found
    if result["acc"]:
        return result | {"score": 1.0}
    result["score"] = (
        EXACT * (number == truth)
        + CLOSENESS * _closeness(number, truth)
        + FORMAT * result["format"]
        + ENDING / (1 + tail / ENDING_CHARS)
    )
    return result


def _marked_number(text: str) -> Decimal | None:
    answer = marked_answer(text)
    return None if answer is None else sole_number(answer)


def _closeness(number: Decimal, truth: Decimal) -> float:
    """1 / (1 + relative error), within 0 and 1."""
    # A context of its own: wide enough for any exponent, rounding long numbers, raising nothing.
    context = Context(prec=28, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
    size = max(Decimal(1), context.abs(truth))
    error = context.divide(context.abs(context.subtract(number, truth)), size)
    return 1 / (1 + float(error))


def _text(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _truth(value: object) -> Decimal | None:
    """The truth as a number; one that is none is logged, the first time."""
    number: Decimal | None = None
    if isinstance(value, (str, bytes, bytearray)):
        number = sole_number(_text(value))
    elif isinstance(value, Decimal):
        number = value if value.is_finite() else None
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        number = Decimal(int(value))
    elif isinstance(value, float):
        number = sole_number(f"{Decimal(repr(float(value))):f}")
    if number is None and _first_bad_truth.acquire(blocking=False):
        shown = repr(value[:60]) if isinstance(value, (str, bytes)) else type(value).__name__
        log.warning(
            "a ground truth is no number: %s; responses to it score 0 (said only once)", shown
        )
    return number
