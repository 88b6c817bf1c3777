import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from env import models, paths
from env.errors import Refused
from env.models.folder import read_record, sha256
from tests.conftest_models import PARAMETERS, lay
from tests.conftest_models import model_files as _model_files  # noqa: F401 - a fixture
from tests.conftest_models import sharded_files as _sharded_files  # noqa: F401 - a fixture

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "out"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_taken_over_whole(model_files: dict[str, bytes], tmp_path: Path) -> None:
    theirs = lay(
        {**model_files, "README.md": b"#", "optimizer.safetensors": b""}, tmp_path / "mine"
    )
    folder = models.fetch(str(theirs))
    assert folder == paths.model("mine")
    assert names(folder) == sorted([*model_files, "model.json"])
    record = read_record(folder)
    assert record is not None
    assert (record.source, record.license, record.parameters) == ("folder", "unknown", PARAMETERS)
    assert record.repo == str(theirs)
    assert record.files[WEIGHTS].sha256 == sha256(theirs / WEIGHTS)
    # No second copy of the weights where one filesystem holds both.
    assert os.path.samefile(folder / WEIGHTS, theirs / WEIGHTS)


def test_its_short_name_finds_it_afterwards(model_files: dict[str, bytes], tmp_path: Path) -> None:
    folder = models.fetch(str(lay(model_files, tmp_path / "mine")))
    assert models.fetch("mine") == folder
    assert models.fetch(str(folder)) == folder


def test_a_changed_folder_is_taken_over_anew(model_files: dict[str, bytes], tmp_path: Path) -> None:
    theirs = lay(model_files, tmp_path / "mine")
    folder = models.fetch(str(theirs))
    inode = (folder / "config.json").stat().st_ino
    models.fetch(str(theirs))
    assert (folder / "config.json").stat().st_ino == inode

    (theirs / "config.json").unlink()
    (theirs / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    models.fetch(str(theirs))
    assert json.loads((folder / "config.json").read_bytes()) == {"model_type": "llama"}


def test_two_folders_of_one_name_are_not_mixed_up(
    model_files: dict[str, bytes], tmp_path: Path
) -> None:
    models.fetch(str(lay(model_files, tmp_path / "a" / "mine")))
    with pytest.raises(Refused, match="/a/mine; expected"):
        models.fetch(str(lay(model_files, tmp_path / "b" / "mine")))


def test_shards_are_taken_over_with_their_index(
    sharded_files: dict[str, bytes], tmp_path: Path
) -> None:
    folder = models.fetch(str(lay(sharded_files, tmp_path / "mine")))
    assert names(folder) == sorted([*sharded_files, "model.json"])


@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin", "a.pt", "b.PKL"])
def test_a_pickle_is_refused_with_the_reason(
    model_files: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    theirs = lay({**model_files, name: b"\x80\x04"}, tmp_path / "mine")
    with pytest.raises(Refused, match="unpickling runs whatever code the file holds") as refused:
        models.fetch(str(theirs))
    assert [problem.where for problem in refused.value.problems] == [str(theirs / name)]
    assert not paths.model("mine").exists()


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    theirs = lay({"vocab.json": b"{}", "x.ckpt": b""}, tmp_path / "mine")
    assert [(problem.where, problem.what) for problem in models.verify(theirs)] == [
        (str(theirs / "x.ckpt"), "is a pickle"),
        (str(theirs / "config.json"), "is missing"),
        (str(theirs), "has no tokenizer"),
        (str(theirs), "has no weights"),
    ]


@pytest.mark.parametrize("cut", [1, 4, 100])
def test_cut_weights_are_refused(model_files: dict[str, bytes], tmp_path: Path, cut: int) -> None:
    model_files[WEIGHTS] = model_files[WEIGHTS][:-cut]
    (problem,) = models.verify(lay(model_files, tmp_path / "mine"))
    assert problem.what.startswith("is no whole safetensors file")


def test_a_pickle_under_the_name_of_safetensors_is_refused(
    model_files: dict[str, bytes], tmp_path: Path
) -> None:
    model_files[WEIGHTS] = b"\x80\x04" + b"." * 100
    (problem,) = models.verify(lay(model_files, tmp_path / "mine"))
    assert problem.what.startswith("is no whole safetensors file")


def test_a_missing_shard_is_named(sharded_files: dict[str, bytes], tmp_path: Path) -> None:
    del sharded_files["model-00002-of-00002.safetensors"]
    theirs = lay(sharded_files, tmp_path / "mine")
    (problem,) = models.verify(theirs)
    assert problem.where == str(theirs / "model-00002-of-00002.safetensors")
    assert problem.what == f"is missing; {INDEX} names it"


def test_a_tensor_that_its_shard_lacks_is_named(
    sharded_files: dict[str, bytes], tmp_path: Path
) -> None:
    sharded_files["model-00002-of-00002.safetensors"] = save({"other": np.ones(5, np.float32)})
    (problem,) = models.verify(lay(sharded_files, tmp_path / "mine"))
    assert (problem.what, problem.expected) == (f"lacks 1 tensors that {INDEX} names", "norm")


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"{}", b'{"weight_map": {"a": "../x.safetensors"}}', b'{"weight_map": 1}'],
)
def test_a_wrong_index_is_refused(
    sharded_files: dict[str, bytes], tmp_path: Path, index: bytes
) -> None:
    theirs = lay({**sharded_files, INDEX: index}, tmp_path / "mine")
    assert [problem.where for problem in models.verify(theirs)] == [str(theirs / INDEX)]


@pytest.mark.parametrize("config", [b"", b"[]", b"{}"])
def test_a_wrong_config_is_refused(
    model_files: dict[str, bytes], tmp_path: Path, config: bytes
) -> None:
    theirs = lay({**model_files, "config.json": config}, tmp_path / "mine")
    assert [problem.where for problem in models.verify(theirs)] == [str(theirs / "config.json")]


def test_files_laid_by_hand_are_taken_over_where_they_lie(
    model_files: dict[str, bytes],
) -> None:
    folder = lay(model_files, paths.model("some-model"))
    assert models.fetch("some-org/some-model") == folder
    record = read_record(folder)
    assert record is not None
    assert (record.source, record.repo) == ("folder", "some-org/some-model")
    assert models.verify(folder) == []


def test_half_of_the_files_laid_by_hand_are_not_touched(model_files: dict[str, bytes]) -> None:
    del model_files[WEIGHTS]
    folder = lay(model_files, paths.model("some-model"))
    with pytest.raises(Refused, match="has no weights") as refused:
        models.fetch("some-org/some-model")
    assert "somebody laid it there" in refused.value.problems[-1].what
    assert names(folder) == sorted(model_files)


def test_wrong_files_laid_by_hand_are_named_with_what_is_pinned(
    model_files: dict[str, bytes],
) -> None:
    folder = lay(model_files, paths.model("qwen2.5-0.5b-instruct"))
    with pytest.raises(Refused) as refused:
        models.fetch("qwen2.5-0.5b-instruct")
    found = {problem.where: problem for problem in refused.value.problems}
    assert found[str(folder / "merges.txt")].what == "is missing"
    assert "1,671,839 bytes" in found[str(folder / "merges.txt")].expected
    assert found[str(folder / WEIGHTS)].what.startswith("has ")
    assert "988,097,824 bytes" in found[str(folder / WEIGHTS)].expected


def test_an_unreadable_record_is_named(model_files: dict[str, bytes], tmp_path: Path) -> None:
    theirs = lay({**model_files, "model.json": b"{"}, tmp_path / "mine")
    assert [problem.where for problem in models.verify(theirs)] == [str(theirs / "model.json")]


def test_a_folder_cannot_take_the_place_of_a_model_that_is_made_here(
    model_files: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="would take the place of tiny"):
        models.fetch(str(lay(model_files, tmp_path / "tiny")))


def test_a_folder_with_a_pinned_name_must_hold_the_pinned_files(
    model_files: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="988,097,824 bytes"):
        models.fetch(str(lay(model_files, tmp_path / "Qwen2.5-0.5B-Instruct")))
