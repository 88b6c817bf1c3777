"""What tests on patched verl share: one process group of one rank, small models, workers."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from env import models
from env.hardware import CPU
from run import auto, config, preset


@pytest.fixture(scope="session")
def one_rank() -> Iterator[None]:
    """This process as the only rank of a gloo process group, as verl's workers expect it."""
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({**ranks, **address})
    torch.distributed.init_process_group(
        "cpu:gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The seeded random two-layer model with the project's tokenizer."""
    return models.fetch("tiny")


@pytest.fixture(scope="session")
def sharpened_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with three times its weights, so that positions matter, and with a
    generation_config.json like Qwen2.5-Instruct's, which would change the sampling if it were read.
    """
    import json

    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "sharpened"
    shutil.copytree(tiny_model, folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    ids = json.loads((tiny_model / "generation_config.json").read_text())
    sampling = {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7}
    sampling |= {"top_p": 0.8, "top_k": 20}
    special = {key: ids[key] for key in ("eos_token_id", "pad_token_id") if key in ids}
    special["eos_token_id"] = [special["eos_token_id"], special["pad_token_id"]]
    (folder / "generation_config.json").write_text(json.dumps({**special, **sampling}))
    return folder


def settings(model: Path, *overrides: str) -> DictConfig:
    """The preset ``tiny`` on ``model``, resolved for a CPU."""
    built = config.build(preset.load("tiny"), overrides)
    auto.resolve(built, CPU)
    for node in (built.actor_rollout_ref.model, built.critic.model):
        node.path = str(model)
    OmegaConf.resolve(built)
    return built


@pytest.fixture
def make_worker(one_rank: None) -> Callable[..., Any]:
    """Builds verl's own worker in this process: ``make_worker(model, *overrides)``."""

    def make(model: Path, *overrides: str, role: str = "actor_rollout_ref") -> Any:
        from verl.workers.fsdp_workers import ActorRolloutRefWorker, CriticWorker

        built = settings(model, *overrides)
        if role == "critic":
            worker = CriticWorker(built.critic)
        else:
            worker = ActorRolloutRefWorker(built.actor_rollout_ref, role=role)
        worker.init_model()
        return worker

    return make


def prompts(rows: int, repeat: int = 1, length: int = 40) -> Any:
    """Left-padded random prompts of different lengths, each ``repeat`` times in a row.

    Returns:
        DataProto with input_ids, attention_mask, position_ids, int64 of shape
        (rows * repeat, length), and sample_index, (rows * repeat,), as the trainer gives them.
    """
    import torch
    from verl import DataProto

    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(10, 500, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, : 3 * row] = 0
    ids = ids * mask
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": position}
    data = DataProto.from_dict(tensors=batch).repeat(repeat, interleave=True)
    data.batch["sample_index"] = torch.arange(repeat).repeat(rows)
    return data
