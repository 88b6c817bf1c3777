"""Whether a folder is a whole model: everything that is wrong with it, without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from env.errors import Problem
from env.models.folder import (
    INDEX,
    NO_PICKLES,
    RECORD,
    WEIGHTS,
    is_pickle,
    present,
    read_record,
    sha256,
    shards,
)
from env.models.names import Fact


def verify(folder: Path, hashes: bool = True) -> list[Problem]:
    """Everything that keeps ``folder`` from being a whole model; empty when it is one.

    Args:
        folder: of any model, with or without ``model.json``.
        hashes: also read every file and compare its sha256 with ``model.json``.
    """
    if not folder.is_dir():
        return [Problem(str(folder), "is missing", "a model's folder", "make model MODEL=...")]
    record = read_record(folder)
    if record is None and (folder / RECORD).exists():
        return [Problem(str(folder / RECORD), "cannot be read", "JSON", "delete it, and run again")]
    problems = compare(folder, record.files, hashes) if record else []
    return problems or [*_pickles(folder), *_config(folder), *_tokenizer(folder), *_weights(folder)]


def compare(folder: Path, facts: Mapping[str, Fact], hashes: bool) -> list[Problem]:
    """Every file that is missing, or has another size or (with ``hashes``) another sha256."""
    problems = []
    for name, fact in facts.items():
        path = folder / name
        if not path.is_file():
            problems.append(Problem(str(path), "is missing", _said(fact), "fetch the model again"))
        elif fact.bytes is not None and path.stat().st_size != fact.bytes:
            found = f"has {path.stat().st_size:,} bytes"
            problems.append(Problem(str(path), found, _said(fact), "fetch the model again"))
        elif hashes and fact.sha256 and (found := sha256(path)) != fact.sha256:
            found = f"has sha256 {found}"
            problems.append(Problem(str(path), found, fact.sha256, "fetch the model again"))
    return problems


def parameters(folder: Path) -> int:
    """How many numbers the weights hold; tied ones count once."""
    return sum(
        _product(shape)
        for name in present(folder)
        if name.endswith(".safetensors")
        for shape in _shapes(folder / name).values()
    )


def _said(fact: Fact) -> str:
    size = "" if fact.bytes is None else f"{fact.bytes:,} bytes"
    return ", ".join(part for part in (size, fact.sha256 and f"sha256 {fact.sha256}") if part)


def _pickles(folder: Path) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        if is_pickle(path.name):
            yield Problem(
                str(path),
                "is a pickle",
                f"no pickle: {NO_PICKLES}",
                "remove it, if the weights are there as *.safetensors too; else convert them with "
                "save_pretrained(..., safe_serialization=True) where you trust the file",
            )


def _config(folder: Path) -> Iterator[Problem]:
    config = _json(folder / "config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        yield Problem(
            str(folder / "config.json"),
            "is missing" if config is None else "has no model_type",
            "the model's configuration, JSON",
            "take it from where the weights come from",
        )


def _tokenizer(folder: Path) -> Iterator[Problem]:
    fast = folder / "tokenizer.json"
    if fast.exists():
        if not isinstance(_json(fast), dict):
            yield Problem(str(fast), "is no JSON object", "a tokenizer", "fetch it again")
    elif not (folder / "tokenizer.model").exists() and not (
        (folder / "vocab.json").exists() and (folder / "merges.txt").exists()
    ):
        yield Problem(
            str(folder),
            "has no tokenizer",
            "tokenizer.json, or tokenizer.model, or vocab.json and merges.txt",
            "take it from where the weights come from",
        )


def _weights(folder: Path) -> Iterator[Problem]:
    if (folder / WEIGHTS).exists():
        tensors: dict[str, list[str]] = {WEIGHTS: []}
    elif (folder / INDEX).exists():
        try:
            tensors = shards((folder / INDEX).read_bytes())
        except (ValueError, OSError, RecursionError) as error:
            yield Problem(str(folder / INDEX), str(error), "an index of shards", "fetch it again")
            return
    else:
        expected = f"{WEIGHTS}, or {INDEX} and its shards"
        yield Problem(str(folder), "has no weights", expected, "fetch the model again")
        return
    for name, expected_tensors in tensors.items():
        path = folder / name
        if not path.exists():
            what = f"is missing; {INDEX} names it"
            yield Problem(str(path), what, f"{len(expected_tensors)} tensors", "fetch it again")
            continue
        try:
            found = _shapes(path)
        except (OSError, ValueError) as error:
            what = f"is no whole safetensors file ({error})"
            yield Problem(str(path), what, "", "fetch it again")
            continue
        absent = sorted(set(expected_tensors) - set(found))
        if absent:
            what = f"lacks {len(absent)} tensors that {INDEX} names"
            yield Problem(str(path), what, ", ".join(absent[:3]), "fetch both again")


def _shapes(path: Path) -> dict[str, list[int]]:
    """Shape of every tensor. ValueError: the header is wrong, or the file is cut or too long."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _json(path: Path) -> Any:
    """What the file says; None where it is missing, and a string where it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError):
        return "no JSON"


def _product(shape: Iterable[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
