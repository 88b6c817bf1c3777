"""Builds: the same twice, and what cannot go on says why and ends otherwise than with 0.

Each takes the stages before its own from the engine's cache, which `make build` has filled.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.paths import ROOT
from tests.image.engine import Engine

AGAIN = "verl-p40-test:again"
LISTING = """
import hashlib, json, os, stat, sys
def told(path):
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(found.st_mode):
        content = hashlib.sha256(open(path, "rb").read()).hexdigest()
    else:
        content = ""
    return [stat.filemode(found.st_mode), found.st_uid, found.st_gid, content]
print(json.dumps({
    path: told(path)
    for top in sys.argv[1:]
    for folder, folders, names in os.walk(top)
    for path in [folder, *(os.path.join(folder, name) for name in names + folders)]
}))
"""
TREES = [".venv/src/verl", "share/gsm8k", "verl-patches", "env", "data", "run"]


def build(engine: Engine, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``make build`` of another image, on the base of the one under test."""
    base = engine.image.labels["org.opencontainers.image.base.name"]
    given = {"BASE_IMAGE": base, "TAG": AGAIN, "PROGRESS": "plain", **variables}
    return subprocess.run(
        ["bash", "env/image/build.sh", engine.profile, *options],
        cwd=ROOT,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def again(engine: Engine) -> Iterator[str]:
    """An image whose verl and data were made anew."""
    done = build(engine, "--no-cache-filter", "verl,data")
    assert done.returncode == 0, done.stderr
    yield AGAIN
    engine.client.images.remove(AGAIN)


def test_two_builds_have_equal_trees(engine: Engine, again: str) -> None:
    first, second = (
        json.loads(engine.run(["python", "-c", LISTING, *TREES], tag=tag).out)
        for tag in (engine.tag, again)
    )
    assert len(first) > 500
    assert second == first


def failed(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert done.returncode != 0
    assert reason in done.stderr, done.stderr[-3000:]
    assert f"refused: {AGAIN} could not be built" in done.stderr


def test_another_hash_of_the_published_data_ends_the_build(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 3"}\n')
    failed(
        build(engine, "--build-context", f"downloads={tmp_path}"),
        "env/downloads/train.jsonl: has sha256",
    )


def test_without_a_network_the_build_says_what_could_not_be_reached(engine: Engine) -> None:
    done = build(engine, "--network", "none", TAG="verl-p40-test:never")
    assert done.returncode != 0
    assert "the archive of the base's packages could not be read" in done.stderr
    assert "APT_MIRROR=http://... names another archive" in done.stderr
    assert not engine.has("verl-p40-test:never")


def test_an_index_that_does_not_answer_ends_the_build_with_the_cure(engine: Engine) -> None:
    index = "http://127.0.0.1:9/simple"
    done = build(engine, "--no-cache-filter", "packages", TARGET="packages", PIP_INDEX_URL=index)
    failed(done, "PIP_INDEX_URL names a mirror")


def test_an_image_that_could_not_be_built_leaves_the_earlier_one(engine: Engine) -> None:
    before = engine.image.id
    assert build(engine, "--network", "none", TAG=engine.tag).returncode != 0
    assert engine.image.id == before
