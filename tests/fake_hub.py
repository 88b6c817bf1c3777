"""A server on 127.0.0.1 that speaks what we use of the hub's and of ModelScope's API, and can fail.

    with FakeHub() as hub:
        hub.add("org/model", {"config.json": b"{}"})
        hub.fail("config.json", Fault.BROKEN)
        ... HF_ENDPOINT=hub.endpoint ...

Large files are answered by a redirect to another host name, as the hub does.
"""

from __future__ import annotations

import enum
import hashlib
import json
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Fault(enum.Enum):
    """What goes wrong with one request for a file."""

    BROKEN = "the connection is cut in the middle of what was announced"
    SHORT = "the answer is whole by its own account, but half of the file"
    CORRUPT = "one byte is another"
    UNAVAILABLE = "503"
    GONE = "404"
    NO_RANGE = "the range is ignored, and all of it sent"


@dataclass
class Request:
    path: str
    host: str
    range: str | None
    authorization: str | None


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str
    license: str
    gated: bool
    large: frozenset[str]
    announced: dict[str, str] = field(default_factory=dict)


class FakeHub:
    """``endpoint`` is its address; ``requests`` all that was asked of it, in order."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(
        self,
        repo: str,
        files: dict[str, bytes],
        *,
        commit: str = COMMIT,
        license: str = "apache-2.0",  # noqa: A002 - the hub's own word
        gated: bool = False,
        announced: dict[str, str] | None = None,
    ) -> None:
        """Serve ``files``; ``announced`` holds hashes that the listing claims instead."""
        large = frozenset(name for name in files if name.endswith((".safetensors", ".bin")))
        self.repositories[repo] = Repository(
            dict(files), commit, license, gated, large, announced or {}
        )

    def fail(self, name: str, *faults: Fault) -> None:
        """The next requests for the file ``name`` (or "listing") go wrong, one by one."""
        self._faults[name].extend(faults)

    def next_fault(self, name: str) -> Fault | None:
        queue = self._faults[name]
        return queue.popleft() if queue else None

    def asked_for(self, name: str) -> list[Request]:
        return [request for request in self.requests if request.path.endswith(name)]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.hub.requests.append(
            Request(
                path,
                self.headers.get("Host", ""),
                self.headers.get("Range"),
                self.headers.get("Authorization"),
            )
        )
        query = parse_qs(parts.query)
        for repo, repository in self.hub.repositories.items():
            if path.startswith(f"/api/models/{repo}"):
                return self._hf_listing(repo, repository, path)
            if path == f"/api/v1/models/{repo}/repo/files":
                return self._modelscope_listing(repository, query)
            for prefix in (f"/{repo}/resolve/", f"/models/{repo}/resolve/", f"/cdn/{repo}/"):
                if path.startswith(prefix):
                    revision, _, name = path.removeprefix(prefix).partition("/")
                    return self._file(repo, repository, revision, name, prefix)
        return self._error(401, "RepoNotFound")

    def _hf_listing(self, repo: str, repository: Repository, path: str) -> None:
        if self.hub.next_fault("listing") is Fault.UNAVAILABLE:
            return self._error(503)
        if repository.gated and self.headers.get("Authorization") != "Bearer right":
            return self._error(403, "GatedRepo")
        revision = path.partition("/revision/")[2]
        if revision not in ("", "main", repository.commit):
            return self._error(404, "RevisionNotFound")
        siblings = []
        for name, content in repository.files.items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content)}
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if name in repository.large:
                sha = repository.announced.get(name, hashlib.sha256(content).hexdigest())
                sibling["lfs"] = {"sha256": sha, "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        body = {
            "id": repo,
            "sha": repository.commit,
            "tags": [f"license:{repository.license}"],
            "siblings": siblings,
        }
        return self._json(body)

    def _modelscope_listing(self, repository: Repository, query: dict[str, list[str]]) -> None:
        if query.get("Revision") != ["master"] or query.get("Recursive") != ["true"]:
            return self._error(404)
        files: list[dict[str, Any]] = [{"Path": "assets", "Name": "assets", "Type": "tree"}]
        for name, content in repository.files.items():
            sha = repository.announced.get(name, hashlib.sha256(content).hexdigest())
            files.append({"Path": name, "Type": "blob", "Size": len(content), "Sha256": sha})
        return self._json({"Code": 200, "Success": True, "Data": {"Files": files}})

    def _file(
        self, repo: str, repository: Repository, revision: str, name: str, prefix: str
    ) -> None:
        if name not in repository.files or revision not in (repository.commit, "master"):
            return self._error(404, "EntryNotFound")
        if name in repository.large and prefix == f"/{repo}/resolve/":
            self.send_response(302)
            self.send_header(
                "Location",
                f"http://localhost:{self.hub.port}/cdn/{repo}/{revision}/{name}?Signature=x",
            )
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self._content(repository.files[name], self.hub.next_fault(name))

    def _content(self, content: bytes, fault: Fault | None) -> None:
        if fault is Fault.UNAVAILABLE:
            return self._error(503)
        if fault is Fault.GONE:
            return self._error(404)
        if fault is Fault.CORRUPT:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = 0
        wanted = self.headers.get("Range")
        if wanted and fault is not Fault.NO_RANGE:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                return self._error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        sent = body[: len(body) // 2] if fault in (Fault.BROKEN, Fault.SHORT) else body
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(sent if fault is Fault.SHORT else body)))
        self.end_headers()
        self.wfile.write(sent)
        return None

    def _json(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _error(self, status: int, code: str | None = None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
