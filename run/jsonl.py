"""Reading JSON lines that another process may still be writing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK_BYTES = 2**20


class Tail:
    """Follows a file of JSON objects, one a line, from its beginning.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Every object that was finished since the last call.

        An unfinished last line waits for the next call; a line that is no JSON object, or longer
        than 1 MiB, is left out. At most 1 MiB is in memory at a time.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0  # written anew
            while True:
                file.seek(self._offset)
                chunk = file.read(CHUNK_BYTES)
                whole = chunk.rfind(b"\n") + 1
                if not whole and len(chunk) < CHUNK_BYTES:
                    return
                self._offset += whole or len(chunk)
                for line in chunk[:whole].splitlines():
                    try:
                        value = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(value, dict):
                        yield value


def number(value: object) -> float | None:
    """``value`` as a float where it is a number or the string of one ("NaN"), else None."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None
