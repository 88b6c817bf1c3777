"""The checks: pure functions of :class:`Facts` and the profile that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from env.doctor.checks_card import check_capability, check_driver, check_profile, check_vram
from env.doctor.checks_engine import check_engine, check_toolkit
from env.doctor.checks_room import check_disk, check_shm
from env.doctor.checks_torch import check_arch, check_compute, check_gold, check_torch
from env.doctor.facts import Facts
from env.doctor.finding import Finding

Check = Callable[[Facts, str], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    check_engine,
    check_toolkit,
    check_driver,
    check_profile,
    check_capability,
    check_torch,
    check_arch,
    check_compute,
    check_vram,
    check_shm,
    check_disk,
    check_gold,
)


def examine(facts: Facts, profile: str) -> list[Finding]:
    """Every finding, in the order in which a reader should cure them."""
    return [finding for check in CHECKS for finding in check(facts, profile)]
