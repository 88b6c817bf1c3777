"""Presets that promise something, run whole: the toys learn, the write-ups' recipe runs."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from omegaconf import OmegaConf

from tests.verl.runs import finish, latest, lines, processes_of, start


@pytest.mark.parametrize(
    ("name", "has_critic"), [("toy-grpo", False), ("toy-ppo", True)], ids=["grpo", "ppo"]
)
def test_a_random_model_learns_to_write_digits(name: str, has_critic: bool, tmp_path: Path) -> None:
    # on any machine on the CPU: what is learned there is what a card would have to learn
    done = finish(start(tmp_path, "--preset", name, "trainer.device=cpu"))
    assert done.returncode == 0, done.stderr
    steps = [line["metrics"] for line in lines(latest(tmp_path) / "metrics.jsonl")]
    scores = [step["critic/score/mean"] for step in steps]
    assert scores[0] < 0.15
    assert mean(scores[-3:]) > 0.8
    assert ("critic/vf_loss" in steps[-1]) == has_critic
    assert processes_of(tmp_path) == []


def test_the_write_ups_recipe_runs_three_steps_and_saves(
    gsm8k: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSM8K_DIR", str(gsm8k))
    # the last validation alone, over all test rows, would take longer than everything else
    overrides = ["trainer.device=cpu", "trainer.total_training_steps=3", "trainer.test_freq=-1"]
    done = finish(start(tmp_path, "--preset", "seed-batch1", "--model", "tiny", *overrides))
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    steps = lines(run / "metrics.jsonl")
    assert [line["step"] for line in steps] == [1, 2, 3]
    for role in ("actor", "critic"):
        assert all(line["metrics"][f"{role}/grad_norm"] > 0 for line in steps)
        saved = run / "checkpoints" / "global_step_3" / role
        assert (saved / "model_world_size_1_rank_0.pt").is_file()
        assert (saved / "optim_world_size_1_rank_0.pt").is_file()
    assert len(lines(run / "samples" / "train" / "1.jsonl")) == 1
    actor = OmegaConf.load(run / "config.yaml").actor_rollout_ref.actor
    assert actor.strategy == "fsdp"
    assert actor.fsdp_config.param_offload
    assert actor.fsdp_config.optimizer_offload
