"""What tests of whole runs share: starting ``python -m run.train``, its files, what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.processes import as_from_a_terminal

WAIT_SECONDS = 120


def start(
    out: Path, *arguments: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    # No hub answers: what is needed is here, and nothing may look for more.
    environment = {**os.environ, "VERL_P40_OUT": str(out), "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment.update(variables or {})
    command = [sys.executable, "-m", "run.train", *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    said, complained = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def latest(out: Path) -> Path:
    return (out / "runs" / "latest").resolve()


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of ``path``; the last one may be half written."""
    whole = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


def wait_for(there: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not there():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_SECONDS} s"
        time.sleep(0.1)


def processes_of(out: Path) -> list[str]:
    """Command lines of all that was started with this output folder in its environment."""
    return [" ".join(process.cmdline())[:120] for process in _running(out)]


def kill_all(out: Path) -> None:
    """kill -9 for all that was started with this output folder in its environment."""
    for process in _running(out):
        process.kill()


def _running(out: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("VERL_P40_OUT") == str(out):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
