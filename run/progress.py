"""Shows how far a run is, from the files that it writes while it trains.

On a terminal: one bar with the step, the phase and how long it lasts, the time left, reward and KL.
Elsewhere: a plain line for each finished step, for a phase that lasts, and as a sign of life.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import rich.progress
from rich.console import Console

from run.jsonl import Tail, number
from run.phases import OTHER_POLICY, ROLLOUT_DIFF_LIMIT, duration, in_words, rollout_astray

LONG_PHASE_SECONDS = 15.0
HEARTBEAT_SECONDS = 30.0
# Enough for a steady median, whatever the length of the run.
STEPS_REMEMBERED = 101

KL_METRICS = ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl")


class Progress:
    """Follows one run; a context manager that leaves the terminal as it should be.

    Args:
        folder: the run's folder; its files need not exist yet.
        total_steps: number of the last step; None where only the data's size tells.
        console: where to show it; ``console.is_terminal`` decides how.
        clock: seconds since the epoch, the clock of the run's files.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int | None,
        console: Console,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.total_steps = total_steps
        self.step = 0  # the last finished one
        self._clock = clock
        self._phases = Tail(folder / "phases.jsonl")
        self._metrics = Tail(folder / "metrics.jsonl")
        self._running: dict[str, float] = {}  # phase -> when it began, in order
        self._step_seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._reward: float | None = None
        self._kl: float | None = None
        self._warned = False
        self._began = False
        self._view = _Bar(console, total_steps) if console.is_terminal else _Lines(console, clock())

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def catch_up(self) -> None:
        """Take what the run's folder holds already, of an earlier start, and show nothing of it."""
        for _ in self._news():
            pass
        self._running.clear()
        self._began = False

    def update(self) -> None:
        """Read what is new and show it. Cheap enough to be called several times a second."""
        for metrics in self._news():
            self._view.step_done(self)
            self._warn(rollout_astray(metrics))
        self._view.show(self)

    def _news(self) -> Iterator[dict[str, object]]:
        """The metrics of every step that was finished since the last call."""
        for event in self._phases.read():
            self._take_phase(event)
        for line in self._metrics.read():
            metrics = line.get("metrics")
            if isinstance(metrics, dict) and self._take_metrics(line.get("step"), metrics):
                yield metrics

    def close(self) -> None:
        """Leave the terminal as it should be; the bar stays as it was last shown."""
        self._view.close()

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def phase(self) -> tuple[str, float] | None:
        """The phase under way and when it began; None before the first and between two."""
        inner = [(name, began) for name, began in self._running.items() if name != "step"]
        return inner[-1] if inner else None

    @property
    def last_step_seconds(self) -> float | None:
        return self._step_seconds[-1] if self._step_seconds else None

    @property
    def seconds_left(self) -> float | None:
        """By the median of the finished steps; None before the first, or without a total."""
        if not self._step_seconds or self.total_steps is None:
            return None
        usual = median(self._step_seconds)
        spent = self.now - self._running["step"] if "step" in self._running else 0.0
        return max(0.0, (self.total_steps - self.step) * usual - min(max(spent, 0.0), usual))

    @property
    def of_total(self) -> str:
        return "" if self.total_steps is None else f"/{self.total_steps}"

    @property
    def position(self) -> str:
        if self.total_steps is not None and self.step >= self.total_steps:
            return f"step {self.step}{self.of_total}, finishing"
        before = "before " if self.step == 0 and "step" not in self._running else ""
        return f"{before}step {self.step + 1}{self.of_total}"

    @property
    def activity(self) -> str:
        """The phase and for how long."""
        if self.phase is None:
            return "working" if self._began else "starting"
        name, began = self.phase
        return f"{in_words(name)}, {duration(self.now - began)}"

    @property
    def outlook(self) -> str:
        left = self.seconds_left
        if left is None or self.step == self.total_steps:
            return ""
        return f"about {duration(left)} left"

    @property
    def results(self) -> str:
        """Reward and KL of the last finished step."""
        named = [("reward", self._reward), ("KL", self._kl)]
        return ", ".join(f"{name} {value:.4g}" for name, value in named if value is not None)

    def _take_phase(self, event: Mapping[str, object]) -> None:
        name, began = event.get("phase"), number(event.get("time"))
        if not isinstance(name, str) or began is None:
            return
        if name == "step":
            self._running.clear()  # whatever never ended, as after a crash, is over
        self._running.pop(name, None)
        self._began = True
        if event.get("event") == "start":
            self._running[name] = began

    def _take_metrics(self, step: object, metrics: Mapping[str, object]) -> bool:
        """Whether it was the line of a finished step; the first validation is none."""
        seconds = number(metrics.get("timing_s/step"))
        if seconds is None or not isinstance(step, int):
            return False
        self.step = step
        self._began = True
        if math.isfinite(seconds):
            self._step_seconds.append(seconds)
        self._reward = number(metrics.get("critic/score/mean"))
        self._kl = next((number(metrics[name]) for name in KL_METRICS if name in metrics), None)
        return True

    def _warn(self, rollout_diff: float | None) -> None:
        if rollout_diff is None or self._warned:
            return
        self._warned = True
        self._view.say(
            f"warning at step {self.step}: log-probs of rollout and trainer differ by "
            f"{rollout_diff:.3g} on average, above {ROLLOUT_DIFF_LIMIT:g}: {OTHER_POLICY}; "
            "train.log names likely causes"
        )


class _Lines:
    """Plain lines, for a log or a pipe."""

    def __init__(self, console: Console, now: float) -> None:
        self._console = console
        self._said_at = now
        self._said_phase: tuple[str, float] | None = None

    def step_done(self, progress: Progress) -> None:
        seconds = progress.last_step_seconds
        took = "" if seconds is None else f" in {duration(seconds)}"
        head = f"step {progress.step}{progress.of_total} done{took}"
        self._say(progress, ": ".join(filter(None, [head, progress.results])))

    def show(self, progress: Progress) -> None:
        phase, now = progress.phase, progress.now
        lasts = phase is not None and now - phase[1] >= LONG_PHASE_SECONDS
        if (lasts and phase != self._said_phase) or now - self._said_at >= HEARTBEAT_SECONDS:
            self._said_phase = phase
            self._say(progress, f"{progress.position}: {progress.activity}")

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass

    def _say(self, progress: Progress, text: str) -> None:
        self._said_at = progress.now
        self.say(", ".join(filter(None, [text, progress.outlook])))


class _Bar:
    """A bar that is drawn over itself, for a terminal."""

    def __init__(self, console: Console, total_steps: int | None) -> None:
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.fields[position]}", markup=False),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("starting", total=total_steps, position="")

    def step_done(self, progress: Progress) -> None:
        pass  # show() says it

    def show(self, progress: Progress) -> None:
        self._bar.start()
        parts = [progress.activity, progress.outlook, progress.results]
        self._bar.update(
            self._task,
            completed=progress.step,
            position=progress.position,
            description=" | ".join(filter(None, parts)),
        )
        self._bar.refresh()

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)  # above the bar

    def close(self) -> None:
        self._bar.stop()
