"""Puts a finished folder in its place at once: written beside, flushed, swapped in by a rename.

Whatever ends a run early, the folder that stood there still stands there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def finished_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place when the block ends well.

    If the block raises, the new folder is removed. What killed runs left is removed by the next.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    with _locked(target.parent):
        _clean(target)
        work.mkdir()
        # Held as long as this process lives: says that the folder is no dead run's.
        alive = os.open(work, os.O_RDONLY)
        fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        yield work
        for path in [*work.rglob("*"), work]:
            _flush(path)
        with _locked(target.parent):
            _swap(work, target)
        _flush(target.parent)
    finally:
        # After a swap this is the old content, before it the unfinished new one.
        shutil.rmtree(work, ignore_errors=True)
        os.close(alive)


def recover(target: Path) -> None:
    """Give ``target`` back where a run was killed between the two renames of :func:`_swap`."""
    if target.parent.is_dir():
        with _locked(target.parent):
            _clean(target)


@contextmanager
def finished_file(target: Path) -> Iterator[Path]:
    """Yield the path of a file beside ``target`` that takes its place when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield beside
        _flush(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _swap(work: Path, target: Path) -> None:
    if not target.exists():
        work.rename(target)
    elif not _exchanged(work, target):
        aside = _aside(target)
        target.rename(aside)
        work.rename(target)
        shutil.rmtree(aside)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _clean(target: Path) -> None:
    aside = _aside(target)
    if aside.is_dir():
        if target.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(target)
    for left in target.parent.glob(f".{glob.escape(target.name)}.new-*"):
        try:
            held = os.open(left, os.O_RDONLY)
        except FileNotFoundError:
            # Its run has just ended and removed it.
            continue
        with suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
        os.close(held)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _flush(path: Path) -> None:
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
