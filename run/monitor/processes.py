"""The processes of a run, and what a process is called."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

# Between two searches through every process of the machine for a run that is not there.
SEARCH_SECONDS = 3.0


@dataclass
class Tree:
    """Training in one run's folder, with all its descendants.

    Args:
        run_id: name of the run's folder. Only the name counts: a container knows the folder by
            another path than the host.
        clock: seconds; any zero.
    """

    run_id: str
    clock: Callable[[], float] = time.monotonic
    _root: psutil.Process | None = None
    _searched_at: float = field(default=float("-inf"))

    def sample(self) -> list[dict[str, Any]]:
        """``{"pid", "name", "role"?, "rss_bytes"}`` of each process; empty where none trains.

        Resident memory: pages that processes share, as Ray's object store, count in each of them.
        """
        if self._root is None or not _is_alive(self._root):
            self._root = self._search()
        if self._root is None:
            return []
        try:
            family = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []
        found = []
        for process in family:
            try:
                rss = process.memory_info().rss
            except psutil.Error:
                continue  # it ended meanwhile
            found.append({"pid": process.pid, **who(process), "rss_bytes": rss})
        return found

    def _search(self) -> psutil.Process | None:
        if self.clock() - self._searched_at < SEARCH_SECONDS:
            return None
        self._searched_at = self.clock()
        for process in psutil.process_iter(["cmdline"]):
            if _trains(process.info["cmdline"] or [], self.run_id):
                return _launcher(process)
        return None


def who(process: psutil.Process) -> dict[str, str]:
    """``name``, and ``role`` where Ray's title tells it; empty where it cannot be known."""
    try:
        told = {"name": process.name()}
        title = " ".join(process.cmdline())
    except psutil.Error:
        return {}  # of another container, or gone
    if title.startswith("ray::"):
        told["role"] = _role(title)
    return told


def _role(title: str) -> str:
    """``WorkerDict`` of ``ray::WorkerDict.actor_rollout_update_actor``."""
    return title.removeprefix("ray::").split(".")[0].split("(")[0].strip()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _trains(command: list[str], run_id: str) -> bool:
    """Whether it is verl's driver, which is told the run's folder by ``--config-path``."""
    if "verl.trainer.main_ppo" not in command or "--config-path" not in command[:-1]:
        return False
    return command[command.index("--config-path") + 1].rstrip("/").endswith(f"/{run_id}")


def _launcher(driver: psutil.Process) -> psutil.Process:
    """What started ``driver``: orphans of the run become its children. Else ``driver`` itself."""
    try:
        parent = driver.parent()
        if parent is not None and "run.train" in parent.cmdline():
            return parent
    except psutil.Error:
        pass
    return driver
