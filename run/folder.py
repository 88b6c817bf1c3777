"""The folder of a run: its id, what verl writes into it, and ``latest``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from omegaconf import DictConfig, open_dict


def create(runs: Path, name: str) -> Path:
    """A new folder ``<runs>/<date>-<time>-<name>``; ``<runs>/latest`` points to it."""
    runs.mkdir(parents=True, exist_ok=True)
    base = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for number in range(1, 1000):
        place = runs / (base if number == 1 else f"{base}-{number}")
        try:
            place.mkdir()
        except FileExistsError:
            continue  # another run started within the same second
        _point(runs / "latest", place)
        return place
    raise FileExistsError(f"{runs / base} and its successors exist")


def direct(config: DictConfig, place: Path, reward: str, given: Collection[str]) -> None:
    """Have verl write into ``place`` and use the project's logger and reward function.

    Args:
        reward: name of a function of :mod:`run.reward`.
        given: keys that the command line set; they stay as they are.
    """
    wanted = {
        "trainer.default_local_dir": str(place / "checkpoints"),
        "trainer.rollout_data_dir": str(place / "samples" / "train"),
        "trainer.validation_data_dir": str(place / "samples" / "validation"),
        "trainer.experiment_name": place.name,
        "trainer.custom_logger.path": "pkg://run.metrics",
        "trainer.custom_logger.name": "JsonlLogger",
    }
    if "custom_reward_function.path" not in given:
        wanted["custom_reward_function.path"] = "pkg://run.reward"
        wanted["custom_reward_function.name"] = reward
    for key, value in wanted.items():
        if key not in given:
            _set(config, key, value)
    with open_dict(config):
        config.trainer.custom_logger.folder = str(place)


@contextlib.contextmanager
def ray_folder() -> Iterator[Path]:
    """A folder for Ray's session, gone afterwards.

    Its own one, so that runs do not meet and nothing stays behind; and not in the run's folder,
    since the path of a socket has at most 107 bytes.
    """
    place = Path(tempfile.mkdtemp(prefix="vp40-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _set(config: DictConfig, key: str, value: str) -> None:
    *nodes, leaf = key.split(".")
    node = config
    for name in nodes:
        node = node[name]
    node[leaf] = value


def _point(link: Path, target: Path) -> None:
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.name)
    fresh.replace(link)
