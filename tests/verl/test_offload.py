"""verl-patches/0019: what is offloaded is on the device while it is used, and at no other time.

On a CPU host offloading moves nothing, so what would be on the device is kept account of here; the
values must be those without offloading.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.verl.batches import changed, model, optimizer, random_batch, step, weights
from tests.verl.conftest import prompts
from tests.verl.test_strategy_single import strategy

OFFLOAD = (
    "actor_rollout_ref.actor.fsdp_config.param_offload=true",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
    "actor_rollout_ref.ref.fsdp_config.param_offload=true",
    "critic.model.fsdp_config.param_offload=true",
    "critic.model.fsdp_config.optimizer_offload=true",
)
LORA = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")
RANKS = pytest.mark.parametrize("lora", [(), LORA], ids=["full", "lora"])


class Ledger:
    """Which models and optimizer states are on the device, and how often each was used there."""

    def __init__(self) -> None:
        self.on_device: set[int] = set()
        self.uses: dict[int, int] = {}

    def placed(self, thing: Any) -> Any:
        self.on_device.add(id(thing))
        return thing

    def taken(self, thing: Any) -> None:
        self.on_device.discard(id(thing))

    def used(self, thing: Any) -> None:
        assert id(thing) in self.on_device, f"{type(thing).__name__} was used while offloaded"
        self.uses[id(thing)] = self.uses.get(id(thing), 0) + 1

    def watch(self, worker: Any) -> None:
        """Every forward pass of the worker's models and every step of its optimizer is a use."""
        models = [model(worker)]
        if hasattr(worker, "ref_module_fsdp"):
            models.append(worker.ref_module_fsdp)
        for watched in models:
            # generate calls no forward of an adapter's wrapper, so ask further within
            embeddings = watched.get_input_embeddings()
            embeddings.register_forward_pre_hook(lambda *_, watched=watched: self.used(watched))
        optimizer(worker).register_step_pre_hook(lambda stepped, *_: self.used(stepped))


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    from verl.workers import fsdp_workers

    book = Ledger()

    def keep(name: str, entry: Callable[[Any], Any]) -> None:
        real = getattr(fsdp_workers, name)

        def kept(*arguments: Any, **named: Any) -> Any:
            thing = arguments[0] if arguments else named["optimizer"]
            entry(thing)
            return real(*arguments, **named)

        monkeypatch.setattr(fsdp_workers, name, kept)

    keep("place_single_module", book.placed)
    keep("load_fsdp_model_to_gpu", book.placed)
    keep("load_fsdp_optimizer", book.placed)
    keep("offload_fsdp_model_to_cpu", book.taken)
    keep("offload_fsdp_optimizer", book.taken)
    return book


@pytest.fixture
def make_single(make_worker: Callable[..., Any], sharpened_model: Path) -> Callable[..., Any]:
    """Builds a worker as the trainer does: with LoRA the actor is the reference, too."""

    def make(*overrides: str, role: str = "actor") -> Any:
        actor = "actor_rollout" if LORA[0] in overrides else "actor_rollout_ref"
        role = "critic" if role == "critic" else actor
        return make_worker(sharpened_model, *strategy("single"), *overrides, role=role)

    return make


@RANKS
def test_offloading_changes_no_bit(make_single: Callable[..., Any], lora: tuple[str, ...]) -> None:
    batch = random_batch(make_single(*lora))
    for role in ("actor", "critic"):
        found = []
        for offload in ((), OFFLOAD):
            worker = make_single(*lora, *offload, role=role)
            for _ in range(2):
                step(worker, batch)
            found.append(weights(worker))
        assert changed(*found) == set()


@RANKS
def test_the_actor_and_its_reference_are_on_the_device_only_while_used(
    make_single: Callable[..., Any], ledger: Ledger, lora: tuple[str, ...], tmp_path: Path
) -> None:
    batch = random_batch(make_single(*lora))
    ledger.on_device.clear()
    worker = make_single(*lora, *OFFLOAD)
    assert not ledger.on_device, "left on the device at the start"
    ledger.watch(worker)
    reference = worker.actor_module_fsdp if lora else worker.ref_module_fsdp
    phases = {
        "rollout": (lambda: worker.generate_sequences(prompts(2)), worker.actor_module_fsdp),
        "log-probs": (lambda: worker.compute_log_prob(again(batch)), worker.actor_module_fsdp),
        "reference": (lambda: worker.compute_ref_log_prob(again(batch)), reference),
        "update": (lambda: worker.update_actor(again(batch)), worker.actor_optimizer),
    }
    assert_used_and_away(ledger, phases)
    assert_saved_and_loaded(ledger, worker, tmp_path)
    assert_used_and_away(ledger, {"update": phases["update"]})


@RANKS
def test_the_critic_is_on_the_device_only_while_used(
    make_single: Callable[..., Any], ledger: Ledger, lora: tuple[str, ...], tmp_path: Path
) -> None:
    batch = random_batch(make_single(*lora))
    ledger.on_device.clear()
    worker = make_single(*lora, *OFFLOAD, role="critic")
    assert not ledger.on_device, "left on the device at the start"
    ledger.watch(worker)
    phases = {
        "values": (lambda: worker.compute_values(again(batch)), worker.critic_module),
        "update": (lambda: worker.update_critic(again(batch)), worker.critic_optimizer),
    }
    assert_used_and_away(ledger, phases)
    assert_saved_and_loaded(ledger, worker, tmp_path)
    assert_used_and_away(ledger, {"update": phases["update"]})


@RANKS
def test_without_offloading_everything_stays_on_the_device(
    make_single: Callable[..., Any], ledger: Ledger, lora: tuple[str, ...]
) -> None:
    worker = make_single(*lora)
    here = set(ledger.on_device)
    assert len(here) == (1 if lora else 2)
    step(worker, random_batch(worker))
    assert ledger.on_device == here


def again(batch: Any) -> Any:
    return copy.deepcopy(batch)


def assert_used_and_away(ledger: Ledger, phases: dict[str, tuple[Callable[[], Any], Any]]) -> None:
    for name, (run, user) in phases.items():
        ledger.uses.clear()
        run()
        assert ledger.uses.get(id(user)), f"{name} did not use what it was to use"
        assert not ledger.on_device, f"left on the device after {name}"


def assert_saved_and_loaded(ledger: Ledger, worker: Any, folder: Path) -> None:
    before = weights(worker)
    state = optimizer(worker).state_dict()["state"]
    worker.save_checkpoint(str(folder), global_step=1)
    assert not ledger.on_device, "left on the device after saving"
    with torch.no_grad():
        for parameter in filter(lambda it: it.requires_grad, model(worker).parameters()):
            parameter.zero_()
    worker.load_checkpoint(str(folder), del_local_after_load=False)
    assert not ledger.on_device, "left on the device after loading"
    assert changed(before, weights(worker)) == set()
    loaded = optimizer(worker).state_dict()["state"]
    assert loaded.keys() == state.keys() != set()
    for key, values in state.items():
        assert all(torch.equal(loaded[key][name], value) for name, value in values.items())
