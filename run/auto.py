"""Decides what a configuration leaves open: every value ``auto``, and what the device cannot do.

Until a planner proposes sizes, these are conservative: with Qwen2.5-0.5B in fp32, 256 prompt and
256 response tokens, they stay below the 22,919 MiB of a Tesla P40 on a GPU whose allocator was
capped to that (16.8 GiB at the peak of GRPO; PPO with a critic and a reference ran out of memory at
4 rows, so it gets 2). Each decision is returned as a sentence, to be said aloud once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from env import hardware
from env.errors import Problem, Refused
from env.hardware import Device
from run.config import default, flatten

# Sequences per forward and backward pass, without gradients, and in one go of the rollout.
UPDATE_ROWS = 4
UPDATE_ROWS_WITH_CRITIC = 2
FORWARD_ROWS = 8
ROLLOUT_ROWS = 128

# Of verl's keys those that everything else is counted from.
COUNTS = (
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "critic.ppo_mini_batch_size",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.total_epochs",
)


def resolve(config: DictConfig, device: Device) -> list[str]:
    """Fill in every ``auto`` of ``config`` in place; returns what was decided, and why.

    Args:
        config: as :func:`run.config.build` makes it.
        device: what is here, as :func:`env.hardware.detect_device` says.

    Raises:
        Refused: the configuration asks for what the device cannot do; all problems at once.
    """
    said: list[str] = []
    _counts(config)
    _device(config, device, said)
    if config.trainer.device == "cpu":
        device = hardware.CPU
    _strategy(config, said)
    _capabilities(config, device, said)
    _sizes(config, said)
    _threads(config, said)
    left = [key for key, value in _leaves(config) if value == "auto" and default(key) != "auto"]
    if left:
        raise Refused([Problem(key, "auto is not known here", "a value") for key in left])
    return said


def _counts(config: DictConfig) -> None:
    """Refuse what is no count, before anything is computed from it."""
    found = [(key, OmegaConf.select(config, key)) for key in COUNTS]
    if config.trainer.total_training_steps is not None:
        found.append(("trainer.total_training_steps", config.trainer.total_training_steps))
    expected = "a whole number, at least 1"
    problems = [
        Problem(key, f"is {value!r}", expected)
        for key, value in found
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if problems:
        raise Refused(problems)


def _device(config: DictConfig, device: Device, said: list[str]) -> None:
    if config.trainer.device not in ("auto", "cuda", "cpu"):
        what = f"is {config.trainer.device!r}"
        raise Refused(Problem("trainer.device", what, "auto, cuda or cpu"))
    if config.trainer.device == "auto":
        config.trainer.device = device.device
        said.append(f"trainer.device={device.device}: {device.name}")
    elif config.trainer.device == "cuda" and device.device != "cuda":
        problem = Problem(
            where="trainer.device=cuda",
            what="the NVIDIA driver shows no card on this machine",
            expected="a card that nvidia-smi lists",
            do="nvidia-smi tells why; without a card: make demo, or trainer.device=cpu",
        )
        raise Refused(problem)


def _strategy(config: DictConfig, said: list[str]) -> None:
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    decided = "single" if ranks == 1 else "fsdp"
    reason = "a plain module at one rank" if ranks == 1 else f"sharded over {ranks} ranks"
    if config.actor_rollout_ref.actor.strategy == "auto":
        said.append(f"strategy={decided}: {reason}")
    for role in (config.actor_rollout_ref.actor, config.critic):
        if role.strategy == "auto":
            role.strategy = decided
        elif role.strategy not in ("single", "fsdp", "fsdp2"):
            raise Refused(Problem("strategy", f"is {role.strategy!r}", "single, fsdp or fsdp2"))
        elif role.strategy == "fsdp2" and config.trainer.device == "cpu":
            what = "torch's fully_shard needs an accelerator"
            raise Refused(Problem("strategy=fsdp2", what, "fsdp, or single at one rank"))
        elif role.strategy == "single" and ranks != 1:
            what = f"a plain module is for one rank, and there are {ranks}"
            raise Refused(Problem("strategy=single", what, "fsdp or fsdp2"))


def _capabilities(config: DictConfig, device: Device, said: list[str]) -> None:
    asked = {key: config.hardware[key] for key in ("dtype", "attn_implementation", "torch_compile")}
    try:
        profile = hardware.profile(device, **asked)
    except ValueError as error:
        raise Refused(Problem("hardware", str(error))) from error
    capability = "" if device.capability is None else f", capability {_dotted(device.capability)}"
    lacks = hardware.lacks_for_triton() if profile.torch_compile else ""
    if lacks and asked["torch_compile"]:
        do = "install it, or leave hardware.torch_compile to be decided"
        raise Refused(Problem("hardware.torch_compile=true", f"there is {lacks}", do=do))
    if lacks:
        profile = hardware.profile(device, **{**asked, "torch_compile": False})
        said.append(f"torch.compile is left off: there is {lacks}")
    said.append(
        f"hardware: {profile.dtype}, attention {profile.attn_implementation}, torch.compile "
        f"{'on' if profile.torch_compile else 'off'} ({device.name}{capability})"
    )
    for key in asked:
        config.hardware[key] = getattr(profile, key)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if actor.use_torch_compile == "auto":
        actor.use_torch_compile = profile.torch_compile
    if rollout.dtype == "auto":
        rollout.dtype = profile.dtype
    problems = []
    if actor.use_torch_compile and not profile.torch_compile:
        problems.append(("actor_rollout_ref.actor.use_torch_compile=true", "needs capability 7.0"))
    # its kernels are Triton's, as those of torch.compile are
    if config.actor_rollout_ref.model.get("use_liger") and not profile.torch_compile:
        problems.append(("actor_rollout_ref.model.use_liger=true", "needs capability 7.0"))
    for role in ("actor_rollout_ref", "critic"):
        if config[role].model.use_remove_padding and not profile.remove_padding:
            problems.append((f"{role}.model.use_remove_padding=true", "needs flash_attention_2"))
    if problems:
        here = f"{device.name}{capability}, attention {profile.attn_implementation}"
        raise Refused([Problem(key, f"{what}; this is {here}") for key, what in problems])


def _sizes(config: DictConfig, said: list[str]) -> None:
    rollout = config.actor_rollout_ref.rollout
    for path, rows, limit in _open_sizes(config):
        decided = largest_divisor(rows, limit)
        OmegaConf.update(config, path, decided)
        said.append(f"{path}={decided}: the largest divisor of {rows} up to {limit}")
    if rollout.micro_batch_size == "auto":
        rollout.micro_batch_size = ROLLOUT_ROWS
        said.append(f"actor_rollout_ref.rollout.micro_batch_size={ROLLOUT_ROWS}")


def _open_sizes(config: DictConfig) -> Iterator[tuple[str, int, int]]:
    """(key, rows to be divided, most rows at a time) of every size that says ``auto``."""
    n = config.actor_rollout_ref.rollout.n
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    with_critic = config.algorithm.adv_estimator == "gae"
    update_rows = UPDATE_ROWS_WITH_CRITIC if with_critic else UPDATE_ROWS
    rows = {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (
            config.actor_rollout_ref.actor.ppo_mini_batch_size * n // ranks,
            update_rows,
        ),
        "critic.ppo_micro_batch_size_per_gpu": (
            config.critic.ppo_mini_batch_size * n // ranks,
            update_rows,
        ),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (
            config.data.train_batch_size * n // ranks,
            FORWARD_ROWS,
        ),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (
            config.data.train_batch_size * n // ranks,
            FORWARD_ROWS,
        ),
    }
    for path, (total, limit) in rows.items():
        if OmegaConf.select(config, path) == "auto":
            yield path, total, limit


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` (at least 1) that is at most ``limit``."""
    return max(d for d in range(1, min(max(number, 1), limit) + 1) if number % d == 0)


def _threads(config: DictConfig, said: list[str]) -> None:
    if config.ray_init.num_cpus == "auto":
        # Slots are a count of processes, not of cores, and Ray starts one for every slot at once:
        # the trainer, the ranks, and the task that scores while log-probs are computed.
        scoring = int(config.reward_model.launch_reward_fn_async)
        slots = 1 + config.trainer.n_gpus_per_node + scoring
        if config.actor_rollout_ref.rollout.mode != "sync":
            slots = max(os.cpu_count() or 1, slots)  # servers and agents of vLLM or SGLang
        config.ray_init.num_cpus = slots
        said.append(f"ray_init.num_cpus={slots}")


def _leaves(config: DictConfig) -> Iterator[tuple[str, Any]]:
    yield from flatten(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
