"""Every preset resolves for the device it names; ``seed-batch1`` is the write-ups' recipe."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from env.hardware import CPU, Device
from env.paths import PRESETS
from run import auto, config, preset

P40 = Device("cuda", "Tesla P40", (6, 1), 22919 * 2**20, 1)
MEANT = {"cpu": [CPU], "cuda": [P40], "auto": [CPU, P40]}
NAMED = [
    (name, device)
    for name in preset.names()
    for device in MEANT[preset.load(name).verl["trainer"]["device"]]
]

# The launch of both write-ups, in verl 0.5.0's names.
WRITE_UPS: dict[str, Any] = {
    "data.train_batch_size": 1,
    "data.max_prompt_length": 256,
    "data.max_response_length": 256,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "critic.optim.lr": 1e-5,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
    "critic.ppo_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 512,
    "actor_rollout_ref.rollout.max_num_seqs": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.rollout.enable_chunked_prefill": False,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "trainer.logger": ["console"],
    "trainer.val_before_train": False,
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.save_freq": 10,
    "trainer.test_freq": 10,
    "trainer.total_epochs": 2,
    # what their sed made of verl
    "hardware.dtype": "float32",
    "hardware.attn_implementation": "eager",
    "actor_rollout_ref.rollout.dtype": "float32",
}
NO_KEYS_OF_VERL = (
    "actor_rollout_ref.fsdp_config.cpu_offload",
    "actor_rollout_ref.fsdp_config.offload_params",
)
# All else in which the preset leaves verl's defaults.
OTHERS = {
    "actor_rollout_ref.rollout.name": "no published vLLM holds code for capability 6.1",
    "actor_rollout_ref.rollout.micro_batch_size": "a validation in one piece does not fit 24 GB",
    "actor_rollout_ref.actor.use_torch_compile": "inductor refuses capability 6.1",
    "hardware.torch_compile": "the same",
    "trainer.max_actor_ckpt_to_keep": "every checkpoint would be kept",
    "trainer.max_critic_ckpt_to_keep": "the same",
    "ray_init.num_cpus": "on one core Ray would wait for ever",
    "ray_init.include_dashboard": "an open port",
}


def resolved(name: str, device: Device) -> DictConfig:
    built = config.build(preset.load(name), [])
    auto.resolve(built, device)
    return built


def leaves(tree: DictConfig) -> dict[str, Any]:
    return dict(config.flatten(OmegaConf.to_container(tree, resolve=False)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "device"), NAMED, ids=lambda part: getattr(part, "name", part))
def test_a_preset_resolves_for_the_device_it_names(name: str, device: Device) -> None:
    built = resolved(name, device)
    assert built.trainer.device == device.device
    OmegaConf.resolve(built)


@pytest.mark.parametrize("key", WRITE_UPS)
def test_the_recipe_has_each_value_of_the_write_ups(key: str) -> None:
    assert OmegaConf.select(resolved("seed-batch1", P40), key) == WRITE_UPS[key]


def test_the_recipe_leaves_verls_defaults_nowhere_else() -> None:
    ours, defaults = leaves(resolved("seed-batch1", P40)), leaves(config.defaults())
    assert ours.keys() == defaults.keys()
    differs = {key for key, value in ours.items() if value != defaults[key]}
    assert differs - WRITE_UPS.keys() == OTHERS.keys()


def test_the_recipe_is_fsdp_with_a_critic_scored_by_verl() -> None:
    built = resolved("seed-batch1", P40)
    assert (built.actor_rollout_ref.actor.strategy, built.critic.strategy) == ("fsdp", "fsdp")
    assert built.algorithm.adv_estimator == "gae"
    assert preset.load("seed-batch1").reward == "strict"


def test_the_recipe_says_what_it_made_of_keys_that_verl_lacks() -> None:
    text = (PRESETS / "seed-batch1.yaml").read_text(encoding="utf-8")
    assert not set(NO_KEYS_OF_VERL) & set(config.known_keys())
    assert all(key.rpartition(".")[2] in text for key in NO_KEYS_OF_VERL)
