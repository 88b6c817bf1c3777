"""verl-patches/0008: a plain module at one rank does what FSDP does, and saves safetensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.verl.conftest import prompts, settings
from tests.verl.test_hf_rollout import generate

STEP = (
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.kl_loss_coef=0.1",
    "actor_rollout_ref.actor.entropy_coeff=0.01",
)


def strategy(name: str) -> tuple[str, str]:
    return (f"actor_rollout_ref.actor.strategy={name}", f"critic.strategy={name}")


@pytest.fixture(scope="module")
def recorded(one_rank: None, sharpened_model: Path) -> Any:
    """One batch of 16 rollouts with advantages, returns and old values, made once."""
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    worker = ActorRolloutRefWorker(
        settings(sharpened_model, *STEP, *strategy("single")).actor_rollout_ref,
        role="actor_rollout_ref",
    )
    worker.init_model()
    batch = generate(worker, prompts(4, repeat=4))
    shape = batch.batch["responses"].shape
    mask = batch.batch["attention_mask"][:, -shape[1] :]
    generator = torch.Generator().manual_seed(0)
    batch.batch["response_mask"] = mask
    batch.batch["old_log_probs"] = worker.compute_log_prob(batch).batch["old_log_probs"]
    batch.batch["ref_log_prob"] = batch.batch["old_log_probs"] + 0.1 * torch.randn(
        shape, generator=generator
    )
    for name in ("advantages", "returns", "values"):
        batch.batch[name] = torch.randn(shape, generator=generator) * mask
    batch.meta_info.update(temperature=1.0, global_token_num=[1])
    return batch


def losses(metrics: dict[str, Any]) -> dict[str, float]:
    kept = ("loss", "grad_norm", "kl", "clipfrac", "vpred_mean")
    return {
        key: float(torch.tensor(value).double().mean())
        for key, value in metrics.items()
        if key.endswith(kept)
    }


def assert_same(found: dict[str, dict[str, float]], role: str) -> None:
    """Losses within 1e-6; the norm, summed by tensor or over one flat tensor, within 1e-5."""
    norm = f"{role}/grad_norm"
    assert found["single"][norm] > 0
    assert found["single"].pop(norm) == pytest.approx(found["fsdp"].pop(norm), rel=1e-5)
    assert found["single"] == pytest.approx(found["fsdp"], rel=1e-6, abs=1e-9)


def test_one_step_gives_the_losses_of_fsdp(
    make_worker: Callable[..., Any], sharpened_model: Path, recorded: Any
) -> None:
    found = {}
    for name in ("single", "fsdp"):
        worker = make_worker(sharpened_model, *STEP, *strategy(name))
        batch = copy.deepcopy(recorded)
        found[name] = losses(worker.update_actor(batch).meta_info["metrics"])
        # the second step sees what the first one did to the weights
        after = worker.compute_log_prob(copy.deepcopy(recorded)).batch["old_log_probs"]
        found[name]["after"] = float(after.double().mean())
    assert_same(found, "actor")


def test_one_step_of_the_critic_gives_the_losses_of_fsdp(
    make_worker: Callable[..., Any], sharpened_model: Path, recorded: Any
) -> None:
    found = {}
    for name in ("single", "fsdp"):
        torch.manual_seed(0)  # the value head is new
        worker = make_worker(sharpened_model, *STEP, *strategy(name), role="critic")
        found[name] = losses(worker.update_critic(copy.deepcopy(recorded)).meta_info["metrics"])
    assert_same(found, "critic")


def test_nothing_is_wrapped(make_worker: Callable[..., Any], sharpened_model: Path) -> None:
    from transformers import Qwen2ForCausalLM

    worker = make_worker(sharpened_model, *strategy("single"))
    assert type(worker.actor_module_fsdp) is Qwen2ForCausalLM
    assert type(worker.ref_module_fsdp) is Qwen2ForCausalLM


def test_a_checkpoint_is_a_hugging_face_folder(
    make_worker: Callable[..., Any], sharpened_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    worker = make_worker(sharpened_model, *strategy("single"))
    worker.save_checkpoint(str(tmp_path), global_step=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")
    assert AutoTokenizer.from_pretrained(tmp_path / "huggingface").chat_template
    expected = worker.actor_module_fsdp.state_dict()
    assert model.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    assert model.config.torch_dtype == torch.float32


@pytest.mark.parametrize("role", ["actor_rollout_ref", "critic"])
def test_a_restored_worker_takes_the_same_next_step(
    make_worker: Callable[..., Any],
    sharpened_model: Path,
    recorded: Any,
    tmp_path: Path,
    role: str,
) -> None:
    def step(worker: Any) -> dict[str, Any]:
        update = worker.update_critic if role == "critic" else worker.update_actor
        return losses(update(copy.deepcopy(recorded)).meta_info["metrics"])

    worker = make_worker(sharpened_model, *STEP, *strategy("single"), role=role)
    first = step(worker)
    worker.save_checkpoint(str(tmp_path), global_step=1)
    rng = torch.get_rng_state()
    expected = step(worker)
    other = make_worker(sharpened_model, *STEP, *strategy("single"), role=role)
    other.load_checkpoint(str(tmp_path), del_local_after_load=False)
    assert torch.equal(torch.get_rng_state(), rng)
    assert step(other) == expected != first


def model_like(folder: Path, source: Path, **changes: Any) -> Path:
    """A random model of ``source``'s kind with ``changes`` to its config."""
    import shutil

    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(source, folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source, **changes))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_every_kind_of_weights_comes_back_from_a_checkpoint(
    make_worker: Callable[..., Any], tiny_model: Path, tmp_path: Path, tied: bool, rank: int
) -> None:
    model = model_like(tmp_path / "model", tiny_model, tie_word_embeddings=tied)
    options = (*strategy("single"), f"actor_rollout_ref.model.lora_rank={rank}")
    worker = make_worker(model, *options)
    with torch.no_grad():
        for parameter in worker.actor_module_fsdp.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    expected = {key: value.clone() for key, value in worker.actor_module_fsdp.state_dict().items()}
    worker.save_checkpoint(str(tmp_path / "checkpoint"), global_step=1)
    other = make_worker(model, *options)
    other.load_checkpoint(str(tmp_path / "checkpoint"))
    found = other.actor_module_fsdp.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert not (tmp_path / "checkpoint" / "lora_adapter").exists()


def test_an_adapter_of_another_shape_of_model_is_refused(
    make_worker: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    lora = (*strategy("single"), "actor_rollout_ref.model.lora_rank=4")
    few = "actor_rollout_ref.model.target_modules=[q_proj]"
    make_worker(tiny_model, *lora).save_checkpoint(str(tmp_path), global_step=1)
    with pytest.raises(ValueError, match="holds weights that this model lacks"):
        make_worker(tiny_model, *lora, few).load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "given",
    [
        {"do_sample": False, "temperature": 0.6, "eos_token_id": [2, 0]},  # contradicts itself
        {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": 2},
    ],
)
def test_a_checkpoint_keeps_the_generation_config_of_the_model(
    make_worker: Callable[..., Any], tiny_model: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    import json

    model = model_like(tmp_path / "model", tiny_model)
    (model / "generation_config.json").write_text(json.dumps(given))
    worker = make_worker(model, *strategy("single"))
    before = worker.actor_module_fsdp.generation_config
    worker.save_checkpoint(str(tmp_path / "checkpoint"), global_step=1)
    saved = json.loads((tmp_path / "checkpoint/huggingface/generation_config.json").read_text())
    assert given.items() <= {"do_sample": False, **saved}.items()
    assert worker.actor_module_fsdp.generation_config is before


def test_old_checkpoints_go_only_after_the_new_one_is_there(
    make_worker: Callable[..., Any],
    sharpened_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = make_worker(sharpened_model, *strategy("single"))
    folders = [tmp_path / str(step) for step in (1, 2, 3)]
    for folder in folders[:2]:
        worker.save_checkpoint(str(folder), global_step=1, max_ckpt_to_keep=2)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(worker.actor_module_fsdp, "save_pretrained", fail)
        with pytest.raises(OSError, match="No space left"):
            worker.save_checkpoint(str(folders[2]), global_step=3, max_ckpt_to_keep=2)
    assert all((folder / "huggingface/model.safetensors").exists() for folder in folders[:2])
    worker.save_checkpoint(str(folders[2]), global_step=3, max_ckpt_to_keep=2)
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_a_checkpoint_holds_no_pickle_that_runs_code(
    make_worker: Callable[..., Any], sharpened_model: Path, tmp_path: Path
) -> None:
    worker = make_worker(sharpened_model, *strategy("single"))
    worker.save_checkpoint(str(tmp_path), global_step=1)
    load_file(tmp_path / "huggingface/model.safetensors")
    for file in tmp_path.glob("*.pt"):
        torch.load(file, weights_only=True)


def test_parameters_that_are_offloaded_come_back_for_each_use(
    make_worker: Callable[..., Any], sharpened_model: Path, recorded: Any
) -> None:
    offload = (
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        "actor_rollout_ref.ref.fsdp_config.param_offload=true",
    )
    found = []
    for extra in ((), offload):
        worker = make_worker(sharpened_model, *STEP, *strategy("single"), *extra)
        metrics = losses(worker.update_actor(copy.deepcopy(recorded)).meta_info["metrics"])
        scored = worker.compute_ref_log_prob(copy.deepcopy(recorded)).batch["ref_log_prob"]
        found.append((metrics, float(scored.sum())))
    assert found[0] == found[1]


def test_offloaded_parameters_are_back_before_they_are_used(
    make_worker: Callable[..., Any],
    sharpened_model: Path,
    recorded: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from verl.workers import fsdp_workers

    # On a CPU offloading moves nothing, so what is on the device is kept account of here.
    on_device: set[int] = set()

    def load(model: torch.nn.Module) -> None:
        on_device.add(id(model))

    def offload(model: torch.nn.Module) -> None:
        on_device.discard(id(model))

    def used(model: torch.nn.Module, *_: Any) -> None:
        assert id(model) in on_device, "used while offloaded"
        uses.append(model)

    monkeypatch.setattr(fsdp_workers, "load_fsdp_model_to_gpu", load)
    monkeypatch.setattr(fsdp_workers, "offload_fsdp_model_to_cpu", offload)
    worker = make_worker(
        sharpened_model,
        *STEP,
        *strategy("single"),
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.ref.fsdp_config.param_offload=true",
    )
    on_device.clear()
    uses: list[torch.nn.Module] = []
    worker.actor_module_fsdp.register_forward_pre_hook(used)
    worker.ref_module_fsdp.register_forward_pre_hook(used)
    for use in (
        lambda: worker.generate_sequences(prompts(2)),
        lambda: worker.compute_log_prob(copy.deepcopy(recorded)),
        lambda: worker.compute_ref_log_prob(copy.deepcopy(recorded)),
        lambda: worker.update_actor(copy.deepcopy(recorded)),
    ):
        uses.clear()
        use()
        assert uses
        assert not on_device


def test_two_ranks_are_refused(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.fsdp_utils import place_single_module

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="strategy=single is for one rank, but there are 2"):
        place_single_module(torch.nn.Linear(1, 1))
