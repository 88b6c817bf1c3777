"""How the image runs: who, with what rights, where it writes, what ends it."""

from __future__ import annotations

import time

import pytest
from testinfra.host import Host

from tests.image.engine import HOME, OUT, Engine, compose_service, files, finish, wait_for_line

COMPILERS = """
    nvcc cicc gcc cc g++ c++ cc1 cc1plus clang clang++ tcc ld ld.bfd ld.gold as make cmake ninja git
"""
# Where anybody may write in the image itself, were its root not read-only.
OPEN = {"/tmp", "/var/tmp", "/run/lock", OUT}


def compilers(host: Host) -> list[str]:
    """Programs by these names, or with a target or a version about them, wherever they lie."""
    names = " -o ".join(
        f"-name '{before}{name}' -o -name '{before}{name}-[0-9]*'"
        for name in COMPILERS.split()
        for before in ("", "*-linux-gnu-")
    )
    found = f"find / -xdev \\( {names} \\) ! -type d -perm /111 2>&1"
    lines = host.check_output(f"{found} | grep -v 'Permission denied' || true").splitlines()
    return [line for line in lines if line]


def test_it_runs_as_an_unprivileged_user(host: Host) -> None:
    assert host.check_output("id -u; id -g; id -G").split() == ["1000", "1000", "1000"]


def test_it_has_no_capability_and_can_get_none(host: Host) -> None:
    lines = host.check_output("cat /proc/self/status").splitlines()
    status = {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_root_in_the_container_has_no_capability_either(root: Host) -> None:
    assert root.check_output("id -u") == "0"
    assert root.run("chown 1000 /tmp").rc != 0
    assert "CapEff:\t0000000000000000" in root.check_output("cat /proc/self/status")


@pytest.mark.parametrize(
    "place",
    ["/", "/etc", "/usr/local", "/var/tmp", "/opt", HOME, f"{HOME}/.venv/src/verl/verl",
     f"{HOME}/share/gsm8k"],
)  # fmt: skip
def test_its_root_is_read_only(root: Host, host: Host, place: str) -> None:
    for who in (root, host):
        done = who.run("touch %s/new", place)
        assert done.rc != 0
        assert "Read-only file system" in done.stderr


@pytest.mark.parametrize("place", ["/tmp", "$HOME", "$VERL_P40_OUT", "/dev/shm"])
def test_it_writes_where_it_must(host: Host, place: str) -> None:
    assert host.check_output(f'echo 1 >"{place}/new" && cat "{place}/new" && rm "{place}/new"')


def test_what_lies_in_tmp_can_be_run(host: Host) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' >/tmp/run && chmod +x /tmp/run && /tmp/run"
    assert host.check_output(script) == "ran"


def test_anybody_may_write_only_where_that_is_meant(root: Host) -> None:
    found = root.check_output("find / -xdev -perm -0002 ! -type l -print 2>/dev/null || true")
    assert set(found.splitlines()) - OPEN == set()


def test_what_runs_belongs_to_root(root: Host) -> None:
    assert root.check_output("find %s -xdev ! -user root ! -path %s", HOME, OUT) == ""


def test_shared_memory_is_as_large_as_compose_says(host: Host) -> None:
    blocks, size = map(int, host.check_output("stat -f -c '%b %S' /dev/shm").split())
    assert abs(blocks * size - int(compose_service("train")["shm_size"])) < 1 << 20


def test_it_dumps_no_core(host: Host) -> None:
    assert "core" in compose_service("train")["ulimits"]
    assert host.check_output("ulimit -c; ulimit -H -c").split() == ["0", "0"]


def test_no_compiler_is_in_it(root: Host) -> None:
    assert compilers(root) == []


def test_the_clock_is_utc(host: Host) -> None:
    assert host.check_output("date +%Z") == "UTC"
    assert host.check_output("python -c %s", "import time; print(time.tzname[0])") == "UTC"
    assert host.check_output("readlink -f /etc/localtime || true") in (
        "/usr/share/zoneinfo/Etc/UTC",
        "/usr/share/zoneinfo/UTC",
        "/etc/localtime",
        "",
    )


def with_a_password(shadow: str) -> list[str]:
    """Users of an /etc/shadow whose password is set, or empty, which any password opens."""
    entries = (line.split(":") for line in shadow.splitlines())
    return [fields[0] for fields in entries if fields[1][:1] not in ("*", "!")]


def test_nobody_has_a_password(root: Host) -> None:
    assert with_a_password(root.check_output("cat /etc/shadow")) == []
    users = [line.split(":") for line in root.check_output("cat /etc/passwd").splitlines()]
    assert {fields[1] for fields in users} == {"x"}
    assert [fields[0] for fields in users if fields[6].endswith("sh")] == ["root"]
    assert [fields[0] for fields in users if fields[2] == "0"] == ["root"]
    assert not root.exists("sudo")
    assert not root.exists("sshd")


def test_a_password_is_told() -> None:
    shadow = "root:*:1::::::\na:$6$salt$hash:1::::::\nb::1::::::\nc:!:1::::::"
    assert with_a_password(shadow) == ["a", "b"]


def test_without_a_command_it_tells_how_to_train(engine: Engine) -> None:
    done = engine.run(None)
    assert done.code == 0
    assert done.out.startswith("usage: python -m run.train")


def test_nothing_stands_before_the_command(engine: Engine) -> None:
    # the entry point of NVIDIA's bases prints a banner, and a WARNING where there is no card
    assert not engine.image.attrs["Config"]["Entrypoint"]


def test_another_command_runs_and_its_exit_code_is_handed_on(engine: Engine) -> None:
    done = engine.run(["python", "-c", "import sys; print(6 * 7); sys.exit(5)"])
    assert (done.code, done.out) == (5, "42\n")


def test_out_that_belongs_to_another_is_refused_in_words(engine: Engine) -> None:
    with engine.volume(owner="4000:4000") as out:
        done = engine.run(["python", "-m", "run.train", "--preset", "tiny"], out=out)
    assert done.code == 1
    assert done.err.startswith("refused:")
    assert OUT in done.err


@pytest.mark.parametrize("size", ["4k", "200k"])
def test_a_full_disk_is_told_in_words(engine: Engine, size: str) -> None:
    # before anything is there, and while the model is written
    done = engine.run(["python", "-m", "run.train", "--preset", "tiny"], room=size)
    assert done.code == 1, done.out
    assert done.err.startswith("refused:"), done.err
    assert "No space left on device" in done.err


def test_any_user_trains_and_owns_the_results_and_a_stop_ends_it_well(engine: Engine) -> None:
    command = ["python", "-m", "run.train", "--preset", "tiny", "trainer.total_training_steps=9999"]
    grace = compose_service("train")["stop_grace_period"]
    assert grace == "1m0s"
    with (
        engine.volume(owner="12345:23456") as out,
        engine.container(command, user="12345:23456", out=out) as container,
    ):
        wait_for_line(container, "step 2/")
        started = time.monotonic()
        container.stop(timeout=60)
        seconds = time.monotonic() - started
        done = finish(container)
        made = files(container, OUT)
    assert done.code == 128 + 15, done.err
    assert "terminated; what was made lies in" in done.err
    assert seconds < 60
    owners = {(member.uid, member.gid) for member, _ in made.values()}
    assert owners == {(12345, 23456)}
    (metrics,) = (found for path, (_, found) in made.items() if path.endswith("metrics.jsonl"))
    assert len(metrics.splitlines()) >= 2
