"""A finished folder is replaced at once or not at all, whatever ends a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from data import placement
from data.prepare import Options, prepare
from env.errors import INTERRUPTED, Refused
from tests import data_helpers as given

# The command with its arguments but the last, a signal that it sends itself at the 1,500th row
# (each is written twice): when the first row group stands in the file and the second does not.
ENDS_MIDWAY = """
import os, runpy, sys
from data import files
number = int(sys.argv.pop())
add, rows = files.ParquetFile.add, []
def counted(self, row):
    rows.append(row)
    if len(rows) == 2 * 1500:
        os.kill(os.getpid(), number)
    add(self, row)
files.ParquetFile.add = counted
runpy.run_module("data.prepare", run_name="__main__")
"""


def ended_midway(tmp_path: Path, number: signal.Signals) -> int:
    arguments = ["--source", "dir", "--input", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    return given.child(["-c", ENDS_MIDWAY, *arguments, str(int(number))]).returncode


def made(tmp_path: Path) -> dict[str, str]:
    given.folder(tmp_path / "in")
    prepare(Options(source="dir", input=tmp_path / "in", out=tmp_path / "out"))
    return given.tree(tmp_path / "out")


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_run_leaves_the_old_folder_and_nothing_else(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    before = made(tmp_path)
    given.folder(tmp_path / "in", train=3000)
    assert ended_midway(tmp_path, number) == code
    assert given.tree(tmp_path / "out") == before
    assert names(tmp_path) == ["in", "out"]


def test_a_killed_run_leaves_the_old_folder_and_the_next_run_removes_its_remains(
    tmp_path: Path,
) -> None:
    before = made(tmp_path)
    given.folder(tmp_path / "in", train=3000)
    assert ended_midway(tmp_path, signal.SIGKILL) == -signal.SIGKILL
    assert given.tree(tmp_path / "out") == before
    remains = [name for name in names(tmp_path) if name.startswith(".out.new-")]
    assert len(remains) == 1
    assert (tmp_path / remains[0] / "train.parquet").stat().st_size > 0
    prepare(Options(source="dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert names(tmp_path) == ["in", "out"]
    assert len(given.read(tmp_path / "out" / "train.parquet")) == 3000


def test_a_killed_first_run_leaves_no_folder_in_the_finished_place(tmp_path: Path) -> None:
    given.folder(tmp_path / "in", train=3000)
    assert ended_midway(tmp_path, signal.SIGKILL) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()


def test_a_bad_row_late_in_the_file_leaves_the_old_folder(tmp_path: Path) -> None:
    before = made(tmp_path)
    given.jsonl(tmp_path / "in" / "train.jsonl", [*given.rows(3000), {"question": "q"}])
    with pytest.raises(Refused):
        prepare(Options(source="dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert given.tree(tmp_path / "out") == before
    assert names(tmp_path) == ["in", "out"]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    before = made(tmp_path)
    given.folder(tmp_path / "in", train=3000)
    quarantine = tmp_path / "bad.jsonl"
    options = Options(
        source="dir", input=tmp_path / "in", out=tmp_path / "out", quarantine=quarantine
    )
    with pytest.MonkeyPatch.context() as patch:
        from data import prepare as module

        fates = module.fates

        def changed(*arguments: object) -> bytearray:
            given.folder(tmp_path / "in", train=2500)
            return fates(*arguments)  # type: ignore[arg-type]

        # Between the first and the second reading.
        patch.setattr(module, "fates", changed)
        with pytest.raises(Refused, match="changed while it was read"):
            prepare(options)
    assert given.tree(tmp_path / "out") == before
    assert names(tmp_path) == ["in", "out"]


def test_what_this_command_has_not_written_is_never_replaced(tmp_path: Path) -> None:
    source = given.folder(tmp_path / "in")
    for name in ("train.parquet", "thesis.txt"):
        out = tmp_path / f"has {name}"
        out.mkdir()
        (out / name).write_text("precious")
        with pytest.raises(Refused, match="has not written"):
            prepare(Options(source="dir", input=source, out=out))
        assert (out / name).read_text() == "precious"
    made(tmp_path)
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with pytest.raises(Refused, match=r"notes\.txt"):
        prepare(Options(source="dir", input=source, out=tmp_path / "out", rows=3))


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    source = given.folder(tmp_path / "above" / "in")
    for out in (source, tmp_path / "above"):
        with pytest.raises(Refused, match="holds the input"):
            prepare(Options(source="dir", input=source, out=out))
    prepare(Options(source="dir", input=source, out=source / "prepared"))
    assert (source / "train.jsonl").is_file()


def test_a_file_in_the_folder_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    source = given.folder(tmp_path / "in")
    with pytest.raises(Refused, match="is no folder"):
        prepare(Options(source="dir", input=source, out=tmp_path / "out"))
    with pytest.raises(Refused, match="--quarantine"):
        out = tmp_path / "new"
        prepare(Options(source="dir", input=source, out=out, quarantine=out / "bad.jsonl"))


def test_a_run_that_is_still_alive_keeps_its_unfinished_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with placement.finished_folder(target) as slow:
        (slow / "who").write_text("slow")
        with placement.finished_folder(target) as quick:
            (quick / "who").write_text("quick")
        assert (target / "who").read_text() == "quick"
        assert (slow / "who").read_text() == "slow"
    assert (target / "who").read_text() == "slow"
    assert names(tmp_path) == ["out"]


def test_a_file_system_that_cannot_exchange_names_gets_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_exchanged", lambda one, other: False)
    made(tmp_path)
    given.folder(tmp_path / "in", train=30)
    prepare(Options(source="dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert len(given.read(tmp_path / "out" / "train.parquet")) == 30
    assert names(tmp_path) == ["in", "out"]


def test_a_run_killed_between_these_two_renames_is_undone_by_the_next(tmp_path: Path) -> None:
    before = made(tmp_path)
    (tmp_path / "out").rename(tmp_path / ".out.old")
    placement.recover(tmp_path / "out")
    assert given.tree(tmp_path / "out") == before
    assert names(tmp_path) == ["in", "out"]


def test_the_finished_folder_has_the_usual_permissions(tmp_path: Path) -> None:
    made(tmp_path)
    usual = tmp_path / "usual"
    usual.mkdir()
    assert (tmp_path / "out").stat().st_mode == usual.stat().st_mode
    assert os.access(tmp_path / "out" / "train.parquet", os.R_OK)


def test_an_unfinished_file_never_stands_in_its_place(tmp_path: Path) -> None:
    target = tmp_path / "bad.jsonl"
    target.write_text("old")
    with pytest.raises(RuntimeError), placement.finished_file(target) as beside:
        beside.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert names(tmp_path) == ["bad.jsonl"]
