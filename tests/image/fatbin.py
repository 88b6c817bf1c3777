"""Which GPU code a library really holds, read from its bytes: no cuobjdump, no GPU.

``python fatbin.py LIBRARY...`` prints JSON: ``{library: {"containers": N, "sm_60": N, ...}}``. The
standard library is enough, so it runs inside the image as it stands.

nvcc lays its code into the ELF section ``.nv_fatbin``: containers, each a header and then an entry
for every architecture, machine code (SASS) or PTX, mostly compressed. The entries' headers are not.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
from collections import Counter
from collections.abc import Iterator

MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
ENTRY = struct.Struct(
    "<HHIQIIHHI"
)  # kind, version, bytes of this header, bytes after it, ..., arch
KINDS = {1: "compute", 2: "sm"}  # PTX, SASS
SECTIONS = (".nv_fatbin", "__nv_relfatbin")


def architectures(data: bytes | mmap.mmap) -> Counter[str]:
    """How many entries an ELF file holds by architecture, and how many ``containers``.

    Raises:
        ValueError: no ELF file of 64 bits, or an entry that reaches beyond its container.
    """
    found: Counter[str] = Counter()
    for name, start, size in sections(data):
        if name in SECTIONS:
            _read(data, start, start + size, found)
    return found


def sections(data: bytes | mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """Name, offset and bytes of every section of an ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    each, count, of_names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + each * i) for i in range(count)]
    for header in headers:
        name = headers[of_names][4] + header[0]
        yield bytes(data[name : data.find(b"\0", name)]).decode(), header[4], header[5]


def _read(data: bytes | mmap.mmap, start: int, end: int, found: Counter[str]) -> None:
    magic = struct.pack("<I", MAGIC)
    while (start := data.find(magic, start, end)) >= 0:
        _, _, header, size = CONTAINER.unpack_from(data, start)
        found["containers"] += 1
        entry, start = start + header, start + header + size
        while entry < start:
            kind, _, header, size, *_, arch = ENTRY.unpack_from(data, entry)
            if kind not in KINDS or header < ENTRY.size or entry + header + size > start:
                raise ValueError(f"at byte {entry} stands no entry of a fat binary")
            found[f"{KINDS[kind]}_{arch}"] += 1
            entry += header + size


def main(paths: list[str]) -> None:
    told = {}
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            told[path] = architectures(data)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
