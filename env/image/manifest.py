"""What the image holds, as ``share/manifest.json``: ``python -m env.image.manifest`` writes it.

``{"profile", "revision", "base": {"image", "system"}, "python", "packages": {name: version},
"locks": {file: sha256}, "archives": {file: {"sha256", "pinned"}}, "verl": {"verl", "sdist_sha256",
"queue_sha256"}, "gsm8k": {file: sha256}, "megabytes": {folder: MB}}``
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from env import paths
from env.hashing import sha256

SHARE = paths.ROOT / "share"
LARGEST = 12


def manifest() -> dict[str, Any]:
    """All of it, read from what is installed and not from the pins."""
    prefix = Path(sys.prefix)
    gsm8k = SHARE / "gsm8k"
    profile = os.environ["VERL_P40_PROFILE"]
    locks = [paths.ROOT / "env" / "locks" / f"{name}.txt" for name in (profile, "uv", "tools")]
    return {
        "profile": profile,
        "revision": os.environ.get("REVISION", "unknown"),
        "base": {
            "image": os.environ.get("BASE_IMAGE", "unknown"),
            "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        },
        "python": platform.python_version(),
        "packages": {
            found.metadata["Name"].lower(): found.version for found in metadata.distributions()
        },
        "locks": {path.name: sha256(path) for path in locks},
        "archives": _archives(),
        "verl": json.loads((prefix / "src" / "verl" / "verl-p40.json").read_text()),
        "gsm8k": {str(p.relative_to(gsm8k)): sha256(p) for p in sorted(gsm8k.rglob("*.parquet"))},
        "megabytes": _rooms(prefix),
    }


def _archives() -> dict[str, dict[str, Any]]:
    """What ``env/install/archives.sh`` listed while the image was built."""
    lines = (SHARE / "archives.txt").read_text().splitlines()
    listed = [line.split(" ", 2) for line in lines]
    return {file: {"sha256": found, "pinned": kind == "pinned"} for found, kind, file in listed}


def _rooms(prefix: Path) -> dict[str, int]:
    """The largest folders of packages, and the rest of the environment."""
    packages = Path(str(metadata.distribution("torch").locate_file("")))
    sizes = {path.name: _bytes(path) for path in packages.iterdir() if path.is_dir()}
    for path in (packages / "nvidia").iterdir():
        sizes[f"nvidia/{path.name}"] = _bytes(path)
    sizes.pop("nvidia", None)
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST])
    largest["other packages"] = _bytes(prefix) - sum(largest.values())
    return {name: round(size / 1e6) for name, size in largest.items()}


def _bytes(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


if __name__ == "__main__":
    (SHARE / "manifest.json").write_text(json.dumps(manifest(), indent=1, sort_keys=True) + "\n")
