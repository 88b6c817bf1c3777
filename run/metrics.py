"""What verl's trainer tells about a run, as JSON lines in the run's folder.

verl builds :class:`JsonlLogger` by import path (``trainer.custom_logger``) in the process of its
trainer. Two files grow by whole lines, flushed at once, so that a reader may follow them:

- ``metrics.jsonl``: ``{"time", "step", "metrics": {verl's names: number}}`` once a step;
- ``phases.jsonl``: ``{"time", "step", "phase", "event": "start"|"end", "seconds"}`` at every timer.

Times are seconds since the epoch. JSON has no NaN: such numbers are the strings "NaN", "Infinity"
and "-Infinity", which ``float()`` reads.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import time
from pathlib import Path
from typing import Any, TextIO


class JsonlLogger:
    """Logger for verl's ``trainer.custom_logger``.

    Args:
        project_name: unused; part of verl's interface.
        experiment_name: unused; part of verl's interface.
        config: verl's whole config as plain containers; ``trainer.custom_logger.folder`` names the
            run's folder.
    """

    def __init__(self, project_name: str, experiment_name: str, config: dict[str, Any]) -> None:
        from verl.utils.profiler.performance import add_timer_callback

        folder = Path(config["trainer"]["custom_logger"]["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics = _append(folder / "metrics.jsonl")
        self._phases = _append(folder / "phases.jsonl")
        self._step = _first_step(config["trainer"])
        add_timer_callback(self.phase)

    def log(self, data: dict[str, Any], step: int) -> None:
        """Append one step's metrics; whatever is no number is left out."""
        numeric = {
            name: _number(value)
            for name, value in data.items()
            if isinstance(value, numbers.Real) or hasattr(value, "item")
        }
        _write(self._metrics, {"time": time.time(), "step": step, "metrics": numeric})
        # on disk before the checkpoint of this step gets its name
        os.fsync(self._metrics.fileno())
        self._step = step + 1

    def phase(self, name: str, seconds: float | None) -> None:
        """Append the start (``seconds`` is None) or the end of a phase of the step under way."""
        event = "start" if seconds is None else "end"
        line = {"time": time.time(), "step": self._step, "phase": name}
        _write(self._phases, {**line, "event": event, "seconds": seconds})


def _first_step(trainer: dict[str, Any]) -> int:
    """The step that the first phase belongs to: a validation before step 1 is of step 0."""
    if trainer.get("resume_mode") == "resume_path":
        return int(trainer["resume_from_path"].rsplit("global_step_", 1)[1]) + 1
    return 0 if trainer.get("val_before_train", True) else 1


def _append(path: Path) -> TextIO:
    file = path.open("a+b")
    # A run that was killed may have left half a line: start on a new one.
    file.seek(0, 2)
    if file.tell() > 0:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.write(b"\n")
    file.close()
    return path.open("a", encoding="utf-8")


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    file.flush()


def _number(value: Any) -> int | float | str:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")
