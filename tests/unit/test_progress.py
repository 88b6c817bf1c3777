"""Following a run by its files, on a terminal and without one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from run.jsonl import CHUNK_BYTES, Tail
from run.phases import duration
from run.progress import STEPS_REMEMBERED, Progress

START = 1_700_000_000.0


class Run:
    """A run's folder that is written line by line, on a clock that stands still in between."""

    def __init__(self, folder: Path, terminal: bool = False, total_steps: int | None = 4) -> None:
        self.folder = folder
        self.seconds = 0.0
        self.output = io.StringIO()
        console = Console(file=self.output, force_terminal=terminal, width=120)
        self.progress = Progress(folder, total_steps, console, clock=lambda: START + self.seconds)

    def write(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def phase(self, name: str, event: str) -> None:
        line = {"time": START + self.seconds, "step": 1, "phase": name, "event": event}
        self.write("phases.jsonl", json.dumps({**line, "seconds": None}) + "\n")

    def metrics(self, step: int, **metrics: Any) -> None:
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        line = {"time": START + self.seconds, "step": step, "metrics": named}
        self.write("metrics.jsonl", json.dumps(line) + "\n")

    def after(self, seconds: float) -> str:
        """What is printed ``seconds`` later, updated four times a second."""
        before = len(self.output.getvalue())
        for _ in range(round(seconds * 4)):
            self.seconds += 0.25
            self.progress.update()
        return self.output.getvalue()[before:]

    def show(self) -> str:
        before = len(self.output.getvalue())
        self.progress.update()
        return self.output.getvalue()[before:]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_before_there_are_files_it_says_that_the_run_is_starting(run: Run) -> None:
    assert run.show() == ""
    assert run.progress.seconds_left is None
    assert run.after(60) == "before step 1/4: starting\n" * 2


def test_a_finished_step_is_one_plain_line_with_reward_kl_and_time_left(run: Run) -> None:
    run.metrics(1, timing_s__step=30.0, critic__score__mean=0.3125, actor__kl_loss=0.00123, other=1)
    expected = "step 1/4 done in 30 s: reward 0.3125, KL 0.00123, about 1 min 30 s left\n"
    assert run.show() == expected
    assert run.show() == ""


def test_a_rollout_that_samples_from_another_policy_is_warned_of_once(run: Run) -> None:
    run.metrics(1, timing_s__step=1.0, training__rollout_log_probs_diff_mean=1e-3)
    run.metrics(2, timing_s__step=1.0, training__rollout_log_probs_diff_mean=0.0123)
    run.metrics(3, timing_s__step=1.0, training__rollout_log_probs_diff_mean="NaN")
    _, _, warning, third = run.show().splitlines()
    assert warning.startswith(
        "warning at step 2: log-probs of rollout and trainer differ by 0.0123"
    )
    assert "another policy" in warning
    assert third.startswith("step 3/4")


def test_the_warning_stands_above_the_bar_of_a_terminal(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=True)
    with run.progress:
        run.show()
        run.metrics(1, timing_s__step=1.0, training__rollout_log_probs_diff_mean=0.5)
        shown = run.show()
    assert "differ by 0.5 on average" in shown
    assert shown.index("warning at step 1") < shown.rindex("step 2/4")
    assert "warning" not in run.show()


def test_a_first_validation_is_no_step(run: Run) -> None:
    run.metrics(0, **{"val-core/gsm8k/acc/mean@1": 0.0})
    assert run.show() == ""
    assert run.progress.step == 0


def test_missing_and_strange_metrics_are_left_out(run: Run) -> None:
    run.metrics(1, timing_s__step=4.0, critic__score__mean=None, actor__kl_loss=[1])
    assert run.show() == "step 1/4 done in 4.0 s, about 12 s left\n"
    run.metrics(2, timing_s__step="NaN", critic__score__mean="NaN")
    assert run.show() == "step 2/4 done in 4.0 s: reward nan, about 8.0 s left\n"


def test_the_time_left_goes_by_the_median_and_by_what_the_step_has_taken(run: Run) -> None:
    for step, seconds in ((1, 100.0), (2, 10.0), (3, 12.0)):
        run.metrics(step, timing_s__step=seconds)
    run.phase("step", "start")
    run.show()
    assert run.progress.seconds_left == 12
    run.after(5)
    assert run.progress.seconds_left == 7
    run.after(60)
    assert run.progress.seconds_left == 0


def test_without_a_total_it_counts_steps_and_promises_no_end(tmp_path: Path) -> None:
    run = Run(tmp_path, total_steps=None)
    run.metrics(7, timing_s__step=3.0)
    assert run.show() == "step 7 done in 3.0 s\n"
    assert run.after(30) == "step 8: working\n"


def test_short_phases_are_silent_and_a_long_one_is_said_once_after_15_seconds(run: Run) -> None:
    run.phase("step", "start")
    run.phase("gen", "start")
    assert run.after(14) == ""
    run.phase("gen", "end")
    run.phase("update_actor", "start")
    assert run.after(14) == ""
    assert run.after(2) == "step 1/4: updating the actor, 15 s\n"
    assert run.after(28.75) == ""
    assert run.after(0.25) == "step 1/4: updating the actor, 45 s\n"


def test_a_sign_of_life_comes_at_most_every_30_seconds(run: Run) -> None:
    run.phase("step", "start")
    run.phase("gen", "start")
    assert len(run.after(600).splitlines()) == 20


def test_an_inner_phase_is_named_and_the_outer_one_again_after_it(run: Run) -> None:
    run.phase("step", "start")
    run.show()
    assert run.progress.activity == "working"
    run.phase("adv", "start")
    run.phase("some_new_timer", "start")
    run.show()
    assert run.progress.activity.startswith("some_new_timer")
    run.phase("some_new_timer", "end")
    run.show()
    assert run.progress.activity.startswith("advantages")


def test_a_phase_that_never_ended_is_over_with_the_next_step(run: Run) -> None:
    run.phase("step", "start")
    run.phase("gen", "start")
    run.phase("step", "start")
    run.show()
    assert run.progress.phase is None


def test_a_half_written_line_waits_until_it_is_whole(run: Run) -> None:
    line = json.dumps({"step": 1, "metrics": {"timing_s/step": 2.0}}) + "\n"
    for cut in range(1, len(line)):
        run.write("metrics.jsonl", line[cut - 1 : cut])
        assert run.show() == ""
    run.write("metrics.jsonl", line[-1])
    assert run.show() == "step 1/4 done in 2.0 s, about 6.0 s left\n"


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[1]", "null", '{"step": "x"}', '{"step": 1, "metrics": []}', "\x00"]
)
def test_lines_of_another_make_are_passed_over(run: Run, line: str) -> None:
    for name in ("metrics.jsonl", "phases.jsonl"):
        run.write(name, line + "\n")
    run.metrics(1, timing_s__step=2.0)
    run.phase("gen", "start")
    assert run.show().startswith("step 1/4 done")
    assert run.progress.activity.startswith("generating responses")


def test_on_a_terminal_a_bar_shows_step_phase_time_left_reward_and_kl(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=True)
    with run.progress:
        assert "starting" in run.show()
        run.metrics(1, timing_s__step=30.0, critic__score__mean=0.25, actor__ppo_kl=0.5)
        run.phase("step", "start")
        run.phase("gen", "start")
        run.seconds += 5
        shown = run.show()
    for part in ("step 2/4", "generating responses, 5.0 s", "1 min 25 s left", "reward 0.25"):
        assert part in shown
    assert "KL 0.5" in shown
    # The cursor, hidden while the bar is drawn, is visible again.
    assert run.output.getvalue().rindex("\x1b[?25h") > run.output.getvalue().rindex("\x1b[?25l")


def test_the_last_step_fills_the_bar(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=True)
    with run.progress:
        run.metrics(4, timing_s__step=30.0)
        assert "step 4/4, finishing" in run.show()


def test_only_so_many_step_times_are_kept(run: Run) -> None:
    for step in range(1, 10 * STEPS_REMEMBERED):
        run.metrics(step, timing_s__step=1.0)
    run.show()
    assert len(run.progress._step_seconds) == STEPS_REMEMBERED


def test_a_tail_reads_only_what_is_new_and_starts_again_with_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert list(tail.read()) == [{"a": 1}, {"a": 2}]
    assert list(tail.read()) == []
    with path.open("a") as file:
        file.write(": 3}\n")
    assert list(tail.read()) == [{"a": 3}]
    path.write_text('{"b": 1}\n')
    assert list(tail.read()) == [{"b": 1}]


def test_a_tail_crosses_chunks_and_drops_a_line_that_is_longer_than_one(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    numbered = [{"n": n, "pad": "x" * 1000} for n in range(3000)]
    with path.open("w") as file:
        for value in numbered:
            file.write(json.dumps(value) + "\n")
        file.write(json.dumps({"huge": "x" * 3 * CHUNK_BYTES}) + "\n")
        file.write('{"last": 1}\n')
    assert list(Tail(path).read()) == [*numbered, {"last": 1}]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0.0 s"),
        (4.24, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (185, "3 min 5 s"),
        (3599.6, "1 h 0 min"),
        (7380, "2 h 3 min"),
    ],
)
def test_durations_are_written_as_people_read_them(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize("terminal", [False, True])
def test_a_resumed_run_shows_only_what_comes_now(tmp_path: Path, terminal: bool) -> None:
    run = Run(tmp_path, terminal)
    for step in (1, 2):
        run.phase("step", "start")
        run.metrics(step, timing_s__step=10.0, critic__score__mean=0.5)
    run.progress.catch_up()
    assert run.output.getvalue() == ""
    run.seconds += 1000
    shown = run.show()
    assert "done" not in shown
    if terminal:
        assert "step 3/4" in shown
        assert "starting" in shown
    assert run.progress.seconds_left == 20.0
    run.metrics(3, timing_s__step=10.0, critic__score__mean=0.5)
    assert "step 3/4 done" in run.show() or terminal
