"""The files of a prepared folder: raw parquet, verl's RL parquet, JSON lines.

The same rows give the same bytes: options are explicit, row groups have a fixed size whatever the
batch size was, and the files carry no metadata but their columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from data import manifest
from data.checks import BadRow, Row
from data.manifest import File
from data.survey import messages

ROW_GROUP = 1024
_BAD_ROW = ("file", "line", "field", "value", "reason", "detail")
RAW = pa.schema([("question", pa.string()), ("answer", pa.string())])
# The columns that verl's RLHFDataset and reward managers read.
RL = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("question", pa.string()),
                    ("answer", pa.string()),
                ]
            ),
        ),
    ]
)


class ParquetFile:
    """A parquet file that grows row by row; at most :data:`ROW_GROUP` rows are in memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._path = path
        self._waiting: list[dict[str, Any]] = []
        path.parent.mkdir(exist_ok=True)
        self._writer = pq.ParquetWriter(
            path,
            schema,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            write_statistics=True,
            # Without it the file says nothing that its own columns do not say.
            store_schema=False,
        )

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._write()
        self._writer.close()

    def add(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if len(self._waiting) == ROW_GROUP:
            self._write()

    def describe(self) -> File:
        """Size and hash; the file must be closed."""
        return File(manifest.sha256(self._path), self._path.stat().st_size, self.rows)

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_pylist(self._waiting, schema=self._writer.schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP)
            self.rows += len(self._waiting)
            self._waiting = []


class JsonlFile:
    """A file of JSON lines that grows line by line."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._path = path
        self._stream: IO[str] = path.open("w", encoding="utf-8", newline="\n")

    def __enter__(self) -> JsonlFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def add(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.rows += 1

    def describe(self) -> File:
        """Size and hash; the file must be closed."""
        return File(manifest.sha256(self._path), self._path.stat().st_size, self.rows)


def raw_row(row: Row) -> dict[str, Any]:
    return {"question": row.question, "answer": row.answer}


def rl_row(row: Row, split: str, index: int, data_source: str, instruction: str) -> dict[str, Any]:
    """One row as verl reads it; ``index`` is the row's place in the source's split, from 0."""
    return {
        "data_source": data_source,
        "prompt": messages(row, instruction),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
        "extra_info": {"split": split, "index": index, **raw_row(row)},
    }


def dropped_row(row: Row, split: str, index: int, prompt_tokens: int) -> dict[str, Any]:
    return {
        "split": split,
        "index": index,
        "prompt_tokens": prompt_tokens,
        "question": row.question,
    }


def bad_row(bad: BadRow) -> dict[str, Any]:
    return {key: getattr(bad, key) for key in _BAD_ROW}


def is_quarantine(path: Path) -> bool:
    """Whether ``path`` is a file of :func:`bad_row` lines, or an empty one, by its first line."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        line = stream.readline(1 << 20)
    try:
        first = json.loads(line or "{}")
    except (ValueError, RecursionError):
        return False
    return not line or (isinstance(first, dict) and tuple(first) == _BAD_ROW)
