"""verl-patches: the SFT trainer on a CPU in fp32, at one rank and at two, whole and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from env.hardware import verl_root

ROWS = 16  # two steps an epoch


def write_additions(folder: Path) -> Path:
    """train.parquet and test.parquet of questions and answers, of different lengths."""
    import pandas

    rows = [
        {
            "question": f"What is {a} plus {a + 7}?",
            "answer": f"It is {2 * a + 7}." + " Yes." * (a % 5),
        }
        for a in range(ROWS + 4)
    ]
    pandas.DataFrame(rows[:ROWS]).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[ROWS:]).to_parquet(folder / "test.parquet")
    return folder


def settings(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    """Overrides of verl's sft_trainer.yaml for three steps on a CPU, told to ``out``."""
    return [
        f"model.partial_pretrain={model}",
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'test.parquet'}",
        "data.train_batch_size=8",
        "data.micro_batch_size_per_gpu=2",
        "data.max_length=64",
        "data.dataloader_num_workers=0",
        "model.strategy=single",
        "optim.lr=1e-2",
        "optim.warmup_steps_ratio=0",
        "trainer.device=cpu",
        "trainer.total_epochs=2",
        "trainer.total_training_steps=3",
        "trainer.logger=[console]",
        "trainer.custom_logger.path=pkg://run.metrics",
        "trainer.custom_logger.name=JsonlLogger",
        f"+trainer.custom_logger.folder={out}",
        f"trainer.default_local_dir={out}",
        f"hydra.run.dir={out}",
        "trainer.resume_mode=disable",
        *more,
    ]


def command(ranks: int, *overrides: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [sys.executable, *launcher, "-m", "verl.trainer.fsdp_sft_trainer", *overrides]


def metrics(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_additions(tmp_path_factory.mktemp("additions"))


@pytest.fixture(scope="module")
def run(tiny_model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps at one rank, as a person starts them; each is saved."""
    out = tmp_path_factory.mktemp("one")
    overrides = settings(tiny_model, data, out, "trainer.save_freq=1", "trainer.test_freq=3")
    done = subprocess.run(command(1, *overrides), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_loss_falls_and_the_validation_follows(run: Path) -> None:
    *steps, validation = metrics(run)
    losses = [step["train/loss"] for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 0.5
    assert all(step["train/grad_norm"] > 0 for step in steps)
    assert validation["val/loss"] < losses[0]


def test_a_checkpoint_is_a_hugging_face_folder_in_fp32(run: Path, tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = run / "global_step_3" / "huggingface"
    model = AutoModelForCausalLM.from_pretrained(saved, torch_dtype="auto")
    assert model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(saved).chat_template
    before = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_two_fsdp_ranks_learn_what_one_plain_rank_does(
    run: Path, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    overrides = settings(tiny_model, data, tmp_path, "model.strategy=fsdp", "trainer.test_freq=3")
    done = subprocess.run(command(2, *overrides), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for found, expected in zip(metrics(tmp_path), metrics(run), strict=True):
        # the validation averages over batches, which two ranks cut differently
        found.pop("val/loss", None)
        assert found == pytest.approx({key: expected[key] for key in found}, rel=1e-5)
    names = {path.name for path in (tmp_path / "global_step_3").glob("model_*.pt")}
    assert names == {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}


@pytest.fixture
def make_trainer(
    one_rank: None, tiny_model: Path, data: Path, tmp_path: Path
) -> Callable[..., Any]:
    """Builds verl's SFT trainer in this process: ``make_trainer(*overrides)``."""

    def make(*overrides: str) -> Any:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from verl.trainer.fsdp_sft_trainer import FSDPSFTTrainer, create_sft_dataset
        from verl.utils import hf_tokenizer
        from verl.utils.hardware import set_hardware_profile

        config = _config(*settings(tiny_model, data, tmp_path, *overrides))
        set_hardware_profile(config.hardware)
        torch.manual_seed(config.trainer.seed)
        tokenizer = hf_tokenizer(str(tiny_model))
        files = (config.data.train_files, config.data.val_files)
        return FSDPSFTTrainer(
            config,
            init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)),
            init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "sp")),
            tokenizer,
            *(create_sft_dataset(file, config.data, tokenizer) for file in files),
        )

    return make


def _config(*overrides: str) -> DictConfig:
    composed = [override for override in overrides if not override.startswith("hydra.")]
    folder = str(verl_root() / "trainer" / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        return compose("sft_trainer", overrides=composed)


@pytest.mark.parametrize("step", [1, 2], ids=["within-an-epoch", "at-an-epochs-end"])
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(
    step: int, run: Path, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={run / f'global_step_{step}'}",
        "trainer.test_freq=3",
    )
    trainer.fit()
    assert metrics(tmp_path) == metrics(run)[step:]


def test_the_gradient_does_not_depend_on_the_cut_into_micro_batches(
    make_trainer: Callable[..., Any],
) -> None:
    found = []
    for rows in (8, 2, 1):
        trainer = make_trainer(f"data.micro_batch_size_per_gpu={rows}", "trainer.test_freq=-1")
        batch = _batch(trainer)
        found.append([trainer.training_step(batch.clone()) for _ in range(2)])
    for other in found[1:]:
        for step, expected in zip(other, found[0], strict=True):
            assert step == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_the_mean_over_the_tokens_of_the_answers(
    make_trainer: Callable[..., Any],
) -> None:
    import torch

    trainer = make_trainer()
    batch = _batch(trainer)
    with torch.no_grad():
        logits = trainer.fsdp_model(batch["input_ids"], batch["attention_mask"]).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
    )
    mask = batch["loss_mask"][:, :-1]
    expected = float((losses * mask).sum() / mask.sum())
    assert trainer.training_step(batch)["train/loss"] == pytest.approx(expected, rel=1e-5)


def _batch(trainer: Any) -> Any:
    from tensordict import TensorDict

    return TensorDict(next(iter(trainer.train_dataloader)), batch_size=8)


def test_lora_trains_and_saves_the_adapter_alone(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    trainer = make_trainer("model.lora_rank=4")
    trainer.fit()
    steps = metrics(tmp_path)
    assert steps[2]["train/loss"] < steps[0]["train/loss"]
    saved = tmp_path / "global_step_3" / "huggingface"
    assert all("lora_" in name for name in load_file(saved / "adapter_model.safetensors"))
    assert not (saved / "model.safetensors").exists()


def test_the_seed_draws_the_adapter_and_the_order(make_trainer: Callable[..., Any]) -> None:
    def drawn(seed: int) -> tuple[list[int], list[float]]:
        trainer = make_trainer("model.lora_rank=4", f"trainer.seed={seed}")
        adapter = next(p for name, p in trainer.model.named_parameters() if "lora_A" in name)
        return list(trainer.train_sampler), adapter.flatten().tolist()

    assert drawn(3) == drawn(3)
    assert drawn(3)[0] != drawn(4)[0]
    assert drawn(3)[1] != drawn(4)[1]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("use_remove_padding=true", "use_remove_padding=True needs flash_attention_2"),
        ("model.use_liger=true", "use_liger=True runs Triton kernels, which need capability 7.0"),
    ],
)
def test_what_the_hardware_cannot_do_is_refused(
    override: str, reason: str, make_trainer: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=reason):
        make_trainer(override)


def test_a_card_that_is_promised_and_not_there_is_told(
    make_trainer: Callable[..., Any],
) -> None:
    import torch

    if torch.cuda.is_available():
        promised, seen = "cpu", "cuda"
    else:
        promised, seen = "cuda", "cpu"
    with pytest.raises(RuntimeError, match=f"device={promised}, but this worker sees only {seen}"):
        make_trainer(f"trainer.device={promised}")
