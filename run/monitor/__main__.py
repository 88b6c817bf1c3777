"""Watch: ``python -m run.monitor [RUN]``, before, while or after a run trains.

Once a second a sample goes to ``vram.jsonl`` in the run's folder; every few seconds a line says the
most of it. Without RUN it follows ``out/runs/latest``. ``--check`` tells by its exit code whether a
monitor is alive: 0 if it is, else 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from env import paths
from env.errors import OK, REFUSED, Problem, Refused, main
from run.monitor.processes import Tree
from run.monitor.record import Record, is_alive
from run.monitor.sampling import Sampler

EVERY_SECONDS = 1.0
ALIVE_SECONDS = 10.0
GIB = 2**30


def line(sample: dict[str, Any]) -> str:
    """A sample as people read it."""
    parts = []
    for card in sample["cards"]:
        if "error" in card:
            parts.append(f"card {card['index']}: {card['error']}")
            continue
        used, total = card["used_bytes"] / GIB, card["total_bytes"] / GIB
        text = f"{card['name']} {used:.1f}/{total:.1f} GiB, peak {card['peak_bytes'] / GIB:.1f}"
        if card.get("utilisation_percent") is not None:
            text += f", {card['utilisation_percent']} %"
        if card.get("temperature_celsius") is not None:
            text += f", {card['temperature_celsius']} C"
        parts.append(text)
    if not sample["cards"]:
        parts.append("no card")
    host = sample["host"]
    parts.append(f"host {host['used_bytes'] / GIB:.1f}/{host['total_bytes'] / GIB:.1f} GiB")
    if sample["processes"]:
        parts.append(_of_the_run(sample["processes"]))
    return time.strftime("%H:%M:%S ", time.localtime(sample["time"])) + ", ".join(parts)


def _of_the_run(processes: list[dict[str, Any]]) -> str:
    """``run 3.1 GiB (TaskRunner 0.7, WorkerDict 1.9)``, of the host's memory."""
    roles: dict[str, int] = {}
    for process in processes:
        role = process.get("role", "IDLE")
        roles[role] = roles.get(role, 0) + process["rss_bytes"]
    parts = [f"{role} {size / GIB:.1f}" for role, size in roles.items() if role != "IDLE"]
    text = f"run {sum(roles.values()) / GIB:.1f} GiB"
    return f"{text} ({', '.join(parts)})" if parts else text


def say(text: str) -> None:
    """Print at once; where the disk below stdout is full, nothing is said and nothing ends."""
    try:
        # Not by print: its buffer would keep what failed and fail again at exit.
        os.write(sys.stdout.fileno(), f"{text}\n".encode())
    except BrokenPipeError:
        raise
    except OSError:
        pass


def watch(run: str, every: float) -> None:
    """Sample until a signal comes."""
    record = Record(paths.run(run), say)
    sampler = Sampler()
    tree: Tree | None = None
    said_at = float("-inf")
    while True:
        started = time.monotonic()
        if record.follow():
            sampler.forget_peaks()
            tree = Tree(record.run.name) if record.run else None
            say(f"following {record.run}" if record.run else "waiting for a run")
        sample = sampler.sample()
        sample["processes"] = tree.sample() if tree else []
        record.write(sample)
        if started - said_at >= every:
            said_at = started
            say(line(sample))
        time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - started)))


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def command() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m run.monitor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", default="latest", help="a run's id; the latest otherwise")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two lines")
    parser.add_argument("--check", action="store_true", help="is a monitor alive?")
    options = parser.parse_args()
    if options.check:
        return OK if is_alive(paths.out() / "runs", ALIVE_SECONDS) else REFUSED
    if options.run != "latest" and not paths.run(options.run).is_dir():
        raise Refused(Problem(options.run, "no such run", f"an id below {paths.out() / 'runs'}"))
    signal.signal(signal.SIGTERM, _terminate)
    watch(options.run, options.every)
    return OK


if __name__ == "__main__":
    main(command)
