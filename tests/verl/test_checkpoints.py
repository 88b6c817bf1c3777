"""verl-patches/0012 and 0013: checkpoints are whole or not there; the order of rows goes on."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from verl.utils.checkpoint import checkpoint_manager
from verl.utils.checkpoint.checkpoint_manager import (
    begin_checkpoint,
    commit_checkpoint,
    rotate_checkpoints,
    write_checkpoint_tracker,
)


def save(root: Path, step: int, text: str = "weights") -> None:
    partial = Path(begin_checkpoint(str(root / f"global_step_{step}")))
    for role in ("actor", "critic"):
        (partial / role).mkdir()
        (partial / role / "model").write_text(text)
    commit_checkpoint(str(partial), str(root / f"global_step_{step}"))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_nothing_bears_the_name_of_a_checkpoint_until_it_is_complete(tmp_path: Path) -> None:
    partial = Path(begin_checkpoint(str(tmp_path / "runs" / "global_step_1")))
    (partial / "model").write_text("half")
    assert not (tmp_path / "runs" / "global_step_1").exists()
    commit_checkpoint(str(partial), str(tmp_path / "runs" / "global_step_1"))
    assert names(tmp_path / "runs") == ["global_step_1"]


def test_two_runs_never_write_into_one_unfinished_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "global_step_1")
    assert begin_checkpoint(path) != begin_checkpoint(path)


def test_a_checkpoint_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, rename = os.fsync, os.rename

    def watched_sync(descriptor: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def watched_rename(source: str, target: str) -> None:
        happened.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)
    save(tmp_path, 1)
    before = happened[: happened.index("renamed")]
    assert before.count("model") == 2
    assert {"actor", "critic"} <= set(before)
    assert happened[-1] == tmp_path.name


def test_a_step_saved_again_replaces_the_first_one(tmp_path: Path) -> None:
    save(tmp_path, 3, "old")
    save(tmp_path, 3, "new")
    assert (tmp_path / "global_step_3" / "actor" / "model").read_text() == "new"
    rotate_checkpoints(str(tmp_path), 3, {"actor": None, "critic": None})
    assert names(tmp_path) == ["global_step_3"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (1, ["global_step_30"]),
        (2, ["global_step_30", "global_step_9"]),
        (3, ["global_step_10", "global_step_30", "global_step_9"]),
        (None, ["global_step_10", "global_step_30", "global_step_8", "global_step_9"]),
    ],
)
def test_the_newest_stay_whoever_wrote_them(
    tmp_path: Path, keep: int | None, left: list[str]
) -> None:
    steps = {None: (8, 9, 10, 30), 3: (8, 9, 10, 30), 2: (8, 9, 30), 1: (8, 9, 10, 30)}[keep]
    for step in steps:
        save(tmp_path, step)
    rotate_checkpoints(str(tmp_path), 30, {"actor": keep, "critic": keep})
    assert names(tmp_path) == sorted(left)


def test_roles_are_kept_by_their_own_numbers(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    rotate_checkpoints(str(tmp_path), 3, {"actor": 2, "critic": 1})
    assert names(tmp_path) == ["global_step_2", "global_step_3"]
    assert names(tmp_path / "global_step_2") == ["actor"]
    assert names(tmp_path / "global_step_3") == ["actor", "critic"]


def test_checkpoints_after_the_present_step_are_left_alone(tmp_path: Path) -> None:
    for step in (5, 20, 30):
        save(tmp_path, step)
    rotate_checkpoints(str(tmp_path), 5, {"actor": 1, "critic": 1})
    assert names(tmp_path) == ["global_step_20", "global_step_30", "global_step_5"]


def test_what_killed_runs_left_half_done_goes_and_other_folders_stay(tmp_path: Path) -> None:
    save(tmp_path, 2)
    begin_checkpoint(str(tmp_path / "global_step_1"))
    (tmp_path / "global_step_2.partial-mine").mkdir()
    (tmp_path / "best").mkdir()
    rotate_checkpoints(str(tmp_path), 2, {"actor": 1, "critic": 1})
    assert names(tmp_path) == ["best", "global_step_2", "global_step_2.partial-mine"]


def test_the_tracker_is_replaced_and_never_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    write_checkpoint_tracker(str(tracker), 1)

    def killed(source: str, target: str) -> None:
        assert Path(source).read_text() == "2"
        raise InterruptedError

    monkeypatch.setattr(checkpoint_manager.os, "replace", killed)
    with pytest.raises(InterruptedError):
        write_checkpoint_tracker(str(tracker), 2)
    assert tracker.read_text() == "1"


def loader() -> Any:
    """Ten rows in batches of four, drawn by verl's sampler: two steps an epoch."""
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.main_ppo import create_rl_sampler

    rows = list(range(10))
    sampler = create_rl_sampler(OmegaConf.create({"sampler": None, "shuffle": True}), rows)
    return StatefulDataLoader(
        rows, batch_size=4, num_workers=0, drop_last=True, collate_fn=list, sampler=sampler
    )


def batches(rows: Any, epochs: int) -> Any:
    for _ in range(epochs):
        yield from rows


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_restored_loader_gives_the_rows_that_were_to_come(steps: int) -> None:
    first = loader()
    everything = list(batches(first, 4))
    assert everything[:2] != everything[2:4]  # each epoch has an order of its own
    first = loader()
    assert list(islice(batches(first, 4), steps)) == everything[:steps]
    second = loader()
    second.load_state_dict(first.state_dict())
    # as the trainer counts: from the epoch of the last step on, which may have nothing left
    epochs = 4 - (steps - 1) // 2
    assert list(batches(second, epochs)) == everything[steps:]
