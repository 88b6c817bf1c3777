"""Goes on with a run from its newest complete checkpoint.

verl gives a checkpoint its name, ``global_step_<n>``, when it is complete, so the highest number is
where a run goes on. What was recorded after it is taken back, since those steps are done again; all
else, the configuration first, is as it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from env import paths
from env.disk import refusals_told
from env.errors import Problem, Refused
from run import config

# What a checkpoint holds, or its position in the data counts on: an override would act on nothing,
# or on something else than it says.
FIXED = (
    "actor_rollout_ref.actor.optim",
    "algorithm.adv_estimator",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.target_modules",
    "critic.model.path",
    "critic.optim",
    "critic.strategy",
    "data.custom_cls",
    "data.dataloader_num_workers",
    "data.filter_overlong_prompts",
    "data.gen_batch_size",
    "data.sampler",
    "data.seed",
    "data.shuffle",
    "data.train_batch_size",
    "data.train_files",
    "seed",
    "trainer.custom_logger",
    "trainer.default_local_dir",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.resume_from_path",
    "trainer.resume_mode",
)


@dataclass(frozen=True)
class Stopped:
    """A run that was begun before.

    Args:
        place: its folder.
        config: its configuration with overrides applied, every path where it lies now.
        step: of its newest complete checkpoint.
        checkpoint: that checkpoint's folder.
    """

    place: Path
    config: DictConfig
    step: int
    checkpoint: Path


def find(runs: Path, name: str) -> Path:
    """The folder of the run ``name``: ``latest``, an id below ``runs``, or a folder.

    Raises:
        Refused: there is no such run.
    """
    for place in (runs / name, Path(name)):
        if (place / "config.yaml").is_file():
            return place.resolve()
    ids = sorted(p.parent.name for p in runs.glob("*/config.yaml") if p.parent.name != "latest")
    expected = f"latest, an id below {runs}, or a run's folder"
    do = f"the last ones: {', '.join(ids[-5:])}" if ids else "make train makes the first"
    raise Refused(Problem(f"--resume {name}", "no such run", expected, do))


def read(place: Path, overrides: Sequence[str]) -> Stopped:
    """The run in ``place`` as it stopped.

    Args:
        overrides: Hydra's, as typed, to be applied on top of the run's own configuration.

    Raises:
        Refused: nothing to go on from, model or data gone, or overrides that a resumed run cannot
            follow.
    """
    settings = _moved(_read(place / "config.yaml"), place)
    problems: list[Problem] = []
    config.change(settings, overrides, problems)
    if not problems:
        problems += _not_fixed(overrides)
    found = checkpoints(Path(str(settings.trainer.default_local_dir)))
    if not found:
        do = "start it again; trainer.save_freq=N saves a checkpoint every N steps"
        problems.append(Problem(str(place), "holds no complete checkpoint", do=do))
    problems += _gone(settings)
    if problems:
        raise Refused(problems)
    step = max(found)
    settings.trainer.resume_mode = "resume_path"
    settings.trainer.resume_from_path = str(found[step])
    return Stopped(place, settings, step, found[step])


def checkpoints(folder: Path) -> dict[int, Path]:
    """The complete checkpoints in ``folder``, by step."""
    names = {path: re.fullmatch(r"global_step_(\d+)", path.name) for path in folder.glob("*")}
    return {int(match[1]): path for path, match in names.items() if match and path.is_dir()}


def take_back(place: Path, step: int) -> None:
    """Remove what the run in ``place`` recorded after ``step``."""
    with refusals_told(place):
        for name in ("metrics.jsonl", "phases.jsonl"):
            _cut(place / name, step)
        for path in place.glob("samples/*/*.jsonl"):
            if path.stem.isdecimal() and int(path.stem) > step:
                path.unlink()


def _cut(path: Path, step: int) -> None:
    if not path.exists():
        return
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with path.open("rb") as whole, fresh.open("wb") as kept:
        # What is no line of ours, as half a line of a killed run, goes as well.
        kept.writelines(line for line in whole if 0 <= _step(line) <= step)
        kept.flush()
        os.fsync(kept.fileno())
    fresh.replace(path)


def _step(line: bytes) -> int:
    """The step of a line of metrics.jsonl or phases.jsonl; -1 where it is none."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return -1
    return step if isinstance(step, int) else -1


def _read(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
        if isinstance(OmegaConf.select(loaded, "trainer.custom_logger.folder"), str):
            return cast(DictConfig, loaded)
        what = "holds no configuration of a run"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        what = f"cannot be read: {error}"
    raise Refused(Problem(str(path), what, "what run.train wrote there"))


def _moved(settings: DictConfig, place: Path) -> DictConfig:
    """``settings`` with what lies in the run's folder, or in its ``out/``, where it lies now."""
    before = Path(settings.trainer.custom_logger.folder)
    moves = {before: place}
    # The run began in an out/; where only the run's folder was moved, the rest is still there.
    if before.parent.name == "runs" and place.parent == paths.out() / "runs":
        moves[before.parent.parent] = paths.out()

    def now(value: object) -> object:
        if isinstance(value, dict):
            return {key: now(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [now(inner) for inner in value]
        if isinstance(value, str) and value.startswith("/"):
            for old, new in moves.items():
                if Path(value).is_relative_to(old):
                    return str(new / Path(value).relative_to(old))
        return value

    return OmegaConf.create(now(OmegaConf.to_container(settings, resolve=False)))  # type: ignore[call-overload, no-any-return]


def _not_fixed(overrides: Sequence[str]) -> Iterator[Problem]:
    for key in sorted(config.given_keys(overrides)):
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            yield Problem(
                where=f"command line: {key}",
                what="cannot change in a run that goes on",
                expected="what the run began with",
                do="begin a new run with the weights of a checkpoint: "
                "MODEL=out/runs/ID/checkpoints/global_step_N/actor/huggingface",
            )


def _gone(settings: DictConfig) -> Iterator[Problem]:
    """What the configuration names and is no longer there."""
    model = str(settings.actor_rollout_ref.model.path)
    if not Path(model, "config.json").is_file():
        yield Problem("actor_rollout_ref.model.path", f"no model lies in {model}", do="make model")
    for key in ("train_files", "val_files"):
        files = settings.data[key]
        for file in map(str, files if isinstance(files, ListConfig) else [files]):
            if "://" not in file and not Path(file).is_file():
                do = "put it back: a run that goes on needs the data it began with"
                yield Problem(f"data.{key}", f"{file} is gone", do=do)
