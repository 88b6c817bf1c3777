"""Small inputs, a small tokenizer, a local server and child processes for the tests of data/."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq

from env import paths
from tests.processes import as_from_a_terminal

GSM8K_ROWS = {"train": 7473, "test": 1319}


def row(number: int, more: str = "") -> dict[str, str]:
    """A good row, another one for every number."""
    question = f"Ann has {number} pears and buys 2 more. How many pears has she?{more}"
    answer = f"Ann has {number}+2=<<{number}+2={number + 2}>>{number + 2} pears.\n#### {number + 2}"
    return {"question": question, "answer": answer}


def rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [row(number) for number in range(start, start + count)]


def jsonl(path: Path, values: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def folder(path: Path, train: int = 20, test: int = 5) -> Path:
    """A folder of published layout with ``train`` and ``test`` good rows."""
    jsonl(path / "train.jsonl", rows(train))
    jsonl(path / "test.jsonl", rows(test, start=100_000))
    return path


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a parquet file."""
    table: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return table


def tree(path: Path) -> dict[str, str]:
    """sha256 of every file below ``path``, by its relative path."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def child(code: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python *code`` from the checkout and wait for it."""
    return subprocess.run(
        [sys.executable, *code],
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), "no_proxy": "*", **environment},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=as_from_a_terminal,
    )


def prepare_cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return child(["-m", "data.prepare", *map(str, arguments)], **environment)


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Address of a local server, for as long as the block lasts."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_folder(path: Path) -> Iterator[str]:
    """Address of a local server of the files in ``path``."""
    with serving(partial(_Files, directory=str(path))) as address:
        yield address


def small_tokenizer(path: Path) -> Path:
    """A byte-level tokenizer with a chat template, trained on a few rows, in ``path``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((one["question"] for one in rows(50)), trainer)
    # Both would change a count, and neither may.
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=64)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for message in messages %}<s>{{ message['role'] }}: "
        "{{ message['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}",
    ).save_pretrained(path)
    return path
