"""How far a download is: a bar with rate and ETA on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_SECONDS_BETWEEN_LINES = 10.0


class DownloadProgress:
    """Counts the bytes of one set of files.

    Args:
        title: what is being fetched.
        total: bytes in all; None where the server does not say.
        console: where to write; standard output unless given.
    """

    def __init__(self, title: str, total: int | None, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._title, self._total, self._done = title, total, 0
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> DownloadProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        self._console.print(text, markup=False)

    def advance(self, count: int) -> None:
        """``count`` bytes more are on the disk; fewer, if it is negative."""
        self._done += count
        self._bar.update(self._task, completed=self._done)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.say(self._line(now))

    def _line(self, now: float) -> str:
        rate = self._done / max(now - self._started, 1e-9)
        text = f"{self._title}: {self._done / 1e6:,.0f} MB"
        if self._total:
            left = (self._total - self._done) / max(rate, 1e-9)
            text += f" of {self._total / 1e6:,.0f} MB, {left:,.0f} s left"
        return f"{text} ({rate / 1e6:,.1f} MB/s)"
