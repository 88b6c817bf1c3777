"""The committed locks are what env/pins.toml gives, as far as that is known without a network."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from env import archives
from env.lock import HEADER, INPUTS, LOCKS, inputs_hash, locks
from env.pins import dotted, pins

NAMES = ["uv", "tools", "cu124", "cu118", "media", "gpu-check"]
# Pythons that each lock is installed on.
PYTHONS = {
    "uv": ["3.10", "3.11"],
    "tools": ["3.10", "3.11"],
    "cu124": dotted(pins(), "profiles.cu124.python"),
    "cu118": dotted(pins(), "profiles.cu118.python"),
    "media": ["3.10", "3.11"],
    "gpu-check": dotted(pins(), "profiles.gpu-check.python"),
}


@dataclass
class Locked:
    requirement: Requirement
    hashes: list[str]

    @property
    def exact(self) -> str:
        """Version or URL."""
        return self.requirement.url or str(self.requirement.specifier).removeprefix("==")

    def applies(self, python: str) -> bool:
        machine = {"sys_platform": "linux", "platform_machine": "x86_64"}
        version = {"python_version": python, "python_full_version": f"{python}.9"}
        marker = self.requirement.marker
        return marker is None or marker.evaluate({**machine, **version})


def text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def entries(name: str) -> list[Locked]:
    joined = text(name).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    return [
        Locked(Requirement(line.split(" --hash=")[0]), re.findall(r"--hash=(\S+)", line))
        for line in lines
    ]


def on(name: str, python: str) -> dict[str, list[str]]:
    """What the lock installs on that Python: canonical name -> versions (or URLs)."""
    found: dict[str, list[str]] = {}
    for entry in entries(name):
        if entry.applies(python):
            found.setdefault(canonicalize_name(entry.requirement.name), []).append(entry.exact)
    return found


INSTALLS = [(name, python) for name in NAMES for python in PYTHONS[name]]


def test_there_is_one_lock_for_each_declared_one_and_no_other() -> None:
    there = sorted(path.name for path in LOCKS.iterdir())
    assert there == sorted(f"{name}.txt" for name in [*NAMES, archives.NAME])
    assert sorted(locks()) == sorted(NAMES)


def test_the_list_of_archives_is_what_the_pins_give() -> None:
    assert text(archives.NAME) == archives.text(), "env/locks/archives.txt is stale: make lock"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_was_made_from_the_pins_as_they_are_now(name: str) -> None:
    header = f"{HEADER}{INPUTS}{inputs_hash(locks()[name])}\n"
    assert text(name).startswith(header), f"env/locks/{name}.txt is stale: make lock"


@pytest.mark.parametrize(("name", "python"), INSTALLS)
def test_every_direct_pin_is_locked_at_its_version(name: str, python: str) -> None:
    locked = on(name, python)
    for line in locks()[name].requirements:
        pin = Requirement(line)
        exact = pin.url or str(pin.specifier).removeprefix("==")
        assert locked[canonicalize_name(pin.name)] == [exact]


@pytest.mark.parametrize(("name", "python"), INSTALLS)
def test_no_package_is_locked_twice_for_one_python(name: str, python: str) -> None:
    assert [package for package, exact in on(name, python).items() if len(exact) > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_is_exact_and_has_a_hash(name: str) -> None:
    assert entries(name)
    for entry in entries(name):
        assert re.fullmatch(r"==[^*,]+", str(entry.requirement.specifier)) or entry.requirement.url
        assert entry.hashes, entry.requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", found) for found in entry.hashes)


@pytest.mark.parametrize("name", NAMES)
def test_no_lock_names_a_host_but_that_of_the_pinned_torch(name: str) -> None:
    torch = dotted(pins(), "profiles.cu118.torch")
    allowed = f"{torch['url']}#sha256={torch['sha256']}"
    found = re.findall(r"\S*://\S*", text(name))
    assert found == ([allowed] if name == "cu118" else [])
    assert not re.search(r"^\s*(-i|-f|--[a-z-]*(index|find|host)[a-z-]*)\b", text(name), re.M)


@pytest.mark.parametrize(
    ("profile", "python"), [("cu124", "3.10"), ("cu124", "3.11"), ("cu118", "3.10")]
)
def test_the_tools_install_beside_a_profile(profile: str, python: str) -> None:
    stack, tools = on(profile, python), on("tools", python)
    differing = {name for name in stack.keys() & tools.keys() if stack[name] != tools[name]}
    assert differing == set()


def test_the_profiles_differ_only_in_torch_and_its_cuda_packages() -> None:
    old, new = on("cu118", "3.10"), on("cu124", "3.10")
    differing = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    assert "torch" in differing
    assert {name for name in differing if not name.startswith("nvidia-")} == {"torch"}


def test_what_builds_source_distributions_is_in_each_profile() -> None:
    for name in ("cu118", "cu124"):
        assert on(name, "3.10").keys() >= {"setuptools", "wheel"}


def test_the_locked_uv_stays_in_the_environment() -> None:
    assert on("tools", "3.10")["uv"] == on("uv", "3.10")["uv"] == [pins()["uv"]["version"]]
    assert "pip" in on("tools", "3.10")


@pytest.mark.parametrize(
    ("key", "value", "changed"),
    [
        ("uv.version", "0.13.8", set(NAMES)),
        ("locks.cutoff", "2026-11-29", set(NAMES)),
        ("python.ray", "2.47.0", {"cu124", "cu118", "tools", "media"}),
        ("media.pillow", "12.2.0", {"media"}),
        ("tools.ruff", "0.17.5", {"tools"}),
        ("profiles.cu118.torch.sha256", "0" * 64, {"cu118"}),
        ("profiles.cu118.torch.requires.linux.triton", "3.2.1", {"cu118"}),
        ("profiles.gpu-check.requires.dill", "0.3.7", {"gpu-check"}),
        ("verl.version", "0.5.1", set()),
    ],
)
def test_a_changed_pin_makes_the_locks_stale_that_depend_on_it(
    key: str, value: str, changed: set[str]
) -> None:
    table = copy.deepcopy(pins())
    parent, _, last = key.rpartition(".")
    dotted(table, parent)[last] = value
    before = {name: inputs_hash(lock) for name, lock in locks().items()}
    after = {name: inputs_hash(lock, table) for name, lock in locks(table).items()}
    assert {name for name in NAMES if before[name] != after[name]} == changed
