"""Whatever training starts, and however it ends: run.launch leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import as_from_a_terminal

# As Ray does: a child of the training process, and one that detached itself from it (a session and
# a parent of its own). Writes the ids of all three.
TREE = """
import os, signal, subprocess, sys, time
out, ending = sys.argv[1:3]
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep)
middle = '''
import subprocess, sys
free = dict(start_new_session=True, stdout=subprocess.DEVNULL)
print(subprocess.Popen(sys.argv[1:], **free).pid)
'''
detached = subprocess.check_output([sys.executable, "-c", middle, *sleep])
open(out + ".new", "w").write(f"{os.getpid()} {child.pid} {int(detached)}")
print("to the log", flush=True)
if ending == "deaf":
    signal.signal(signal.SIGINT, lambda *_: open(out + ".asked", "w"))
    os.rename(out + ".new", out)
    while True:
        time.sleep(600)
os.rename(out + ".new", out)
if ending == "sleep":
    time.sleep(600)
sys.exit(int(ending))
"""

LAUNCHER = """
import os, sys
from pathlib import Path
from run import launch
out, ending, log = sys.argv[1:4]
try:
    tree = [sys.executable, "-c", sys.argv[4], out, ending]
    code = launch.supervise(tree, os.environ, Path(log), lambda: None)
except KeyboardInterrupt:
    code = 130
except launch.Terminated:
    code = 143
sys.exit(code)
"""


class Launched:
    """A launcher with its tree of processes."""

    def __init__(self, folder: Path, ending: str) -> None:
        self.log = folder / "log"
        self.ids = folder / "ids"
        arguments = [str(self.ids), ending, str(self.log), TREE]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments],
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )

    def tree(self) -> list[int]:
        wait_for(self.ids.exists)
        return [int(pid) for pid in self.ids.read_text().split()]


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
def launched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launched]:
    started = Launched(tmp_path, getattr(request, "param", "sleep"))
    pids = started.tree()
    assert len(alive(pids)) == 3
    yield started
    for pid in alive([started.process.pid, *pids]):
        os.kill(pid, signal.SIGKILL)
    started.process.wait()


@pytest.mark.parametrize("ending", ["0", "7"])
def test_the_exit_code_is_passed_on_and_stragglers_are_ended(tmp_path: Path, ending: str) -> None:
    started = Launched(tmp_path, ending)
    assert started.process.wait(60) == int(ending)
    assert alive(started.tree()) == []
    assert started.log.read_text() == "to the log\n"


def test_ctrl_c_ends_the_whole_tree(launched: Launched) -> None:
    os.killpg(launched.process.pid, signal.SIGINT)
    assert launched.process.wait(60) == 130
    assert alive(launched.tree()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_ends_the_whole_tree(launched: Launched, number: signal.Signals) -> None:
    launched.process.send_signal(number)
    assert launched.process.wait(60) == 143
    assert alive(launched.tree()) == []


@pytest.mark.parametrize("launched", ["deaf"], indirect=True)
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_while_it_stops_leaves_nothing(
    launched: Launched, second: signal.Signals
) -> None:
    launched.process.send_signal(signal.SIGINT)
    wait_for(launched.ids.with_name("ids.asked").exists)
    launched.process.send_signal(second)
    assert launched.process.wait(60) == 130
    assert alive(launched.tree()) == []


def test_kill_9_takes_the_training_process_along(launched: Launched) -> None:
    launched.process.kill()
    launched.process.wait()
    # the others are Ray's business, which ties them to the training process in the same way
    wait_for(lambda: alive(launched.tree()[:1]) == [])
