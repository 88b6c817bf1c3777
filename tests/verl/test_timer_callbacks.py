"""verl-patches/0010, and the logger that writes what it tells: run.metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from run.metrics import JsonlLogger


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from verl.utils.profiler import performance

    fresh: list[Any] = []
    monkeypatch.setattr(performance, "_timer_callbacks", fresh)
    return fresh


@pytest.fixture
def logger(callbacks: list[Any], tmp_path: Path) -> JsonlLogger:
    return JsonlLogger("p", "e", {"trainer": {"custom_logger": {"folder": str(tmp_path)}}})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_callback_hears_of_the_start_and_the_end(callbacks: list[Any]) -> None:
    from verl.utils.profiler import marked_timer
    from verl.utils.profiler.performance import add_timer_callback

    heard: list[tuple[str, float | None]] = []
    add_timer_callback(lambda name, seconds: heard.append((name, seconds)))
    timing: dict[str, float] = {}
    with marked_timer("gen", timing):
        assert heard == [("gen", None)]
    assert heard[1] == ("gen", timing["gen"])


def test_phases_carry_the_step_under_way(logger: JsonlLogger, tmp_path: Path) -> None:
    from verl.utils.profiler import marked_timer

    with marked_timer("testing", {}):
        pass
    logger.log({"val": 0.5}, step=0)
    with marked_timer("step", {}), marked_timer("gen", {}):
        pass
    found = [
        (line["step"], line["phase"], line["event"]) for line in lines(tmp_path / "phases.jsonl")
    ]
    assert found == [
        (0, "testing", "start"),
        (0, "testing", "end"),
        (1, "step", "start"),
        (1, "gen", "start"),
        (1, "gen", "end"),
        (1, "step", "end"),
    ]


@pytest.mark.parametrize(
    ("trainer", "step"),
    [
        ({"val_before_train": True}, 0),
        ({"val_before_train": False}, 1),
        ({"resume_mode": "resume_path", "resume_from_path": "/x/global_step_7"}, 8),
    ],
)
def test_the_first_phase_is_of_the_step_that_begins(
    callbacks: list[Any], tmp_path: Path, trainer: dict[str, Any], step: int
) -> None:
    folder = {"custom_logger": {"folder": str(tmp_path)}}
    JsonlLogger("p", "e", {"trainer": {**folder, **trainer}}).phase("gen", None)
    (line,) = lines(tmp_path / "phases.jsonl")
    assert line["step"] == step


def test_metrics_of_every_number_type_are_written(logger: JsonlLogger, tmp_path: Path) -> None:
    values = {"int": 1, "float": 0.5, "np": np.float32(0.25), "tensor": torch.tensor(2.0)}
    logger.log({**values, "flag": True, "text": "no number"}, step=1)
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line["step"] == 1
    assert line["metrics"] == {"int": 1, "float": 0.5, "np": 0.25, "tensor": 2.0, "flag": 1}


def test_numbers_that_json_lacks_stay_readable(logger: JsonlLogger, tmp_path: Path) -> None:
    logger.log({"a": float("nan"), "b": float("inf"), "c": np.float64("-inf")}, step=1)
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}
    assert [str(float(value)) for value in line["metrics"].values()] == ["nan", "inf", "-inf"]


def test_a_half_written_line_of_a_killed_run_spoils_no_other(
    callbacks: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    again = JsonlLogger("p", "e", {"trainer": {"custom_logger": {"folder": str(tmp_path)}}})
    again.log({"a": 1}, step=2)
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert written[:2] == ['{"step": 1}', '{"ste']
    assert json.loads(written[2])["metrics"] == {"a": 1}
