"""GSM8K's published files: laid by hand in env/downloads/, fetched before, or from their URL.

Whatever way a file came, its sha256 is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from http.client import HTTPException
from pathlib import Path

from data import manifest
from data.manifest import SPLITS
from env import paths
from env.errors import REFUSED, UNREACHABLE, Problem, Refused
from env.pins import pins

# A folder of a mirror that holds train.jsonl and test.jsonl.
MIRROR = "GSM8K_URL"
_TIMEOUT_S = 30


def published_files() -> dict[str, Path]:
    """Path of each split's JSONL; fetches into ``out/downloads/`` what is missing.

    Raises:
        Refused: a laid or fetched file has another hash; or (exit code UNREACHABLE) a file cannot
            be had. All files' problems at once.
    """
    files, problems, exit_code = {}, [], REFUSED
    for split in SPLITS:
        try:
            files[split] = _published(split)
        except Refused as refused:
            problems += refused.problems
            exit_code = max(exit_code, refused.exit_code)
    if problems:
        raise Refused(problems, exit_code)
    return files


def url(split: str) -> str:
    """Address of ``<split>.jsonl``, at the mirror that GSM8K_URL names if it is set.

    Raises:
        Refused: the mirror's address holds what may be secret; addresses are shown and kept.
    """
    mirror = os.environ.get(MIRROR)
    if mirror:
        if "@" in mirror or "?" in mirror:
            what = "holds a user, a password or a query"
            raise Refused(Problem(MIRROR, what, "a plain address of a folder", "leave them out"))
        return f"{mirror.rstrip('/')}/{split}.jsonl"
    gsm8k = pins()["data"]["gsm8k"]
    address: str = gsm8k["url"].format(commit=gsm8k["commit"], file=f"{split}.jsonl")
    return address


def without_secrets(text: str) -> str:
    """``text`` without the user, password and query of every address in it."""
    text = re.sub(r"(\w://)[^/\s@]*@", r"\1", text)
    return re.sub(r"(\w://[^\s?]*)\?[^\s'\")]*", r"\1", text)


def _published(split: str) -> Path:
    expected = pins()["data"]["gsm8k"][f"{split}_sha256"]
    laid = paths.DOWNLOADS / f"{split}.jsonl"
    if laid.is_file():
        if (found := manifest.sha256(laid)) != expected:
            do = f"remove it, or lay the file of {url(split)} there"
            raise Refused(Problem(str(laid), f"has sha256 {found}", expected, do))
        return laid
    fetched = paths.out() / "downloads" / "gsm8k" / laid.name
    if not (fetched.is_file() and manifest.sha256(fetched) == expected):
        _fetch(url(split), fetched, expected)
    return fetched


def _fetch(address: str, path: Path, expected: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer,
            beside.open("wb") as stream,
        ):
            while piece := answer.read(1 << 16):
                digest.update(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != expected:
            what = f"gave a file of sha256 {digest.hexdigest()}"
            raise _unreachable(address, what, path.name, expected)
        beside.replace(path)
    # URLError and the like are OSErrors; a bad address is a ValueError.
    except (OSError, ValueError, HTTPException) as error:
        what = f"cannot be fetched: {error}"
        raise _unreachable(address, what, path.name, expected) from error
    finally:
        beside.unlink(missing_ok=True)


def _unreachable(address: str, what: str, name: str, expected: str) -> Refused:
    do = f"lay the file in {paths.DOWNLOADS / name}, or name a mirror's folder in {MIRROR}"
    return Refused(Problem(address, what, f"sha256 {expected}", do), UNREACHABLE)
