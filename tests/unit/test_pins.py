"""env/pins.toml holds what it must, and says where it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from env.errors import Refused
from env.pins import PINS, REQUIRED, dotted, load, pins, validate


@pytest.fixture
def table() -> dict[str, Any]:
    return copy.deepcopy(pins())


def set_dotted(table: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        table = table[parent]
    table[last] = value


def test_the_committed_pins_are_well_formed() -> None:
    assert list(validate(load(PINS))) == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("verl.sha256", "0aab", "64 lower-case hexadecimal digits"),
        ("verl.sha256", "0AABEAB59459F947" * 4, "64 lower-case hexadecimal digits"),
        ("data.gsm8k.train_sha256", 17, "64 lower-case hexadecimal digits"),
        ("profiles.cu118.base.runtime.digest", "eaaccb35", "sha256: and 64"),
        ("apex.commit", "25.04", "a full commit id"),
        ("profiles.cu118.torch.url", "http://example.org/torch.whl", "https://"),
        ("python.ray", ">=2.47", "one exact version"),
        ("python.ray", 2.47, "one exact version"),
        ("tools.mypy", "latest", "one exact version"),
        ("locks.cutoff", "28.11.2026", "a date"),
        ("profiles.cu124.driver_min", "525+", "a driver version"),
    ],
)
def test_a_malformed_value_is_named_with_file_key_value_and_expectation(
    table: dict[str, Any], key: str, value: object, expected: str
) -> None:
    set_dotted(table, key, value)
    (problem,) = validate(table)
    assert problem.where == f"env/pins.toml, {key}"
    assert repr(value) in problem.what
    assert expected in problem.expected
    assert problem.do


@pytest.mark.parametrize(
    ("parent", "key"), [(parent, key) for parent, keys in REQUIRED.items() for key in keys]
)
def test_a_missing_key_is_named(table: dict[str, Any], parent: str, key: str) -> None:
    del dotted(table, parent)[key]
    missing = [problem.where for problem in validate(table) if problem.what == "is missing"]
    assert f"env/pins.toml, {parent}.{key}" in missing


def test_every_problem_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    text = (
        PINS.read_text().replace("cutoff = ", "cut = ").replace('version = "25.04"', "version = 25")
    )
    (tmp_path / "pins.toml").write_text(text)
    with pytest.raises(Refused) as refused:
        load(tmp_path / "pins.toml")
    assert [problem.where.split(", ")[1] for problem in refused.value.problems] == [
        "locks.cutoff",
        "apex.version",
    ]


@pytest.mark.parametrize(
    ("content", "what"), [(None, "is missing"), (b"a = ", "value"), (b"a = '\xff'", "decode")]
)
def test_an_unreadable_pins_file_is_refused(
    tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "pins.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=what):
        load(path)


def test_both_profiles_take_the_same_release_of_torch() -> None:
    release = pins()["python"]["torch"]
    wheel = dotted(pins(), "profiles.cu118.torch")
    assert wheel["version"] == f"{release}+cu118"
    assert wheel["url"].endswith(f"/torch-{release}%2Bcu118-cp310-cp310-linux_x86_64.whl")
    assert dotted(pins(), "profiles.cu118.python") == ["3.10"]


def test_every_hash_and_commit_stands_beside_its_source() -> None:
    def tables(table: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        yield key, table
        for name, value in table.items():
            # files of a model share the source of the model
            if isinstance(value, dict) and name != "files":
                yield from tables(value, f"{key}.{name}")

    pinned = ("sha256", "digest", "commit", "revision")
    without = [
        key
        for key, table in tables(pins())
        if any(name.endswith(pinned) for name in table) and not table.get("source")
    ]
    assert without == []
