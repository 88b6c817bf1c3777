"""What the operating system refuses, told as a command tells everything it refuses."""

from __future__ import annotations

import errno
import os
import re
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
        # Arrow's errors put words of their own in place of the system's.
        what = os.strerror(error.errno) if error.errno else str(error)
        where = str(error.filename or writing)
        raise Refused(Problem(where, what, do=_cure(error.errno))) from error
    except Exception as error:
        # safetensors and tokenizers are written in Rust: the system's error is in their text only.
        found = re.search(r"\(os error (\d+)\)", str(error))
        code = int(found[1]) if found else None
        # What cannot be read is told by those who read it, with the file's name.
        if code is None or code not in _FULL:
            raise
        raise Refused(Problem(str(writing), os.strerror(code), do=_cure(code))) from error


def _cure(code: int | None) -> str:
    if code in _FULL:
        return "free some space, or write to another disk (VERL_P40_OUT moves all that is made)"
    if code in _CLOSED:
        return "let this user read and write there, or choose another place"
    return "check that this path can be read and written"
