"""verl-patches: the critic on the new engine (trainer.use_legacy_worker_impl=disable) on a CPU in
fp32, with the figures of the critic that it is to replace.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.verl.conftest import prompts, settings
from tests.verl.runs import finish, latest, lines, start

ROWS, LENGTH = 8, 24


@pytest.fixture(scope="module")
def batch() -> Any:
    """Eight rows of responses of 1 to 24 tokens, with old values and returns."""
    import torch
    from verl import DataProto

    rows = prompts(ROWS).batch
    generator = torch.Generator().manual_seed(0)
    responses = torch.randint(10, 500, (ROWS, LENGTH), generator=generator)
    lengths = torch.tensor([24, 3, 10, 17, 24, 1, 8, 20])
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    attention = torch.cat([rows["attention_mask"], mask], dim=1)
    tensors = {
        "input_ids": torch.cat([rows["input_ids"], responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        "responses": responses,
        "response_mask": mask,
        "values": torch.randn(ROWS, LENGTH, generator=generator) * mask,
        "returns": torch.randn(ROWS, LENGTH, generator=generator) * mask,
    }
    return DataProto.from_dict(tensors=tensors, meta_info={"global_token_num": [1]})


@pytest.fixture
def make_critic(one_rank: None, sharpened_model: Path) -> Callable[..., Any]:
    """Builds the new critic, or with ``legacy=True`` the old one, in this process.

    Keys of ``model`` by name are set behind the launcher's back, which would refuse some.
    """

    def make(*overrides: str, legacy: bool = False, **model: Any) -> Any:
        from verl.workers import fsdp_workers, roles

        sizes = (f"critic.ppo_mini_batch_size={ROWS}", "actor_rollout_ref.rollout.n=1")
        built = settings(sharpened_model, "seed=5", *sizes, *overrides)
        built.critic.model.update(model)
        worker = (fsdp_workers if legacy else roles).CriticWorker(built.critic)
        worker.init_model()
        return worker

    return make


def two_steps(worker: Any, batch: Any) -> list[dict[str, Any]]:
    updates = [worker.update_critic(copy.deepcopy(batch)).meta_info["metrics"] for _ in range(2)]
    return [{k: v for k, v in update.items() if "perf" not in k} for update in updates]


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
@pytest.mark.parametrize("rows", [8, 2], ids=["whole", "cut"])
def test_values_and_steps_are_those_of_the_old_critic(
    strategy: str, rows: int, make_critic: Callable[..., Any], batch: Any
) -> None:
    import torch

    overrides = (f"critic.strategy={strategy}", f"critic.ppo_micro_batch_size_per_gpu={rows}")
    found, expected = (make_critic(*overrides, legacy=legacy) for legacy in (False, True))
    values = [
        worker.compute_values(copy.deepcopy(batch)).batch["values"] for worker in (found, expected)
    ]
    assert values[0].dtype == torch.float32
    assert torch.equal(*values)
    assert two_steps(found, batch) == two_steps(expected, batch)


def test_offloading_changes_nothing(make_critic: Callable[..., Any], batch: Any) -> None:
    key = "critic.model.fsdp_config"
    offload = (f"{key}.param_offload=true", f"{key}.optimizer_offload=true")
    fsdp = ("critic.strategy=fsdp", "critic.ppo_micro_batch_size_per_gpu=4")
    kept, offloaded = make_critic(*fsdp), make_critic(*fsdp, *offload)
    assert two_steps(offloaded, batch) == two_steps(kept, batch)


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_a_restored_critic_takes_the_same_next_step(
    strategy: str, make_critic: Callable[..., Any], batch: Any, tmp_path: Path
) -> None:
    overrides = (f"critic.strategy={strategy}", "critic.ppo_micro_batch_size_per_gpu=4")
    worker = make_critic(*overrides)
    two_steps(worker, batch)
    worker.save_checkpoint(str(tmp_path), global_step=2)
    other = make_critic(*overrides)
    other.load_checkpoint(str(tmp_path), del_local_after_load=False)
    assert two_steps(other, batch) == two_steps(worker, batch)


def test_what_is_saved_is_what_was_asked_for(
    make_critic: Callable[..., Any], tmp_path: Path
) -> None:
    worker = make_critic(
        "critic.strategy=fsdp",
        "critic.ppo_micro_batch_size_per_gpu=4",
        "critic.checkpoint.save_contents=[model]",
    )
    worker.save_checkpoint(str(tmp_path), global_step=1)
    assert [path.name for path in tmp_path.glob("*.pt")] == ["model_world_size_1_rank_0.pt"]


def test_removing_padding_without_flash_attention_is_refused(
    make_critic: Callable[..., Any],
) -> None:
    with pytest.raises(ValueError, match="use_remove_padding=True needs flash_attention_2"):
        make_critic("critic.ppo_micro_batch_size_per_gpu=4", use_remove_padding=True)


def test_ppo_trains_a_critic_on_it(tmp_path: Path) -> None:
    overrides = ["algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=1"]
    overrides += ["actor_rollout_ref.actor.use_kl_loss=false", "trainer.val_before_train=false"]
    overrides += ["trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.save_freq=2"]
    new = ["trainer.use_legacy_worker_impl=disable"]
    done = finish(start(tmp_path, "--preset", "tiny", *overrides, *new))
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    assert "Using new worker implementation" in (run / "train.log").read_text()
    steps = [line["metrics"] for line in lines(run / "metrics.jsonl")]
    assert len(steps) == 2
    assert all(step["critic/grad_norm"] > 0 for step in steps)
    assert all(0 < step["critic/vf_loss"] < 10 for step in steps)
    critic = run / "checkpoints" / "global_step_2" / "critic"
    assert (critic / "huggingface" / "model.safetensors").is_file()
