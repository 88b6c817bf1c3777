"""What a prepared folder holds, and when it is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data import manifest, options
from data.prepare import Options, prepare
from env import paths
from env.errors import REFUSED, USAGE, Refused
from tests import data_helpers as given

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def made(tmp_path: Path, **more: object) -> Path:
    source = tmp_path / "in"
    if not source.exists():
        given.folder(source)
    prepare(Options(source="dir", input=source, out=tmp_path / "out", **more))  # type: ignore[arg-type]
    return tmp_path / "out"


def indices(path: Path) -> list[int]:
    return [row["extra_info"]["index"] for row in given.read(path)]  # type: ignore[index]


def test_a_row_is_what_verl_reads(tmp_path: Path) -> None:
    train = given.read(made(tmp_path) / "train.parquet")
    assert len(train) == 20
    assert train[7] == {
        "data_source": "verl-p40/gsm8k",
        "prompt": [{"role": "user", "content": f"{given.row(7)['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "9"},
        "extra_info": {"split": "train", "index": 7, **given.row(7)},
    }


def test_raw_files_hold_question_and_answer_alone(tmp_path: Path) -> None:
    assert given.read(made(tmp_path) / "raw" / "test.parquet") == given.rows(5, start=100_000)


def test_the_files_carry_a_plain_schema_that_old_and_new_readers_know(tmp_path: Path) -> None:
    import datasets
    import pandas as pd

    out = made(tmp_path)
    for name in ("train.parquet", "raw/train.parquet"):
        assert pq.read_schema(out / name).metadata is None
        assert pq.ParquetFile(out / name).metadata.metadata is None
    prompt = pd.read_parquet(out / "train.parquet")["prompt"][0]
    assert prompt[0]["role"] == "user"
    cache = str(tmp_path / "cache")
    loaded = datasets.Dataset.from_parquet(str(out / "train.parquet"), cache_dir=cache)
    assert loaded[3]["prompt"][0]["content"].startswith("Ann has 3 pears")
    assert loaded[3]["reward_model"] == {"style": "rule", "ground_truth": "5"}


def test_the_manifest_says_what_came_in_and_what_was_written(tmp_path: Path) -> None:
    out = made(tmp_path)
    written = manifest.load(out)
    hashes = given.tree(tmp_path / "in")
    assert written.source == {
        "kind": "dir",
        "files": {
            split: [{"file": f"{split}.jsonl", "sha256": hashes[f"{split}.jsonl"]}]
            for split in ("train", "test")
        },
    }
    named = {name: file.sha256 for name, file in written.files.items()}
    assert named == {name: h for name, h in given.tree(out).items() if name != "manifest.json"}
    assert [file.rows for file in written.files.values()] == [0, 5, 20, 5, 20]
    assert list(written.splits) == ["train", "test"]
    assert written.splits["train"].rows_in == written.splits["train"].kept == 20
    assert written.splits["train"].prompt_tokens is None
    assert written.tokenizer is None
    assert str(tmp_path) not in (out / "manifest.json").read_text()


def test_a_source_without_a_test_split_writes_train_alone(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", given.rows(3))
    said: list[str] = []
    written = prepare(
        Options(source="dir", input=tmp_path / "in", out=tmp_path / "out"), said.append
    )
    assert list(written.splits) == ["train"]
    assert not (tmp_path / "out" / "test.parquet").exists()
    assert any("no test split" in line for line in said)


def test_a_source_without_a_row_is_refused(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", [])
    with pytest.raises(Refused, match="holds no row"):
        made(tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_same_input_gives_the_same_bytes_whatever_hash_seed_place_and_batch(
    tmp_path: Path,
) -> None:
    # More rows than a row group, so that a batch can cross its edge.
    source = given.folder(tmp_path / "in", train=1500)
    moved = shutil.copytree(source, tmp_path / "elsewhere" / "moved")
    trees = []
    for seed, place, batch in (("0", source, 128), ("1", moved, 128), ("2", source, 7)):
        out = tmp_path / f"out{seed}"
        done = given.prepare_cli(
            *("--source", "dir", "--input", place, "--out", out, "--batch-size", batch),
            *("--rows", 1400, "--seed", 3),
            PYTHONHASHSEED=seed,
        )
        assert done.returncode == 0, done.stderr
        trees.append(given.tree(out))
    assert len(trees[0]) == 6
    assert trees[0] == trees[1] == trees[2]


def test_row_groups_have_one_size(tmp_path: Path) -> None:
    given.folder(tmp_path / "in", train=2100)
    file = pq.ParquetFile(made(tmp_path, batch_size=10) / "train.parquet").metadata
    assert [file.row_group(n).num_rows for n in range(file.num_row_groups)] == [1024, 1024, 52]


def test_rows_draws_by_seed_and_keeps_order_and_index(tmp_path: Path) -> None:
    out = made(tmp_path, rows=8, seed=1)
    first = indices(out / "train.parquet")
    assert len(first) == 8
    assert first == sorted(first)
    for one in given.read(out / "train.parquet"):
        extra = one["extra_info"]
        assert extra["question"] == given.row(extra["index"])["question"]  # type: ignore[index]
    assert len(indices(out / "test.parquet")) == 5
    assert manifest.load(out).splits["train"].dropped["not_sampled"] == 12
    assert len(given.read(out / "raw" / "train.parquet")) == 20
    assert indices(made(tmp_path, rows=8, seed=2) / "train.parquet") != first
    assert indices(made(tmp_path, rows=8, seed=1) / "train.parquet") == first


def test_a_smaller_draw_is_part_of_a_larger_one(tmp_path: Path) -> None:
    small = set(indices(made(tmp_path, rows=4) / "train.parquet"))
    assert small < set(indices(made(tmp_path, rows=9) / "train.parquet"))


def test_a_draw_leaves_out_no_part_of_the_file(tmp_path: Path) -> None:
    given.folder(tmp_path / "in", train=2000)
    drawn = indices(made(tmp_path, rows=400) / "train.parquet")
    by_quarter = [sum(index // 500 == quarter for index in drawn) for quarter in range(4)]
    assert min(by_quarter) > 70


def test_another_instruction_ends_every_prompt(tmp_path: Path) -> None:
    train = given.read(made(tmp_path, instruction="Be brief.") / "train.parquet")
    assert all(row["prompt"][0]["content"].endswith("? Be brief.") for row in train)  # type: ignore[index]


def test_data_of_another_name_has_another_label(tmp_path: Path) -> None:
    out = made(tmp_path, name="pears")
    assert {row["data_source"] for row in given.read(out / "test.parquet")} == {"verl-p40/pears"}


def test_without_out_the_data_lies_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "made"))
    source = given.folder(tmp_path / "in")
    prepare(Options(source="dir", input=source, name="pears"))
    assert manifest.load(paths.data("pears")).name == "pears"
    prepare(Options(source="generated", train_rows=4, test_rows=2))
    assert manifest.load(paths.data("generated")).data_source == "verl-p40/generated"


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    out = made(tmp_path)
    before = (out / "train.parquet").stat()
    said: list[str] = []
    prepare(Options(source="dir", input=tmp_path / "in", out=out), said.append)
    assert said == [f"{out} is up to date"]
    assert (out / "train.parquet").stat() == before


@pytest.mark.parametrize("change", ["input", "output", "option", "lost", "manifest"])
def test_a_second_run_writes_again_if_anything_differs(tmp_path: Path, change: str) -> None:
    out = made(tmp_path)
    before = given.tree(out)
    more: dict[str, object] = {}
    if change == "input":
        given.folder(tmp_path / "in", train=21)
    elif change == "output":
        data = (out / "train.parquet").read_bytes()
        (out / "train.parquet").write_bytes(data[:-1] + b"?")
    elif change == "lost":
        (out / "raw" / "test.parquet").unlink()
    elif change == "manifest":
        (out / "manifest.json").write_text("{")
    else:
        more = {"rows": 5}
    said: list[str] = []
    prepare(Options(source="dir", input=tmp_path / "in", out=out, **more), said.append)  # type: ignore[arg-type]
    assert said[0] == f"{out} (verl-p40/gsm8k):"
    assert (given.tree(out) == before) == (change in ("output", "lost", "manifest"))


def test_a_lost_quarantine_file_is_written_again(tmp_path: Path) -> None:
    given.jsonl(tmp_path / "in" / "train.jsonl", [given.row(1), {"question": "q"}])
    bad = tmp_path / "bad.jsonl"
    made(tmp_path, quarantine=bad)
    text = bad.read_text()
    assert json.loads(text)["reason"] == "missing field"
    bad.unlink()
    made(tmp_path, quarantine=bad)
    assert bad.read_text() == text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"source": "csv"}, "--source: is 'csv'"),
        ({"source": "dir"}, "--input: is None"),
        ({"source": "url", "input": Path("here")}, "--input: is here"),
        ({"source": "url", "name": "../x"}, "--name: is '../x'"),
        ({"source": "url", "max_prompt_tokens": 5}, "--max-prompt-tokens: cannot be counted"),
        ({"source": "url", "rows": 0}, "--rows: is 0"),
        ({"source": "url", "batch_size": 0}, "--batch-size: is 0"),
        ({"source": "generated", "level": 9}, "--level: is 9"),
        ({"source": "generated", "train_rows": -1}, "--train-rows: is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(more: dict[str, object], told: str) -> None:
    with pytest.raises(Refused) as caught:
        prepare(Options(**more))  # type: ignore[arg-type]
    assert str(caught.value).startswith(told)


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(Refused) as caught:
        options.check(Options(source="dir", rows=0, max_prompt_tokens=0, batch_size=-1))
    assert len(caught.value.problems) == 5


def test_the_command_line_reports_and_exits(tmp_path: Path) -> None:
    source, out = given.folder(tmp_path / "in"), tmp_path / "out"
    done = given.prepare_cli("--source", "dir", "--input", source, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: 20 rows in, 20 kept" in done.stdout
    again = given.prepare_cli("--source", "dir", "--input", source, "--out", out)
    assert again.stdout == f"{out} is up to date\n"
    given.jsonl(source / "train.jsonl", ["no object"])
    refused = given.prepare_cli("--source", "dir", "--input", source, "--out", out)
    assert refused.returncode == REFUSED
    assert "train.jsonl, line 1, line: wrong type" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert given.prepare_cli("--source", "nowhere").returncode == USAGE


def test_reading_a_manifest_imports_nothing_heavy() -> None:
    code = "import data.manifest, sys; print(*sys.modules)"
    loaded = set(given.child(["-c", code]).stdout.split())
    assert "data.manifest" in loaded
    assert not loaded & {"torch", "transformers", "pyarrow", "numpy", "datasets"}


def test_preparing_without_a_tokenizer_imports_no_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from data.prepare import Options, prepare;"
        f"prepare(Options('generated', out=Path({str(tmp_path / 'out')!r}), train_rows=3));"
        "print(*sys.modules)"
    )
    loaded = set(given.child(["-c", code]).stdout.split())
    assert "data.prepare" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "huggingface_hub"}


def test_loading_a_manifest_names_every_file_that_is_not_as_written(tmp_path: Path) -> None:
    out = made(tmp_path)
    (out / "train.parquet").unlink()
    (out / "dropped.jsonl").write_text("more")
    size = (out / "test.parquet").stat().st_size
    (out / "test.parquet").write_bytes(b"x" * size)
    with pytest.raises(Refused) as caught:
        manifest.load(out)
    told = sorted(str(problem).removeprefix(f"{out}/") for problem in caught.value.problems)
    assert told[0].startswith("dropped.jsonl: has 4 bytes; expected 0")
    assert told[1].startswith("test.parquet: has sha256 ")
    assert told[2].startswith("train.parquet: is missing")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}', "\xff"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(Refused, match="manifest.json"):
        manifest.load(tmp_path)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is missing"):
        manifest.load(tmp_path)
    with pytest.raises(Refused, match="is missing"):
        manifest.load(tmp_path / "nowhere")
