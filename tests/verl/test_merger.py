"""verl-patches: FSDP's shards become a Hugging Face folder in the dtype that was trained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.verl.runs import finish, latest, start

ONE_STEP = (
    "actor_rollout_ref.actor.strategy=fsdp",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=1",
)


def trained(out: Path, ranks: int) -> Path:
    """The actor's checkpoint after one step of GRPO at ``ranks`` ranks, with the whole model in it."""
    overrides = (*ONE_STEP, f"trainer.n_gpus_per_node={ranks}")
    done = finish(start(out, "--preset", "tiny", *overrides))
    assert done.returncode == 0, done.stderr
    return latest(out) / "checkpoints" / "global_step_1" / "actor"


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def merger(operation: str, shards: Path, **options: Any) -> Any:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    config = ModelMergerConfig(
        operation=operation,
        backend="fsdp",
        local_dir=str(shards),
        hf_model_config_path=str(shards / "huggingface"),
        **{key: str(value) for key, value in options.items()},
    )
    return FSDPModelMerger(config)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("two"), ranks=2)


@pytest.fixture(scope="module")
def merged(two_ranks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command makes of the shards of two ranks, with no whole model beside them."""
    shards = tmp_path_factory.mktemp("shards") / "actor"
    shutil.copytree(two_ranks, shards)
    (shards / "huggingface" / "model.safetensors").unlink()
    target = shards.parent / "merged"
    options = ["--backend", "fsdp", "--local_dir", str(shards), "--target_dir", str(target)]
    command = [sys.executable, "-m", "verl.model_merger", "merge", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_the_shards_of_two_ranks_become_the_model_that_rank_0_saved(
    two_ranks: Path, merged: Path, tiny_model: Path
) -> None:
    import torch

    found, expected = weights(merged), weights(two_ranks / "huggingface")
    assert found.keys() == expected.keys() == weights(tiny_model).keys()
    assert all(torch.equal(value, expected[key]) for key, value in found.items())
    assert any(not torch.equal(value, found[key]) for key, value in weights(tiny_model).items())


def test_fp32_stays_fp32_in_the_weights_and_in_the_config(merged: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert {value.dtype for value in weights(merged).values()} == {torch.float32}
    assert json.loads((merged / "config.json").read_text())["torch_dtype"] == "float32"
    model = AutoModelForCausalLM.from_pretrained(merged, torch_dtype="auto")
    assert model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(merged).chat_template


def test_two_ranks_trained_the_weights_that_one_rank_trains(merged: Path, tmp_path: Path) -> None:
    import torch

    alone = trained(tmp_path / "out", ranks=1)
    merger("merge", alone, target_dir=tmp_path / "merged").merge_and_save()
    found, expected = weights(merged), weights(tmp_path / "merged")
    # at one rank FSDP saves tied embeddings twice
    for key in expected.keys() & found.keys():
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-6)
    assert expected.keys() - found.keys() <= {"lm_head.weight"}


def test_the_check_against_a_model_takes_the_dtype_of_that_model(
    two_ranks: Path, merged: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    merger("test", two_ranks, test_hf_dir=merged).merge_and_save()
    half = AutoModelForCausalLM.from_pretrained(merged, torch_dtype=torch.bfloat16)
    half.save_pretrained(tmp_path)
    with pytest.raises(AssertionError, match="Dtype mismatch"):
        merger("test", two_ranks, test_hf_dir=tmp_path).merge_and_save()


def test_bf16_stays_bf16(two_ranks: Path, tmp_path: Path) -> None:
    import torch

    shards = tmp_path / "actor"
    shutil.copytree(two_ranks / "huggingface", shards / "huggingface")
    shutil.copy(two_ranks / "fsdp_config.json", shards)
    for rank in (0, 1):
        name = f"model_world_size_2_rank_{rank}.pt"
        state = torch.load(two_ranks / name, weights_only=False)
        torch.save({key: value.bfloat16() for key, value in state.items()}, shards / name)
    merger("merge", shards, target_dir=tmp_path / "merged").merge_and_save()
    assert {value.dtype for value in weights(tmp_path / "merged").values()} == {torch.bfloat16}


def test_a_whole_model_is_saved_beside_a_generation_config_that_contradicts_itself(
    make_worker: Callable[..., Any], sharpened_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sharpened_model, folder)
    wrong = {"do_sample": False, "temperature": 0.7, "top_p": 0.8}
    (folder / "generation_config.json").write_text(json.dumps(wrong))
    worker = make_worker(
        folder,
        "actor_rollout_ref.actor.strategy=fsdp",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
    )
    worker.save_checkpoint(str(tmp_path / "saved"), global_step=1)
    assert weights(tmp_path / "saved" / "huggingface")
