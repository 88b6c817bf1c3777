"""Reads rows from one file, in order and a batch at a time: JSONL, parquet, Arrow stream.

What cannot be read as a row comes out as a bad one; a file that cannot be read at all is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.checks import MISSING, BadRow, RawRow, shorten
from env.errors import Problem, Refused

# A longer line is refused unread, so that no line can fill the memory.
LONGEST_LINE = 1 << 20
FIELDS = ("question", "answer")
# Values that Python cannot hold (a date of the year 5,881,580) are ValueErrors or OverflowErrors.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)

Reader = Callable[[Path, str, int], Iterator[RawRow]]


def jsonl(path: Path, name: str, batch_size: int) -> Iterator[RawRow]:
    """One JSON object a line; other keys than question and answer are ignored."""
    with path.open("rb") as stream:
        for number in count(1):
            line = stream.readline(LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > LONGEST_LINE:
                yield _bad_line(name, number, line[:100].decode(errors="replace"), "line too long")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_LINE)
                continue
            yield _parsed(name, number, line)


def parquet(path: Path, name: str, batch_size: int) -> Iterator[RawRow]:
    """Rows of a parquet file; other columns than question and answer are not read."""
    try:
        # Without a buffer size, a column of a whole row group is read into memory at once.
        with pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False) as file:
            _need_columns(name, file.schema_arrow)
            # Threads would free each other's memory, and the allocator then keeps it.
            batches = file.iter_batches(batch_size, columns=list(FIELDS), use_threads=False)
            yield from _rows(name, batches, batch_size)
    except _UNREADABLE as error:
        raise _unreadable(path, "parquet file", error) from error


def arrow(path: Path, name: str, batch_size: int) -> Iterator[RawRow]:
    """Rows of an Arrow stream, the format of the files that ``save_to_disk`` writes."""
    try:
        # Read, not memory-mapped: mapped pages would count as this process's memory.
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            _need_columns(name, stream.schema)
            yield from _rows(name, stream, batch_size)
    except _UNREADABLE as error:
        raise _unreadable(path, "Arrow stream", error) from error


def _parsed(name: str, number: int, line: bytes) -> RawRow:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        around = line[max(0, error.start - 20) : error.start + 20].decode(errors="backslashreplace")
        detail = f"byte {error.start + 1} of the line"
        return _bad_line(name, number, around, "invalid UTF-8", detail)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # Its own words count lines within this one.
        detail = f"{error.msg} at character {error.pos + 1}"
        return _bad_line(name, number, text.strip(), "invalid JSON", detail)
    except (ValueError, RecursionError) as error:
        return _bad_line(name, number, text.strip(), "invalid JSON", str(error) or "too deep")
    if not isinstance(value, dict):
        return _bad_line(name, number, text.strip(), "wrong type", "found no object")
    return _row(name, number, value)


def _rows(name: str, batches: Iterator[pa.RecordBatch], batch_size: int) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, batch_size):
            piece = batch.slice(start, batch_size)
            columns = [_values(piece.column(field)) for field in FIELDS]
            for values in zip(*columns, strict=True):
                number += 1
                yield _decoded(name, number, values)


def _values(column: pa.Array) -> list[object]:
    """The column's values, text as bytes: whether these are UTF-8 is for us to say."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[object] = column.to_pylist()
    return values


def _decoded(name: str, number: int, values: tuple[object, ...]) -> RawRow:
    row: dict[str, object] = {}
    bad = []
    for field, value in zip(FIELDS, values, strict=True):
        try:
            row[field] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            shown = shorten(error.object.decode(errors="backslashreplace"))
            detail = f"byte {error.start + 1}"
            bad.append(BadRow(name, number, field, shown, "invalid UTF-8", detail))
    return _row(name, number, row, bad)


def _row(name: str, number: int, row: dict[str, object], bad: Sequence[BadRow] = ()) -> RawRow:
    question, answer = (row.get(field, MISSING) for field in FIELDS)
    return RawRow(name, number, question, answer, tuple(bad))


def _bad_line(name: str, number: int, value: str, reason: str, detail: str = "") -> RawRow:
    bad = BadRow(name, number, "line", shorten(value), reason, detail)
    return RawRow(name, number, bad=(bad,))


def _need_columns(name: str, schema: pa.Schema) -> None:
    has = ", ".join(schema.names) or "no column"
    counts = {field: schema.names.count(field) for field in FIELDS}
    problems = [
        Problem(
            f"{name}, column {field}",
            f"stands there {count} times" if count else f"is missing (there are: {has})",
            "columns question and answer",
            "rename the columns",
        )
        for field, count in counts.items()
        if count != 1
    ]
    if problems:
        raise Refused(problems)


def _unreadable(path: Path, kind: str, error: Exception) -> Refused:
    do = "fetch or write the file again"
    return Refused(Problem(str(path), f"cannot be read: {error}", f"a whole {kind}", do))
