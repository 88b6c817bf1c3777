"""What no package index has: laid by hand or fetched, by hash, or refused with the way by hand."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from env import archives
from env.paths import ROOT

SMALL, LARGE, UNPINNED = b"a small one\n", b"a large one\n" * 4000, b"no hash is known\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server(http.server.SimpleHTTPRequestHandler):
    """Knows HEAD and byte ranges, and notes which files were asked for, from which byte."""

    asked: list[str]

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        begin = int((self.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])
        self.asked.append(f"{path.name} from {begin}")
        if not path.exists():
            self.send_error(404)
            return
        ranges = "Range" in self.headers and not path.with_name("no-ranges").exists()
        whole = path.read_bytes()
        if ranges and begin >= len(whole):
            self.send_error(416)
            return
        content = whole[begin:] if ranges else whole
        self.send_response(206 if ranges else 200)
        self.send_header("Content-Length", str(len(content)))
        if ranges:
            end = begin + len(content)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{end}")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder that is served, its address, and what it was asked for."""
    folder, asked = tmp_path / "mirror", list[str]()
    folder.mkdir()
    handler = type("Here", (Server,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose list names three files at an address that nothing answers."""
    root = tmp_path / "check out"
    shutil.copytree(ROOT / "env" / "install", root / "env" / "install")
    (root / "env" / "locks").mkdir()
    (root / "env" / "downloads").mkdir()
    nowhere = "http://127.0.0.1:9"
    (root / "env/locks/archives.txt").write_text(
        archives.HEADER
        + f"data small.txt {sha256(SMALL)} {len(SMALL)} SMALL_URL {nowhere}/small.txt\n"
        + f"cu118 large+1.txt {sha256(LARGE)} - LARGE_URL {nowhere}/x/large%2B1.txt\n"
        + f"cu118 unpinned.txt - - SMALL_URL {nowhere}/unpinned.txt\n"
    )
    return root


def fetch(checkout: Path, *groups: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "env/install/archives.sh", "got", *groups],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
    )


def test_what_is_laid_by_hand_is_taken_and_listed(checkout: Path) -> None:
    (checkout / "env/downloads/small.txt").write_bytes(SMALL)
    done = fetch(checkout, "data")
    assert done.returncode == 0, done.stderr
    assert (checkout / "got/small.txt").read_bytes() == SMALL
    assert (checkout / "got/archives.txt").read_text() == f"{sha256(SMALL)} pinned small.txt\n"


def test_a_laid_file_with_another_hash_is_refused_and_kept(checkout: Path) -> None:
    laid = checkout / "env/downloads/small.txt"
    laid.write_bytes(b"something else\n")
    done = fetch(checkout, "data")
    assert done.returncode == 1
    assert sha256(b"something else\n") in done.stderr
    assert f"expected {sha256(SMALL)}" in done.stderr
    assert laid.exists()
    assert not (checkout / "got/small.txt").exists()


def test_all_that_cannot_be_had_is_told_at_once_with_the_way_by_hand(checkout: Path) -> None:
    done = fetch(checkout, "data", "cu118")
    assert done.returncode == 3
    assert done.stderr.startswith("refused: 3 problem(s)")
    assert "http://127.0.0.1:9/x/large%2B1.txt: cannot be fetched" in done.stderr
    assert f"lay it as env/downloads/large+1.txt (sha256 {sha256(LARGE)})" in done.stderr
    assert "env/downloads/unpinned.txt (no hash of it is pinned)" in done.stderr
    assert f"{len(SMALL)} bytes" in done.stderr
    assert "a mirror's folder in LARGE_URL" in done.stderr


def test_nothing_is_fetched_before_all_of_it_is_known_to_be_there(
    checkout: Path, mirror: tuple[Path, str, list[str]]
) -> None:
    folder, address, asked = mirror
    (folder / "small.txt").write_bytes(SMALL)
    assert fetch(checkout, "data", "cu118", SMALL_URL=address, LARGE_URL=address).returncode == 3
    assert "small.txt from 0" not in asked


def test_a_mirror_has_the_files_by_their_own_names(
    checkout: Path, mirror: tuple[Path, str, list[str]]
) -> None:
    folder, address, _ = mirror
    for name, content in {"large+1.txt": LARGE, "unpinned.txt": UNPINNED}.items():
        (folder / name).write_bytes(content)
    done = fetch(checkout, "cu118", LARGE_URL=address, SMALL_URL=f"{address}/")
    assert done.returncode == 0, done.stderr
    assert (checkout / "got/large+1.txt").read_bytes() == LARGE
    assert not (checkout / "got/small.txt").exists()


def test_what_was_begun_goes_on(checkout: Path, mirror: tuple[Path, str, list[str]]) -> None:
    folder, address, asked = mirror
    (folder / "large+1.txt").write_bytes(LARGE)
    (folder / "unpinned.txt").write_bytes(UNPINNED)
    (checkout / "got").mkdir()
    (checkout / "got/.large+1.txt.part").write_bytes(LARGE[:1000])
    done = fetch(checkout, "cu118", LARGE_URL=address, SMALL_URL=address)
    assert done.returncode == 0, done.stderr
    assert "large+1.txt from 1000" in asked
    assert (checkout / "got/large+1.txt").read_bytes() == LARGE


@pytest.mark.parametrize("begun", [LARGE, LARGE[:1000]])
def test_what_cannot_go_on_begins_anew(
    checkout: Path, mirror: tuple[Path, str, list[str]], begun: bytes
) -> None:
    # a file that was whole and not yet named; a server that knows no ranges
    folder, address, _ = mirror
    (folder / "large+1.txt").write_bytes(LARGE)
    (folder / "unpinned.txt").write_bytes(UNPINNED)
    (folder / "no-ranges").touch()
    (checkout / "got").mkdir()
    (checkout / "got/.large+1.txt.part").write_bytes(begun)
    done = fetch(checkout, "cu118", LARGE_URL=address, SMALL_URL=address)
    assert done.returncode == 0, done.stderr
    assert (checkout / "got/large+1.txt").read_bytes() == LARGE


def test_files_of_earlier_pins_are_taken_away(checkout: Path) -> None:
    (checkout / "env/downloads/small.txt").write_bytes(SMALL)
    (checkout / "got").mkdir()
    (checkout / "got/older.txt").touch()
    assert fetch(checkout, "data").returncode == 0
    assert sorted(path.name for path in (checkout / "got").iterdir()) == [
        "archives.txt",
        "small.txt",
    ]


def test_a_fetched_file_with_another_hash_leaves_nothing_behind(
    checkout: Path, mirror: tuple[Path, str, list[str]]
) -> None:
    folder, address, _ = mirror
    (folder / "small.txt").write_bytes(b"not this\n")
    done = fetch(checkout, "data", SMALL_URL=address)
    assert done.returncode == 1
    assert f"gave a file of sha256 {sha256(b'not this' + bytes([10]))}" in done.stderr
    assert list((checkout / "got").iterdir()) == []


def test_a_file_without_a_pinned_hash_is_held_against_what_was_recorded(checkout: Path) -> None:
    laid = checkout / "env/downloads"
    (laid / "large+1.txt").write_bytes(LARGE)
    (laid / "unpinned.txt").write_bytes(UNPINNED)
    done = fetch(checkout, "cu118")
    assert done.returncode == 0
    assert f"no hash of it is pinned; the build records {sha256(UNPINNED)}" in done.stderr
    assert (
        f"{sha256(UNPINNED)} recorded unpinned.txt" in (checkout / "got/archives.txt").read_text()
    )
    (laid / "recorded.sha256").write_text(f"{sha256(UNPINNED)}  unpinned.txt\n")
    assert "records" not in fetch(checkout, "cu118").stderr
    (laid / "unpinned.txt").write_bytes(b"another\n")
    done = fetch(checkout, "cu118")
    assert done.returncode == 1
    assert f"expected {sha256(UNPINNED)}" in done.stderr


def test_cudnn_goes_to_its_own_folder_without_static_libraries(tmp_path: Path) -> None:
    name = "cudnn-linux-x86_64-8.9.7.29_cuda11-archive"
    made = tmp_path / name
    for file in ("lib/libcudnn.so.8", "lib/libcudnn_static.a", "include/cudnn.h", "LICENSE"):
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).write_text(file)
    with tarfile.open(tmp_path / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(made, name)
    script = ["bash", str(ROOT / "env/install/cudnn.sh")]
    subprocess.run([*script, "cu118", str(tmp_path), str(tmp_path / "root")], check=True)
    there = {str(p.relative_to(tmp_path / "root")) for p in tmp_path.glob("root/**/*.*")}
    place = "usr/local/cudnn-8.9.7"
    assert {f"{place}/lib/libcudnn.so.8", f"{place}/include/cudnn.h"} <= there
    assert not any(path.endswith(".a") for path in there)
    assert f"/{place}/lib\n" == (tmp_path / "root/etc/ld.so.conf.d/cudnn-8.9.7.conf").read_text()
    subprocess.run([*script, "cu124", str(tmp_path), str(tmp_path / "none")], check=True)
    assert list((tmp_path / "none").iterdir()) == []
