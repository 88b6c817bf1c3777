"""How tests start a process that they will send a signal to."""

from __future__ import annotations

import signal


def as_from_a_terminal() -> None:
    """Undo what a background job of a script, or nohup, hands down: ignored signals.

    For ``preexec_fn``. Python itself would take an ignored SIGINT for a wish.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
