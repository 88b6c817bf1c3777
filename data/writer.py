"""The second of two readings: writes what the survey has decided, and tells it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from data import files, sources
from data.checks import BadRow, Report, Row
from data.choice import FATES, KEPT, OVERLONG
from data.files import JsonlFile, ParquetFile
from data.manifest import File, Split, Tokens
from data.options import Options
from data.sources import Source
from data.survey import Survey
from data.tokens import summary


def report(options: Options, source: Source, found: Survey) -> Report:
    """Why the source is refused."""
    result = Report()
    for _, _, _, bad in _judged(options, source, found):
        if bad:
            result.add(bad)
    return result


def write(
    options: Options,
    source: Source,
    found: Survey,
    fate: bytearray,
    folder: Path,
    quarantine: Path | None,
) -> dict[str, Any]:
    """Write everything but the manifest into ``folder``, and bad rows to ``quarantine``.

    Returns:
        What :class:`data.manifest.Manifest` says of the result: ``data_source``, ``splits``,
        ``quarantine`` and ``files``.
    """
    data_source = sources.label(source, found.content, options.data_name)
    with ExitStack() as open_files:
        raw, kept = {}, {}
        for split in source.splits:
            raw[split] = open_files.enter_context(
                ParquetFile(folder / "raw" / f"{split}.parquet", files.RAW)
            )
            kept[split] = open_files.enter_context(
                ParquetFile(folder / f"{split}.parquet", files.RL)
            )
        dropped = open_files.enter_context(JsonlFile(folder / "dropped.jsonl"))
        refused = open_files.enter_context(JsonlFile(quarantine)) if quarantine else None
        for split, position, row, bad in _judged(options, source, found):
            index = position - found.spans[split].start
            if row is None:
                if refused is not None:
                    for one in bad:
                        refused.add(files.bad_row(one))
                continue
            raw[split].add(files.raw_row(row))
            if fate[position] == KEPT:
                line = files.rl_row(row, split, index, data_source, options.instruction)
                kept[split].add(line)
            elif fate[position] == OVERLONG:
                tokens = found.prompt_tokens[position]
                dropped.add(files.dropped_row(row, split, index, tokens))
    written: dict[str, File] = {"dropped.jsonl": dropped.describe()}
    for split in source.splits:
        written[f"raw/{split}.parquet"] = raw[split].describe()
        written[f"{split}.parquet"] = kept[split].describe()
    return {
        "data_source": data_source,
        "splits": {split: _split(options, found, fate, split) for split in source.splits},
        "quarantine": None if refused is None else _lines(refused.describe()),
        "files": written,
    }


def _judged(
    options: Options, source: Source, found: Survey
) -> Iterator[tuple[str, int, Row | None, list[BadRow]]]:
    """Split, position, and the good row or why it is bad, of every row in order."""
    for split, read in source.splits.items():
        # Not strict: a file that has changed since the survey is told below, and better.
        for position, raw in zip(found.spans[split], read(options.batch_size), strict=False):
            yield split, position, *found.judge(raw, position)
    source.check_unchanged()


def _split(options: Options, found: Survey, fate: bytearray, split: str) -> Split:
    span = found.spans[split]
    of_split = fate[span.start : span.stop]

    def tokens(counts: array[int]) -> Tokens | None:
        kept = [counts[position] for position in span if fate[position] == KEPT]
        return summary(kept) if kept and options.tokenizer else None

    return Split(
        rows_in=len(span),
        kept=of_split.count(KEPT),
        dropped={name: of_split.count(code) for code, name in enumerate(FATES) if code != KEPT},
        prompt_tokens=tokens(found.prompt_tokens),
        answer_tokens=tokens(found.answer_tokens),
    )


def _lines(file: File) -> dict[str, Any]:
    return {"lines": file.rows, "sha256": file.sha256}
