"""The environment variables of every run, from ``env/vars.env``.

make and the image set them outside; a command that is started by hand calls :func:`apply` before
it imports what reads them.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from env.paths import ROOT

VARS = ROOT / "env" / "vars.env"


def variables() -> dict[str, str]:
    """Name to value, in the file's order."""
    lines = (line.strip() for line in VARS.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def apply(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set each variable that ``environment`` lacks."""
    for name, value in variables().items():
        environment.setdefault(name, value)
