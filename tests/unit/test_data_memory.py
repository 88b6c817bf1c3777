"""A hundred times the rows take hardly more memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import data_helpers as given

ROWS = 400
# Bytes of one row: 400 rows are 1 MiB, a hundred times as many 120 MiB.
SIZE = 3000
# What may be kept of 40,000 rows, a full row group of 1,024 rows (the small input does not fill
# one), and the allocators' slack. Keeping the rows themselves would take 120 MiB or more.
GROWTH_MIB = 48

# Peak resident memory of this process alone: the kernel's VmHWM, in KiB.
PEAK = """
import sys
from pathlib import Path
from data.prepare import Options, prepare
prepare(Options("dir", input=Path(sys.argv[1]), out=Path(sys.argv[2])))
status = Path("/proc/self/status").read_text()
print("peak", status.split("VmHWM:")[1].split()[0])
"""


def rows(fold: int) -> Iterator[dict[str, str]]:
    filler = "".join(chr(97 + n % 26) for n in range(SIZE))
    for number in range(ROWS * fold):
        row = given.row(number)
        yield {"question": row["question"], "answer": f"{filler[number % 26 :]} {row['answer']}"}


def as_jsonl(folder: Path, fold: int) -> None:
    folder.mkdir()
    with (folder / "train.jsonl").open("w") as file:
        for row in rows(fold):
            file.write(json.dumps(row) + "\n")


def as_parquet(folder: Path, fold: int) -> None:
    folder.mkdir()
    # One row group and no compression: the worst that a file can do to its reader.
    table = pa.Table.from_pylist(list(rows(fold)))
    options = {"row_group_size": len(table), "compression": "none", "use_dictionary": False}
    pq.write_table(table, folder / "train.parquet", **options)


def as_saved_to_disk(folder: Path, fold: int) -> None:
    import datasets

    data = datasets.Dataset.from_generator(
        rows, gen_kwargs={"fold": fold}, cache_dir=str(folder.with_name(f"cache{fold}"))
    )
    datasets.DatasetDict(train=data).save_to_disk(str(folder))


@pytest.mark.parametrize("layout", [as_jsonl, as_parquet, as_saved_to_disk])
def test_memory_is_bounded_on_a_hundredfold_input(
    tmp_path: Path, layout: Callable[[Path, int], None]
) -> None:
    peaks = []
    for fold in (1, 100):
        layout(tmp_path / f"in{fold}", fold)
        done = given.child(["-c", PEAK, str(tmp_path / f"in{fold}"), str(tmp_path / f"out{fold}")])
        assert done.returncode == 0, done.stderr
        assert f"{ROWS * fold:,} kept" in done.stdout
        peaks.append(int(done.stdout.split("peak ")[1]) / 1024)
    print(f"peak resident memory, MiB: {peaks}")
    assert peaks[1] - peaks[0] < GROWTH_MIB, peaks
    size = sum(path.stat().st_size for path in (tmp_path / "in100").rglob("*")) / 2**20
    assert size > 2 * GROWTH_MIB
