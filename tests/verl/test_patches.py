"""The queue in verl-patches/ itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from env import verl
from env.errors import Refused
from env.paths import ROOT

QUEUE = verl.queue()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("unpacked") / "verl"
    verl.unpack(verl.sdist(), tree)
    return tree


def test_the_numbers_have_no_gap() -> None:
    assert [int(patch.name[:4]) for patch in QUEUE] == list(range(1, len(QUEUE) + 1))


@pytest.mark.parametrize("patch", QUEUE, ids=lambda patch: patch.name[:4])
def test_every_patch_says_why_what_upstream_does_and_what_tests_it(patch: Path) -> None:
    header = patch.read_text().split("\ndiff --git ", 1)[0]
    for field in ("Why", "Upstream", "Test"):
        assert re.search(rf"^{field}: \S", header, re.M), f"{patch.name} lacks {field}:"
    tests = re.findall(r"^Test: (\S+)", header, re.M)
    assert all((ROOT / test).exists() for test in tests)


def test_the_queue_applies_in_order_to_the_published_sdist(unpacked: Path) -> None:
    verl.apply(QUEUE, unpacked)
    assert (unpacked / "verl/utils/hardware.py").exists()


def test_context_that_moved_on_is_refused_by_name(unpacked: Path, tmp_path: Path) -> None:
    moved = tmp_path / "0001-moved.patch"
    text = QUEUE[0].read_text()
    line = next(line for line in text.splitlines() if line.startswith(" import torch"))
    moved.write_text(text.replace(line, " import torch_of_another_time", 1))
    with pytest.raises(Refused, match=r"0001-moved\.patch.*verl/utils/"):
        verl.apply([moved], unpacked)


def test_the_environment_records_the_queue_that_it_holds() -> None:
    tree = Path(sys.prefix) / "src" / "verl"
    assert json.loads((tree / verl.RECORD).read_text()) == verl.wanted(QUEUE)


def test_what_is_imported_is_the_patched_tree() -> None:
    import verl.utils.hardware as installed

    assert Path(installed.__file__).is_relative_to(Path(sys.prefix) / "src" / "verl")


def test_a_second_install_does_nothing() -> None:
    tree = Path(sys.prefix) / "src" / "verl" / "verl"
    made_of = json.loads((tree.parent / "verl-p40.json").read_text())
    assert made_of["queue_sha256"] == verl.queue_sha256(verl.queue()), "make env"
    before = tree.stat().st_mtime_ns
    assert verl.install(Path(sys.prefix)) is False
    assert tree.stat().st_mtime_ns == before


def test_the_hash_covers_names_order_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "0001-a.patch", tmp_path / "0002-b.patch"
    one.write_text("a")
    two.write_text("b")
    hashes = {verl.queue_sha256(patches) for patches in ([one, two], [two, one], [one])}
    two.write_text("c")
    hashes.add(verl.queue_sha256([one, two]))
    assert len(hashes) == 4


def test_an_sdist_with_another_hash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = verl.sdist().name
    (tmp_path / name).write_bytes(b"something else")
    monkeypatch.setattr(verl.paths, "DOWNLOADS", tmp_path)
    with pytest.raises(Refused, match="sha256"):
        verl.sdist()


def test_work_and_save_give_the_queue_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verl.work(tmp_path / "tree")
    saved = tmp_path / "saved"
    saved.mkdir()
    monkeypatch.setattr(verl.paths, "PATCHES", saved)
    verl.save(tmp_path / "tree")
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == {
        patch.name: patch.read_bytes() for patch in QUEUE
    }


def test_a_tree_without_commits_does_not_empty_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl, "queue", lambda: QUEUE[:1])
    verl.work(tmp_path / "tree")
    subprocess.run(
        ["git", "-C", tmp_path / "tree", "reset", "--quiet", "--hard", "base"], check=True
    )
    with pytest.raises(Refused, match="no commit above"):
        verl.save(tmp_path / "tree")
    assert QUEUE[0].exists()
