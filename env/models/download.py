"""Fetches files over HTTP so that what is cut goes on and what is wrong never stays.

``huggingface_hub``'s own download is not used for the bytes: it gives up when a proxy cuts the
body, does not compare hashes, and serves one hub. This serves all of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import requests
import urllib3

from env.errors import UNREACHABLE, Problem, Refused
from env.models.folder import sha256
from env.models.progress import DownloadProgress

INCOMPLETE = ".incomplete"

ATTEMPTS = 4
"""How often in a row a file may bring nothing new before it is given up."""

BACKOFF_S = 1.0
"""Seconds before the second attempt; doubles with each further one."""

_TIMEOUT_S = (10, 60)
_BLOCK = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server. ``git_sha1`` is the hash that git gives its content (a blob id)."""

    name: str
    url: str
    bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class TransientError(Exception):
    """Worth another attempt; its text is safe to show (no token, no signed address)."""


def with_retries(call: Callable[[], T], where: str) -> T:
    """``call()``, again after a :class:`TransientError`, at most ``ATTEMPTS`` times.

    Raises:
        Refused: (exit code 3) the last attempt failed too.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except TransientError as error:
            if attempt == ATTEMPTS:
                raise Refused(unreachable(where, str(error)), UNREACHABLE) from None
            time.sleep(BACKOFF_S * 2 ** (attempt - 1))
    raise AssertionError("ATTEMPTS is at least 1")


def unreachable(where: str, what: str) -> Problem:
    return Problem(
        where,
        f"could not be had: {what}",
        do="check the network and the proxy; --endpoint, HF_ENDPOINT or MODELSCOPE_ENDPOINT name a "
        "mirror; what was fetched so far is kept, and the same command goes on from there",
    )


def get(
    session: requests.Session,
    url: str,
    headers: Mapping[str, str],
    params: Mapping[str, str] | None = None,
) -> requests.Response:
    """An open response of status 200, 206 or 416, its body unread.

    Raises:
        TransientError: no connection, a time-out, or a status that may pass (408, 429, 5xx).
        Refused: (exit code 3) any other status.
    """
    where = shown(url)
    try:
        response = session.get(
            url, headers=dict(headers), params=params, stream=True, timeout=_TIMEOUT_S
        )
    except requests.RequestException as error:
        raise TransientError(f"{host(url)}: {type(error).__name__}") from None
    if response.status_code in (200, 206, 416):
        return response
    response.close()
    status = response.status_code
    if status in (408, 429) or status >= 500:
        raise TransientError(f"{host(url)} answered {status}")
    if status in (401, 403):
        raise Refused(
            Problem(
                where,
                f"the server answered {status}: it wants to know who you are",
                "a repository that is open, or a token that may read it",
                "accept the model's terms on its page, and set HF_TOKEN",
            ),
            UNREACHABLE,
        )
    raise Refused(
        Problem(
            where,
            f"the server answered {status}",
            "the file",
            "check the repository's name, --revision and --endpoint",
        ),
        UNREACHABLE,
    )


def fetch_file(
    session: requests.Session, file: RemoteFile, folder: Path, progress: DownloadProgress
) -> None:
    """``folder/file.name``, whole and checked; picks up what an earlier attempt left.

    Raises:
        Refused: (exit code 3) it cannot be had, or is not what it should be.
    """
    target, partial = folder / file.name, folder / (file.name + INCOMPLETE)
    began_with = partial.stat().st_size if partial.exists() else 0
    progress.advance(began_with)
    _complete(session, file, partial, progress)
    wrong = _wrong(file, partial)
    if wrong and began_with:
        # What lay there was of another file: once more from nothing.
        progress.say(f"{file.name}: {wrong.what}; fetching it anew")
        progress.advance(-partial.stat().st_size)
        partial.unlink()
        _complete(session, file, partial, progress)
        wrong = _wrong(file, partial)
    if wrong:
        partial.unlink()
        raise Refused(wrong, UNREACHABLE)
    with partial.open("rb") as finished:
        os.fsync(finished.fileno())
    partial.replace(target)


def _complete(
    session: requests.Session, file: RemoteFile, partial: Path, progress: DownloadProgress
) -> None:
    """Ask until ``partial`` has all its bytes, or nothing new came ``ATTEMPTS`` times."""
    idle = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            _continue(session, file, partial, progress)
            return
        except TransientError as error:
            after = partial.stat().st_size if partial.exists() else 0
            idle = 0 if after > before else idle + 1
            if idle >= ATTEMPTS:
                raise Refused(unreachable(shown(file.url), str(error)), UNREACHABLE) from None
            progress.say(f"{file.name}: {error}; going on from byte {after:,}")
            time.sleep(BACKOFF_S * 2 ** max(idle - 1, 0))


def _continue(
    session: requests.Session, file: RemoteFile, partial: Path, progress: DownloadProgress
) -> None:
    """One request for what is missing of ``partial``. TransientError: it came to an early end."""
    done = partial.stat().st_size if partial.exists() else 0
    if done and done == file.bytes:
        return
    # A server that compresses on the way would make byte ranges meaningless.
    headers = {"Accept-Encoding": "identity", **file.headers}
    if done:
        headers["Range"] = f"bytes={done}-"
    with get(session, file.url, headers) as response:
        starts_at = _start(response)
        if response.status_code == 416 or starts_at not in (0, done):
            partial.unlink()
            progress.advance(-done)
            raise TransientError("the server has no such part of it")
        if starts_at == 0 and done:
            progress.advance(-done)
            done = 0
        length = response.headers.get("Content-Length", "")
        total = file.bytes if file.bytes is not None else _sum(done, length)
        with partial.open("r+b" if done else "wb") as out:
            out.seek(done)
            try:
                # read1 hands over what has arrived; reading whole blocks would lose a part of one
                # when the connection breaks.
                while block := response.raw.read1(_BLOCK, decode_content=True):
                    out.write(block)
                    done += len(block)
                    progress.advance(len(block))
            except urllib3.exceptions.HTTPError as error:
                raise TransientError(f"the connection broke ({type(error).__name__})") from None
    if total is not None and done < total:
        raise TransientError(f"the server ended it {total - done:,} bytes early")


def _start(response: requests.Response) -> int | None:
    """The first byte that the body holds; None where the server does not say."""
    if response.status_code == 200:
        return 0
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found.group(1)) if found else None


def _sum(done: int, length: str) -> int | None:
    return done + int(length) if length.isdigit() else None


def _wrong(file: RemoteFile, path: Path) -> Problem | None:
    size = path.stat().st_size
    do = "try again later, or another --endpoint; the file was thrown away"
    if file.bytes is not None and size != file.bytes:
        return Problem(shown(file.url), f"has {size:,} bytes", f"{file.bytes:,} bytes", do)
    if file.sha256:
        found = sha256(path)
        return _differs(file, "sha256", found, file.sha256, do)
    if file.git_sha1:
        content = path.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return _differs(file, "git's hash", found, file.git_sha1, do)
    return None


def _differs(file: RemoteFile, kind: str, found: str, expected: str, do: str) -> Problem | None:
    if found == expected:
        return None
    return Problem(shown(file.url), f"has {kind} {found}", expected, do)


def host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def shown(url: str) -> str:
    """``url`` without what may be secret in it: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{host(url)}{parts.path}"
