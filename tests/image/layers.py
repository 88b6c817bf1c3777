"""What the layers of an image hold, those files too that a later layer hides or removes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

PIECE = 1 << 20
# Packages of the distribution and of Python: signed, or fetched by hash. They bring keys and
# addresses of their own, as examples; what a build could leave among them is small.
OF_PACKAGES = re.compile(r"usr/(?!local/)|.*/site-packages/")
LARGEST_OF_PACKAGES = 1 << 18

# What no other file may hold, whatever it is called.
SECRETS = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{16}"),
    "a hub's token": re.compile(rb"hf_[A-Za-z0-9]{34}"),
    "a forge's token": re.compile(rb"gh[opsu]_[A-Za-z0-9]{36}"),
    "a cloud's key": re.compile(rb"AKIA[0-9A-Z]{16}"),
    "a password in an address": re.compile(
        rb"[a-z]://[^/\s:@'\"<>{}$]+:[^/\s:@'\"<>{}$]+@[a-zA-Z0-9]"
    ),
}

# What has no business in any layer -> what it is.
UNWANTED = {
    r"run/secrets(/|$)": "secrets of the build",
    r"(.*/)?\.(git|netrc|pypirc|ssh|aws|docker)(/|$)": "credentials or history",
    r"(.*/)?pip\.conf$|(.*/)?uv\.toml$": "the builder's index",
    r"opt/verl-p40/(out|env/downloads|tests|docs|\.ci|\.venv/cache)/.": "what is not for running",
    r"opt/verl-p40/\.env": "settings of one host",
    r"cache/.|root/\.cache/|(.*/)?\.cache/.": "a cache",
    r"var/cache/apt/.*\.(bin|deb)$|var/lib/apt/lists/[^/]+_": "apt's cache",
    r"(tmp|var/tmp)/.": "what a build forgot",
}

# An engine mounts its own over them, so what they hold is seen in the layers alone.
OF_ONE_HOST = ("etc/hostname", "etc/resolv.conf")


@dataclass
class Layers:
    """Paths of every layer, the lowest first, and what its files hold that they should not.

    Args:
        of_one_host: contents of :data:`OF_ONE_HOST`, those that are not empty.
    """

    paths: list[list[str]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    of_one_host: list[bytes] = field(default_factory=list)

    def unwanted(self, known: Mapping[str, str] = UNWANTED) -> list[str]:
        """``path: what it is``, of files and links in any layer."""
        patterns = [(re.compile(pattern), what) for pattern, what in known.items()]
        return [
            f"{path}: {what}"
            for paths in self.paths
            for path in paths
            for pattern, what in patterns
            if pattern.match(path)
        ]

    def above(self, path: str) -> list[str]:
        """Paths of the layers that lie above the lowest one that holds ``path``."""
        first = next(i for i, paths in enumerate(self.paths) if path in paths)
        return [path for paths in self.paths[first + 1 :] for path in paths]


def saved(tag: str, needles: Mapping[str, bytes]) -> Layers:
    """The layers of an image of this engine, looked through for secrets and ``needles``."""
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        layers = read(process.stdout, needles)
    if process.returncode != 0:
        raise RuntimeError(f"docker save {tag}: exit code {process.returncode}")
    return layers


def read(archive: IO[bytes], needles: Mapping[str, bytes]) -> Layers:
    """As :func:`saved`, of what ``docker save`` writes.

    Args:
        needles: what it is -> bytes that no file may hold.
    """
    paths: dict[str, list[str]] = {}
    found = Layers()
    order: list[str] = []
    with tarfile.open(fileobj=archive, mode="r|", bufsize=PIECE) as outer:
        for blob in outer:
            content = outer.extractfile(blob) if blob.isreg() else None
            if content is None:
                continue
            if blob.name == "manifest.json":
                order = json.loads(content.read())[0]["Layers"]
            elif blob.name.startswith("blobs/") or blob.name.endswith("/layer.tar"):
                # the small ones may be JSON, which cannot be told by the name
                stream = io.BytesIO(content.read()) if blob.size < PIECE else content
                members = _members(stream, blob.name, needles, found)
                if members is not None:
                    paths[blob.name] = members
    found.paths = [paths[name] for name in order]
    return found


def _members(
    stream: IO[bytes], layer: str, needles: Mapping[str, bytes], found: Layers
) -> list[str] | None:
    """Files and links of one layer; None where ``stream`` is no layer."""
    paths = []
    with contextlib.ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|*", bufsize=PIECE))
        except tarfile.ReadError:
            return None
        for member in tar:
            path = member.name.removeprefix("./")
            if not member.isdir():
                paths.append(path)
            of_packages = OF_PACKAGES.match(path) is not None
            if member.isreg() and not (of_packages and member.size > LARGEST_OF_PACKAGES):
                stored = tar.extractfile(member)
                assert stored is not None
                content = stored.read()
                told = scan(content, needles, of_packages)
                found.secrets += [f"{layer[:20]} {path}: {what}" for what in told]
                if path in OF_ONE_HOST and content.strip():
                    found.of_one_host.append(content)
    return paths


def scan(content: bytes, needles: Mapping[str, bytes], of_packages: bool = False) -> Iterator[str]:
    """What ``content`` holds of ``needles`` and, outside packages, of secrets; in words."""
    for what, needle in needles.items():
        if needle in content:
            yield what
    for what, pattern in SECRETS.items():
        if not of_packages and pattern.search(content):
            yield what


def planted(layers: Iterable[Mapping[str, bytes]]) -> io.BytesIO:
    """An archive as ``docker save`` writes it, of layers that hold these files."""
    blobs = {f"blobs/sha256/{number}": _tar(files) for number, files in enumerate(layers)}
    manifest = json.dumps([{"Layers": list(blobs)}]).encode()
    return io.BytesIO(_tar({**blobs, "blobs/sha256/config": b"{}", "manifest.json": manifest}))


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
