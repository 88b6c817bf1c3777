"""The phases of a training step in words, and times as people read them."""

from __future__ import annotations

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


def in_words(phase: str) -> str:
    return WORDS.get(phase, phase)


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
