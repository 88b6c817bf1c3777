"""Where things lie. Everything made goes under ``out/``; VERL_P40_OUT moves it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "verl-patches"
PRESETS = ROOT / "run" / "presets"
DOWNLOADS = ROOT / "env" / "downloads"


def out() -> Path:
    """Folder of everything made."""
    return Path(os.environ.get("VERL_P40_OUT") or ROOT / "out").resolve()


def data(name: str) -> Path:
    return out() / "data" / name


def model(name: str) -> Path:
    return out() / "models" / name


def run(run_id: str) -> Path:
    return out() / "runs" / run_id
