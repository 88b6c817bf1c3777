"""Whatever stands where rows, options or a tokenizer should: it is told, never a traceback."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import placement
from data.fetch import published_files, without_secrets
from data.prepare import Options, prepare
from env.errors import Refused
from tests import data_helpers as given


def refused(options: Options) -> str:
    with pytest.raises(Refused) as caught:
        prepare(options)
    return str(caught.value)


def no_file(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("made", [no_file, pipe, device])
@pytest.mark.parametrize("name", ["train.jsonl", "train-0.parquet"])
def test_what_has_a_name_of_a_file_and_is_none_is_refused(
    tmp_path: Path, made: Callable[[Path], None], name: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    made(source / name)
    said = refused(Options("dir", input=source, out=tmp_path / "out"))
    assert f"{source / name}: is no file" in said


def table(**columns: object) -> pa.Table:
    answers = [one["answer"] for one in given.rows(2)]
    return pa.table({"question": ["a", "b"], "answer": answers} | columns)


TWICE = pa.Table.from_arrays([pa.array(["a"])] * 3, ["question", "answer", "question"])
BEYOND = table(question=pa.array([2**31 - 1, 1], pa.int32()).cast(pa.date32()))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (TWICE, "column question: stands there 2 times"),
        (BEYOND, "cannot be read: days=2147483647"),
        (table(question=[[1], [2]]), "line 1, question: wrong type"),
        (table(question=[datetime.date(2020, 1, 1)] * 2), "line 1, question: wrong type"),
        (table(question=pa.nulls(2)), "line 2, question: wrong type: 'None' (found null)"),
    ],
)
@pytest.mark.parametrize("layout", ["parquet", "save_to_disk"])
def test_odd_columns_are_refused(tmp_path: Path, rows: pa.Table, said: str, layout: str) -> None:
    source = tmp_path / "in"
    if layout == "parquet":
        source.mkdir()
        pq.write_table(rows, source / "train.parquet")
    else:
        saved(source, {"_data_files": [{"filename": "rows.arrow"}]})
        with pa.ipc.new_stream(source / "train" / "rows.arrow", rows.schema) as stream:
            stream.write_table(rows)
    assert said in refused(Options("dir", input=source, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def saved(folder: Path, state: object) -> None:
    (folder / "train").mkdir(parents=True)
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}', encoding="utf-8")
    (folder / "train" / "state.json").write_text(json.dumps(state), encoding="utf-8")


@pytest.mark.parametrize("state", [[], "text", 5, None, {}, {"_data_files": [None]}])
def test_a_saved_folder_of_another_shape_is_refused(tmp_path: Path, state: object) -> None:
    saved(tmp_path / "in", state)
    said = refused(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert "a whole folder written by save_to_disk" in said


def test_a_blank_line_is_named_by_its_place_in_the_file_alone(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", given.rows(2))
    with (tmp_path / "in" / "train.jsonl").open("a") as stream:
        stream.write("\n")
    said = refused(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert set(re.findall(r"\bline \d+", said)) == {"line 3"}


def test_a_source_without_rows_is_not_told_to_allow_longer_prompts(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", [])
    said = refused(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert "holds no row" in said
    assert "--max-prompt-tokens" not in said


NOT_UTF8 = "\udcff"


@pytest.mark.parametrize(
    ("option", "value", "flag"),
    [
        ("train_rows", 0, "--train-rows"),
        ("batch_size", 10**30, "--batch-size"),
        ("out", Path("/"), "--out"),
        ("out", Path(NOT_UTF8), "--out"),
        ("quarantine", Path(NOT_UTF8), "--quarantine"),
        ("instruction", NOT_UTF8, "--instruction"),
    ],
)
def test_an_option_that_nothing_can_be_made_of_is_named(
    tmp_path: Path, option: str, value: object, flag: str
) -> None:
    options: dict[str, object] = {"source": "generated", "out": tmp_path / "out", option: value}
    assert f"{flag}: " in refused(Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["in/train.jsonl", "in", "notes.txt", "link", "tokens.json"])
def test_bad_rows_never_take_the_place_of_what_is_no_quarantine(
    tmp_path: Path, target: str
) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", [*given.rows(3), {"question": ""}])
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    (tmp_path / "tokens.json").write_text('{"file": 1}\n', encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "in" / "train.jsonl")
    before = given.tree(tmp_path)
    options = Options(
        "dir", input=tmp_path / "in", out=tmp_path / "out", quarantine=tmp_path / target
    )
    assert "--quarantine" in refused(options)
    assert given.tree(tmp_path) == before


def test_an_earlier_quarantine_and_an_empty_file_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.touch()
    for wrong in (1, 2):
        source = tmp_path / f"in{wrong}"
        given.jsonl(source / "train.jsonl", [*given.rows(3), *[{"question": ""}] * wrong])
        prepare(Options("dir", input=source, out=tmp_path / "out", quarantine=file))
        assert len({json.loads(line)["line"] for line in file.open()}) == wrong


def test_a_place_that_cannot_be_written_is_told_and_no_traceback(tmp_path: Path) -> None:
    source = given.folder(tmp_path / "in")
    below_a_file = source / "train.jsonl" / "out"
    done = given.prepare_cli("--source", "dir", "--input", source, "--out", below_a_file)
    assert done.returncode == 1
    assert done.stderr.startswith(f"refused: 1 problem\n  {source / 'train.jsonl'}: ")


def test_a_disk_that_takes_no_more_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(Options("dir", input=given.folder(tmp_path / "small"), out=out))
    before = given.tree(out)
    large = given.folder(tmp_path / "large", train=3000)
    # A file may grow to so many bytes and no further, as on a disk that is full.
    code = (
        "import resource, sys; from data.prepare import Options, prepare; "
        "from pathlib import Path; from env.errors import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "main(lambda: prepare(Options('dir', input=Path(sys.argv[1]), out=Path(sys.argv[2]))))"
    )
    done = given.child(["-c", code, str(large), str(out)])
    assert done.returncode == 1
    assert re.match(
        r"refused: 1 problem\n  .+: File too large\n    -> free some space", done.stderr
    )
    assert given.tree(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "out", "small"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return given.small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": "{{ raise_exception('no user, please') }}"},
        {"chat_template": "{% for message in %}"},
        {"chat_template": "{{ messages[7]['content'] }}"},
        {"chat_template": [{"name": "rag", "template": "x"}]},
        {"chat_template": 5},
    ],
)
def test_a_chat_template_that_fails_is_refused(
    tmp_path: Path, tokenizer: Path, change: dict[str, object]
) -> None:
    options = Options(
        "dir",
        input=given.folder(tmp_path / "in"),
        out=tmp_path / "out",
        tokenizer=changed(tokenizer, tmp_path / "tokenizer", change),
    )
    assert f"{tmp_path / 'tokenizer'}: has a chat template that fails: " in refused(options)


def test_a_models_own_code_is_neither_run_nor_asked_for(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own: dict[str, object] = {
        "auto_map": {"AutoTokenizer": ["own.Slow", "own.Fast"]},
        "tokenizer_class": "Fast",
    }
    folder = changed(tokenizer, tmp_path / "tokenizer", own)
    (folder / "own.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    options = Options("generated", out=tmp_path / "out", tokenizer=folder)
    assert "holds no tokenizer that can be read" in refused(options)
    assert "[y/N]" not in capsys.readouterr().out


def changed(tokenizer: Path, folder: Path, change: dict[str, object]) -> Path:
    folder.mkdir()
    for file in tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = folder / "tokenizer_config.json"
    values = json.loads(config.read_text(encoding="utf-8")) | change
    config.write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["a[1]", "*", "a?"])
def test_what_a_killed_run_left_is_removed_whatever_the_folder_is_called(
    tmp_path: Path, name: str
) -> None:
    mine = tmp_path / f".{name}.new-0123abcd"
    other = tmp_path / ".b.new-0123abcd"
    mine.mkdir()
    other.mkdir()
    placement.recover(tmp_path / name)
    assert not mine.exists()
    assert other.exists()


@pytest.mark.parametrize("mirror", ["http://me:hidden@127.0.0.1:9", "http://127.0.0.1:9/?k=hidden"])
def test_a_mirrors_address_with_a_secret_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path))
    monkeypatch.setenv("GSM8K_URL", mirror)
    monkeypatch.setattr("env.paths.DOWNLOADS", tmp_path / "none")
    with pytest.raises(Refused) as caught:
        published_files()
    assert "GSM8K_URL: " in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("403 for url: https://me:hidden@host/a/b", "403 for url: https://host/a/b"),
        ("(https://cdn/a?Signature=hidden&x=1): no", "(https://cdn/a): no"),
        ("what? a@b, https://host/a", "what? a@b, https://host/a"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
