"""A killed run goes on as if it had never stopped: the same metrics and weights, bit for bit."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.runs import finish, kill_all, latest, lines, start, wait_for

# Two steps an epoch, so that one of the checkpoints lies at an epoch's last step; all that moves on
# its own besides the weights: a warm-up, and a coefficient that adapts.
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=100",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "critic.ppo_micro_batch_size_per_gpu=16",
    "data.max_prompt_length=128",
    "data.max_response_length=8",
    "trainer.total_training_steps=4",
    "trainer.save_freq=1",
)
LAST = 4


def metrics(run: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl without what a clock made."""
    clocks = ("timing", "perf/")
    return [
        {
            "step": line["step"],
            **{k: v for k, v in line["metrics"].items() if not k.startswith(clocks)},
        }
        for line in lines(run / "metrics.jsonl")
    ]


def last_checkpoint(run: Path) -> dict[str, Any]:
    """The hash of each tensor file of the last checkpoint; of the rest what a run decides."""
    folder = run / "checkpoints" / f"global_step_{LAST}"
    found: dict[str, Any] = {}
    for path in [*folder.rglob("*.safetensors"), *folder.rglob("*.pt")]:
        name = str(path.relative_to(folder))
        if path.name == "extra_state.pt":
            # Python's and numpy's generators start differently in every process, and are not used.
            state = torch.load(path, weights_only=True)
            found[name] = (state["lr_scheduler"], state["rng"]["cpu"].tolist())
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(found) == 8
    return found


def samples(run: Path) -> dict[str, str]:
    return {str(path.relative_to(run)): path.read_text() for path in run.glob("samples/*/*.jsonl")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    done = finish(start(out, "--preset", "tiny", *PPO, variables={"PYTHONHASHSEED": "1"}))
    assert done.returncode == 0, done.stderr
    return latest(out)


def kill_after(step: int, process: subprocess.Popen[str], out: Path) -> None:
    """kill -9 for the run as soon as ``step``'s checkpoint has its name; Ray's processes linger."""
    checkpoint = latest(out) / "checkpoints" / f"global_step_{step}"
    wait_for(checkpoint.exists, str(step))
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The output folder of the same run, killed after each of its steps but the last."""
    out = tmp_path_factory.mktemp("killed")
    kill_after(1, start(out, "--preset", "tiny", *PPO, variables={"PYTHONHASHSEED": "2"}), out)
    for step in range(2, LAST):
        seed = {"PYTHONHASHSEED": str(step + 1)}
        kill_after(step, start(out, "--resume", "latest", variables=seed), out)
    done = finish(start(out, "--resume", "latest", variables={"PYTHONHASHSEED": "99"}))
    assert done.returncode == 0, done.stderr
    assert f"goes on after step {LAST - 1} of {LAST}" in done.stdout
    yield out
    kill_all(out)


def test_it_goes_on_in_the_same_folder(killed: Path) -> None:
    assert [path.name for path in (killed / "runs").iterdir() if not path.is_symlink()] == [
        latest(killed).name
    ]


def test_killed_after_any_step_it_reports_the_same_numbers(
    killed: Path, uninterrupted: Path
) -> None:
    assert metrics(latest(killed)) == metrics(uninterrupted)
    assert samples(latest(killed)) == samples(uninterrupted)


def test_killed_after_any_step_it_ends_with_the_same_bits(
    killed: Path, uninterrupted: Path
) -> None:
    assert last_checkpoint(latest(killed)) == last_checkpoint(uninterrupted)


def test_the_phases_of_every_step_are_there_once(killed: Path) -> None:
    ends = [e for e in lines(latest(killed) / "phases.jsonl") if e["event"] == "end"]
    assert [e["step"] for e in ends if e["phase"] == "step"] == [1, 2, 3, 4]
    assert [e["step"] for e in ends if e["phase"] == "update_critic"] == [1, 2, 3, 4]


def test_old_checkpoints_are_rotated_across_restarts(killed: Path) -> None:
    names = sorted(path.name for path in (latest(killed) / "checkpoints").iterdir())
    assert names == ["global_step_3", "global_step_4", "latest_checkpointed_iteration.txt"]


def test_how_often_it_was_resumed_stays_with_its_configuration(killed: Path) -> None:
    header = (latest(killed) / "config.yaml").read_text()
    resumed = re.findall(r"^# decided: resumed after step (\d)$", header, re.MULTILINE)
    assert resumed == ["1", "2", "3"]


def test_a_run_that_is_through_is_not_begun_again(uninterrupted: Path) -> None:
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    done = finish(start(uninterrupted.parent.parent, "--resume", "latest"))
    assert done.returncode == 0, done.stderr
    assert f"is through: step {LAST} was its last" in done.stdout
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_a_moved_run_goes_on_for_more_steps_where_it_lies_now(
    uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "moved"
    shutil.copytree(uninterrupted.parent.parent, out, symlinks=True)
    more = "trainer.total_training_steps=5"
    done = finish(start(out, "--resume", uninterrupted.name, more))
    assert done.returncode == 0, done.stderr
    steps = [line["step"] for line in lines(out / "runs" / uninterrupted.name / "metrics.jsonl")]
    assert steps == [0, 1, 2, 3, 4, 5]
    assert max(line["step"] for line in lines(uninterrupted / "metrics.jsonl")) == LAST


def test_an_override_that_ends_the_start_is_not_kept(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted.parent.parent, out, symlinks=True)
    config = out / "runs" / uninterrupted.name / "config.yaml"
    before = config.read_text()
    wrong = "actor_rollout_ref.actor.ppo_mini_batch_size=64"  # more than a batch has
    more = "trainer.total_training_steps=5"
    done = finish(start(out, "--resume", uninterrupted.name, more, wrong))
    assert done.returncode == 1, done.stdout
    assert "AssertionError" in done.stderr
    assert f"not kept: {more} {wrong}" in done.stderr
    assert config.read_text() == before
