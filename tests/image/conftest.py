"""The engine, one long-lived container to ask, and the rule that nothing is skipped but cu118's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import testinfra
from testinfra.host import Host

from env.errors import Refused
from tests.image.engine import HOME, Engine

HERE = Path(__file__).parent
ONLY_CU118 = "only the profile cu118 has it"
_skipped: dict[str, str] = {}


class Inside(Protocol):
    """Runs Python code in the long-lived container: what it prints, as JSON."""

    def __call__(self, code: str, *arguments: str) -> Any: ...


def _engine() -> Engine | Refused:
    try:
        return Engine()
    except Refused as refused:
        return refused


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cu118: only an image of the profile cu118 can pass it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    found = _engine() if ours else None
    # Without an engine or an image nothing is skipped: the fixture below tells, and fails.
    if not isinstance(found, Engine) or found.profile == "cu118":
        return
    for item in ours:
        if item.get_closest_marker("cu118"):
            item.add_marker(pytest.mark.skip(reason=ONLY_CU118))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid.startswith("tests/image/"):
        _skipped[report.nodeid] = str(report.longrepr)


def stray(skipped: dict[str, str]) -> list[str]:
    """Those of the skipped tests that had another reason than the profile."""
    return [test for test, reason in skipped.items() if ONLY_CU118 not in reason]


def pytest_sessionfinish(session: pytest.Session) -> None:
    for test in stray(_skipped):
        print(f"\nskipped, and no test of the image may be: {test}: {_skipped[test]}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine with the image under test; at the end nothing that tests made is left there."""
    found = _engine()
    if isinstance(found, Refused):
        pytest.fail(str(found), pytrace=False)
    yield found
    assert found.left_over() == []


@pytest.fixture(scope="session")
def host(engine: Engine) -> Iterator[Host]:
    """A container of the image that does nothing, for testinfra."""
    with engine.container(["sleep", "infinity"]) as container:
        yield testinfra.get_host(f"docker://{container.id}")


@pytest.fixture(scope="session")
def root(host: Host) -> Host:
    """The same container, asked as root: an administrator who execs into it."""
    return testinfra.get_host(f"docker://root@{host.backend.name}")


@pytest.fixture(scope="session")
def inside(host: Host) -> Inside:
    def run(code: str, *arguments: str) -> Any:
        words = " ".join(["%s"] * len(arguments))
        return json.loads(host.check_output(f"python -c %s {words}", code, *arguments))

    return run


@pytest.fixture(scope="session")
def manifest(host: Host) -> dict[str, Any]:
    """What the image says that it holds."""
    told: dict[str, Any] = json.loads(host.file(f"{HOME}/share/manifest.json").content_string)
    return told


@pytest.fixture(scope="session")
def site_packages(inside: Inside) -> str:
    """Folder of the image's Python packages."""
    return str(inside("import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"))


@pytest.fixture(scope="session")
def host_bundle() -> Path:
    """The certificates that a build on this machine takes, as env/image/build.sh chooses them."""
    default = "/etc/ssl/certs/ca-certificates.crt"
    return Path(os.environ.get("CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or default)
