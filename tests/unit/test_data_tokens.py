"""Tokens are counted as verl counts them; overlong prompts are dropped and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data import manifest
from data.manifest import Tokens
from data.prepare import Options, prepare
from data.tokens import Counter, summary
from env.errors import Refused
from tests import data_helpers as given

TEXTS = ["", "plain", "Zoë’s 3½ cups — “naïve”\n\n", "1,234.50", "<s>special</s> text", "字" * 30]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return given.small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def made(tmp_path: Path, tokenizer: Path, limit: int | None, **more: object) -> manifest.Manifest:
    source = tmp_path / "in"
    if not source.exists():
        rows = [given.row(n, " And more." * (n % 4)) for n in range(40)]
        given.jsonl(source / "train.jsonl", rows)
        given.jsonl(source / "test.jsonl", given.rows(3, start=90))
    options = Options(
        "dir",
        input=source,
        out=tmp_path / "out",
        tokenizer=tokenizer,
        max_prompt_tokens=limit,
        **more,  # type: ignore[arg-type]
    )
    return prepare(options)


def test_a_prompt_has_as_many_tokens_as_verl_s_dataset_gives_it(tokenizer: Path) -> None:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    messages = [[{"role": "user", "content": text}] for text in TEXTS]
    filtered = [len(own.apply_chat_template(m, add_generation_prompt=True)) for m in messages]
    rendered = [
        own.apply_chat_template(m, add_generation_prompt=True, tokenize=False) for m in messages
    ]
    encoded = [len(own(text, add_special_tokens=False)["input_ids"]) for text in rendered]
    assert Counter(tokenizer).prompts(messages) == filtered == encoded
    assert len(set(filtered)) == len(TEXTS)


def test_an_answer_is_counted_by_itself(tokenizer: Path) -> None:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    counts = [len(own(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    assert Counter(tokenizer).answers(TEXTS) == counts
    assert counts[0] == 0


def test_an_overlong_prompt_is_dropped_whole_and_listed(tmp_path: Path, tokenizer: Path) -> None:
    every = made(tmp_path, tokenizer, None)
    tokens = every.splits["train"].prompt_tokens
    assert tokens is not None
    limit = tokens.max - 1
    written = made(tmp_path, tokenizer, limit)
    dropped = [json.loads(line) for line in (tmp_path / "out/dropped.jsonl").open()]
    assert dropped
    assert all(row["prompt_tokens"] > limit and row["split"] == "train" for row in dropped)
    kept = given.read(tmp_path / "out" / "train.parquet")
    kept_indices = {row["extra_info"]["index"] for row in kept}  # type: ignore[index]
    assert kept_indices.isdisjoint(row["index"] for row in dropped)
    assert len(kept) + len(dropped) == 40
    for row in dropped:
        assert (
            row["question"]
            == given.row(row["index"], " And more." * (row["index"] % 4))["question"]
        )
    train = written.splits["train"]
    assert (train.kept, train.dropped["overlong"]) == (len(kept), len(dropped))
    assert train.prompt_tokens is not None
    assert train.prompt_tokens.max <= limit
    counter = Counter(tokenizer)
    prompts = [row["prompt"] for row in kept]
    assert summary(counter.prompts(prompts)) == train.prompt_tokens  # type: ignore[arg-type]
    answers = [row["extra_info"]["answer"] for row in kept]  # type: ignore[index]
    assert summary(counter.answers(answers)) == train.answer_tokens
    assert len(given.read(tmp_path / "out" / "raw" / "train.parquet")) == 40


def test_a_limit_that_every_prompt_meets_drops_nothing(tmp_path: Path, tokenizer: Path) -> None:
    every = made(tmp_path, tokenizer, None).splits["train"].prompt_tokens
    assert every is not None
    written = made(tmp_path, tokenizer, every.max)
    assert written.splits["train"].dropped["overlong"] == 0
    assert (tmp_path / "out" / "dropped.jsonl").read_text() == ""


def test_rows_are_drawn_from_those_that_are_short_enough(tmp_path: Path, tokenizer: Path) -> None:
    tokens = made(tmp_path, tokenizer, None).splits["train"].prompt_tokens
    assert tokens is not None
    train = made(tmp_path, tokenizer, tokens.p50, rows=10).splits["train"]
    assert train.kept == 10
    assert train.dropped["overlong"] > 0
    assert sum(train.dropped.values()) == 30


def test_no_row_left_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(Refused, match="no row is left of 40"):
        made(tmp_path, tokenizer, 3)


def test_raw_files_do_not_depend_on_the_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    made(tmp_path, tokenizer, None)
    counted = given.tree(tmp_path / "out")
    plain = tmp_path / "plain"
    prepare(Options("dir", input=tmp_path / "in", out=plain))
    without = given.tree(plain)
    del counted["manifest.json"], without["manifest.json"]
    assert counted == without


def test_the_manifest_knows_the_tokenizer_and_notices_a_change(
    tmp_path: Path, tokenizer: Path
) -> None:
    first = made(tmp_path, tokenizer, None)
    assert first.tokenizer == {
        "name": tokenizer.name,
        "sha256": manifest.tokenizer_sha256(tokenizer),
    }
    changed = tmp_path / tokenizer.name
    changed.mkdir()
    for path in tokenizer.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    assert made(tmp_path, changed, None) == first
    config = json.loads((changed / "tokenizer_config.json").read_text())
    template = changed / "chat_template.jinja"
    if template.exists():
        template.write_text("Listen! " + template.read_text())
    else:
        config["chat_template"] = "Listen! " + config["chat_template"]
        (changed / "tokenizer_config.json").write_text(json.dumps(config))
    second = made(tmp_path, changed, None)
    assert second.inputs != first.inputs
    before, after = first.splits["train"].prompt_tokens, second.splits["train"].prompt_tokens
    assert before is not None
    assert after is not None
    assert after.max > before.max


def test_a_folder_that_holds_no_tokenizer_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(Refused, match="is no folder"):
        Counter(tmp_path / "nowhere")
    with pytest.raises(Refused, match="holds no tokenizer"):
        Counter(tmp_path)
    for path in tokenizer.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(Refused, match="holds no tokenizer"):
        Counter(tmp_path)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    for path in tokenizer.iterdir():
        text = path.read_text()
        if path.name == "tokenizer_config.json":
            config = json.loads(text)
            config.pop("chat_template", None)
            text = json.dumps(config)
        if path.suffix == ".json":
            (tmp_path / path.name).write_text(text)
    with pytest.raises(Refused, match="has no chat template"):
        Counter(tmp_path)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([7], Tokens(7.0, 7, 7, 7, 7)),
        ([2, 1], Tokens(1.5, 1, 2, 2, 2)),
        (list(range(1, 101)), Tokens(50.5, 50, 90, 99, 100)),
        (list(range(200, 0, -1)), Tokens(100.5, 100, 180, 198, 200)),
    ],
)
def test_quantiles_are_by_nearest_rank(lengths: list[int], expected: Tokens) -> None:
    assert summary(lengths) == expected
