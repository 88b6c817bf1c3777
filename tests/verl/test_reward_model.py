"""verl-patches: a reward model on a CPU in fp32, and a whole run that is scored by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import open_dict

from tests.verl.conftest import prompts, settings
from tests.verl.runs import finish, latest, lines, start

CONSTANT = 0.375


def reward_model(folder: Path, source: Path, weight: float, bias: float) -> Path:
    """``source`` with a head of one score a token: ``weight`` times a fixed random one, ``bias``."""
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    model = AutoModelForTokenClassification.from_pretrained(source, num_labels=1)
    generator = torch.Generator().manual_seed(0)
    shape = model.score.weight.shape
    model.score.weight.data = weight * torch.randn(shape, generator=generator)
    model.score.bias.data.fill_(bias)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture
def make_worker(one_rank: None, tiny_model: Path) -> Callable[..., Any]:
    def make(path: Path, **model: Any) -> Any:
        from verl.workers.fsdp_workers import RewardModelWorker

        config = settings(tiny_model, "reward_model.micro_batch_size_per_gpu=2").reward_model
        with open_dict(config):
            config.model.update(path=str(path), input_tokenizer=None, **model)
        worker = RewardModelWorker(config)
        worker.init_model()
        return worker

    return make


def test_a_response_gets_the_score_of_its_last_token(
    make_worker: Callable[..., Any], sharpened_model: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForTokenClassification
    from verl import DataProto

    path = reward_model(tmp_path, sharpened_model, weight=1.0, bias=0.1)
    rows = prompts(4).batch
    lengths = torch.tensor([8, 1, 5, 3])
    mask = (torch.arange(8) < lengths.unsqueeze(1)).long()
    responses = torch.full((4, 8), 77)
    attention = torch.cat([rows["attention_mask"], mask], dim=1)
    ids = torch.cat([rows["input_ids"], responses], dim=1)
    position = (attention.cumsum(-1) - 1).clamp(min=0)
    tensors = {"input_ids": ids, "attention_mask": attention, "position_ids": position}
    data = DataProto.from_dict(tensors={**tensors, "responses": responses})
    scores = make_worker(path).compute_rm_score(data).batch["rm_scores"]
    model = AutoModelForTokenClassification.from_pretrained(path)
    with torch.no_grad():
        logits = model(**tensors).logits.squeeze(-1)[:, -8:]
    last = torch.arange(8) == (lengths - 1).unsqueeze(1)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, logits * last, rtol=1e-5, atol=1e-5)
    assert len(set(scores[last].tolist())) == 4


def test_removing_padding_without_flash_attention_is_refused(
    make_worker: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    path = reward_model(tmp_path, tiny_model, weight=1.0, bias=0.0)
    with pytest.raises(ValueError, match="use_remove_padding=True needs flash_attention_2"):
        make_worker(path, use_remove_padding=True)


def test_a_run_is_scored_by_the_reward_model_through_its_own_template(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = reward_model(tmp_path / "model", tiny_model, weight=0.0, bias=CONSTANT)
    overrides = ["reward_model.enable=true", f"reward_model.model.path={path}"]
    overrides += ["reward_model.micro_batch_size_per_gpu=4", "data.return_raw_chat=true"]
    overrides += ["trainer.total_training_steps=1", "trainer.val_before_train=false"]
    done = finish(start(tmp_path, "--preset", "tiny", *overrides, "trainer.test_freq=-1"))
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    (step,) = [line["metrics"] for line in lines(run / "metrics.jsonl")]
    assert {step[f"critic/score/{name}"] for name in ("mean", "min", "max")} == {CONSTANT}
    assert step["actor/grad_norm"] >= 0
    said = (run / "train.log").read_text()
    assert "Switch template. chat: " in said
