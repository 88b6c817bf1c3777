"""Models of other shapes than Qwen2.5-0.5B's: rolled out, trained and saved the same way."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.batches import model, optimizer, random_batch, rolled_out, step
from tests.verl.conftest import prompts
from tests.verl.test_hf_rollout import delta_log_probs, generate
from tests.verl.test_strategy_single import strategy

LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-untied": {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen2-as-many-kv-heads": {"model_type": "qwen2", "num_key_value_heads": 4},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "num_key_value_heads": 4},
    "llama3": {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA_3_ROPE},
    # heads wider than hidden_size / num_attention_heads, as Qwen3-0.6B has them
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
}


@pytest.fixture(scope="module", params=SHAPES)
def shape(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A random two-layer model of another shape, with the project's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tiny = AutoConfig.from_pretrained(tiny_model)
    common = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "vocab_size": tiny.vocab_size,
        "eos_token_id": tiny.eos_token_id,
        "pad_token_id": tiny.pad_token_id,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "initializer_range": 0.1,  # so that positions matter
    }
    folder: Path = tmp_path_factory.mktemp("models") / request.param
    shutil.copytree(tiny_model, folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**common, **SHAPES[request.param]})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_one_step_of_grpo_rolls_out_trains_and_saves(
    make_worker: Callable[..., Any], shape: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    worker = make_worker(shape, *strategy("single"), "actor_rollout_ref.actor.optim.lr=1e-2")
    batch = grouped(rolled_out(worker, prompts(2, repeat=4)))
    assert delta_log_probs(worker, again(batch)).max() <= 1e-5
    assert torch.equal(batch.batch["ref_log_prob"], batch.batch["old_log_probs"])
    metrics = step(worker, batch)
    assert metrics["actor/grad_norm"][0] > 0
    # the trained policy is the one that is rolled out next
    assert delta_log_probs(worker, generate(worker, prompts(2, repeat=4))).max() <= 1e-5
    moved = worker.compute_log_prob(again(batch)).batch["old_log_probs"]
    assert not torch.equal(moved, batch.batch["old_log_probs"])

    worker.save_checkpoint(str(tmp_path), global_step=1)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")
    given = AutoConfig.from_pretrained(shape)
    assert saved.config.architectures == given.architectures
    assert saved.config.tie_word_embeddings == given.tie_word_embeddings
    tied = saved.get_input_embeddings().weight is saved.get_output_embeddings().weight
    assert tied == given.tie_word_embeddings
    expected = worker.actor_module_fsdp.state_dict()
    assert saved.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in saved.state_dict().items())


def test_a_critic_of_the_shape_learns(make_worker: Callable[..., Any], shape: Path) -> None:
    batch = random_batch(make_worker(shape, *strategy("single")), rows=2)
    critic = make_worker(shape, *strategy("single"), "critic.optim.lr=1e-3", role="critic")
    losses = [step(critic, batch)["critic/vf_loss"][0] for _ in range(3)]
    assert losses[-1] < losses[0]


def grouped(batch: Any) -> Any:
    """GRPO's advantages of random scores, as the trainer computes them; four rows a group."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask = batch.batch["response_mask"]
    scores = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    groups = torch.arange(len(batch)).div(4, rounding_mode="floor").numpy()
    advantages, _ = compute_grpo_outcome_advantage(scores, mask, groups)
    batch.batch["advantages"] = advantages
    return batch


def again(batch: Any) -> Any:
    return copy.deepcopy(batch)


@pytest.mark.parametrize("name", ["single", "fsdp"])
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_gradient_checkpointing_gives_the_same_gradients(
    make_worker: Callable[..., Any], sharpened_model: Path, name: str, rank: int
) -> None:
    keys = {"actor": "actor_rollout_ref.model", "critic": "critic.model"}
    batch = random_batch(make_worker(sharpened_model, *strategy("single")))
    for role, key in keys.items():
        found = []
        for enabled in ("false", "true"):
            worker = make_worker(
                sharpened_model,
                *strategy(name),
                f"{key}.enable_gradient_checkpointing={enabled}",
                f"{key}.lora_rank={rank}",
                role="critic" if role == "critic" else "actor_rollout",
            )
            found.append(gradients(worker, batch))
            if enabled == "true":
                assert recomputed(worker, batch)
        assert found[0].abs().max() > 1e-3
        assert (found[0] - found[1]).abs().max() <= 1e-6


def gradients(worker: Any, batch: Any) -> torch.Tensor:
    """All gradients of one step in a row, as the optimizer is given them."""
    kept = []

    def keep(stepped: torch.optim.Optimizer, *_: Any) -> None:
        [group] = stepped.param_groups
        kept.append(torch.cat([value.grad.detach().flatten() for value in group["params"]]))

    handle = optimizer(worker).register_step_pre_hook(keep)
    step(worker, batch)
    handle.remove()
    return kept[0].clone()


def recomputed(worker: Any, batch: Any) -> bool:
    """Whether a step passes its layers forward more often than without checkpointing: twice."""
    passes = []
    layers = [it for it in model(worker).modules() if type(it).__name__ == "Qwen2DecoderLayer"]
    handle = layers[0].self_attn.register_forward_hook(lambda *_: passes.append(1))
    step(worker, batch)
    handle.remove()
    rows = worker.config.actor if hasattr(worker, "actor") else worker.config
    return len(passes) == 2 * len(batch) // rows.ppo_micro_batch_size_per_gpu


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
@pytest.mark.parametrize("role", ["actor_rollout", "ref", "critic"])
def test_every_role_keeps_to_the_profile(
    make_worker: Callable[..., Any], tiny_model: Path, role: str, rank: int, attention: str
) -> None:
    worker = make_worker(
        tiny_model,
        *strategy("single"),
        f"hardware.attn_implementation={attention}",
        f"actor_rollout_ref.model.lora_rank={rank}",
        f"critic.model.lora_rank={rank}",
        role=role,
    )
    built = worker.ref_module_fsdp if role == "ref" else model(worker)
    assert built.config._attn_implementation == attention
    assert {value.dtype for value in built.state_dict().values()} == {torch.float32}
