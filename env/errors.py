"""How every command of this project says no.

A :class:`Problem` names what was wrong, where, what was expected and what to do. A command collects
all of them and raises one :class:`Refused`; :func:`main` prints it and turns it into an exit code.

Exit codes: 0 done, 1 refused (the input is wrong), 2 the command line is wrong (argparse),
3 something that must be fetched could not be had, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

OK, REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        where: file, line and field, or the option, or the key.
        what: what was found there.
        expected: what would have been right.
        do: what the reader can do about it.
    """

    where: str
    what: str
    expected: str = ""
    do: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.do:
            text += f"\n    -> {self.do}"
        return text


class Refused(Exception):  # noqa: N818 - reads like the sentence that is printed
    """The command cannot go on; carries every problem found, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem], exit_code: int = REFUSED) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        self.exit_code = exit_code
        super().__init__("\n".join(map(str, self.problems)))


def main(command: Callable[[], int | None]) -> None:
    """Run ``command`` as a process: print what it refuses on stderr and exit with its code."""
    try:
        code = command() or OK
    except Refused as refused:
        count = len(refused.problems)
        print(f"refused: {count} problem{'s' if count != 1 else ''}", file=sys.stderr)
        for problem in refused.problems:
            print(f"  {problem}", file=sys.stderr)
        code = refused.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left (`... | head`): no error of ours, and no traceback at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)
