"""What a project of its own would bring: loaded by import path in the tests."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.hf_rollout import HFRollout

LOGGED: list[tuple[str, str, dict[str, Any], int]] = []


class OwnRollout(HFRollout):
    """Generates as HFRollout does and marks what it made."""

    def generate_sequences(self, prompts: Any) -> Any:
        output = super().generate_sequences(prompts)
        output.meta_info["engine"] = "own"
        return output


class OwnLogger:
    """Keeps what it is given."""

    def __init__(self, project_name: str, experiment_name: str, config: dict[str, Any]) -> None:
        self.names = (project_name, experiment_name)

    def log(self, data: dict[str, Any], step: int) -> None:
        LOGGED.append((*self.names, data, step))


def own_reward(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    bonus: float = 0.0,
) -> float:
    """One for the right text, plus ``bonus``."""
    return float(solution_str == ground_truth) + bonus
