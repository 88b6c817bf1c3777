"""The folder of a run: its id, what verl writes into it, and ``latest``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from omegaconf import DictConfig, open_dict

from env.disk import refusals_told
from env.errors import Problem, Refused

# Of a socket's path, all in all and of what Ray puts below its folder:
# /ray/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store
SOCKET_BYTES = 107
BELOW_RAY_BYTES = 68


def create(runs: Path, name: str) -> Path:
    """A new folder ``<runs>/<date>-<time>-<name>``.

    Raises:
        Refused: it cannot be made.
    """
    base = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    with refusals_told(runs):
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            place = runs / (base if number == 1 else f"{base}-{number}")
            try:
                place.mkdir()
            except FileExistsError:
                continue  # another run started within the same second
            return place
        raise FileExistsError(f"{runs / base} and its successors exist")


@contextlib.contextmanager
def begun(place: Path, link_latest: bool = True) -> Iterator[None]:
    """``latest`` beside ``place`` points to it once the block is through.

    What is refused before, or interrupted, leaves neither the empty folder nor ``latest`` on it.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            place.rmdir()  # only while it is empty
        raise
    if not link_latest:
        return
    link = place.with_name("latest")
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    with refusals_told(place.parent):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(place.name)
        fresh.replace(link)


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """No second process trains in ``place`` meanwhile.

    Raises:
        Refused: one does already.
    """
    descriptor = os.open(place, os.O_RDONLY)
    try:
        # of the folder itself, so nothing is left behind; gone with the process, however it ends
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        do = "wait for it, or stop it; every start without --resume has a folder of its own"
        raise Refused(Problem(str(place), "this run is under way already", do=do)) from error
    except OSError as error:
        print(f"  {place} cannot be locked ({error.strerror}): do not start this run twice")
    try:
        yield
    finally:
        os.close(descriptor)


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
    since the path of a socket has at most 107 bytes. For the same reason in /tmp where TMPDIR is
    long, or holds what a shell would read as more than a path.
    """
    place = Path(tempfile.mkdtemp(prefix="vp40-"))
    is_long = len(os.fsencode(place)) + BELOW_RAY_BYTES > SOCKET_BYTES
    if is_long or not _is_plain(str(place)):
        place.rmdir()
        print(f"  Ray's files lie in /tmp: {place.parent} is too long for it, or no plain path")
        place = Path(tempfile.mkdtemp(prefix="vp40-", dir="/tmp"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def interpreter(ray: Path) -> str:
    """This Python, by a path that Ray can start workers with.

    Ray hands the path of its driver's Python to a shell unquoted: with a space or an apostrophe in
    it no worker ever starts, and the run waits for ever. So there it goes by a link.

    Args:
        ray: what :func:`ray_folder` made; the link lies in it.
    """
    if _is_plain(sys.executable):
        return sys.executable
    link = ray / "environment"
    link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def _is_plain(path: str) -> bool:
    return shlex.quote(path) == path


def _set(config: DictConfig, key: str, value: str) -> None:
    *nodes, leaf = key.split(".")
    node = config
    for name in nodes:
        node = node[name]
    node[leaf] = value
