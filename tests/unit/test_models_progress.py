import io

import pytest
from rich.console import Console

from env.models import progress
from env.models.progress import DownloadProgress


def shown(terminal: bool, total: int | None) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with DownloadProgress("some-model", total, console) as bar:
        bar.advance(250_000_000)
        bar.say("a line in between")
        bar.advance(-50_000_000)
    return text.getvalue()


def test_a_terminal_gets_a_bar_with_bytes_and_rate() -> None:
    text = shown(True, 1_000_000_000)
    assert "200.0 MB/1.0 GB" in text or "0.2/1.0 GB" in text
    assert "a line in between" in text


def test_no_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    first, between, last = shown(False, 1_000_000_000).splitlines()
    assert first.startswith("some-model: 250 MB of 1,000 MB, ")
    assert between == "a line in between"
    assert last.startswith("some-model: 200 MB of 1,000 MB, ")
    assert "\x1b" not in first


def test_an_unknown_size_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    assert shown(False, None).startswith("some-model: 250 MB (")


def test_lines_come_now_and_then_only() -> None:
    assert shown(False, 1_000_000_000) == "a line in between\n"
