"""Every kind of source gives the same rows, and one that cannot be had says what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import fetch, manifest
from data.prepare import Options, prepare
from env import paths
from env.errors import REFUSED, UNREACHABLE, Refused
from tests import data_helpers as given

TRAIN, TEST = given.rows(300), given.rows(40, start=1000)


def as_jsonl(folder: Path) -> None:
    given.jsonl(folder / "train.jsonl", TRAIN)
    given.jsonl(folder / "test.jsonl", TEST)


def as_parquet(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(TRAIN), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(TEST), folder / "test.parquet", row_group_size=7)


def as_hub_parquet(folder: Path) -> None:
    (folder / "main").mkdir(parents=True)
    for part, rows in enumerate((TRAIN[:200], TRAIN[200:])):
        name = f"train-{part:05}-of-00002.parquet"
        pq.write_table(pa.Table.from_pylist(rows), folder / "main" / name)
    test = pa.Table.from_pylist(TEST)
    pq.write_table(test, folder / "main" / "test-00000-of-00001.parquet")


def as_other_types(folder: Path) -> None:
    folder.mkdir()
    for split, rows in (("train", TRAIN), ("test", TEST)):
        table = pa.Table.from_pylist([{"id": 1, **row} for row in rows])
        table = table.set_column(1, "question", table["question"].cast(pa.large_string()))
        table = table.set_column(2, "answer", table["answer"].dictionary_encode())
        pq.write_table(table, folder / f"{split}.parquet")


def as_saved_to_disk(folder: Path) -> None:
    splits = {"train": datasets.Dataset.from_list(TRAIN), "test": datasets.Dataset.from_list(TEST)}
    datasets.DatasetDict(splits).save_to_disk(str(folder), num_shards={"train": 3, "test": 1})


def as_prepared(folder: Path) -> None:
    as_jsonl(folder.with_name("first"))
    prepare(Options("dir", input=folder.with_name("first"), out=folder, rows=3))


LAYOUTS = [as_jsonl, as_parquet, as_hub_parquet, as_other_types, as_saved_to_disk, as_prepared]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_folder_gives_the_same_files(
    tmp_path: Path, layout: Callable[[Path], None]
) -> None:
    layout(tmp_path / "in")
    out = tmp_path / "out"
    prepare(Options("dir", input=tmp_path / "in", out=out, batch_size=16))
    assert given.read(out / "raw" / "train.parquet") == TRAIN
    assert given.read(out / "raw" / "test.parquet") == TEST
    as_jsonl(tmp_path / "plain")
    prepare(Options("dir", input=tmp_path / "plain", out=tmp_path / "expected"))
    expected, found = given.tree(tmp_path / "expected"), given.tree(out)
    # The manifests name other input files.
    del expected["manifest.json"], found["manifest.json"]
    assert found == expected


def test_a_shuffled_dataset_keeps_its_shuffled_order(tmp_path: Path) -> None:
    shuffled = datasets.Dataset.from_list(TRAIN).shuffle(seed=1)
    datasets.DatasetDict(train=shuffled).save_to_disk(str(tmp_path / "in"))
    prepare(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert given.read(tmp_path / "out" / "raw" / "train.parquet") == list(shuffled)


def dir_problems(tmp_path: Path) -> list[str]:
    with pytest.raises(Refused) as caught:
        prepare(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    return list(map(str, caught.value.problems))


def test_a_folder_without_train_says_what_it_holds_and_what_is_expected(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "test.jsonl", TEST)
    (told,) = dir_problems(tmp_path)
    assert "holds no train split (it holds test.jsonl)" in told
    assert "train.jsonl or train.parquet or" in told


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (told,) = dir_problems(tmp_path)
    assert "in: is no folder" in told


def test_two_layouts_of_one_split_are_not_guessed_between(tmp_path: Path) -> None:
    as_parquet(tmp_path / "in")
    as_jsonl(tmp_path / "in")
    told = dir_problems(tmp_path)
    assert len(told) == 2
    assert "train.jsonl, train.parquet" in told[0]
    assert "test.jsonl, test.parquet" in told[1]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_missing_columns_are_named(tmp_path: Path, suffix: str) -> None:
    if suffix == "jsonl":
        given.jsonl(tmp_path / "in" / "train.jsonl", [{"prompt": "q"}])
        told = dir_problems(tmp_path)[:-1]
    else:
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"prompt": ["q"]}), tmp_path / "in" / "train.parquet")
        told = dir_problems(tmp_path)
        assert "there are: prompt" in told[0]
    assert ["question" in told[0], "answer" in told[1], len(told)] == [True, True, 2]


@pytest.mark.parametrize("keep", [0, 4, 500])
def test_a_cut_parquet_file_is_refused(tmp_path: Path, keep: int) -> None:
    as_parquet(tmp_path / "in")
    path = tmp_path / "in" / "test.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    (told,) = dir_problems(tmp_path)
    assert "test.parquet: cannot be read" in told


def test_a_cut_or_missing_arrow_file_is_refused(tmp_path: Path) -> None:
    as_saved_to_disk(tmp_path / "in")
    path = tmp_path / "in" / "train" / "data-00001-of-00003.arrow"
    path.write_bytes(path.read_bytes()[:2000])
    assert "data-00001-of-00003.arrow: cannot be read" in dir_problems(tmp_path)[0]
    path.unlink()
    assert "data-00001-of-00003.arrow: is missing" in dir_problems(tmp_path)[0]


def test_a_damaged_folder_of_save_to_disk_is_refused(tmp_path: Path) -> None:
    as_saved_to_disk(tmp_path / "in")
    (tmp_path / "in" / "test" / "state.json").write_text("{}")
    assert "expected a whole folder written by save_to_disk" in dir_problems(tmp_path)[0]
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["validation"]}')
    assert "has the splits ['validation']; expected a split train" in dir_problems(tmp_path)[0]


def test_a_damaged_prepared_folder_is_refused(tmp_path: Path) -> None:
    as_prepared(tmp_path / "in")
    (tmp_path / "in" / "raw" / "train.parquet").write_bytes(b"PAR1")
    (told,) = dir_problems(tmp_path)
    assert "raw/train.parquet: has 4 bytes" in told


# The published files by URL: here those of a small data set, pinned in their place.


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of small files that stand for the published ones, with everything else empty."""
    folder = tmp_path / "published"
    as_jsonl(folder)
    hashes = {
        f"{path.stem}_sha256": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
    }
    gsm8k = {**fetch.pins()["data"]["gsm8k"], **hashes}
    monkeypatch.setattr(fetch, "pins", lambda: {"data": {"gsm8k": gsm8k}})
    monkeypatch.setattr(paths, "DOWNLOADS", tmp_path / "downloads")
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "made"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("GSM8K_URL", nobody_there())
    return folder


def nobody_there() -> str:
    """An address where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_published_files_are_fetched_once_from_their_url(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with given.serving_folder(published) as address:
        monkeypatch.setenv("GSM8K_URL", f"{address}/")
        written = prepare(Options("url", out=tmp_path / "out"))
    assert given.read(tmp_path / "out" / "raw" / "train.parquet") == TRAIN
    assert written.data_source == "openai/gsm8k"
    assert written.source["commit"] == fetch.pins()["data"]["gsm8k"]["commit"]
    assert address not in (tmp_path / "out" / "manifest.json").read_text()
    # The server is gone: what was fetched serves the next folder.
    prepare(Options("url", out=tmp_path / "again"))
    assert given.tree(tmp_path / "again") == given.tree(tmp_path / "out")


def test_laid_files_are_used_before_any_network(tmp_path: Path, published: Path) -> None:
    shutil.copytree(published, paths.DOWNLOADS)
    written = prepare(Options("url", out=tmp_path / "out"))
    assert written.splits["train"].kept == len(TRAIN)


def test_one_laid_file_and_one_fetched_make_a_whole(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.DOWNLOADS.mkdir()
    (published / "train.jsonl").rename(paths.DOWNLOADS / "train.jsonl")
    with given.serving_folder(published) as address:
        monkeypatch.setenv("GSM8K_URL", address)
        prepare(Options("url", out=tmp_path / "out"))
    assert given.read(tmp_path / "out" / "raw" / "test.parquet") == TEST


def url_refused(tmp_path: Path) -> Refused:
    with pytest.raises(Refused) as caught:
        prepare(Options("url", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    left = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    assert left == []
    return caught.value


def test_without_a_network_url_hash_and_place_of_every_file_are_told(
    tmp_path: Path, published: Path
) -> None:
    refused = url_refused(tmp_path)
    assert refused.exit_code == UNREACHABLE
    assert len(refused.problems) == 2
    for problem, split in zip(refused.problems, ("train", "test"), strict=True):
        told = str(problem)
        assert fetch.url(split) in told
        assert fetch.pins()["data"]["gsm8k"][f"{split}_sha256"] in told
        assert str(paths.DOWNLOADS / f"{split}.jsonl") in told


def test_a_file_of_another_hash_is_not_taken_from_a_mirror(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.jsonl(published / "train.jsonl", given.rows(2))
    (published / "test.jsonl").unlink()
    with given.serving_folder(published) as address:
        monkeypatch.setenv("GSM8K_URL", address)
        told = list(map(str, url_refused(tmp_path).problems))
    assert "gave a file of sha256" in told[0]
    assert "404" in told[1]


def test_a_laid_file_of_another_hash_is_refused(tmp_path: Path, published: Path) -> None:
    shutil.copytree(published, paths.DOWNLOADS)
    given.jsonl(paths.DOWNLOADS / "test.jsonl", TEST[:-1])
    refused = url_refused(tmp_path)
    assert refused.exit_code == REFUSED
    assert str(refused).startswith(f"{paths.DOWNLOADS / 'test.jsonl'}: has sha256")


def test_a_truncated_answer_is_not_taken(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (published / self.path.lstrip("/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:-10])

        def log_message(self, *_: object) -> None:
            pass

    with given.serving(Cut) as address:
        monkeypatch.setenv("GSM8K_URL", address)
        assert url_refused(tmp_path).exit_code == UNREACHABLE


def test_the_published_address_is_of_the_pinned_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GSM8K_URL", raising=False)
    commit = fetch.pins()["data"]["gsm8k"]["commit"]
    assert fetch.url("test").startswith("https://")
    assert fetch.url("test").endswith(f"/{commit}/grade_school_math/data/test.jsonl")


# The hub, spoken by a local server; in child processes, since its client reads its settings once.

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The three requests that a snapshot of openai/gsm8k makes."""

    folder: Path

    def do_GET(self) -> None:
        files = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*.parquet")]
        path = self.path.split("?")[0]
        if path in ("/api/datasets/openai/gsm8k", "/api/datasets/openai/gsm8k/revision/main"):
            siblings = [{"rfilename": name} for name in ("README.md", *files)]
            body = {"id": "openai/gsm8k", "sha": COMMIT, "siblings": siblings}
            self._answer(json.dumps(body).encode())
        elif path.startswith(start := f"/datasets/openai/gsm8k/resolve/{COMMIT}/"):
            self._answer((self.folder / path.removeprefix(start)).read_bytes())
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_hub_is_read_through_its_endpoint_and_then_from_the_cache(tmp_path: Path) -> None:
    as_hub_parquet(tmp_path / "repository")
    handler = type("OneHub", (Hub,), {"folder": tmp_path / "repository"})
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    with given.serving(handler) as address:
        arguments = ("--source", "hf", "--out", tmp_path / "out")
        done = given.prepare_cli(*arguments, HF_ENDPOINT=address, **home)
    assert done.returncode == 0, done.stderr
    written = manifest.load(tmp_path / "out")
    assert written.data_source == "openai/gsm8k"
    assert written.source["revision"] == COMMIT
    assert len(written.source["files"]["train"]) == 2
    assert given.read(tmp_path / "out" / "raw" / "train.parquet") == TRAIN
    again = given.prepare_cli(
        *("--source", "hf", "--out", tmp_path / "again"),
        HF_HUB_OFFLINE="1",
        HF_ENDPOINT=address,
        **home,
    )
    assert again.returncode == 0, again.stderr
    assert given.tree(tmp_path / "again") == given.tree(tmp_path / "out")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_hub_that_cannot_be_reached_says_what_to_do(tmp_path: Path, offline: str) -> None:
    done = given.prepare_cli(
        *("--source", "hf", "--out", tmp_path / "out"),
        HF_ENDPOINT=nobody_there(),
        HF_HOME=str(tmp_path / "home"),
        HF_HUB_OFFLINE=offline,
    )
    assert done.returncode == UNREACHABLE
    assert "Traceback" not in done.stderr
    assert "/datasets/openai/gsm8k" in done.stderr
    assert "HF_ENDPOINT" in done.stderr
    assert "--source dir" in done.stderr
    assert not (tmp_path / "out").exists()
