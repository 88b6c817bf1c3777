"""What the operating system refuses, told as a command tells everything it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from env.errors import Problem, Refused

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def refusals_told(writing: Path) -> Iterator[None]:
    """Turn an OSError of the block (a full disk, no permission, a name too long) into Refused.

    Args:
        writing: what the block writes; named where the error names no path.
    """
    try:
        yield
    except BrokenPipeError:
        # Not the disk: the reader of our output has left.
        raise
    except OSError as error:
        where = str(error.filename or writing)
        # Arrow's errors put words of their own in place of the system's.
        what = os.strerror(error.errno) if error.errno else str(error)
        raise Refused(Problem(where, what, do=_cure(error))) from error


def _cure(error: OSError) -> str:
    if error.errno in _FULL:
        return "free some space, or write to another disk (VERL_P40_OUT moves all that is made)"
    if error.errno in _CLOSED:
        return "let this user read and write there, or choose another place"
    return "check that this path can be read and written"
