"""The manifest of a prepared folder: what came in, what was kept, what was written, with hashes.

Reading and verifying one imports neither torch nor transformers nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env.errors import Problem, Refused
from env.hashing import sha256 as sha256  # part of this module, too

FILE = "manifest.json"
# Raised whenever the same options and inputs give other files than before.
FORMAT = 1
SPLITS = ("train", "test")

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "config.json",
)


@dataclass(frozen=True)
class Tokens:
    """Lengths of a split's kept rows in tokens; quantiles by nearest rank, so each one occurs."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True)
class Split:
    """Rows of one split.

    Args:
        rows_in: rows that the source has.
        kept: rows of ``<split>.parquet``.
        dropped: rows by reason: ``quarantined``, ``overlong``, ``not_sampled``.
        prompt_tokens: of the kept rows' rendered prompts; None without a tokenizer.
        answer_tokens: of the kept rows' reference answers; None without a tokenizer.
    """

    rows_in: int
    kept: int
    dropped: dict[str, int]
    prompt_tokens: Tokens | None
    answer_tokens: Tokens | None


@dataclass(frozen=True)
class File:
    """One written file; ``size`` in bytes."""

    sha256: str
    size: int
    rows: int


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says.

    Args:
        name: of the data set, as in ``out/data/<name>``.
        data_source: the label that stands in every row.
        inputs: sha256 over everything that decides the files' content.
        source: kind and files of the source, with their hashes.
        options: instruction, max_prompt_tokens, rows, seed.
        tokenizer: name and sha256, or None.
        splits: by name; ``test`` is absent where the source has none.
        quarantine: lines and sha256 of the file of bad rows, or None.
        files: written files by their path in the folder.
    """

    name: str
    data_source: str
    inputs: str
    source: dict[str, Any]
    options: dict[str, Any]
    tokenizer: dict[str, str] | None
    splits: dict[str, Split]
    quarantine: dict[str, Any] | None
    files: dict[str, File]

    def dump(self, folder: Path) -> None:
        """Write ``manifest.json`` into ``folder``; the same manifest gives the same bytes."""
        text = json.dumps(
            {"format": FORMAT, **dataclasses.asdict(self)},
            indent=2,
            sort_keys=True,
            ensure_ascii=False,
        )
        (folder / FILE).write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> Manifest:
    """Read ``folder``'s manifest and verify size and sha256 of every file that it names.

    Raises:
        Refused: no manifest, one that cannot be read, or files that are missing or changed; all
            of them at once.
    """
    manifest = read(folder)
    problems = list(_differences(folder, manifest))
    if problems:
        raise Refused(problems)
    return manifest


def read(folder: Path) -> Manifest:
    """Read ``folder``'s manifest without looking at the files that it names.

    Raises:
        Refused: as for :func:`load`, but for the files.
    """
    path = folder / FILE
    again = "prepare the data again: python -m data.prepare"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(Problem(str(path), "is missing", "a prepared folder", again)) from None
    except (OSError, ValueError) as error:
        raise Refused(
            Problem(str(path), f"cannot be read: {error}", "a manifest", again)
        ) from error
    found = table.pop("format", None) if isinstance(table, dict) else None
    if found != FORMAT:
        raise Refused(Problem(str(path), f"has format {found!r}", f"format {FORMAT}", again))
    try:
        return Manifest(
            splits=_splits(table.pop("splits")),
            files={name: File(**file) for name, file in table.pop("files").items()},
            **table,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise Refused(
            Problem(str(path), f"lacks or adds something: {error}", "a manifest", again)
        ) from error


def tokenizer_sha256(folder: Path) -> str:
    """One hash over the files in ``folder`` that decide how text becomes tokens."""
    present = [name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return digest_of({name: sha256(folder / name) for name in present})


def digest_of(value: object) -> str:
    """sha256 of a JSON-serialisable value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _differences(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    again = "prepare the data again: python -m data.prepare"
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield Problem(str(path), "is missing", f"{file.size} bytes", again)
        elif path.stat().st_size != file.size:
            yield Problem(str(path), f"has {path.stat().st_size} bytes", str(file.size), again)
        elif (found := sha256(path)) != file.sha256:
            yield Problem(str(path), f"has sha256 {found}", file.sha256, again)


def _splits(tables: dict[str, Any]) -> dict[str, Split]:
    return {name: _split(tables[name]) for name in SPLITS if name in tables}


def _split(table: dict[str, Any]) -> Split:
    counted = {
        key: Tokens(**table[key]) if table[key] else None
        for key in ("prompt_tokens", "answer_tokens")
    }
    return Split(table["rows_in"], table["kept"], table["dropped"], **counted)
