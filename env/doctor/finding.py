"""What a check says, and the words and rules that several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from env import cards
from env.doctor.facts import Card, Facts, PciCard
from env.pins import pins

Level = Literal["ok", "warning", "problem"]

GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's.

    Args:
        check: a word that stays, for scripts.
        level: ``problem`` stops training as it would be started here.
        what: what was found.
        why: why that matters, where it does.
        cure: what to do, where something should be done.
    """

    check: str
    level: Level
    what: str
    why: str = ""
    cure: str = ""


def profiles() -> dict[str, dict[str, object]]:
    """The profiles that have a driver of their own to ask for."""
    return {name: each for name, each in pins()["profiles"].items() if "driver_min" in each}


def minimum(profile: str) -> str:
    """The oldest driver that serves ``profile``."""
    return str(profiles()[profile]["driver_min"])


def is_older(version: str, than: str) -> bool:
    return _numbers(version) < _numbers(than)


def branch(version: str) -> int:
    """580 of 580.95.05."""
    return _numbers(version)[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def recommended(facts: Facts) -> str:
    """cu124 where the driver allows, or where there is none (then the CPU computes); else cu118."""
    version = facts.driver.version
    return "cu118" if version and is_older(version, minimum("cu124")) else "cu124"


def take(facts: Facts, profile: str) -> str:
    """The command that makes the environment, or the image, of ``profile``."""
    if facts.is_image:
        return f"on the host: make build PROFILE={profile}"
    pythons = profiles()[profile]["python"]
    assert isinstance(pythons, list)
    if facts.python in pythons:
        return f"make env PROFILE={profile}"
    return f"make env PROFILE={profile} PYTHON=python{pythons[0]}"


def visible(facts: Facts) -> list[Card]:
    """The cards that CUDA may use and that answer."""
    return [card for card in facts.cards if card.is_visible and not card.error]


def is_hidden(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES was set so that the CPU computes."""
    if facts.cuda_visible_devices is None:
        return False
    if facts.cuda_visible_devices.strip() in ("", "-1"):
        return True
    return bool(facts.cards) and not any(card.is_visible for card in facts.cards)


def unseen(facts: Facts) -> list[PciCard]:
    """Cards on the bus when NVML shows fewer: which of them it lacks cannot be told.

    A container sees the host's whole bus, so there it counts only when NVML shows none at all.
    """
    if facts.pci is None or (facts.is_container and facts.cards):
        return []
    for_us = [each for each in facts.pci if each.kernel_driver != "vfio-pci"]
    return for_us if len(for_us) > len(facts.cards) else []


def wants_card(facts: Facts) -> bool:
    """Whether there is a card that training is meant to use."""
    return not is_hidden(facts) and bool(visible(facts) or unseen(facts) or facts.cards)


def last_branch(capability: tuple[int, int] | None) -> int | None:
    """The last driver branch that serves ``capability``; None: served still, or not known here."""
    known = of_capability(capability)
    return known.last_driver_branch if known else None


def of_capability(capability: tuple[int, int] | None) -> cards.Card | None:
    """Any known card of ``capability``: what all of them share."""
    return next((card for card in cards.load().values() if card.capability == capability), None)


def ended_branches() -> dict[int, str]:
    """Last driver branch -> the architectures that it is the last one for: ``Pascal, Volta``."""
    ended: dict[int, list[str]] = {}
    for card in cards.load().values():
        if card.last_driver_branch is not None:
            names = ended.setdefault(card.last_driver_branch, [])
            if card.architecture not in names:
                names.append(card.architecture)
    return {last: ", ".join(names) for last, names in ended.items()}


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def dotted(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else "{}.{}".format(*capability)
