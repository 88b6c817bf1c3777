"""What every test may ask for, and the check that no test is skipped unnoticed.

``tests/skips.toml`` lists, for each thing that a kind of machine may lack, the tests that are then
skipped. A whole run whose skipped tests differ from the list of what this machine lacks fails.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
import tomli

from data.fetch import published_files
from env import models
from env.errors import UNREACHABLE, Refused
from tests import qwen_tokenizer

SKIPS = Path(__file__).parent / "skips.toml"
_skipped: set[str] = set()


@functools.cache
def gsm8k_folder() -> Path | str:
    """Folder of GSM8K's published files (GSM8K_DIR, else by their URL), or why there is none."""
    given = os.environ.get("GSM8K_DIR")
    if given:
        return Path(given)
    try:
        return published_files()["train"].parent
    except Refused as refused:
        if refused.exit_code != UNREACHABLE:
            raise
        return f"no GSM8K: GSM8K_DIR is not set, and {refused.problems[0].what}"


@functools.cache
def qwen_folder() -> Path | str:
    """Folder of Qwen2.5's tokenizer, made from a package of the registry, or why there is none."""
    try:
        return qwen_tokenizer.folder()
    except qwen_tokenizer.UnavailableError as reason:
        return f"no Qwen2.5 tokenizer: {reason}"


@functools.cache
def smollm2_folder() -> Path | str:
    """Folder of SmolLM2-135M-Instruct, made once and kept in out/, or why there is none."""
    try:
        return models.fetch("smollm2-135m-instruct")
    except Refused as refused:
        if refused.exit_code != UNREACHABLE:
            raise
        return f"no SmolLM2: {refused.problems[0].what}"


def _or_skip(found: Path | str) -> Path:
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """Folder of GSM8K's train.jsonl and test.jsonl."""
    return _or_skip(gsm8k_folder())


@pytest.fixture(scope="session")
def qwen() -> Path:
    """Folder of Qwen2.5's tokenizer."""
    return _or_skip(qwen_folder())


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct."""
    return _or_skip(smollm2_folder())


# What a machine may lack -> whether this one does.
LACKING = {
    "gsm8k": lambda: isinstance(gsm8k_folder(), str),
    "qwen-tokenizer": lambda: isinstance(qwen_folder(), str),
    "smollm2": lambda: isinstance(smollm2_folder(), str),
}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.add(report.nodeid.split("[")[0])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    option = session.config.option
    chosen = option.keyword or option.markexpr or option.collectonly or option.deselect
    whole = session.config.args == session.config.getini("testpaths")
    if chosen or not whole or exitstatus not in (0, 1):
        return
    listed = tomli.loads(SKIPS.read_text(encoding="utf-8"))
    lacks = [name for name, lacking in LACKING.items() if lacking()]
    expected = {test for name in lacks for test in listed.get(name, [])}
    if _skipped == expected:
        return
    print(
        f"\nskipped tests differ from tests/skips.toml for a machine without {lacks or 'nothing'}:"
    )
    for test in sorted(_skipped - expected):
        print(f"  skipped, not listed: {test}")
    for test in sorted(expected - _skipped):
        print(f"  listed, not skipped: {test}")
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
