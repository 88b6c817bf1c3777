import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from env import models, paths
from env.errors import REFUSED, UNREACHABLE, Refused
from env.models import download, names
from env.models.folder import read_record
from tests.conftest_models import PARAMETERS
from tests.conftest_models import hub as _hub  # noqa: F401 - a fixture
from tests.conftest_models import model_files as _model_files  # noqa: F401 - a fixture
from tests.conftest_models import sharded_files as _sharded_files  # noqa: F401 - a fixture
from tests.fake_hub import COMMIT, FakeHub, Fault

REPO = "some-org/some-model"
WEIGHTS = "model.safetensors"


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "model.json"}


def leftovers() -> list[Path]:
    partial = paths.out() / "models" / ".partial"
    return [path for path in partial.rglob("*") if path.is_file()] if partial.exists() else []


def pin(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """Put ``REPO`` into the catalogue as "pinned", with the hashes of ``files``."""
    facts = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    table = {"from": "hf", "license": "MIT", "repo": REPO, "revision": COMMIT, "files": facts}
    monkeypatch.setattr(names, "pins", lambda: {"models": {"pinned": table}})


def test_a_model_is_fetched_whole(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, {**model_files, "README.md": b"#", "onnx/model.onnx": b"x", "code.py": b"x"})

    folder = models.fetch(REPO)

    assert folder == paths.model("some-model")
    assert everything(folder) == model_files
    record = read_record(folder)
    assert record is not None
    assert (record.source, record.repo, record.revision) == ("hf", REPO, COMMIT)
    assert (record.license, record.parameters) == ("apache-2.0", PARAMETERS)
    assert {name: fact.sha256 for name, fact in record.files.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in model_files.items()
    }
    assert leftovers() == []


def test_a_model_that_is_there_is_not_asked_for_again(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    models.fetch(REPO)
    asked = len(hub.requests)
    models.fetch(REPO, check_hashes=True)
    models.fetch("some-model")
    assert len(hub.requests) == asked


def test_shards_are_fetched_as_the_index_names_them(
    hub: FakeHub, sharded_files: dict[str, bytes]
) -> None:
    hub.add(REPO, {**sharded_files, "consolidated.safetensors": b"not of this model"})
    folder = models.fetch(REPO)
    assert everything(folder) == sharded_files
    record = read_record(folder)
    assert record is not None
    assert record.parameters == PARAMETERS


def test_a_missing_shard_is_refused_before_any_weights_are_fetched(
    hub: FakeHub, sharded_files: dict[str, bytes]
) -> None:
    del sharded_files["model-00002-of-00002.safetensors"]
    hub.add(REPO, sharded_files)
    with pytest.raises(Refused, match="lacks model-00002-of-00002"):
        models.fetch(REPO)
    assert hub.asked_for("model-00001-of-00002.safetensors") == []
    assert not paths.model("some-model").exists()


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.SHORT])
def test_a_cut_download_goes_on_where_it_ended(
    hub: FakeHub, model_files: dict[str, bytes], fault: Fault
) -> None:
    hub.add(REPO, model_files)
    hub.fail(WEIGHTS, fault, fault)
    assert everything(models.fetch(REPO)) == model_files
    half = len(model_files[WEIGHTS]) // 2
    ranges = [request.range for request in hub.requests if request.path.startswith("/cdn/")]
    assert ranges[:2] == [None, f"bytes={half}-"]
    assert len(ranges) == 3


def test_an_interrupted_run_is_gone_on_with_by_the_next(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    hub.fail(WEIGHTS, Fault.BROKEN, *[Fault.UNAVAILABLE] * download.ATTEMPTS)
    with pytest.raises(Refused) as refused:
        models.fetch(REPO)
    assert refused.value.exit_code == UNREACHABLE
    assert not paths.model("some-model").exists()
    kept = [path for path in leftovers() if path.name == f"{WEIGHTS}.incomplete"]
    assert [path.stat().st_size for path in kept] == [len(model_files[WEIGHTS]) // 2]
    asked = len(hub.requests)

    assert everything(models.fetch(REPO)) == model_files
    # The listing, the redirect and the rest of the weights; the small files were kept.
    rest = f"bytes={len(model_files[WEIGHTS]) // 2}-"
    assert [request.range for request in hub.requests[asked:]] == [None, rest, rest]


def test_a_server_that_ignores_the_range_does_no_harm(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    hub.fail(WEIGHTS, Fault.BROKEN, Fault.NO_RANGE)
    assert everything(models.fetch(REPO)) == model_files


def test_a_leftover_of_another_file_is_thrown_away(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    partial = paths.out() / "models" / ".partial" / "some-model" / COMMIT
    partial.mkdir(parents=True)
    (partial / f"{WEIGHTS}.incomplete").write_bytes(b"\0" * 40)
    (partial / "config.json.incomplete").write_bytes(b"\0" * 1000)
    assert everything(models.fetch(REPO)) == model_files


def test_a_busy_server_is_asked_again(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, model_files)
    hub.fail("listing", Fault.UNAVAILABLE)
    hub.fail("config.json", Fault.UNAVAILABLE)
    hub.fail(WEIGHTS, Fault.UNAVAILABLE)
    assert everything(models.fetch(REPO)) == model_files


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_wrong_bytes_are_refused_and_do_not_stay(
    hub: FakeHub, model_files: dict[str, bytes], name: str
) -> None:
    hub.add(REPO, model_files)
    hub.fail(name, Fault.CORRUPT)
    with pytest.raises(Refused, match="thrown away") as refused:
        models.fetch(REPO)
    assert refused.value.exit_code == UNREACHABLE
    assert name in refused.value.problems[0].where
    assert not [path for path in leftovers() if path.name.startswith(name)]
    assert everything(models.fetch(REPO)) == model_files


def test_a_file_that_is_gone_is_refused(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, model_files)
    hub.fail(WEIGHTS, Fault.GONE)
    with pytest.raises(Refused, match="answered 404") as refused:
        models.fetch(REPO)
    assert refused.value.exit_code == UNREACHABLE


def test_an_unknown_repository_is_refused(hub: FakeHub) -> None:
    with pytest.raises(Refused, match="is not there, or is private") as refused:
        models.fetch("nobody/nothing")
    assert refused.value.exit_code == UNREACHABLE


def test_an_unknown_revision_is_refused(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, model_files)
    with pytest.raises(Refused, match="no such revision"):
        models.fetch(REPO, revision="v9")


def test_a_gated_repository_asks_for_a_token_and_never_shows_it(
    hub: FakeHub,
    model_files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hub.add(REPO, model_files, gated=True)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(Refused, match="is gated") as refused:
        models.fetch(REPO)
    assert "wrong" not in str(refused.value)
    assert refused.value.exit_code == UNREACHABLE

    monkeypatch.setenv("HF_TOKEN", "right")
    hub.fail(WEIGHTS, Fault.BROKEN)
    assert everything(models.fetch(REPO)) == model_files
    shown = "".join(capfd.readouterr())
    assert "Bearer" not in shown
    assert "right" not in shown
    assert "Signature" not in shown


def test_the_token_stays_with_the_host_it_is_for(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model_files)
    monkeypatch.setenv("HF_TOKEN", "right")
    models.fetch(REPO)
    sent = {(request.host.partition(":")[0], request.authorization) for request in hub.requests}
    assert sent == {("127.0.0.1", "Bearer right"), ("localhost", None)}


@pytest.mark.parametrize("name", ["../escape.json", "/etc/x", "a/../../b", "C:\\x", "a\nb"])
def test_a_name_that_leaves_the_folder_is_refused(
    hub: FakeHub, model_files: dict[str, bytes], name: str, tmp_path: Path
) -> None:
    hub.add(REPO, {**model_files, name: b"x"})
    with pytest.raises(Refused, match="files outside the repository") as refused:
        models.fetch(REPO)
    assert refused.value.exit_code == REFUSED
    assert not (tmp_path / "out" / "models" / "some-model").exists()


@pytest.mark.parametrize("name", ["../model-1.safetensors", "/x.safetensors", "a/b.safetensors"])
def test_an_index_that_leaves_the_folder_is_refused(
    hub: FakeHub, sharded_files: dict[str, bytes], name: str
) -> None:
    index = json.dumps({"weight_map": {"embed": name}}).encode()
    hub.add(REPO, {**sharded_files, "model.safetensors.index.json": index})
    with pytest.raises(Refused, match="file of this folder"):
        models.fetch(REPO)


def test_pickles_beside_safetensors_are_left_there(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, {**model_files, "pytorch_model.bin": b"\x80\x04"})
    assert "pytorch_model.bin" not in everything(models.fetch(REPO))
    assert hub.asked_for("pytorch_model.bin") == []


def test_a_repository_of_pickles_is_refused_with_the_reason(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    del model_files[WEIGHTS]
    hub.add(REPO, {**model_files, "pytorch_model.bin": b"\x80\x04"})
    with pytest.raises(Refused, match="unpickling runs whatever code the file holds") as refused:
        models.fetch(REPO)
    assert refused.value.exit_code == REFUSED


def test_weights_that_are_no_safetensors_are_refused(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, {**model_files, WEIGHTS: model_files[WEIGHTS][:-4]})
    with pytest.raises(Refused, match="no whole safetensors file"):
        models.fetch(REPO)
    assert not paths.model("some-model").exists()


def test_offline_says_what_to_lay_where(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model_files)
    pin(monkeypatch, model_files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Refused) as refused:
        models.fetch("pinned")
    assert refused.value.exit_code == UNREACHABLE
    assert hub.requests == []
    text = str(refused.value)
    assert str(paths.model("pinned")) in text
    for name, content in model_files.items():
        digest = hashlib.sha256(content).hexdigest()
        assert f"{name}  {len(content):,} bytes  sha256 {digest}" in text


def test_no_network_says_what_to_lay_where(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, model_files: dict[str, bytes]
) -> None:
    pin(monkeypatch, model_files)
    # Nothing listens on the discard port of this machine.
    with pytest.raises(Refused, match=r"could not be had.*ConnectionError") as refused:
        models.fetch("pinned", endpoint="http://127.0.0.1:9")
    assert refused.value.exit_code == UNREACHABLE
    assert f"lay these files of {REPO} at {COMMIT} in {paths.model('pinned')}" in str(refused.value)


def test_pinned_files_are_fetched_and_no_others(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {**model_files, "merges.txt": b"x"})
    pin(monkeypatch, model_files)
    folder = models.fetch("pinned")
    assert everything(folder) == model_files
    record = read_record(folder)
    assert record is not None
    assert (record.name, record.license) == ("pinned", "MIT")


def test_a_hub_that_differs_from_the_pins_is_refused_before_the_download(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch, model_files)
    del model_files["generation_config.json"]
    model_files["config.json"] += b" "
    model_files[WEIGHTS] = model_files[WEIGHTS][:-1] + b"\1"
    hub.add(REPO, model_files)
    with pytest.raises(Refused) as refused:
        models.fetch("pinned")
    assert [problem.where.rpartition(", ")[2] for problem in refused.value.problems] == [
        "config.json",
        "generation_config.json",
        WEIGHTS,
    ]
    assert not [request for request in hub.requests if "/resolve/" in request.path]


def test_a_hub_that_lies_about_a_hash_is_caught_by_the_pin(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch, model_files)
    right = hashlib.sha256(model_files[WEIGHTS]).hexdigest()
    wrong = {**model_files, WEIGHTS: model_files[WEIGHTS][:-1] + b"\1"}
    hub.add(REPO, wrong, announced={WEIGHTS: right})
    with pytest.raises(Refused, match=right):
        models.fetch("pinned")
    assert not paths.model("pinned").exists()


def test_modelscope_serves_the_pinned_files_too(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {**model_files, "configuration.json": b"{}"})
    hub.fail(WEIGHTS, Fault.BROKEN)
    pin(monkeypatch, model_files)
    folder = models.fetch("pinned", source="modelscope")
    assert everything(folder) == model_files
    record = read_record(folder)
    assert record is not None
    assert (record.source, record.revision) == ("modelscope", "master")
    asked = len(hub.requests)
    assert models.fetch("pinned") == folder
    assert len(hub.requests) == asked


def test_modelscope_bytes_are_checked_against_its_own_hash(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    hub.fail("tokenizer.json", Fault.CORRUPT)
    with pytest.raises(Refused, match="has sha256"):
        models.fetch(REPO, source="modelscope")


def test_an_unknown_modelscope_repository_is_refused(hub: FakeHub) -> None:
    with pytest.raises(Refused) as refused:
        models.fetch("nobody/nothing", source="modelscope")
    assert refused.value.exit_code == UNREACHABLE


def test_a_damaged_model_is_repaired_with_what_is_still_good(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    folder = models.fetch(REPO)
    (folder / "config.json").write_bytes(b"{")
    asked = len(hub.requests)
    models.fetch(REPO)
    assert everything(folder) == model_files
    assert [request for request in hub.requests[asked:] if request.path.endswith(WEIGHTS)] == []


def test_a_damaged_model_asked_for_by_its_short_name_says_how_to_repair_it(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    folder = models.fetch(REPO)
    (folder / "config.json").unlink()
    with pytest.raises(Refused) as refused:
        models.fetch("some-model")
    assert [(problem.where, problem.do) for problem in refused.value.problems] == [
        (str(folder / "config.json"), f"make model MODEL={REPO}")
    ]


def test_a_changed_byte_is_found_by_its_hash(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, model_files)
    folder = models.fetch(REPO)
    weights = bytearray(model_files[WEIGHTS])
    weights[-1] ^= 1
    (folder / WEIGHTS).write_bytes(weights)
    assert [problem.where for problem in models.verify(folder)] == [str(folder / WEIGHTS)]
    assert models.verify(folder, hashes=False) == []
    models.fetch(REPO, check_hashes=True)
    assert everything(folder) == model_files


def test_a_whole_model_survives_a_failed_update(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    folder = models.fetch(REPO)
    newer = {**model_files, "config.json": b'{"model_type": "llama"}'}
    hub.add(REPO, newer, commit="f" * 40)
    hub.fail("config.json", Fault.CORRUPT)
    with pytest.raises(Refused):
        models.fetch(REPO, revision="f" * 40)
    assert everything(folder) == model_files
    assert models.verify(folder) == []

    models.fetch(REPO, revision="f" * 40)
    assert everything(folder) == newer


def test_another_repository_of_the_same_name_is_refused(
    hub: FakeHub, model_files: dict[str, bytes]
) -> None:
    hub.add(REPO, model_files)
    hub.add("other/some-model", model_files)
    models.fetch(REPO)
    with pytest.raises(Refused, match=f"holds {REPO}"):
        models.fetch("other/some-model", source="modelscope")


def test_a_disk_that_is_too_small_is_named_before_the_download(
    hub: FakeHub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, model_files)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(Refused, match="10 bytes are free"):
        models.fetch(REPO)
    assert not [request for request in hub.requests if "/resolve/" in request.path]


def test_two_runs_at_once_fetch_once(hub: FakeHub, model_files: dict[str, bytes]) -> None:
    hub.add(REPO, model_files)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(models.fetch, [REPO, REPO]))
    assert folders == [paths.model("some-model")] * 2
    assert len([request for request in hub.requests if request.path.startswith("/cdn/")]) == 1
