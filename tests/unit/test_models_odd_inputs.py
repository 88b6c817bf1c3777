"""Names, addresses and files that are not what they should be: told, and never mistaken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env import models, paths
from env.errors import REFUSED, UNREACHABLE, Refused
from env.models.folder import RECORD, read_record
from tests.conftest_models import hub as _hub  # noqa: F401 - a fixture
from tests.conftest_models import lay
from tests.conftest_models import model_files as _model_files  # noqa: F401 - a fixture
from tests.fake_hub import COMMIT, FakeHub


def refused(what: str, **options: str) -> Refused:
    with pytest.raises(Refused) as caught:
        models.fetch(what, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    "name", ["model", "tiny", "smollm2-135m-instruct", "qwen2.5-0.5b-instruct"]
)
def test_a_model_is_never_given_for_another_of_the_same_name(
    hub: FakeHub, model_files: dict[str, bytes], name: str
) -> None:
    hub.add(f"one/{name}", model_files)
    hub.add(f"other/{name}", {**model_files, "config.json": b'{"model_type": "llama"}'})
    folder = models.fetch(f"one/{name}")

    error = refused(f"other/{name}")

    assert error.exit_code == REFUSED
    assert f"holds one/{name}" in str(error)
    assert f"other/{name}" in str(error)
    assert models.fetch(f"one/{name}") == folder
    if name in models.catalogue():
        assert f"holds one/{name}" in str(refused(name))
    else:
        assert models.fetch(name) == folder


@pytest.mark.parametrize("name", ["", " ", "/", "~no-such-user-here/model", "a/../b", "x" * 5000])
def test_a_name_that_names_nothing_is_refused(hub: FakeHub, name: str) -> None:
    assert refused(name).exit_code == REFUSED
    assert not hub.requests


@pytest.mark.parametrize("revision", ["..", "a/../b", "/etc", ".", "a b", "a\n"])
@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_a_revision_that_could_lead_out_of_a_folder_is_refused(
    hub: FakeHub, model_files: dict[str, bytes], source: str, revision: str
) -> None:
    hub.add("org/model", model_files)
    error = refused("org/model", source=source, revision=revision)
    assert "--revision: is" in str(error)
    assert not hub.requests


def test_a_server_whose_revision_could_lead_out_of_a_folder_is_refused(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    kept = lay({"config.json.incomplete": b"{"}, paths.out() / "models" / ".partial" / "a" / "b")
    hub.add("org/model", model_files, commit="..")
    assert "do not trust this server" in str(refused("org/model"))
    assert (kept / "config.json.incomplete").exists()


@pytest.mark.parametrize(
    "address", ["hub", "localhost:1", "ftp://hub", "http://", "http://[::1", "http://hub:port"]
)
@pytest.mark.parametrize(
    ("source", "variable"), [("hf", "HF_ENDPOINT"), ("modelscope", "MODELSCOPE_ENDPOINT")]
)
def test_an_address_that_is_none_is_named_by_where_it_was_given(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, source: str, variable: str, address: str
) -> None:
    assert str(refused("org/model", source=source, endpoint=address)).startswith("--endpoint: ")
    monkeypatch.setenv(variable, address)
    assert str(refused("org/model", source=source)).startswith(f"{variable}: ")


@pytest.mark.parametrize("source", ["hf", "modelscope"])
@pytest.mark.parametrize("repo", ["org/absent", "org/pickles", "org/model"])
def test_no_password_of_an_address_and_no_token_is_shown_or_kept(
    hub: FakeHub,
    model_files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    repo: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden-token")
    hub.add("org/pickles", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.add("org/model", model_files)
    endpoint = hub.endpoint.replace("http://", "http://me:hidden-word@")
    said = ""
    try:
        folder = models.fetch(repo, source=source, endpoint=endpoint)
    except Refused as error:
        said = str(error)
    else:
        said = (folder / RECORD).read_text(encoding="utf-8")
    printed = capsys.readouterr()
    assert said
    assert "hidden" not in said + printed.out + printed.err


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"config.json": {"bytes": "2"}}},
        {"files": {"config.json": {"sha256": 2}}},
        {"files": {"../config.json": {}}},
        {"files": {"/etc/passwd": {}}},
        {"files": []},
        {"repo": {}},
        {"revision": []},
        {"license": 1},
        {"parameters": "17"},
    ],
)
def test_a_record_of_another_shape_is_no_record(
    hub: FakeHub, model_files: dict[str, bytes], tmp_path: Path, change: dict[str, object]
) -> None:
    hub.add("org/model", model_files)
    folder = models.fetch("org/model")
    assert read_record(folder) is not None
    table = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    (folder / RECORD).write_text(json.dumps(table | change), encoding="utf-8")
    assert read_record(folder) is None
    moved = folder.rename(tmp_path / "moved")
    assert f"{moved / RECORD}: cannot be read" in str(refused(str(moved)))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("kind", ["folder", "deep JSON", "nothing"])
def test_a_file_of_a_model_that_cannot_be_read_is_named(
    hub: FakeHub, model_files: dict[str, bytes], tmp_path: Path, name: str, kind: str
) -> None:
    if name.endswith("index.json"):
        del model_files["model.safetensors"]
    model_files.pop(name, None)
    folder = lay(model_files, tmp_path / "mine")
    if kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("[" * 100_000 if kind == "deep JSON" else "", encoding="utf-8")
    assert str(folder / name) in str(refused(str(folder)))
    assert not (paths.out() / "models" / "mine").exists()


def test_a_place_that_cannot_be_written_is_told(
    hub: FakeHub,
    model_files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "file"))
    hub.add("org/model", model_files)
    error = refused("org/model")
    assert error.exit_code == REFUSED
    assert str(tmp_path / "file") in str(error)


def test_offline_a_model_that_is_here_is_given_and_another_is_not(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/model", model_files, commit=COMMIT)
    folder = models.fetch("org/model")
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert models.fetch("org/model") == folder
    assert refused("org/second").exit_code == UNREACHABLE
    assert len(hub.requests) == asked
