"""verl-patches/0009: rollout engine, reward function and logger by import path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.verl import extensions
from tests.verl.conftest import prompts
from tests.verl.test_hf_rollout import generate

PACKAGE = "pkg://tests.verl.extensions"


def test_a_rollout_engine_of_ones_own_takes_the_place_of_hf(
    make_worker: Callable[..., Any], tiny_model: Path
) -> None:
    worker = make_worker(
        tiny_model,
        f"actor_rollout_ref.rollout.custom_cls.path={PACKAGE}",
        "actor_rollout_ref.rollout.custom_cls.name=OwnRollout",
    )
    assert generate(worker, prompts(2)).meta_info["engine"] == "own"


def test_without_one_hf_rollout_stays(make_worker: Callable[..., Any], tiny_model: Path) -> None:
    from verl.workers.rollout.hf_rollout import HFRollout

    assert type(make_worker(tiny_model).rollout) is HFRollout


@pytest.mark.parametrize("path", [PACKAGE, PACKAGE.replace(".", "/"), extensions.__file__])
def test_a_reward_function_is_found_by_package_or_file(path: str) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    node = {"path": path, "name": "own_reward", "reward_kwargs": {"bonus": 0.5}}
    score = get_custom_reward_fn(OmegaConf.create({"custom_reward_function": node}))
    assert score("x", "7", "7") == 1.5


def test_a_reward_function_that_is_not_there_is_named() -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    node = {"path": PACKAGE, "name": "no_such_reward"}
    with pytest.raises(AttributeError, match=r"no_such_reward.*tests\.verl\.extensions"):
        get_custom_reward_fn(OmegaConf.create({"custom_reward_function": node}))


@pytest.mark.parametrize("name", ["strict", "normalised", "graded"])
def test_the_projects_own_rewards_are_found(name: str) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    node = {"path": "pkg://run.reward", "name": name}
    score = get_custom_reward_fn(OmegaConf.create({"custom_reward_function": node}))
    assert score("openai/gsm8k", "It is 7.\n#### 7", "7")["score"] == 1.0


def test_a_logger_of_ones_own_gets_what_the_others_get() -> None:
    from verl.utils.tracking import Tracking

    node = {"path": PACKAGE, "name": "OwnLogger"}
    tracking = Tracking("p", "e", ["console"], {"trainer": {"custom_logger": node}})
    tracking.log({"a": 1.0}, step=3)
    assert extensions.LOGGED == [("p", "e", {"a": 1.0}, 3)]


def test_without_one_only_the_named_loggers_are_there() -> None:
    from verl.utils.tracking import Tracking

    node = {"path": None, "name": None}
    assert list(Tracking("p", "e", [], {"trainer": {"custom_logger": node}}).logger) == []
    assert list(Tracking("p", "e", "console").logger) == ["console"]
