"""Reads ``run/presets/*.yaml``: what to train, on which data, with which of verl's settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from env.errors import Problem, Refused
from env.paths import PRESETS

REWARDS = ("strict", "normalised", "graded", "digits")
SOURCES = ("gsm8k", "generated", "dir", "hf")


@dataclass(frozen=True)
class DataSpec:
    """One data set that a preset asks for.

    Args:
        name: part of the folder's name under out/data.
        source: "gsm8k" (GSM8K_DIR, a file laid by hand, or the published files), "generated", "dir"
            or "hf".
        input: the folder, for source "dir".
        rows: so many rows of each split, chosen by ``seed``; None means all.
        level, train_rows, test_rows: of generated problems.
        optional: go on without it, saying so, where it cannot be had.
    """

    name: str
    source: str
    input: str | None = None
    rows: int | None = None
    seed: int = 0
    level: int = 0
    train_rows: int = 512
    test_rows: int = 64
    optional: bool = False


@dataclass(frozen=True)
class Preset:
    """A preset with its base merged in; ``verl`` is a nested mapping of verl's own keys."""

    name: str
    description: str
    model: str
    reward: str
    train: DataSpec
    validation: list[DataSpec]
    verl: dict[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The presets that can be trained."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if path.stem != "common")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names what ``word`` was probably meant to be; "" where nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else ""


def load(name: str) -> Preset:
    """The preset ``name``.

    Raises:
        Refused: no such preset, no YAML, or fields that are missing, unknown or of the wrong type.
    """
    if name not in names():
        problem = Problem(
            where=f"--preset {name}",
            what="no such preset",
            expected=f"one of {', '.join(names())}",
            do=nearest(name, names()),
        )
        raise Refused(problem)
    return build(name, _merged(PRESETS / f"{name}.yaml"))


def build(name: str, tree: dict[str, Any]) -> Preset:
    """Check a merged preset's fields and make a :class:`Preset` of them."""
    where = f"run/presets/{name}.yaml"
    problems: list[Problem] = []
    fields = set(Preset.__dataclass_fields__) - {"name"}
    for key in sorted(set(tree) - fields):
        hint = nearest(key, fields)
        problems.append(
            Problem(f"{where}: {key}", "unknown field", ", ".join(sorted(fields)), hint)
        )
    for key in sorted(fields - set(tree)):
        problems.append(Problem(f"{where}: {key}", "missing"))
    if problems:
        raise Refused(problems)
    if tree["reward"] not in REWARDS:
        expected = f"one of {', '.join(REWARDS)}"
        problems.append(Problem(f"{where}: reward", f"is {tree['reward']!r}", expected))
    specs = {"train": tree["train"]}
    specs |= {f"validation[{i}]": spec for i, spec in enumerate(tree["validation"])}
    data = {key: _data_spec(f"{where}: {key}", spec, problems) for key, spec in specs.items()}
    if problems:
        raise Refused(problems)
    train = data.pop("train")
    assert train is not None
    return Preset(
        name=name,
        description=tree["description"],
        model=tree["model"],
        reward=tree["reward"],
        train=train,
        validation=[spec for spec in data.values() if spec is not None],
        verl=tree["verl"],
    )


def _data_spec(where: str, spec: Any, problems: list[Problem]) -> DataSpec | None:
    if not isinstance(spec, dict):
        problems.append(Problem(where, f"is {spec!r}", "a mapping with name and source"))
        return None
    before = len(problems)
    fields = DataSpec.__dataclass_fields__
    for key, value in spec.items():
        if key not in fields:
            hint = nearest(key, fields)
            problems.append(Problem(f"{where}.{key}", "unknown field", ", ".join(fields), hint))
        elif "int" in str(fields[key].type) and not _is_int(value):
            problems.append(Problem(f"{where}.{key}", f"is {value!r}", "a whole number"))
    for key in ("name", "source"):
        if key not in spec:
            problems.append(Problem(f"{where}.{key}", "missing"))
    if "source" in spec and spec["source"] not in SOURCES:
        expected = f"one of {', '.join(SOURCES)}"
        problems.append(Problem(f"{where}.source", f"is {spec['source']!r}", expected))
    return DataSpec(**spec) if len(problems) == before else None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _merged(path: Path) -> dict[str, Any]:
    tree = _read(path)
    base = tree.pop("base", None)
    return tree if base is None else _merge(_merged(PRESETS / f"{base}.yaml"), tree)


def _read(path: Path) -> dict[str, Any]:
    where = f"run/presets/{path.name}"
    try:
        # OmegaConf's YAML, as verl's: 1e-6 is a number there, and a key given twice an error.
        tree = OmegaConf.to_container(OmegaConf.create(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise Refused(Problem(where, str(error), "a preset file")) from error
    except yaml.YAMLError as error:
        raise Refused(Problem(where, f"is no YAML: {error}")) from error
    if not isinstance(tree, dict):
        raise Refused(Problem(where, f"holds a {type(tree).__name__}", "a mapping"))
    return {str(key): value for key, value in tree.items()}


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` on top of ``below``: mappings by key, all else replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merge(known, value) if both else value  # type: ignore[arg-type]
    return merged
