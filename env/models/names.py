"""Which models have a name here, and what a person may have meant by a name.

The catalogue is the ``[models.*]`` part of ``env/pins.toml``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env import paths
from env.errors import Problem, Refused
from env.pins import pins

SOURCES = ("auto", "hf", "modelscope", "folder", "package", "tiny")

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")


@dataclass(frozen=True)
class Fact:
    """What is known about one file before it is fetched; None: not known."""

    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Wheel:
    """The registry package that carries a model as a GGUF file."""

    package: str
    version: str
    file: str
    bytes: int
    sha256: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue. ``files`` is empty where nothing is pinned."""

    name: str
    source: str
    license: str
    repo: str | None = None
    revision: str | None = None
    files: Mapping[str, Fact] = field(default_factory=dict)
    wheel: Wheel | None = None


@dataclass(frozen=True)
class Wanted:
    """What to fetch: ``name`` under ``out/models``, from ``source`` (never "auto").

    ``said_source`` and ``said_revision`` are what the caller asked for in so many words.
    ``pinned`` holds what every fetched file must be; empty where nothing is known beforehand.
    """

    name: str
    source: str
    entry: Entry | None
    repo: str | None
    revision: str | None
    folder: Path | None
    endpoint: str | None
    said_source: str | None
    said_revision: str | None

    @property
    def pinned(self) -> Mapping[str, Fact]:
        if self.entry is None:
            return {}
        same_revision = self.said_revision in (None, self.entry.revision)
        if self.entry.source == "hf":
            # The same files, wherever they come from.
            return self.entry.files if same_revision else {}
        return self.entry.files if self.source == self.entry.source else {}


def catalogue() -> dict[str, Entry]:
    """Every model that has a name here, in the order of ``env/pins.toml``.

    Raises:
        Refused: a table of ``[models.*]`` lacks a key; names every one.
    """
    problems: list[Problem] = []
    entries = {}
    for name, table in pins()["models"].items():
        missing = [key for key in _required(table) if key not in table]
        problems += [
            Problem(f"env/pins.toml, models.{name}.{key}", "is missing", do="add the key")
            for key in missing
        ]
        if not missing:
            entries[name] = _entry(name, table)
    if problems:
        raise Refused(problems)
    return entries


def resolve(
    what: str, source: str = "auto", revision: str | None = None, endpoint: str | None = None
) -> Wanted:
    """What ``what`` means: a name of the catalogue, a folder, or a repository of a hub.

    Raises:
        Refused: nothing is called that, or the source cannot serve it.
    """
    if source not in SOURCES:
        raise Refused(Problem("--source", f"{source!r} is no source", ", ".join(SOURCES)))
    entries = catalogue()
    if revision and not is_revision(revision):
        expected = "a commit, branch or tag"
        raise Refused(Problem("--revision", f"is {revision!r}", expected, "correct it"))
    entry = _named(what, entries)
    try:
        folder = Path(what).expanduser()
    except RuntimeError:
        raise Refused(Problem(f"MODEL={what}", "names a user who is not there")) from None
    if source == "auto" and entry is None and _NAME.fullmatch(what) and paths.model(what).is_dir():
        return _from_folder(paths.model(what), entries, source, revision, endpoint)
    if source == "folder" or (source == "auto" and entry is None and _is_folder(what)):
        return _from_folder(folder, entries, source, revision, endpoint)
    if entry is None and not _REPO.fullmatch(what):
        raise Refused(_unknown(what, entries))
    chosen = source if source != "auto" else entry.source if entry else "hf"
    repo = entry.repo if entry else what
    if chosen in ("package", "tiny") and (entry is None or entry.source != chosen):
        able = ", ".join(one.name for one in entries.values() if one.source == chosen)
        raise Refused(
            Problem("--source", f"{chosen} has no {what}", able, "choose hf, modelscope or folder")
        )
    if chosen in ("hf", "modelscope") and repo is None:
        raise Refused(
            Problem("--source", f"{what} is on no hub", "tiny", f"make model MODEL={what}")
        )
    pinned = entry.revision if entry and chosen == "hf" else None
    return Wanted(
        name=entry.name if entry else what.rpartition("/")[2],
        source=chosen,
        entry=entry,
        repo=repo,
        revision=revision or pinned,
        folder=None,
        endpoint=endpoint,
        said_source=None if source == "auto" else source,
        said_revision=revision,
    )


def is_revision(text: str) -> bool:
    """Whether ``text`` may name a commit, branch or tag, and never leads out of a folder."""
    return bool(_REVISION.fullmatch(text)) and ".." not in text


def _from_folder(
    folder: Path,
    entries: Mapping[str, Entry],
    source: str,
    revision: str | None,
    endpoint: str | None,
) -> Wanted:
    said = [
        option for option, value in (("--revision", revision), ("--endpoint", endpoint)) if value
    ]
    if said:
        raise Refused(Problem(said[0], "says nothing about a folder", do="leave it out"))
    folder = folder.resolve()
    if not folder.is_dir():
        raise Refused(
            Problem(str(folder), "is no folder", "a folder with config.json and *.safetensors")
        )
    if not _NAME.fullmatch(folder.name):
        raise Refused(
            Problem(
                str(folder), "has no usable name", "letters, digits, . _ -", "rename the folder"
            )
        )
    entry = _named(folder.name, entries)
    if entry and folder == paths.model(entry.name):
        return resolve(entry.name)
    if entry and entry.source != "hf":
        what = f"would take the place of {entry.name}, which is made here"
        raise Refused(Problem(str(folder), what, "another name", "rename the folder"))
    return Wanted(
        name=entry.name if entry else folder.name,
        source="folder",
        entry=entry,
        repo=None,
        revision=None,
        folder=folder,
        endpoint=None,
        said_source=None if source == "auto" else source,
        said_revision=None,
    )


def _named(what: str, entries: Mapping[str, Entry]) -> Entry | None:
    """The entry of that name, repository or repository's last part, in any case."""
    plain = what.lower()
    for entry in entries.values():
        # A model that is made here has no repository.
        repo = (entry.repo or entry.name).lower()
        if plain in (entry.name, repo, repo.rpartition("/")[2]):
            return entry
    return None


def _is_folder(what: str) -> bool:
    return what.startswith(("/", ".", "~")) or Path(what).is_dir()


def _unknown(what: str, entries: Mapping[str, Entry]) -> Problem:
    near = difflib.get_close_matches(what.lower(), entries, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return Problem(
        f"MODEL={what}",
        "is no model known here",
        f"one of {', '.join(entries)}; a repository such as ORGANISATION/NAME; or a folder",
        f"{hint}make model MODEL={near[0] if near else next(iter(entries))}",
    )


def _required(table: Mapping[str, Any]) -> list[str]:
    by_source = {
        "package": ["package", "version", "wheel", "bytes", "sha256", "member", "member_sha256"],
        "hf": ["repo"],
    }
    return ["from", "license", *by_source.get(table.get("from", ""), [])]


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    wheel = None
    if table["from"] == "package":
        wheel = Wheel(
            package=table["package"],
            version=table["version"],
            file=table["wheel"],
            bytes=table["bytes"],
            sha256=table["sha256"],
            member=table["member"],
            member_sha256=table["member_sha256"],
        )
    return Entry(
        name=name,
        source=table["from"],
        license=table["license"],
        repo=table.get("repo"),
        revision=table.get("revision"),
        files={
            file: Fact(fact.get("bytes"), fact.get("sha256"))
            for file, fact in table.get("files", {}).items()
        },
        wheel=wheel,
    )
