"""Brings a model's files from a hub into a folder, whole and checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import requests

from env.errors import Problem, Refused
from env.models.checks import verify
from env.models.download import INCOMPLETE, RemoteFile, fetch_file
from env.models.folder import (
    INDEX,
    NO_PICKLES,
    WEIGHTS,
    is_pickle,
    link_or_copy,
    sha256,
    shards,
    small_files,
)
from env.models.listing import Listing
from env.models.names import Fact, Wanted
from env.models.progress import DownloadProgress


def download(wanted: Wanted, staging: Path, listing: Listing, have: Path | None) -> None:
    """The model's files into ``staging``, whole and checked.

    Args:
        staging: may hold what an earlier attempt left.
        have: a folder whose files are taken instead where they are the same.

    Raises:
        Refused: the repository holds no safetensors model; a file is not what is pinned; the disk
            is too small; (exit code 3) a file cannot be had.
    """
    files = _with_pins(listing, wanted.pinned)
    if wanted.pinned:
        files = {name: files[name] for name in wanted.pinned}
    small = small_files(files)
    if WEIGHTS in files:
        weights = [WEIGHTS]
    elif INDEX in files:
        small.append(INDEX)
        weights = []
    else:
        raise Refused(_no_weights(listing))
    staging.mkdir(parents=True, exist_ok=True)
    with requests.Session() as session:
        _download(session, wanted.name, [files[name] for name in small], staging, have)
        if not weights:
            weights = _shards(listing, staging / INDEX)
        _download(session, wanted.name, [files[name] for name in weights], staging, have)
    problems = verify(staging, hashes=False)
    if problems:
        shutil.rmtree(staging)
        raise Refused(problems)
    _say_what_was_checked(wanted, listing, [*small, *weights])


def _download(
    session: requests.Session,
    title: str,
    files: Iterable[RemoteFile],
    staging: Path,
    have: Path | None,
) -> None:
    missing = [file for file in files if not _already(file, staging, have)]
    sizes = [file.bytes for file in missing]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    if total:
        begun = sum(_size(staging / (file.name + INCOMPLETE)) for file in missing)
        _needs_room(staging, total - begun)
    with DownloadProgress(title, total) as progress:
        for file in missing:
            fetch_file(session, file, staging, progress)


def _already(file: RemoteFile, staging: Path, have: Path | None) -> bool:
    """Whether ``staging`` has the file, or could take it from ``have``."""
    target = staging / file.name
    if target.exists() and (file.bytes is None or _size(target) == file.bytes):
        return True
    kept = have / file.name if have else None
    if kept is None or not file.sha256 or _size(kept) != file.bytes or sha256(kept) != file.sha256:
        return False
    link_or_copy(kept, target)
    return True


def _with_pins(listing: Listing, pinned: Mapping[str, Fact]) -> dict[str, RemoteFile]:
    """The listed files with what is pinned about them; refuses where hub and pins differ."""
    problems = []
    files = dict(listing.files)
    for name, fact in pinned.items():
        file = files.get(name)
        where = f"{listing.url}, {name}"
        do = "use the pinned revision, or correct env/pins.toml if the new file is right"
        if file is None:
            problems.append(Problem(where, "is not there", "a pinned file", do))
            continue
        if file.bytes is not None and fact.bytes is not None and file.bytes != fact.bytes:
            what = f"has {file.bytes:,} bytes"
            problems.append(Problem(where, what, f"{fact.bytes:,}, as pinned", do))
        if file.sha256 and fact.sha256 and file.sha256 != fact.sha256:
            what = f"has sha256 {file.sha256}"
            problems.append(Problem(where, what, f"{fact.sha256}, as pinned", do))
        files[name] = replace(
            file, bytes=fact.bytes or file.bytes, sha256=fact.sha256 or file.sha256
        )
    if problems:
        raise Refused(problems)
    return files


def _shards(listing: Listing, index: Path) -> list[str]:
    try:
        named = sorted(shards(index.read_bytes()))
    except (ValueError, RecursionError) as error:
        index.unlink()
        raise Refused(
            Problem(f"{listing.url}, {INDEX}", str(error), "an index of shards")
        ) from None
    absent = [name for name in named if name not in listing.files]
    if absent:
        raise Refused(
            Problem(
                listing.url,
                f"lacks {', '.join(absent)}",
                f"every shard that {INDEX} names",
                "tell the repository's owner; another --revision may be whole",
            )
        )
    return named


def _no_weights(listing: Listing) -> Problem:
    pickles = sorted(filter(is_pickle, listing.files))
    expected = f"{WEIGHTS}, or {INDEX} and its shards"
    if pickles:
        what = f"holds only pickles ({', '.join(pickles[:3])}): {NO_PICKLES}"
        do = "take a repository or revision with safetensors"
        return Problem(listing.url, what, expected, do)
    return Problem(listing.url, "holds no weights", expected, "check the repository's name")


def _needs_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        what = f"{free:,} bytes are free"
        do = "free some space, or set VERL_P40_OUT to a larger disk"
        raise Refused(Problem(str(folder), what, f"{needed:,} bytes for the model", do))


def _say_what_was_checked(wanted: Wanted, listing: Listing, names: Iterable[str]) -> None:
    for name in names:
        file = listing.files[name]
        if name in wanted.pinned and wanted.pinned[name].sha256:
            how = "sha256 as pinned"
        elif file.sha256 or file.git_sha1:
            how = "hash as the hub says; recorded, not pinned"
        else:
            how = "recorded, not pinned"
        print(f"  {name}: {how}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
