"""Prepare data for training: check every row, count tokens, drop overlong prompts, write parquet.

    python -m data.prepare --source dir --input FOLDER --out DIR
    python -m data.prepare --source url --tokenizer out/models/NAME --max-prompt-tokens 256
    python -m data.prepare --source generated --level 2 --train-rows 512 --test-rows 128

Writes train.parquet and test.parquet (as verl reads them), raw/ (every good row of the source),
dropped.jsonl (overlong prompts) and manifest.json, all at once or not at all.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from data import manifest, placement, sources, writer
from data.choice import fates
from data.manifest import Manifest
from data.options import SOURCES, Options, check, check_place
from data.sources import Source
from data.survey import survey
from data.tokens import Counter
from env.disk import refusals_told
from env.errors import Refused, main

__all__ = ["Options", "prepare"]


def prepare(options: Options, say: Callable[[str], object] = print) -> Manifest:
    """Write the prepared folder, or leave it if it is already what ``options`` ask for.

    Raises:
        Refused: wrong options, a source that cannot be had or read, or bad rows without
            ``quarantine``, or a disk that is full or closed to us; the folder that was there
            before is untouched.
    """
    check(options)
    with refusals_told(options.folder):
        return _prepare(options, say)


def _prepare(options: Options, say: Callable[[str], object]) -> Manifest:
    placement.recover(options.folder)
    check_place(options)
    source = _open(options)
    identity = _identity(options, source)
    current = _current(options, identity["inputs"])
    if current is not None:
        say(f"{options.folder} is up to date")
        return current
    counter = Counter(options.tokenizer) if options.tokenizer else None
    found = survey(source, options.batch_size, options.instruction, counter)
    if found.any_bad() and options.quarantine is None:
        raise Refused(writer.report(options, source, found).all_problems())
    fate = fates(options, found)
    with ExitStack() as places:
        folder = places.enter_context(placement.finished_folder(options.folder))
        quarantine = None
        if options.quarantine is not None:
            quarantine = places.enter_context(placement.finished_file(options.quarantine))
        results = writer.write(options, source, found, fate, folder, quarantine)
        Manifest(**identity, **results).dump(folder)
    written = manifest.load(options.folder)
    for line in _told(options.folder, written):
        say(line)
    return written


def _open(options: Options) -> Source:
    if options.input is not None:
        return sources.from_folder(options.input)
    if options.source == "url":
        return sources.from_url()
    if options.source == "hf":
        return sources.from_hub()
    counts = {"train": options.train_rows, "test": options.test_rows}
    return sources.from_generator(options.level, options.seed, counts)


def _identity(options: Options, source: Source) -> dict[str, Any]:
    """The part of the manifest that is known before a row is read."""
    tokenizer = None
    if options.tokenizer is not None:
        folder = options.tokenizer.resolve()
        tokenizer = {"name": folder.name, "sha256": manifest.tokenizer_sha256(folder)}
    known = {
        "name": options.data_name,
        "source": source.record,
        "options": options.settings(),
        "tokenizer": tokenizer,
    }
    quarantined = options.quarantine is not None
    return {**known, "inputs": manifest.digest_of([manifest.FORMAT, known, quarantined])}


def _current(options: Options, inputs: str) -> Manifest | None:
    """The manifest that stands there, if it is of these inputs and every file is as written."""
    try:
        there = manifest.load(options.folder)
    except Refused:
        return None
    if there.inputs != inputs:
        return None
    file = options.quarantine
    if file is not None and there.quarantine is not None:
        whole = file.is_file() and manifest.sha256(file) == there.quarantine["sha256"]
        return there if whole else None
    return there


def _told(folder: Path, written: Manifest) -> Iterator[str]:
    yield f"{folder} ({written.data_source}):"
    for name, split in written.splits.items():
        dropped = ", ".join(f"{rows:,} {reason}" for reason, rows in split.dropped.items() if rows)
        line = f"  {name}: {split.rows_in:,} rows in, {split.kept:,} kept"
        yield line + (f"; {dropped}" if dropped else "")
        for what in ("prompt_tokens", "answer_tokens"):
            tokens = getattr(split, what)
            if tokens is not None:
                yield (
                    f"    {what}: mean {tokens.mean:.0f}, median {tokens.p50}, "
                    f"p90 {tokens.p90}, p99 {tokens.p99}, max {tokens.max}"
                )
    if "test" not in written.splits:
        yield "  the source has no test split, so test.parquet is not there"


def _options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = {field.name: field.default for field in fields(Options)}

    def add(name: str, text: str, kind: type = str, **more: Any) -> None:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=default[name], help=text, **more)

    parser.add_argument("--source", choices=SOURCES, required=True, help="where the rows are from")
    add("input", "folder of --source dir", Path, metavar="DIR")
    add("name", "name of the data set (gsm8k, or generated for that source)")
    add("out", "folder to write (out/data/NAME)", Path, metavar="DIR")
    add("instruction", "text behind every question (verl's for GSM8K)", metavar="TEXT")
    add("tokenizer", "folder of the model's tokenizer; without it no tokens are counted", Path)
    add("max_prompt_tokens", "drop and list longer prompts", int, metavar="N")
    add("rows", "keep at most N rows of each split", int, metavar="N")
    add("seed", "of --rows and of generated problems (%(default)s)", int)
    add("batch_size", "rows in memory at a time (%(default)s)", int, metavar="N")
    add("quarantine", "keep the good rows and write the bad ones here", Path, metavar="FILE")
    add("level", "of generated problems, 0 to 4 (%(default)s)", int)
    add("train_rows", "generated problems (%(default)s)", int, metavar="N")
    add("test_rows", "generated problems (%(default)s)", int, metavar="N")
    return Options(**vars(parser.parse_args(arguments)))


def _terminated(signum: int, frame: FrameType | None) -> None:
    # As an exception, so that the unfinished folder is removed on the way out.
    sys.exit(128 + signum)


def _command() -> None:
    signal.signal(signal.SIGTERM, _terminated)
    prepare(_options())


if __name__ == "__main__":
    main(_command)
