"""A training step in words: its phases, times as people read them, a rollout that went astray."""

from __future__ import annotations

from collections.abc import Mapping

from run.jsonl import number

# verl's timers. `step` holds all others of a step.
WORDS = {
    "gen": "generating responses",
    "gen_max": "generating greedy responses",
    "reward": "scoring responses",
    "old_log_prob": "log-probs of the actor",
    "ref": "log-probs of the reference",
    "values": "values of the critic",
    "adv": "advantages",
    "update_critic": "updating the critic",
    "update_actor": "updating the actor",
    "dump_rollout_generations": "writing samples",
    "testing": "validating",
    "save_checkpoint": "saving a checkpoint",
}

# verl's mean |log-prob of the rollout - log-prob of the trainer|, and the limit it warns above
# (ROLLOUT_LOG_PROBS_DIFF_LIMIT in verl/trainer/ppo/metric_utils.py).
ROLLOUT_DIFF = "training/rollout_log_probs_diff_mean"
ROLLOUT_DIFF_LIMIT = 1e-3
OTHER_POLICY = "samples come from another policy than the one that is trained"


def in_words(phase: str) -> str:
    return WORDS.get(phase, phase)


def rollout_astray(metrics: Mapping[str, object]) -> float | None:
    """A step's ``ROLLOUT_DIFF`` where it is above the limit or NaN, else None."""
    value = number(metrics.get(ROLLOUT_DIFF))
    return None if value is None or value <= ROLLOUT_DIFF_LIMIT else value


def duration(seconds: float) -> str:
    """``4.2 s``, ``42 s``, ``3 min 5 s`` or ``2 h 3 min``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
