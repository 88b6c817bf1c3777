"""GSM8K itself: every row is good, and its tokens are as published figures of this project say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data import manifest
from data.prepare import Options, prepare
from env.pins import pins
from tests import data_helpers as given
from tests import qwen_tokenizer

pytestmark = pytest.mark.gsm8k


@pytest.fixture(scope="module")
def prepared(gsm8k: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gsm8k") / "out"
    prepare(Options("dir", input=gsm8k, out=out))
    return out


def test_it_is_the_pinned_one(gsm8k: Path) -> None:
    for split in given.GSM8K_ROWS:
        pinned = pins()["data"]["gsm8k"][f"{split}_sha256"]
        assert manifest.sha256(gsm8k / f"{split}.jsonl") == pinned


def test_every_row_is_kept_and_labelled(prepared: Path) -> None:
    written = manifest.load(prepared)
    assert written.data_source == "openai/gsm8k"
    for split, rows in given.GSM8K_ROWS.items():
        assert (written.splits[split].rows_in, written.splits[split].kept) == (rows, rows)
        assert sum(written.splits[split].dropped.values()) == 0


def test_the_rows_are_the_published_ones(gsm8k: Path, prepared: Path) -> None:
    for split in given.GSM8K_ROWS:
        published = [json.loads(line) for line in (gsm8k / f"{split}.jsonl").open()]
        assert given.read(prepared / "raw" / f"{split}.parquet") == published
        for index, row in enumerate(given.read(prepared / f"{split}.parquet")):
            truth = row["reward_model"]["ground_truth"]  # type: ignore[index]
            answer = published[index]["answer"]
            assert truth == answer.rsplit("#### ", 1)[1].replace(",", "")
            assert row["extra_info"] == {"split": split, "index": index, **published[index]}


def test_twice_gives_the_same_bytes(gsm8k: Path, prepared: Path, tmp_path: Path) -> None:
    done = given.prepare_cli("--source", "dir", "--input", gsm8k, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert given.tree(tmp_path / "out") == given.tree(prepared)


def test_it_keeps_its_label_in_every_other_wrapping(prepared: Path, tmp_path: Path) -> None:
    again = prepare(Options("dir", input=prepared, out=tmp_path / "again", name="mine", rows=64))
    assert again.data_source == "openai/gsm8k"
    bare = prepare(Options("dir", input=prepared / "raw", out=tmp_path / "bare"))
    assert bare.data_source == "openai/gsm8k"


def test_one_row_less_is_no_longer_gsm8k(gsm8k: Path, tmp_path: Path) -> None:
    lines = (gsm8k / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.jsonl").write_text("".join(lines[:-1]))
    written = prepare(Options("dir", input=tmp_path / "in", out=tmp_path / "out"))
    assert written.data_source == "verl-p40/gsm8k"


def test_prompts_and_answers_have_the_known_lengths(
    gsm8k: Path, qwen: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    splits = prepare(Options("dir", input=gsm8k, out=out, tokenizer=qwen)).splits
    prompts, answers = splits["train"].prompt_tokens, splits["train"].answer_tokens
    assert prompts is not None
    assert answers is not None
    assert (round(prompts.mean), prompts.p99, prompts.max) == (104, 172, 256)
    assert (answers.p50, answers.p99, answers.max) == (111, 288, 453)


def test_one_prompt_is_longer_than_250_tokens(gsm8k: Path, qwen: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = Options("dir", input=gsm8k, out=out, tokenizer=qwen, max_prompt_tokens=250)
    splits = prepare(options).splits
    assert (splits["train"].kept, splits["test"].kept) == (7472, 1319)
    (dropped,) = [json.loads(line) for line in (out / "dropped.jsonl").open()]
    assert (dropped["split"], dropped["prompt_tokens"]) == ("train", 256)


def test_the_converted_tokenizer_is_qwen_s(qwen: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen)
    assert len(tokenizer) == 151_646
    for token, number in qwen_tokenizer.SPECIAL.items():
        assert tokenizer.convert_tokens_to_ids(token) == number
    text = "He’ll pay $1,234.50\n\n  for 3½ cups — naïve “café” 字"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("123 hello world") == [16, 17, 18, 23811, 1879]
