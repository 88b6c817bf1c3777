"""``python -m run.train``, whole: real verl, real Ray, the random two-layer model."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.verl.runs import finish, latest, lines, processes_of, start, wait_for


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def grpo(out: Path) -> subprocess.CompletedProcess[str]:
    return finish(start(out, "--preset", "tiny"))


@pytest.fixture(scope="module")
def grpo_run(grpo: subprocess.CompletedProcess[str], out: Path) -> Path:
    assert grpo.returncode == 0, grpo.stderr
    return out / "runs" / grpo.stdout.split()[1].rstrip(":")


def test_the_runs_id_is_printed_first(grpo_run: Path) -> None:
    assert grpo_run.is_dir()
    assert grpo_run.name.endswith("-tiny")


def test_every_step_leaves_its_metrics(grpo_run: Path) -> None:
    steps = {line["step"]: line["metrics"] for line in lines(grpo_run / "metrics.jsonl")}
    assert sorted(steps) == [0, 1, 2, 3]
    for step in (1, 2, 3):
        metrics = steps[step]
        assert metrics["actor/grad_norm"] > 0
        assert metrics["training/rollout_log_probs_diff_mean"] < 1e-5
        assert metrics["critic/groups/num"] == 4
        assert metrics["perf/tokens_per_second/gen"] > 0
        assert {"actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/pg_clipfrac"} <= set(
            metrics
        )
        assert {"response_length/mean", "response_length/truncated_ratio"} <= set(metrics)
    # the policy moved, so the distance to the reference did
    assert steps[1]["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert steps[3]["actor/kl_loss"] > 1e-6


def test_validation_comes_before_and_after(grpo_run: Path) -> None:
    steps = {line["step"]: line["metrics"] for line in lines(grpo_run / "metrics.jsonl")}
    name = "val-core/verl-p40/tiny/acc/mean@1"
    assert name in steps[0]
    assert name in steps[3]


def test_every_phase_that_starts_ends(grpo_run: Path) -> None:
    events = lines(grpo_run / "phases.jsonl")
    open_phases: list[str] = []
    for event in events:
        if event["event"] == "start":
            open_phases.append(event["phase"])
        else:
            assert open_phases.pop() == event["phase"]
            assert event["seconds"] >= 0
    assert open_phases == []
    seen = {event["phase"] for event in events if event["step"] == 2}
    assert {"step", "gen", "reward", "old_log_prob", "ref", "adv", "update_actor"} <= seen


def test_samples_hold_four_responses_a_prompt_and_their_scores(grpo_run: Path) -> None:
    samples = lines(grpo_run / "samples" / "train" / "1.jsonl")
    prompts = [sample["input"] for sample in samples]
    assert len(samples) == 16
    assert all(len(set(prompts[row : row + 4])) == 1 for row in range(0, 16, 4))
    assert len(set(prompts)) == 4
    assert all({"output", "score", "acc", "format"} <= sample.keys() for sample in samples)


def test_the_configuration_is_whole_and_names_its_decisions(grpo_run: Path) -> None:
    config = OmegaConf.load(grpo_run / "config.yaml")
    assert config.trainer.device == "cpu"
    assert config.actor_rollout_ref.actor.strategy == "single"
    assert config.hardware.dtype == "float32"
    assert "wandb" not in config.trainer.logger
    for file in ("config.yaml", "train.log"):
        decided = (grpo_run / file).read_text().split("# decided: ")[1:]
        assert any(text.startswith("strategy=single") for text in decided)


def test_the_end_is_a_summary(grpo: subprocess.CompletedProcess[str], grpo_run: Path) -> None:
    assert f"Run {grpo_run.name}" in grpo.stdout
    assert "Next:" in grpo.stdout
    assert grpo.stderr == ""


def test_latest_points_to_the_run(grpo_run: Path, out: Path) -> None:
    link = out / "runs" / "latest"
    assert link.is_symlink()
    assert link.resolve() == grpo_run
    assert os.readlink(link) == grpo_run.name  # relative: the folder may move


def test_nothing_is_left_running(grpo_run: Path, out: Path) -> None:
    assert processes_of(out) == []


def test_ppo_trains_a_critic_and_saves_what_a_hub_can_load(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    overrides = ["algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=1"]
    overrides += ["actor_rollout_ref.actor.use_kl_loss=false", "algorithm.use_kl_in_reward=true"]
    overrides += ["trainer.total_training_steps=2", "trainer.save_freq=1"]
    overrides += ["trainer.max_actor_ckpt_to_keep=1", "trainer.val_before_train=false"]
    done = finish(start(tmp_path, "--preset", "tiny", *overrides))
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    last = lines(run / "metrics.jsonl")[-1]["metrics"]
    assert last["critic/grad_norm"] > 0
    assert "actor/reward_kl_penalty" in last
    kept = {path.parent.name for path in (run / "checkpoints").glob("*/actor")}
    assert kept == {"global_step_2"}
    checkpoint = run / "checkpoints" / "global_step_2"
    AutoModelForCausalLM.from_pretrained(checkpoint / "actor" / "huggingface")
    AutoModelForTokenClassification.from_pretrained(checkpoint / "critic" / "huggingface")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of many steps, under way."""
    many = ["trainer.total_training_steps=100000", "trainer.total_epochs=100000"]
    arguments = ["--preset", "tiny", *many, "trainer.val_before_train=false"]
    arguments += ["trainer.save_freq=1"]
    process = start(tmp_path, *arguments, start_new_session=True)
    wait_for(lambda: (latest(tmp_path) / "metrics.jsonl").exists(), "the first step")
    yield process
    process.kill()
    process.wait()


def test_ctrl_c_ends_with_130_and_leaves_no_process(
    endless: subprocess.Popen[str], tmp_path: Path
) -> None:
    # as a terminal does: to the whole foreground group
    os.killpg(endless.pid, signal.SIGINT)
    done = finish(endless)
    assert done.returncode == 130, done.stderr
    assert str(latest(tmp_path)) in done.stderr
    assert f"make train RESUME={latest(tmp_path).name}" in done.stderr
    assert "Traceback" not in done.stderr
    assert processes_of(tmp_path) == []


def test_a_failure_shows_the_end_of_the_log_and_ends_with_1(tmp_path: Path) -> None:
    broken = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    done = finish(start(tmp_path, "--preset", "tiny", *broken))
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert str(latest(tmp_path) / "train.log") in done.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--preset", "p40-gpro"], "did you mean p40-grpo?"),
        (["--preset", "tiny", "data.train_batch_sise=8"], "did you mean data.train_batch_size?"),
        (["--preset", "tiny", "trainer.device=cuda"], "make demo"),
        (["--preset", "tiny", "--model", "no-such-model"], "no-such-model"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    import torch

    if "trainer.device=cuda" in arguments and torch.cuda.is_available():
        arguments = ["--preset", "p40-gpro"]
        complaint = "did you mean p40-grpo?"
    done = finish(start(tmp_path, *arguments))
    assert done.returncode == 1, done.stderr
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*"))
