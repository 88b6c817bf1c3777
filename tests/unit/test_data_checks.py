"""Every kind of bad row is refused with file, line, field, value and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.checks import EXPECTED, RawRow, check
from data.prepare import Options, prepare
from env.errors import Refused
from tests import data_helpers as given

NUMBER = "answer is no number"


def answered(answer: str) -> bytes:
    return json.dumps({"question": "q1", "answer": answer}, ensure_ascii=False).encode()


# line of the file -> field, reason, part of the shown value
FAULTS: dict[str, tuple[bytes, str, str, str]] = {
    "no marker": (answered("It is 3."), "answer", "no ####", "It is 3."),
    "empty answer": (answered(""), "answer", "no ####", ""),
    "word": (answered("#### three"), "answer", NUMBER, "three"),
    "nothing": (answered("3 ####"), "answer", NUMBER, ""),
    "dollars": (answered("#### $3"), "answer", NUMBER, "$3"),
    "period": (answered("#### 3."), "answer", NUMBER, "3."),
    "odd commas": (answered("#### 1,2"), "answer", NUMBER, "1,2"),
    "full width": (answered("#### \uff13"), "answer", NUMBER, "\uff13"),
    "text after": (answered("#### 3 a"), "answer", NUMBER, "3 a"),
    "last marker": (answered("#### 3\n#### x"), "answer", NUMBER, "x"),
    "empty question": (b'{"question": "", "answer": "#### 3"}', "question", "empty question", ""),
    "blank question": (
        b'{"question": " \\n\\u3000", "answer": "#### 3"}',
        "question",
        "empty question",
        "",
    ),
    "question is a number": (b'{"question": 5, "answer": "#### 3"}', "question", "wrong type", "5"),
    "question is null": (b'{"question": null, "answer": "#### 3"}', "question", "wrong type", "N"),
    "answer is a list": (b'{"question": "q1", "answer": ["#### 3"]}', "answer", "wrong type", "["),
    "no question": (b'{"answer": "#### 3"}', "question", "missing field", ""),
    "no answer": (b'{"question": "q1"}', "answer", "missing field", ""),
    "broken JSON": (b'{"question": "q1", "answer', "line", "invalid JSON", '{"question": "q1"'),
    "empty line": (b"", "line", "invalid JSON", ""),
    "deep JSON": (b"[" * 100_000, "line", "invalid JSON", "[[[["),
    "endless number": (b'{"question": ' + b"9" * 5000, "line", "invalid JSON", "999"),
    "byte order mark": (b"\xef\xbb\xbf" + answered("#### 3"), "line", "invalid JSON", "q1"),
    "a list": (b'["q1", "#### 3"]', "line", "wrong type", '["q1"'),
    "a number": (b"17", "line", "wrong type", "17"),
    "latin-1": (b'{"question": "caf\xe9"}', "line", "invalid UTF-8", "caf\\xe9"),
    "lone surrogate": (
        b'{"question": "q\\ud800", "answer": "#### 3"}',
        "question",
        "invalid UTF-8",
        "q\\ud800",
    ),
    "duplicate": (
        json.dumps({**given.row(3), "question": f"  {given.row(3)['question']}\n"}).encode(),
        "question",
        "duplicate question",
        "Ann has 3 pears",
    ),
    "too long": (b'{"question": "' + b"q" * (1 << 20) + b'"}', "line", "line too long", "qqq"),
}


def faulty(path: Path, *lines: bytes) -> Path:
    """A folder whose train file has 300 good lines, then ``lines``, then a good one."""
    given.folder(path, train=300)
    with (path / "train.jsonl").open("ab") as file:
        for line in (*lines, json.dumps(given.row(301)).encode()):
            file.write(line + b"\n")
    return path


def refused(path: Path, **options: object) -> list[str]:
    with pytest.raises(Refused) as caught:
        prepare(Options(source="dir", input=path, out=path.parent / "out", **options))  # type: ignore[arg-type]
    return list(map(str, caught.value.problems))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_row_refuses_the_whole_and_says_where_what_and_why(
    tmp_path: Path, fault: str
) -> None:
    line, field, reason, value = FAULTS[fault]
    told = refused(faulty(tmp_path / "in", line))
    assert told[0].startswith(f"train.jsonl, line 301, {field}: {reason}: ")
    assert value in told[0].replace("\\\\", "\\")
    assert EXPECTED[reason] in told[0]
    assert len(told) == 2
    assert told[1].startswith(f"the whole source: refused for 1 bad rows: 1 {reason}")
    assert "--quarantine" in told[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("fault", FAULTS)
def test_quarantine_keeps_the_good_rows_and_writes_the_bad_ones(tmp_path: Path, fault: str) -> None:
    line, field, reason, value = FAULTS[fault]
    source, bad_file = faulty(tmp_path / "in", line), tmp_path / "bad.jsonl"
    options = Options(source="dir", input=source, out=tmp_path / "out", quarantine=bad_file)
    written = prepare(options)
    (bad,) = [json.loads(one) for one in bad_file.read_text().splitlines()]
    assert (bad["file"], bad["line"], bad["field"]) == ("train.jsonl", 301, field)
    assert bad["reason"] == reason
    assert value in bad["value"]
    train = written.splits["train"]
    assert (train.rows_in, train.kept, train.dropped["quarantined"]) == (302, 301, 1)
    kept = given.read(tmp_path / "out" / "train.parquet")
    assert [one["extra_info"]["index"] for one in kept] == [*range(300), 301]  # type: ignore[index]
    assert len(given.read(tmp_path / "out" / "raw" / "train.parquet")) == 301


def test_all_bad_rows_are_told_at_once_with_every_reason_of_each(tmp_path: Path) -> None:
    lines = [b'{"question": "", "answer": "none"}', b"{", b'{"question": 1}']
    told = refused(faulty(tmp_path / "in", *lines))
    assert [one.split(": ")[:2] for one in told[:-1]] == [
        ["train.jsonl, line 301, question", "empty question"],
        ["train.jsonl, line 301, answer", "no ####"],
        ["train.jsonl, line 302, line", "invalid JSON"],
        ["train.jsonl, line 303, question", "wrong type"],
        ["train.jsonl, line 303, answer", "missing field"],
    ]
    assert "3 bad rows" in told[-1]


def test_many_bad_rows_are_counted_and_fifty_shown(tmp_path: Path) -> None:
    told = refused(faulty(tmp_path / "in", *[b"{"] * 70, b'{"question": "a", "answer": "b"}'))
    assert len(told) == 51
    assert "71 bad rows: 70 invalid JSON, 1 no ####; 21 of these not shown" in told[-1]


def test_a_value_is_shortened(tmp_path: Path) -> None:
    told = refused(faulty(tmp_path / "in", b'{"question": "q", "answer": "' + b"w" * 5000 + b'"}'))
    assert "w" * 79 + "…" in told[0]
    assert "w" * 80 not in told[0]


def test_a_duplicate_names_the_row_that_it_repeats(tmp_path: Path) -> None:
    source = given.folder(tmp_path / "in")
    given.jsonl(source / "test.jsonl", [given.row(900), given.row(7), given.row(7)])
    told = refused(source)
    assert "test.jsonl, line 2" in told[0]
    assert "(as in train.jsonl, line 8)" in told[0]
    assert "test.jsonl, line 3" in told[1]
    assert "(as in train.jsonl, line 8)" in told[1]


def test_of_equal_questions_a_good_row_is_kept_even_behind_a_bad_one(tmp_path: Path) -> None:
    source = tmp_path / "in"
    bad = {**given.row(1), "answer": "unknown"}
    given.jsonl(source / "train.jsonl", [bad, given.row(1), given.row(2)])
    quarantine = tmp_path / "bad.jsonl"
    prepare(Options(source="dir", input=source, out=tmp_path / "out", quarantine=quarantine))
    kept = given.read(tmp_path / "out" / "raw" / "train.parquet")
    assert kept == [given.row(1), given.row(2)]
    reasons = [json.loads(line)["reason"] for line in quarantine.read_text().splitlines()]
    assert reasons == ["no ####", "duplicate question"]


def test_a_parquet_file_with_bad_values_is_told_by_row(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    questions = pa.array([b"good", b"caf\xe9", None, b"last"], pa.binary()).cast(
        pa.string(), safe=False
    )
    # Arrow itself checks UTF-8 in a safe cast; files from elsewhere are not so careful.
    answers = pa.array(["#### 1", "#### 2", "#### 3", "4"])
    table = pa.table({"question": questions, "answer": answers})
    pq.write_table(table, source / "train.parquet")
    told = refused(source)
    assert told[0].startswith("train.parquet, line 2, question: invalid UTF-8: 'caf\\\\xe9'")
    assert told[1].startswith("train.parquet, line 3, question: wrong type: 'None' (found null)")
    assert told[2].startswith("train.parquet, line 4, answer: no ####: '4'")


def test_a_parquet_column_of_numbers_is_of_the_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"question": ["q"], "answer": [18]}), tmp_path / "in" / "train.parquet")
    assert "line 1, answer: wrong type: '18' (found int)" in refused(tmp_path / "in")[0]


@pytest.mark.parametrize(
    ("written", "truth"),
    [
        ("#### 18", "18"),
        ("a #### 5 b\n#### 1,234", "1234"),
        ("#### -3", "-3"),
        ("####7", "7"),
        ("#### 1,234,567 ", "1234567"),
        ("#### 12000", "12000"),
        ("#### 2.50", "2.50"),
        ("#### 0", "0"),
    ],
)
def test_the_ground_truth_is_what_follows_the_last_marker_without_commas(
    written: str, truth: str
) -> None:
    row, bad = check(RawRow("file", 1, "question", written))
    assert bad == []
    assert row is not None
    assert row.ground_truth == truth


def test_windows_line_ends_and_a_missing_last_newline_are_no_fault(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = [json.dumps(one).encode() for one in given.rows(3)]
    (source / "train.jsonl").write_bytes(b"\r\n".join(lines))
    written = prepare(Options(source="dir", input=source, out=tmp_path / "out"))
    assert written.splits["train"].kept == 3
