"""Where samples go: ``vram.jsonl`` in the folder of the newest run, wherever that is just now."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = "vram.jsonl"
# Also written beside the runs, so that a healthcheck needs no run.
SIGN_OF_LIFE = ".monitor"


class Record:
    """Appends samples to the run that ``followed`` points to.

    Args:
        followed: ``out/runs/latest``, or a run's folder; it need not exist yet.
        complain: told once of each reason why nothing can be written.
    """

    def __init__(self, followed: Path, complain: Callable[[str], None]) -> None:
        self._followed = followed
        self._complain = complain
        self._complained: set[str] = set()
        self.run: Path | None = None

    def follow(self) -> bool:
        """Look where the link points now; whether that is another run than before."""
        try:
            found = self._followed.resolve() if self._followed.is_dir() else None
        except OSError:  # a folder on the way may not be entered
            found = None
        is_new = found != self.run
        self.run = found
        return is_new

    def write(self, sample: dict[str, Any]) -> None:
        """Append ``sample``; a full or read-only disk ends nothing."""
        sign = self._followed.parent / SIGN_OF_LIFE
        path = sign if self.run is None else self.run / FILE
        try:
            if self.run is not None:
                _append(path, json.dumps(sample, allow_nan=False) + "\n")
            sign.parent.mkdir(parents=True, exist_ok=True)
            sign.touch()
        except OSError as error:
            reason = f"{error.filename or path}: {os.strerror(error.errno or 0)}"
            if reason not in self._complained:
                self._complained.add(reason)
                self._complain(f"nothing can be recorded: {reason}")


def _append(path: Path, line: str) -> None:
    """The whole line or nothing of it.

    Raises:
        OSError: nothing was written.
    """
    data = line.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        written = os.write(descriptor, data)
        if written < len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def is_alive(runs: Path, within_seconds: float) -> bool:
    """Whether a monitor wrote within the last ``within_seconds``."""
    try:
        return time.time() - (runs / SIGN_OF_LIFE).stat().st_mtime <= within_seconds
    except OSError:
        return False
