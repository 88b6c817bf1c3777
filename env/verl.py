"""Patched verl for this environment: ``python -m env.verl`` (a part of ``make env``).

Takes verl's published sdist by hash, applies ``verl-patches/`` in order and without fuzz, and
installs the result editable under ``<environment>/src/verl``. A second run does nothing.

To change the queue: ``python -m env.verl work FOLDER`` makes a git repository with one commit a
patch; edit and rebase there; ``python -m env.verl save FOLDER`` writes the queue back.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from env import paths
from env.errors import UNREACHABLE, Problem, Refused, main
from env.hashing import sha256
from env.pins import pins

RECORD = "verl-p40.json"
# verl's sdist brings top-level packages `tests` and `scripts`; ours must not be shadowed.
LEFT_OUT = ("tests", "scripts", "verl.egg-info")


def queue() -> list[Path]:
    """The patches in the order in which they apply."""
    return sorted(paths.PATCHES.glob("[0-9][0-9][0-9][0-9]-*.patch"))


def queue_sha256(patches: Sequence[Path]) -> str:
    """One hash for names, order and contents of the queue."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(f"{patch.name} {sha256(patch)}\n".encode())
    return digest.hexdigest()


def wanted(patches: Sequence[Path]) -> dict[str, str]:
    """What an up-to-date environment's record says."""
    return {
        "verl": pins()["verl"]["version"],
        "sdist_sha256": pins()["verl"]["sha256"],
        "queue_sha256": queue_sha256(patches),
    }


def recorded(tree: Path) -> dict[str, str]:
    """What is installed in ``tree``; empty where nothing complete is."""
    try:
        record = json.loads((tree / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def sdist() -> Path:
    """The verified sdist: laid by hand, cached, or fetched by pip from the index that pip uses.

    Raises:
        Refused: it cannot be had (exit code 3), or has another hash.
    """
    pin = pins()["verl"]
    name = f"verl-{pin['version']}.tar.gz"
    for folder in (paths.DOWNLOADS, paths.out() / "downloads"):
        if (folder / name).exists():
            return _verified(folder / name, pin["sha256"])
    cache = paths.out() / "downloads"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(f"verl=={pin['version']} --hash=sha256:{pin['sha256']}\n")
        # --no-build-isolation: pip reads a sdist's metadata by running its build backend
        options = ["--quiet", "--no-deps", "--no-binary", "verl", "--no-build-isolation"]
        options += ["--require-hashes", "-r", str(requirements), "-d", scratch]
        result = _pip("download", *options)
        if result.returncode != 0:
            problem = Problem(
                where=f"verl {pin['version']} (sdist)",
                what="pip could not fetch it: " + (result.stderr.strip().splitlines() or ["?"])[-1],
                expected=f"{name}, sha256 {pin['sha256']}",
                do=f"check pip's index and network, or lay the file in {paths.DOWNLOADS}/{name}",
            )
            raise Refused(problem, UNREACHABLE)
        os.replace(Path(scratch, name), cache / name)
    return _verified(cache / name, pin["sha256"])


def _verified(file: Path, expected: str) -> Path:
    found = sha256(file)
    if found != expected:
        raise Refused(
            Problem(str(file), f"sha256 {found}", expected, "delete it and run this again")
        )
    return file


def unpack(archive: Path, tree: Path) -> None:
    """Unpack verl's sdist into the new folder ``tree``, less what it should not bring."""
    top = archive.name.removesuffix(".tar.gz")
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder, tarfile.open(archive) as tar:
        tar.extractall(folder)  # trusted: its hash was verified
        for name in LEFT_OUT:
            shutil.rmtree(Path(folder, top, name), ignore_errors=True)
        os.replace(Path(folder, top), tree)


def _git(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without the ceiling, git would take a tree inside the checkout for a part of that repository
    # and silently apply nothing.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    try:
        return subprocess.run(
            ["git", "-C", str(tree), *arguments], env=environment, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise Refused(Problem("git", "is not installed", do="apt install git")) from error


def apply(patches: Sequence[Path], tree: Path) -> None:
    """Apply every patch; git apply knows no fuzz, so context that moved on is refused.

    Raises:
        Refused: names the patch, and the file and line that do not fit.
    """
    for patch in patches:
        result = _git(tree, "apply", "--whitespace=nowarn", str(patch))
        if result.returncode != 0:
            problem = Problem(
                where=str(patch.relative_to(paths.ROOT) if paths.ROOT in patch.parents else patch),
                what=result.stderr.strip().replace("\n", "; "),
                expected=f"a patch for verl {pins()['verl']['version']} and those before it",
                do="python -m env.verl work FOLDER shows the tree it meets",
            )
            raise Refused(problem)


def _is_installed(tree: Path) -> bool:
    spec = importlib.util.find_spec("verl")
    return spec is not None and spec.origin == str(tree / "verl" / "__init__.py")


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    # verl is pinned by hash: a constraint in the user's pip configuration has no say.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def _install_editable(tree: Path) -> None:
    # Output kept from the terminal: setuptools warns at length about verl's packaging.
    result = _pip("install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(tree))
    if result.returncode != 0:
        raise Refused(Problem(f"pip install -e {tree}", result.stderr.strip()))


def install(prefix: Path) -> bool:
    """Bring ``<prefix>/src/verl`` up to date and installed; False if it already was."""
    patches = queue()
    tree = prefix / "src" / "verl"
    want = wanted(patches)
    if recorded(tree) == want and _is_installed(tree):
        return False
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix="verl.partial-") as folder:
        fresh = Path(folder, "verl")
        unpack(sdist(), fresh)
        apply(patches, fresh)
        if tree.exists():
            os.replace(tree, Path(folder, "old"))
        os.replace(fresh, tree)
    _install_editable(tree)
    (tree / RECORD).write_text(json.dumps(want, indent=1) + "\n")
    print(f"verl {want['verl']} with {len(patches)} patches (queue {want['queue_sha256'][:12]})")
    return True


def work(folder: Path) -> None:
    """Make a git repository of verl in ``folder``: tag ``base``, then one commit a patch."""
    if folder.exists():
        raise Refused(Problem(str(folder), "exists", "a new folder", "name another one"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    unpack(sdist(), folder)
    steps = [["init", "--quiet"], ["add", "--all", "--force"]]
    identity = ["-c", "user.name=verl-p40", "-c", "user.email=verl-p40@localhost"]
    steps += [[*identity, "commit", "--quiet", "-m", f"verl {pins()['verl']['version']}"]]
    steps += [["tag", "base"], [*identity, "am", "--quiet", *map(str, queue())]]
    for step in steps:
        result = _git(folder, *step)
        if result.returncode != 0:
            raise Refused(Problem(str(folder), f"git {step[-1]}: {result.stderr.strip()}"))
    print(f"{folder}: one commit a patch above the tag 'base'")


def save(folder: Path) -> None:
    """Write the commits above ``base`` in ``folder`` back as the queue."""
    with tempfile.TemporaryDirectory(dir=paths.PATCHES) as fresh:
        options = ["--zero-commit", "--no-signature", "--no-numbered", "--no-stat", "--quiet"]
        result = _git(folder, "format-patch", *options, "-o", fresh, "base..HEAD")
        if result.returncode != 0:
            raise Refused(Problem(str(folder), result.stderr.strip(), "made by `env.verl work`"))
        if not any(Path(fresh).iterdir()):
            raise Refused(Problem(str(folder), "holds no commit above the tag 'base'"))
        for patch in queue():
            patch.unlink()
        for patch in Path(fresh).iterdir():
            os.replace(patch, paths.PATCHES / patch.name)
    print(f"{len(queue())} patches in {paths.PATCHES}")


def command() -> None:
    parser = argparse.ArgumentParser(prog="python -m env.verl", description=__doc__)
    parser.add_argument("action", nargs="?", default="install", choices=["install", "work", "save"])
    parser.add_argument("folder", nargs="?", type=Path, help="for work and save")
    options = parser.parse_args()
    if options.action == "install":
        install(Path(sys.prefix))
        return
    if options.folder is None:
        parser.error(f"{options.action} needs a folder")
    {"work": work, "save": save}[options.action](options.folder.resolve())


if __name__ == "__main__":
    main(command)
