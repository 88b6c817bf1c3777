"""Where rows come from: a folder, the published files, the hub, this project's generator.

Each source is resolved to the files of its splits, with their hashes, before a row is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from data import generated, manifest, readers
from data.checks import RawRow
from data.fetch import published_files, without_secrets
from data.manifest import SPLITS
from env.errors import UNREACHABLE, Problem, Refused
from env.pins import pins

GSM8K = "openai/gsm8k"
# sha256 over the questions and answers of GSM8K's published files, in whatever format they are.
GSM8K_CONTENT = {
    "train": "ffde652d46de52551e08f97e0402cc27fed686f04e641bd0699914f1eef69ce5",
    "test": "d6f0a6b1da87905476e140ad277b81aa52bf7ba6fc29009e06ac0233fee817d8",
}
_LAYOUTS = ("{}.jsonl", "{}.parquet", "{}-*.parquet", "main/{}-*.parquet")
_READERS: dict[str, readers.Reader] = {
    ".jsonl": readers.jsonl,
    ".parquet": readers.parquet,
    ".arrow": readers.arrow,
}


@dataclass(frozen=True)
class InputFile:
    """One file of a split; ``name`` is its path in the source, ``stamp`` tells a later change."""

    path: Path
    name: str
    sha256: str
    stamp: tuple[int, int]

    @classmethod
    def of(cls, path: Path, name: str) -> InputFile:
        stamp = _stamp(path)
        return cls(path, name, manifest.sha256(path), stamp)

    def rows(self, batch_size: int) -> Iterator[RawRow]:
        return _READERS[self.path.suffix](self.path, self.name, batch_size)


@dataclass(frozen=True)
class Source:
    """Splits to read, any number of times.

    Args:
        record: what the manifest says of the source; equal records mean equal rows.
        splits: by name (``train``, maybe ``test``): a function that starts reading, given the
            number of rows to read at a time.
        files: what the rows are read from; empty for the generator.
        is_gsm8k: it is known to be GSM8K by where it comes from.
    """

    record: dict[str, Any]
    splits: dict[str, Callable[[int], Iterator[RawRow]]]
    files: list[InputFile] = field(default_factory=list)
    is_gsm8k: bool = False

    def check_unchanged(self) -> None:
        """Raise Refused if a file is not the one that was hashed."""
        problems = [
            Problem(str(file.path), "changed while it was read", do="run the command again")
            for file in self.files
            if _stamp(file.path) != file.stamp
        ]
        if problems:
            raise Refused(problems)


def label(source: Source, content: dict[str, str], name: str) -> str:
    """The ``data_source`` of every row: GSM8K's only if the rows are GSM8K's.

    Args:
        source: where the rows come from.
        content: sha256 of each split's rows, as :mod:`data.survey` takes it.
        name: of the data set.
    """
    published = all(GSM8K_CONTENT[split] == sha256 for split, sha256 in content.items())
    return GSM8K if source.is_gsm8k or published else f"verl-p40/{name}"


def from_folder(folder: Path) -> Source:
    """GSM8K's JSONL, parquet, a ``save_to_disk`` folder, or a folder prepared by this project.

    Raises:
        Refused: no train split, two layouts for one split, or files that cannot be used.
    """
    if (folder / manifest.FILE).is_file() and (folder / "raw").is_dir():
        prepared = manifest.load(folder)
        found = {split: [folder / "raw" / f"{split}.parquet"] for split in prepared.splits}
        return _of_files(folder, found, {"kind": "dir"}, prepared.data_source == GSM8K)
    if (folder / "dataset_dict.json").is_file():
        return _of_files(folder, _saved_to_disk(folder), {"kind": "dir"})
    return _of_files(folder, _laid_out(folder), {"kind": "dir"})


def from_url() -> Source:
    """GSM8K as published, at the pinned commit and by hash; see :mod:`data.fetch`."""
    gsm8k = pins()["data"]["gsm8k"]
    found = {split: [path] for split, path in published_files().items()}
    record = {"kind": "url"} | {key: gsm8k[key] for key in ("url", "commit", "license")}
    return _of_files(None, found, record, is_gsm8k=True)


def from_hub() -> Source:
    """``openai/gsm8k`` from the hub, or from HF_ENDPOINT, or (HF_HUB_OFFLINE) from its cache.

    Raises:
        Refused: with exit code UNREACHABLE if it cannot be had.
    """
    from huggingface_hub import constants, snapshot_download

    revision = pins()["data"]["gsm8k"].get("hf_revision", "main")
    try:
        folder = snapshot_download(
            GSM8K, repo_type="dataset", revision=revision, allow_patterns="main/*.parquet"
        )
    # requests' errors are OSErrors; what the hub's client refuses by itself is a ValueError.
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else repr(error)
        raise Refused(
            Problem(
                without_secrets(f"{constants.ENDPOINT}/datasets/{GSM8K} (revision {revision})"),
                f"cannot be fetched: {without_secrets(first)}",
                "main/train-*.parquet and main/test-*.parquet",
                "set HF_ENDPOINT to a mirror, or lay the files in a folder and use "
                "--source dir --input FOLDER",
            ),
            UNREACHABLE,
        ) from error
    # The snapshot's folder is named by the commit, whatever the revision was called.
    record = {"kind": "hf", "repository": GSM8K, "revision": Path(folder).name}
    return _of_files(Path(folder), _laid_out(Path(folder)), record, is_gsm8k=True)


def from_generator(level: int, seed: int, counts: dict[str, int]) -> Source:
    """Word problems of :mod:`data.generated`, ``counts`` rows a split.

    Raises:
        Refused: the level does not exist or has fewer problems than that.
    """
    generated.check(level, counts)

    def reader(split: str, rows: int) -> Callable[[int], Iterator[RawRow]]:
        def read(batch_size: int) -> Iterator[RawRow]:
            problems = generated.problems(split, rows, seed, level)
            for line, problem in enumerate(problems, 1):
                yield RawRow(f"generated {split}", line, problem["question"], problem["answer"])

        return read

    record = {
        "kind": "generated",
        "level": level,
        "seed": seed,
        "rows": counts,
        "generator_sha256": manifest.sha256(Path(generated.__file__)),
    }
    return Source(record, {split: reader(split, rows) for split, rows in counts.items() if rows})


def _of_files(
    folder: Path | None,
    found: dict[str, list[Path]],
    record: dict[str, Any],
    is_gsm8k: bool = False,
) -> Source:
    def named(path: Path) -> str:
        return path.relative_to(folder).as_posix() if folder else path.name

    # A folder cannot be hashed, and a pipe would be waited for without end.
    odd = [path for path in chain(*found.values()) if not path.is_file()]
    if odd:
        raise Refused(Problem(str(path), "is no file", "a file", "correct it") for path in odd)
    files = {split: [InputFile.of(path, named(path)) for path in found[split]] for split in found}
    listed = {
        split: [{"file": file.name, "sha256": file.sha256} for file in of_split]
        for split, of_split in files.items()
    }

    def reader(of_split: list[InputFile]) -> Callable[[int], Iterator[RawRow]]:
        return lambda batch_size: chain.from_iterable(file.rows(batch_size) for file in of_split)

    splits = {split: reader(of_split) for split, of_split in files.items()}
    return Source({**record, "files": listed}, splits, list(chain(*files.values())), is_gsm8k)


def _laid_out(folder: Path) -> dict[str, list[Path]]:
    layouts = " or ".join(layout.format("train") for layout in _LAYOUTS)
    expected = f"{layouts} (the same for test), or a folder written by save_to_disk"
    if not folder.is_dir():
        raise Refused(Problem(str(folder), "is no folder", expected, "correct --input"))
    found: dict[str, list[Path]] = {}
    problems = []
    for split in SPLITS:
        by_layout = [sorted(folder.glob(layout.format(split))) for layout in _LAYOUTS]
        present = [files for files in by_layout if files]
        if len(present) > 1:
            names = ", ".join(str(files[0].relative_to(folder)) for files in present)
            do = "move all but one of them away"
            problems.append(Problem(f"{folder}, {split}", f"stands there as {names}", "one", do))
        elif present:
            found[split] = present[0]
        elif split == "train":
            has = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
            what = f"holds no train split (it holds {has})"
            problems.append(Problem(str(folder), what, expected, "correct --input"))
    if problems:
        raise Refused(problems)
    return found


def _saved_to_disk(folder: Path) -> dict[str, list[Path]]:
    do = "write it again: datasets' DatasetDict.save_to_disk"
    try:
        names = json.loads((folder / "dataset_dict.json").read_text("utf-8"))["splits"]
        found = {}
        for split in (split for split in SPLITS if split in names):
            state = json.loads((folder / split / "state.json").read_text("utf-8"))
            # A row order kept apart from the rows; today's save_to_disk never writes one.
            if state.get("_indices_data_files"):
                raise Refused(Problem(f"{folder / split}", "has an index of its own", "none", do))
            files = [Path(entry["filename"]).name for entry in state["_data_files"]]
            found[split] = [folder / split / name for name in files]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "a whole folder written by save_to_disk"
        raise Refused(Problem(str(folder), f"cannot be read: {error!r}", expected, do)) from error
    problems = [
        Problem(str(path), "is missing", "an .arrow file", do)
        for path in chain(*found.values())
        if path.suffix != ".arrow" or not path.is_file()
    ]
    if "train" not in found:
        problems.append(Problem(str(folder), f"has the splits {names}", "a split train", do))
    if problems:
        raise Refused(problems)
    return found


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
