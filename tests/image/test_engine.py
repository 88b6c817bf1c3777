"""The wrapper itself: it fences as docker-compose.yml says, tells what is wrong, leaves nothing."""

from __future__ import annotations

import docker.errors
import pytest

from env.errors import Refused
from tests.image.conftest import ONLY_CU118, stray
from tests.image.engine import EXPECTED, Engine, LogError, complaints, compose_service, settings


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize(
    "line", ["WARNING: x", "2026 ERROR y", "Traceback (most recent call last)"]
)
def test_a_container_that_complains_fails(engine: Engine, line: str, stream: str) -> None:
    before = engine.left_over()
    with pytest.raises(LogError, match="complains"):
        engine.run(["sh", "-c", f"echo '{line}' >&{stream}"])
    assert engine.left_over() == before


def test_a_container_is_removed_with_its_volume_when_its_test_fails(engine: Engine) -> None:
    before = engine.left_over()
    with (
        pytest.raises(ZeroDivisionError),
        engine.container(["sh", "-c", "echo ERROR"]) as container,
    ):
        assert len(engine.left_over()) == len(before) + 1
        container.reload()
        (mount,) = container.attrs["Mounts"]
        raise ZeroDivisionError
    assert engine.left_over() == before
    with pytest.raises(docker.errors.NotFound):
        engine.client.volumes.get(mount["Name"])


def test_only_what_is_expected_is_let_through(engine: Engine) -> None:
    log = "WARNING: a\nno error, no Warning\nERRORS\nERROR b"
    assert complaints(log, {}) == ["WARNING: a", "ERROR b"]
    assert complaints(log, {"^WARNING: a$": "a test"}) == ["ERROR b"]
    assert engine.run(["echo", "WARNING"], expected={"WARN": "a test"}).out == "WARNING\n"
    assert len(EXPECTED) <= 3
    assert all(EXPECTED.values())


def test_without_an_engine_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Refused, match="no container engine answers"):
        Engine()


def test_without_the_image_it_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFILE", "cu999")
    with pytest.raises(Refused, match=r"no image verl-p40:cu999 is here(.|\n)*make build"):
        Engine()


def test_a_test_that_is_skipped_for_another_reason_is_told() -> None:
    assert stray({"a": f"Skipped: {ONLY_CU118}", "b": "Skipped: no engine"}) == ["b"]


@pytest.mark.parametrize("service", ["preprocess", "train", "monitor"])
def test_every_service_is_fenced(service: str) -> None:
    found = settings(compose_service(service))
    assert found["read_only"]
    assert found["init"]
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["tmpfs"] == {"/tmp": "mode=1777,exec"}


def test_the_fences_reach_the_container(engine: Engine) -> None:
    with engine.container(["true"]) as container:
        container.reload()
        config = container.attrs["HostConfig"]
    assert config["ReadonlyRootfs"]
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges:true"]
    assert config["NetworkMode"] == "none"
    assert str(config["ShmSize"]) == compose_service("train")["shm_size"]
