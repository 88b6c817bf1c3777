"""What ``python -m data.prepare`` can be asked for, and which askings make no sense."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import checks, files, manifest
from env import paths
from env.errors import Problem, Refused

# verl's own, from its GSM8K example.
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
SOURCES = ("dir", "url", "hf", "generated")
MOST_BATCH = 1 << 16
# All that a prepared folder holds.
_OURS = {"train.parquet", "test.parquet", "raw", "dropped.jsonl", manifest.FILE}


@dataclass(frozen=True)
class Options:
    """What to prepare.

    Args:
        source: ``dir``, ``url``, ``hf`` or ``generated``.
        input: folder of source ``dir``.
        name: of the data set; None: ``generated`` for that source, else ``gsm8k``.
        out: folder to write; None: ``out/data/<name>``.
        instruction: put after every question, behind a space.
        tokenizer: folder of a tokenizer; None: nothing is counted, nothing dropped.
        max_prompt_tokens: longer prompts are dropped and listed; None: none is.
        rows: at most so many rows of each split are kept, drawn by ``seed``; None: all.
        seed: of that draw, and of the generated problems.
        batch_size: rows read, checked and counted at a time; changes no byte of the result.
        quarantine: file for the bad rows; None: bad rows refuse the whole.
        level: of generated problems.
        train_rows: number of generated problems.
        test_rows: number of generated problems.
    """

    source: str
    input: Path | None = None
    name: str | None = None
    out: Path | None = None
    instruction: str = INSTRUCTION
    tokenizer: Path | None = None
    max_prompt_tokens: int | None = None
    rows: int | None = None
    seed: int = 0
    batch_size: int = 128
    quarantine: Path | None = None
    level: int = 1
    train_rows: int = 1024
    test_rows: int = 128

    @property
    def data_name(self) -> str:
        return self.name or ("generated" if self.source == "generated" else "gsm8k")

    @property
    def folder(self) -> Path:
        return (self.out or paths.data(self.data_name)).resolve()

    def settings(self) -> dict[str, Any]:
        """The options that decide what is written, beside source and tokenizer."""
        return {
            "instruction": self.instruction,
            "max_prompt_tokens": self.max_prompt_tokens,
            "rows": self.rows,
            "seed": None if self.rows is None else self.seed,
        }


def check(options: Options) -> None:
    """Raise Refused, with every problem, for options that make no sense together."""
    problems = []
    if options.source not in SOURCES:
        expected = ", ".join(SOURCES)
        problems.append(Problem("--source", f"is {options.source!r}", expected, "choose one"))
    if (options.source == "dir") != (options.input is not None):
        expected = "a folder with --source dir, and only there"
        problems.append(Problem("--input", f"is {options.input}", expected, "add or remove it"))
    if not options.folder.name:
        problems.append(Problem("--out", f"is {options.folder}", "a folder to write", "choose one"))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", options.data_name):
        expected = "letters, digits, dot, dash, underscore"
        problems.append(Problem("--name", f"is {options.name!r}", expected, "choose another"))
    if options.max_prompt_tokens is not None and options.tokenizer is None:
        do = "add --tokenizer FOLDER"
        problems.append(Problem("--max-prompt-tokens", "cannot be counted", "a tokenizer", do))
    for option in ("max_prompt_tokens", "rows", "batch_size", "train_rows"):
        value = getattr(options, option)
        if value is not None and value < 1:
            problems.append(Problem(_flag(option), f"is {value}", "1 or more", "correct it"))
    if options.batch_size > MOST_BATCH:
        what, expected = f"is {options.batch_size:,}", f"at most {MOST_BATCH:,}"
        problems.append(Problem("--batch-size", what, expected, "correct it"))
    for option in ("input", "out", "instruction", "tokenizer", "quarantine"):
        text = str(getattr(options, option) or "")
        try:
            text.encode()
        except UnicodeEncodeError:
            # Neither parquet nor the manifest can hold it.
            what = f"is {checks.shorten(text)!r}"
            problems.append(Problem(_flag(option), what, "text in UTF-8", "choose another"))
    if problems:
        raise Refused(problems)


def check_place(options: Options) -> None:
    """Raise Refused unless the folder can be replaced whole without losing what is not ours."""
    folder, problems = options.folder, _wrong_quarantine(options)
    do = "choose another folder: --out"
    if folder.exists() and not folder.is_dir():
        problems.append(Problem(str(folder), "is no folder", "a folder to write", do))
    elif folder.is_dir():
        names = {path.name for path in folder.iterdir()}
        others = sorted(names - _OURS if manifest.FILE in names else names)
        if others:
            what = f"holds what this command has not written: {', '.join(others[:5])}"
            problems.append(Problem(str(folder), what, "an empty or a prepared folder", do))
    if options.input and folder in (options.input.resolve(), *options.input.resolve().parents):
        problems.append(Problem(str(folder), "holds the input", "another folder", do))
    if problems:
        raise Refused(problems)


def _wrong_quarantine(options: Options) -> list[Problem]:
    """What is wrong with the place for bad rows; nothing but an earlier quarantine is replaced."""
    file, do = options.quarantine, "choose a file elsewhere"
    if file is None:
        return []
    if options.folder in file.resolve().parents:
        return [Problem("--quarantine", f"lies in {options.folder}", "a file outside it", do)]
    if file.exists() and not files.is_quarantine(file):
        what = f"{file} is there, and this command has not written it"
        return [Problem("--quarantine", what, "a new file, or an earlier quarantine", do)]
    return []


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
