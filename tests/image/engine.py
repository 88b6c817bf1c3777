"""The one door to the container engine: starts the image as docker compose does, and reads its log.

Every container is removed at the end, and one whose log holds an unexpected ERROR, WARNING or
Traceback fails the test that started it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors
import requests
from docker.models.containers import Container
from docker.models.images import Image
from docker.types import Mount, Ulimit

from env.errors import Problem, Refused
from env.paths import ROOT

HOME = "/opt/verl-p40"
OUT = f"{HOME}/out"
LABEL = "verl-p40.test"
PROFILES = ("cu118", "cu124")  # in the order in which env/image/settle.sh looks
SECONDS = 300

# A pattern of a line that is fine -> why it is.
EXPECTED: dict[str, str] = {}
_BAD = re.compile(r"\b(ERROR|WARNING)\b|Traceback \(most recent call last\)")


class LogError(AssertionError):
    """A container's log holds what nobody expected there."""


@dataclass(frozen=True)
class Result:
    """What a command in a container ended with."""

    code: int
    out: str
    err: str


def complaints(log: str, expected: Mapping[str, str] = EXPECTED) -> list[str]:
    """The lines of ``log`` that tell of something wrong, less those that are expected."""
    return [
        line
        for line in log.splitlines()
        if _BAD.search(line) and not any(re.search(pattern, line) for pattern in expected)
    ]


def check_log(log: str, who: str, expected: Mapping[str, str] = EXPECTED) -> None:
    """Raise :class:`LogError` with the whole log where it holds an unexpected complaint."""
    found = complaints(log, expected)
    if found:
        raise LogError(f"{who} complains:\n" + "\n".join(found) + f"\n\nits whole log:\n{log}")


@functools.cache
def compose_service(name: str) -> dict[str, Any]:
    """What docker-compose.yml says of a service on a machine without a GPU, all resolved."""
    files = ["-f", "docker-compose.yml", "-f", "docker-compose.cpu.yml"]
    command = ["docker", "compose", *files, "config", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused(Problem("docker compose config", done.stderr.strip()))
    service: dict[str, Any] = json.loads(done.stdout)["services"][name]
    return service


def settings(service: Mapping[str, Any]) -> dict[str, Any]:
    """A compose service's fences and limits, as the SDK names them."""
    kept = ("init", "read_only", "cap_drop", "security_opt", "shm_size", "mem_limit", "pids_limit")
    found = {key: service[key] for key in kept if key in service}
    found["tmpfs"] = dict(entry.partition(":")[::2] for entry in service.get("tmpfs", ()))
    if "cpus" in service:
        found["nano_cpus"] = int(float(service["cpus"]) * 1e9)
    found["ulimits"] = [
        # compose prints a limit of 0 as {}
        Ulimit(name=name, soft=limit.get("soft", 0), hard=limit.get("hard", 0))
        if isinstance(limit, dict)
        else Ulimit(name=name, soft=limit, hard=limit)
        for name, limit in service.get("ulimits", {}).items()
    ]
    return found


class Engine:
    """The engine and the image under test: PROFILE's, else the first that is here.

    Raises:
        Refused: no engine answers, or there is no such image.
    """

    def __init__(self) -> None:
        try:
            self.client = docker.from_env(timeout=SECONDS)
            self.client.ping()
        except (docker.errors.DockerException, requests.RequestException) as error:
            do = "start it (systemctl start docker), or let this user reach it (group docker)"
            problem = Problem("tests/image", f"no container engine answers: {error}", do=do)
            raise Refused(problem) from error
        wanted = [os.environ["PROFILE"]] if os.environ.get("PROFILE") else PROFILES
        found = [profile for profile in wanted if self.has(f"verl-p40:{profile}")]
        if not found:
            what = f"no image verl-p40:{' or verl-p40:'.join(wanted)} is here"
            do = "make build, or make build PROFILE=cu124"
            raise Refused(Problem("tests/image", what, do=do))
        self.profile = found[0]
        self.tag = f"verl-p40:{self.profile}"
        self.labels = {LABEL: uuid.uuid4().hex}

    def has(self, tag: str) -> bool:
        try:
            self.client.images.get(tag)
        except docker.errors.ImageNotFound:
            return False
        return True

    @property
    def image(self) -> Image:
        return self.client.images.get(self.tag)

    @contextlib.contextmanager
    def container(
        self,
        command: Sequence[str] | None,
        *,
        tag: str | None = None,
        user: str | None = None,
        out: str | None = None,
        room: str | None = None,
        mounts: Mapping[str, str] | None = None,
        expected: Mapping[str, str] = EXPECTED,
    ) -> Iterator[Container]:
        """A started container without a network; its log is checked, and it is removed.

        Fences and limits are those of docker-compose.yml's service `train`.

        Args:
            command: None runs the image's own.
            tag: another image than the one under test.
            user: ``uid:gid``; None is the image's own.
            out: a volume for ``out/``; None makes an empty one that goes with the container.
            room: instead, how much ``out/`` holds, in memory: ``5m``.
            mounts: file in the container -> file of this host, read-only.
            expected: pattern of a line in the log that is fine -> why.

        Raises:
            LogError: see :func:`check_log`; not where the body has failed already.
        """
        binds = [
            Mount(target, source, type="bind", read_only=True)
            for target, source in (mounts or {}).items()
        ]
        if room is None:
            binds.append(Mount(OUT, out, type="volume", no_copy=out is not None))
        else:
            binds.append(Mount(OUT, None, type="tmpfs", tmpfs_size=room, tmpfs_mode=0o1777))
        container = self.client.containers.create(
            tag or self.tag,
            command if command is None else list(command),
            user=user,
            network_mode="none",
            # no_copy: else an empty one takes the owner and the mode of the image's folder
            mounts=binds,
            labels=self.labels,
            **settings(compose_service("train")),
        )
        try:
            container.start()
            yield container
            check_log(container.logs().decode(errors="replace"), str(command), expected)
        finally:
            container.remove(force=True, v=True)

    def run(self, command: Sequence[str] | None, **options: Any) -> Result:
        """One command in a container of its own, as :meth:`container` makes it."""
        with self.container(command, **options) as container:
            return finish(container)

    @contextlib.contextmanager
    def volume(self, owner: str) -> Iterator[str]:
        """An empty volume that belongs to ``uid:gid`` alone, as a caller's out/ does."""
        volume = self.client.volumes.create(labels=self.labels)
        try:
            mount = Mount(OUT, volume.name, type="volume", no_copy=True)
            command = ["sh", "-c", f"chown {owner} {OUT} && chmod 700 {OUT}"]
            self.client.containers.run(
                self.tag, command, user="0:0", network_mode="none", mounts=[mount], remove=True
            )
            yield volume.name
        finally:
            volume.remove(force=True)

    def left_over(self) -> list[str]:
        """Containers and volumes that this engine's user has made and not removed."""
        labelled = {"label": f"{LABEL}={self.labels[LABEL]}"}
        containers = self.client.containers.list(all=True, filters=labelled)
        volumes = self.client.volumes.list(filters=labelled)
        return [found.name for found in (*containers, *volumes)]


def finish(container: Container) -> Result:
    """Wait for the container's end."""
    code = container.wait(timeout=SECONDS)["StatusCode"]
    out, err = (
        container.logs(stdout=which == "out", stderr=which == "err").decode(errors="replace")
        for which in ("out", "err")
    )
    return Result(code, out, err)


def wait_for_line(container: Container, start: str) -> None:
    """Follow the log until a line begins with ``start``; a container that ends before fails."""
    for line in _lines(container):
        if line.startswith(start):
            return
    raise AssertionError(f"no line began with {start!r}:\n{container.logs().decode()}")


def _lines(container: Container) -> Iterator[str]:
    rest = ""
    for piece in container.logs(stream=True, follow=True):
        *lines, rest = (rest + piece.decode(errors="replace")).split("\n")
        yield from lines


def files(container: Container, folder: str) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Every regular file below ``folder``, of a container that runs or has ended.

    By its path below the folder: owner and mode, and contents.
    """
    pieces, _ = container.get_archive(folder)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                found[member.name.partition("/")[2]] = (member, content.read())
    return found
