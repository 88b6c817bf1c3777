"""What a model's folder holds, whether it is whole, and how one takes the place of another."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from env.hashing import sha256 as sha256  # part of this module, too
from env.models.names import Fact

RECORD = "model.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Everything else of a repository stays there: other formats, pictures, code.
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
)
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors")
_PICKLE = re.compile(r".*\.(bin|pt|pth|pkl|pickle|ckpt)")

NO_PICKLES = "unpickling runs whatever code the file holds, so only *.safetensors are read"


@dataclass(frozen=True)
class Record:
    """``model.json``: what lies beside it and where it came from."""

    name: str
    source: str
    repo: str | None
    revision: str | None
    license: str
    parameters: int
    files: Mapping[str, Fact]

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        partial = folder / f"{RECORD}.incomplete"
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / RECORD)


def read_record(folder: Path) -> Record | None:
    """The record of ``folder``; None where there is none or it cannot be read."""
    try:
        table = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        table["files"] = {name: Fact(**fact) for name, fact in table["files"].items()}
        record = Record(**table)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return record if _is_well_formed(record) else None


def _is_well_formed(record: Record) -> bool:
    """Whether all has the type that it should have, and every file is one of the folder itself."""
    none = type(None)
    return (
        all(isinstance(text, str) for text in (record.name, record.source, record.license))
        and all(isinstance(text, (str, none)) for text in (record.repo, record.revision))
        and isinstance(record.parameters, int)
        and all(
            name == Path(name).name
            and isinstance(fact.bytes, (int, none))
            and isinstance(fact.sha256, (str, none))
            for name, fact in record.files.items()
        )
    )


def is_pickle(name: str) -> bool:
    return bool(_PICKLE.fullmatch(name.lower()))


def small_files(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that belong to a model beside its weights, sorted."""
    return sorted(set(names) & set(_SMALL))


def shards(index: bytes) -> dict[str, list[str]]:
    """The tensors of each file that an index names.

    Raises:
        ValueError: it is no index, or names a file outside the folder.
    """
    table = json.loads(index)
    weight_map = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("has no weight_map")
    files: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ValueError(f"names {name!r}, which is no *.safetensors file of this folder")
        files.setdefault(name, []).append(tensor)
    return files


def present(folder: Path) -> list[str]:
    """The files of ``folder`` that belong to its model, sorted; assumes that it is whole."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    weights = [WEIGHTS] if WEIGHTS in names else [INDEX, *shards((folder / INDEX).read_bytes())]
    return sorted([*small_files(names), *weights])


def measure(folder: Path, names: Iterable[str]) -> dict[str, Fact]:
    """Size and sha256 of every file, read from the disk."""
    return {
        name: Fact((folder / name).stat().st_size, sha256(folder / name)) for name in sorted(names)
    }


@contextlib.contextmanager
def locked(parent: Path, say: Any = print) -> Iterator[None]:
    """One process at a time makes models below ``parent``; the others wait and are told so."""
    parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is fetching a model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def put_in_place(staging: Path, folder: Path) -> None:
    """Rename the finished ``staging`` to ``folder``; a previous one leaves only after that."""
    handle = os.open(staging, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    previous = folder.with_name(f".{folder.name}.previous")
    shutil.rmtree(previous, ignore_errors=True)
    if folder.exists():
        folder.rename(previous)
    staging.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def make_readable(folder: Path) -> None:
    """Let other users read the files; safetensors writes them for their owner alone."""
    for path in folder.iterdir():
        path.chmod(0o644)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where both lie on one filesystem, else a copy; replaces ``target``."""
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
