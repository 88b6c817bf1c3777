"""Runs the training process and sees to it that nothing of it stays behind.

verl's driver starts Ray, and Ray starts a scheduler, workers and helpers of its own, some of them
detached. Here all of them become descendants of one process that stops and reaps every one,
however training ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

# From <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

TICK_SECONDS = 0.25
STOP_SECONDS = 15.0

# Loaded here and not between fork and exec, where a lock of another thread would never be released.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; unwinds like KeyboardInterrupt."""


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    tick: Callable[[], None],
) -> int:
    """Run ``command`` with its output in ``log`` until it ends; returns its exit code.

    Args:
        tick: called a few times a second while it runs, and once after.

    Raises:
        KeyboardInterrupt, Terminated: passed on after everything was stopped.
    """
    _become_subreaper()
    previous = {number: signal.signal(number, _terminate) for number in _ending_signals()}
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal goes to its whole process group: here only to this process,
                # which then stops the others in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        while process.poll() is None:
            tick()
            time.sleep(TICK_SECONDS)
        tick()
        return process.returncode
    finally:
        _stop(process)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP of a terminal that went away unless nohup had it ignored."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *hangup]


def _stop(process: subprocess.Popen[bytes] | None) -> None:
    """Ask ``process`` to end, then end and reap every descendant of this process.

    Args:
        process: None where a signal came while it was being started.
    """
    try:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, Terminated):
        pass  # asked nicely long enough, or told to hurry
    with _undisturbed():
        deadline = time.monotonic() + STOP_SECONDS
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for descendant in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if descendant.status() != psutil.STATUS_ZOMBIE:
                        descendant.kill()
            _reap()
            time.sleep(0.02)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """One more Ctrl-C would leave processes behind that the block is about to end."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in asking]
    try:
        yield
    finally:
        for number, handler in zip(asking, before, strict=True):
            signal.signal(number, handler)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _become_subreaper() -> None:
    # Orphans of the tree become our children instead of init's, so they can be found and reaped.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _die_with_parent() -> None:
    # Even if this process is killed with -9. Ray's own processes do the same towards the driver.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated
