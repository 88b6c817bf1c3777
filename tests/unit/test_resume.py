"""What ``--resume`` finds, refuses and takes back; that it goes on to the bit is in tests/verl."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from env.errors import Refused
from env.hardware import CPU
from run import auto, config, folder, preset, resume


def make_run(out: Path, name: str = "first", steps: tuple[int, ...] = (2, 10)) -> Path:
    """A run as run.train leaves it: configuration, model, data and checkpoints in place."""
    place = out / "runs" / name
    model, rows = out / "models" / "tiny", out / "data" / "tiny"
    for path in (place, model, rows):
        path.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    for split in ("train", "test"):
        (rows / f"{split}.parquet").write_text("")
    settings = config.build(preset.load("tiny"), [])
    auto.resolve(settings, CPU)
    folder.direct(settings, place, "graded", set())
    settings.actor_rollout_ref.model.path = str(model)
    settings.data.train_files = [str(rows / "train.parquet")]
    settings.data.val_files = [str(rows / "test.parquet")]
    (place / "config.yaml").write_text(f"# decided: x\n{OmegaConf.to_yaml(settings)}")
    for step in steps:
        (place / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
    return place


def read(runs: Path, name: str, overrides: Sequence[str]) -> resume.Stopped:
    return resume.read(resume.find(runs, name), overrides)


def problems(out: Path, name: str, *overrides: str) -> str:
    with pytest.raises(Refused) as refused:
        read(out / "runs", name, overrides)
    return "\n".join(map(str, refused.value.problems))


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def test_a_run_is_named_by_latest_by_its_id_or_by_its_folder(out: Path) -> None:
    place = make_run(out)
    (out / "runs" / "latest").symlink_to("first")
    for name in ("latest", "first", str(place)):
        assert read(out / "runs", name, []).place == place


def test_the_newest_checkpoint_is_the_highest_number_not_the_last_word(out: Path) -> None:
    place = make_run(out, steps=(2, 9, 10))
    (place / "checkpoints" / "global_step_11.partial-0123abcd").mkdir()
    (place / "checkpoints" / "global_step_12").write_text("no folder")
    run = read(out / "runs", "first", [])
    assert run.step == 10
    assert run.config.trainer.resume_mode == "resume_path"
    assert run.config.trainer.resume_from_path == str(place / "checkpoints" / "global_step_10")


def test_an_unknown_run_is_refused_with_those_that_are_there(out: Path) -> None:
    make_run(out)
    said = problems(out, "frist")
    assert "--resume frist: no such run" in said
    assert "first" in said


def test_a_run_without_a_checkpoint_is_refused(out: Path) -> None:
    make_run(out, steps=())
    said = problems(out, "first")
    assert "holds no complete checkpoint" in said
    assert "trainer.save_freq=N" in said


def test_missing_model_and_data_are_named_together(out: Path) -> None:
    make_run(out)
    (out / "models" / "tiny" / "config.json").unlink()
    (out / "data" / "tiny" / "test.parquet").unlink()
    said = problems(out, "first")
    assert "actor_rollout_ref.model.path: no model lies in" in said
    assert "data.val_files" in said
    assert "data.train_files" not in said


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "a: [", "trainerx: 1", "trainer:", "trainer: {}", "trainer: [1]", 'a: "${"'],
)
def test_a_broken_configuration_is_refused(out: Path, text: str) -> None:
    (make_run(out) / "config.yaml").write_text(text)
    assert "config.yaml" in problems(out, "first")


@pytest.mark.parametrize("key", [*resume.FIXED, "actor_rollout_ref.actor.optim.lr"])
def test_what_a_checkpoint_fixes_cannot_be_overridden(out: Path, key: str) -> None:
    make_run(out)
    said = problems(out, "first", f"++{key}=1")
    assert f"{key}: cannot change in a run that goes on" in said


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("trainer.total_trainin_steps=9", "did you mean trainer.total_training_steps?"),
        ("trainer.total_training_steps", "expected key=value"),
        ("trainer.save_freq=often", "save_freq is 'often'"),
        ("~trainer.save_freq", "no key can be left out"),
        ("trainer.save_freq=1,2", "one run has one value"),
    ],
)
def test_a_wrong_override_is_refused_as_at_a_first_start(
    out: Path, override: str, complaint: str
) -> None:
    make_run(out)
    assert complaint in problems(out, "first", override)
    with pytest.raises(Refused, match=r"(?s).*") as refused:
        config.build(preset.load("tiny"), [override])
    assert complaint in "\n".join(map(str, refused.value.problems))


def test_overrides_come_on_top_of_what_the_run_had(out: Path) -> None:
    make_run(out)
    before = read(out / "runs", "first", []).config
    after = read(
        out / "runs", "first", ["trainer.total_training_steps=99", "+trainer.mine=1"]
    ).config
    assert after.trainer.total_training_steps == 99
    assert after.trainer.mine == 1
    after.trainer.total_training_steps = before.trainer.total_training_steps
    del after.trainer["mine"]
    assert after == before


def test_paths_follow_a_run_that_was_moved_and_no_others(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_run(out)
    settings = OmegaConf.load(place / "config.yaml")
    settings.reward_model.model.path = "/elsewhere/model"
    (place / "config.yaml").write_text(OmegaConf.to_yaml(settings))
    moved = out.rename(tmp_path / "moved")
    monkeypatch.setenv("VERL_P40_OUT", str(moved))
    run = read(moved / "runs", "first", [])
    assert run.config.trainer.custom_logger.folder == str(moved / "runs" / "first")
    assert run.config.actor_rollout_ref.model.path == str(moved / "models" / "tiny")
    assert run.config.data.train_files == [str(moved / "data" / "tiny" / "train.parquet")]
    assert run.config.reward_model.model.path == "/elsewhere/model"
    assert str(out) not in OmegaConf.to_yaml(run.config)


def test_a_run_that_was_moved_alone_finds_the_rest_where_it_was_however_often(
    out: Path, tmp_path: Path
) -> None:
    moved = make_run(out).rename(tmp_path / "alone")
    for _ in range(2):
        run = resume.read(moved, [])
        assert run.config.trainer.custom_logger.folder == str(moved)
        assert run.config.actor_rollout_ref.model.path == str(out / "models" / "tiny")
        (moved / "config.yaml").write_text(OmegaConf.to_yaml(run.config))


def test_what_lies_beside_a_run_that_was_moved_away_is_left_alone(
    out: Path, tmp_path: Path
) -> None:
    (tmp_path / "latest").write_text("precious")
    with folder.begun(make_run(out).rename(tmp_path / "alone"), link_latest=False):
        pass
    assert (tmp_path / "latest").read_text() == "precious"


def test_what_was_recorded_after_the_checkpoint_is_taken_back(tmp_path: Path) -> None:
    for name in ("metrics", "phases"):
        whole = "".join(json.dumps({"step": step}) + "\n" for step in (0, 1, 2, 2, 3, 4))
        (tmp_path / f"{name}.jsonl").write_text(whole + '{"step": 1')
    for step in (1, 2, 3):
        for kind in ("train", "validation"):
            path = tmp_path / "samples" / kind / f"{step}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    (tmp_path / "samples" / "train" / "notes.jsonl").write_text("")
    resume.take_back(tmp_path, 2)
    for name in ("metrics", "phases"):
        kept = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in kept] == [0, 1, 2, 2]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl"))
    samples = ["train/1", "train/2", "train/notes", "validation/1", "validation/2"]
    expected = ["metrics", "phases", *(f"samples/{name}" for name in samples)]
    assert left == [f"{name}.jsonl" for name in expected]


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    with (
        folder.alone(tmp_path),
        pytest.raises(Refused, match="under way already"),
        folder.alone(tmp_path),
    ):
        pytest.fail("the second one got in")
    with folder.alone(tmp_path):
        assert list(tmp_path.iterdir()) == []
