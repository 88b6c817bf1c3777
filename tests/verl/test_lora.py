"""verl-patches/0018: LoRA of actor and critic with the hf rollout, under single and FSDP."""

from __future__ import annotations

import copy
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.verl.batches import changed, model, optimizer, random_batch, step, weights
from tests.verl.conftest import prompts
from tests.verl.runs import finish, latest, lines, start
from tests.verl.test_hf_rollout import delta_log_probs, generate
from tests.verl.test_strategy_single import strategy
from tests.verl.two_ranks_lora import LORA

DIFFERENCE = "training/rollout_log_probs_diff_mean"
BOTH = pytest.mark.parametrize("name", ["single", "fsdp"])


@pytest.fixture
def make_actor(make_worker: Callable[..., Any], sharpened_model: Path) -> Callable[..., Any]:
    """Builds the trainer's worker: with LoRA it asks the actor for the reference, too."""

    def make(name: str, *overrides: str) -> Any:
        return make_worker(
            sharpened_model, *LORA, *strategy(name), *overrides, role="actor_rollout"
        )

    return make


@pytest.fixture
def make_critic(make_worker: Callable[..., Any], sharpened_model: Path) -> Callable[..., Any]:
    def make(name: str, *overrides: str) -> Any:
        return make_worker(sharpened_model, *LORA, *strategy(name), *overrides, role="critic")

    return make


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


@BOTH
def test_a_step_trains_the_adapter_alone(make_actor: Callable[..., Any], name: str) -> None:
    worker = make_actor(name)
    before = weights(worker)
    step(worker, random_batch(worker))
    found = changed(before, weights(worker))
    # B begins at 0, and with it the gradient of A: Adam moves all of B, weight decay all of A
    assert found == set(filter(is_adapter, before))


@BOTH
def test_the_rollout_samples_from_the_adapted_policy(
    make_actor: Callable[..., Any], name: str
) -> None:
    worker = make_actor(name)
    batch = random_batch(worker)
    step(worker, batch)
    output = generate(worker, prompts(4, repeat=4))
    assert delta_log_probs(worker, output).max() <= 1e-5
    scored = worker.compute_log_prob(copy.deepcopy(batch)).batch["old_log_probs"]
    moved = (scored - batch.batch["old_log_probs"]).abs()
    assert moved.max() > 1e-2, "the adapter does nothing: the test shows nothing"


@BOTH
def test_the_reference_is_the_base_without_the_adapter(
    make_actor: Callable[..., Any],
    make_worker: Callable[..., Any],
    sharpened_model: Path,
    name: str,
) -> None:
    worker = make_actor(name)
    batch = random_batch(worker)
    step(worker, batch)
    found = worker.compute_ref_log_prob(copy.deepcopy(batch)).batch["ref_log_prob"]
    plain = make_worker(sharpened_model, *strategy("single"), role="ref")
    expected = plain.compute_ref_log_prob(copy.deepcopy(batch)).batch["ref_log_prob"]
    assert (found - expected).abs().max() <= 1e-6
    assert not hasattr(worker, "ref_module_fsdp")
    # and afterwards the adapter is on again
    scored = worker.compute_log_prob(copy.deepcopy(batch)).batch["old_log_probs"]
    assert (scored - expected).abs().max() > 1e-2


@BOTH
def test_the_optimizer_holds_nothing_but_what_is_trained(
    make_actor: Callable[..., Any], make_critic: Callable[..., Any], name: str
) -> None:
    for worker in (make_actor(name), make_critic(name)):
        [group] = optimizer(worker).param_groups
        trained = [value for value in model(worker).parameters() if value.requires_grad]
        assert 0 < len(trained) < len(list(model(worker).parameters()))
        assert list(map(id, group["params"])) == list(map(id, trained))


@BOTH
def test_the_critic_trains_its_adapter_and_its_value_head(
    make_actor: Callable[..., Any], make_critic: Callable[..., Any], name: str
) -> None:
    batch = random_batch(make_actor("single"))
    worker = make_critic(name)
    before = weights(worker)
    values = worker.compute_values(copy.deepcopy(batch)).batch["values"]
    step(worker, batch)
    found = changed(before, weights(worker))
    heads = {key for key in before if ".score.modules_to_save." in key}
    assert len(heads) == 2
    assert found == heads | set(filter(is_adapter, before))
    after = worker.compute_values(copy.deepcopy(batch)).batch["values"]
    assert not torch.allclose(after, values)


@BOTH
def test_a_resumed_actor_takes_the_same_next_step(
    make_actor: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    worker = make_actor(name)
    batch = random_batch(worker)
    step(worker, batch)
    worker.save_checkpoint(str(tmp_path), global_step=1)
    step(worker, batch)
    other = make_actor(name, "seed=7")  # its adapter begins elsewhere
    other.load_checkpoint(str(tmp_path))
    step(other, batch)
    assert changed(weights(worker), weights(other)) == set()


@BOTH
def test_a_resumed_critic_takes_the_same_next_step(
    make_actor: Callable[..., Any], make_critic: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    batch = random_batch(make_actor("single"))
    worker = make_critic(name)
    step(worker, batch)
    worker.save_checkpoint(str(tmp_path), global_step=1)
    step(worker, batch)
    other = make_critic(name, "seed=7")  # adapter and value head begin elsewhere
    other.load_checkpoint(str(tmp_path), del_local_after_load=False)
    step(other, batch)
    found = {
        key for key in changed(weights(worker), weights(other)) if "original_module" not in key
    }
    assert found == set()


@BOTH
def test_peft_loads_the_adapter_from_a_checkpoint(
    make_actor: Callable[..., Any], sharpened_model: Path, tmp_path: Path, name: str
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    worker = make_actor(name, "actor_rollout_ref.model.exclude_modules=[o_proj]")
    batch = random_batch(worker)
    step(worker, batch)
    worker.save_checkpoint(str(tmp_path), global_step=1)
    folder = tmp_path / {"single": "huggingface", "fsdp": "lora_adapter"}[name]
    base = AutoModelForCausalLM.from_pretrained(sharpened_model)
    loaded = PeftModel.from_pretrained(base, folder)
    expected = weights(worker)
    found = dict(loaded.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert not any("o_proj.lora_A" in key for key in found)


def test_a_checkpoint_of_single_is_a_folder_that_transformers_loads_with_the_adapter_on(
    make_actor: Callable[..., Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    worker = make_actor("single")
    batch = random_batch(worker)
    step(worker, batch)
    worker.save_checkpoint(str(tmp_path), global_step=1)
    saved = load_file(tmp_path / "huggingface/adapter_model.safetensors")
    assert all(".lora_A." in key or ".lora_B." in key for key in saved)
    assert not (tmp_path / "huggingface/model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")
    inputs = {key: batch.batch[key] for key in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        found = loaded(**inputs).logits
        expected = worker.actor_module_fsdp(**inputs).logits
    assert (found - expected).abs().max() <= 1e-5


@pytest.fixture(scope="module")
def ranks(
    sharpened_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.verl.two_ranks_lora"]
    rest = [port, str(sharpened_model), str(out)]
    started = [
        subprocess.Popen(
            [*command, str(rank), *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return out, [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_two_ranks_sample_from_the_adapted_policy(ranks: Any) -> None:
    assert max(rank["delta"] for rank in ranks[1]) <= 1e-5
    lengths = [rank["lengths"] for rank in ranks[1]]
    assert max(lengths[0]) != max(lengths[1]), "neither rank ends earlier: the test shows less"


def test_two_ranks_train_the_adapter_alone(ranks: Any) -> None:
    for rank in ranks[1]:
        assert rank["changed"]["actor"]
        assert all(map(is_adapter, rank["changed"]["actor"]))
        assert any(map(is_adapter, rank["changed"]["critic"]))
        assert all(is_adapter(key) or ".score." in key for key in rank["changed"]["critic"])
    first, second = (rank["grad_norms"] for rank in ranks[1])
    assert first == second
    assert all(norm > 0 for norm in first.values())


def test_two_ranks_take_the_base_as_the_reference(ranks: Any) -> None:
    for rank in ranks[1]:
        assert rank["reference_moved"] == 0
        assert rank["policy_moved"] > 1e-3


def test_two_ranks_resume_at_the_same_bits(ranks: Any) -> None:
    assert [rank["resumed_differs"] for rank in ranks[1]] == [[], []]


def test_two_ranks_save_an_adapter_that_peft_loads(ranks: Any, sharpened_model: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(sharpened_model)
    loaded = PeftModel.from_pretrained(base, ranks[0] / "actor" / "lora_adapter")
    expected = load_file(ranks[0] / "weights.safetensors")
    found = dict(loaded.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_run_of_ppo_trains_adapters_of_actor_and_critic(tmp_path: Path) -> None:
    overrides = [
        *LORA,
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=true",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.rollout.n=1",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=2",
    ]
    done = finish(start(tmp_path, "--preset", "tiny", *overrides))
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    first, second = (line["metrics"] for line in lines(run / "metrics.jsonl"))
    assert first["actor/reward_kl_penalty"] == 0
    assert second["actor/reward_kl_penalty"] != 0
    assert max(line[DIFFERENCE] for line in (first, second)) <= 1e-5
    # the reference is the actor without its adapter: it is built once
    assert (run / "train.log").read_text().count("Applying LoRA to actor module") == 1
    for role in ("actor", "critic"):
        saved = run / "checkpoints" / "global_step_2" / role / "huggingface"
        adapter = load_file(saved / "adapter_model.safetensors")
        assert all(value.any() for key, value in adapter.items() if "lora_B" in key)
