"""What is known about each NVIDIA card: ``env/cards.toml``, checked and typed.

``python -m env.cards`` prints the table. Needs neither torch nor a driver.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from env.errors import Problem, Refused, main
from env.paths import ROOT

CARDS = ROOT / "env" / "cards.toml"

SHARED_MEMORY_DEFAULT = 49152
"""Bytes of shared memory that a block gets without asking, on every card."""

# Driver branches differ by what they count as the card's own: at most 1 % in public outputs, while
# ECC on and off differ by 6 %.
_TOLERANCE = 0.015


@dataclass(frozen=True)
class Card:
    """One card. Sizes in MiB as nvidia-smi shows them, shared memory in bytes.

    ``memory_ecc_on_mib`` is None for a card without ECC. ``also_shown_mib`` holds what other driver
    branches show, with ECC on and off. ``fp16_rate`` is fp16 over fp32 outside tensor cores.
    ``last_driver_branch`` is None while every newer driver still serves the card.
    """

    name: str
    nvml_names: tuple[str, ...]
    capability: tuple[int, int]
    architecture: str
    memory_ecc_on_mib: int | None
    memory_ecc_off_mib: int
    also_shown_ecc_on_mib: tuple[int, ...]
    also_shown_ecc_off_mib: tuple[int, ...]
    bandwidth_gb_s: float
    fp32_tflop_s: float
    fp16_rate: float
    bf16: bool
    tensor_cores: bool
    shared_memory_optin: int
    pcie: int
    last_driver_branch: int | None
    driver_min: str
    source: str

    def shows(self, memory_mib: int) -> bool:
        """Whether nvidia-smi may show ``memory_mib`` for this card, whatever ECC and driver."""
        return self.ecc(memory_mib) is not None

    def ecc(self, memory_mib: int) -> bool | None:
        """Whether ECC is on where nvidia-smi shows ``memory_mib``; None: not this card's memory.

        Where ECC costs no capacity the answer is True.
        """
        on = (self.memory_ecc_on_mib or 0, *self.also_shown_ecc_on_mib)
        off = (self.memory_ecc_off_mib, *self.also_shown_ecc_off_mib)
        for setting, sizes in ((True, on), (False, off)):
            if any(abs(memory_mib - size) <= _TOLERANCE * size for size in sizes):
                return setting
        return None


def find(nvml_name: str, memory_mib: int) -> Card | None:
    """The card that NVML calls ``nvml_name`` and whose memory is ``memory_mib``, if it is known.

    Drivers put "NVIDIA " before some names and not before others; both are found. A part of a card
    (MIG, vGPU) has the name but another memory, and is not found.
    """
    plain = _plain(nvml_name)
    for card in load().values():
        if plain in map(_plain, card.nvml_names) and card.shows(memory_mib):
            return card
    return None


@functools.cache
def load(path: Path = CARDS) -> dict[str, Card]:
    """Every card by its short name, in the file's order; treat it as read-only.

    Raises:
        Refused: the file is missing, is no TOML, or has wrong fields; names all of them.
    """
    where = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(
            Problem(where, "is missing", do=f"restore it: git checkout {where}")
        ) from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(Problem(where, str(error), "TOML in UTF-8", "correct that line")) from None
    problems = _check(table, where)
    if problems:
        raise Refused(problems)
    shared = table["capability"]
    return {
        name: _card(name, fields, shared[fields["capability"]])
        for name, fields in table["card"].items()
    }


def _card(name: str, fields: Mapping[str, Any], shared: Mapping[str, Any]) -> Card:
    major, minor = map(int, fields["capability"].split("."))
    memory, also = fields["memory_mib"], fields["also_shown_mib"]
    return Card(
        name=name,
        nvml_names=tuple(fields["nvml_names"]),
        capability=(major, minor),
        architecture=shared["architecture"],
        memory_ecc_on_mib=memory.get("ecc_on"),
        memory_ecc_off_mib=memory["ecc_off"],
        also_shown_ecc_on_mib=tuple(also.get("ecc_on", ())),
        also_shown_ecc_off_mib=tuple(also["ecc_off"]),
        bandwidth_gb_s=float(fields["bandwidth_gb_s"]),
        fp32_tflop_s=float(fields["fp32_tflop_s"]),
        fp16_rate=float(shared["fp16_rate"]),
        bf16=shared["bf16"],
        tensor_cores=shared["tensor_cores"],
        shared_memory_optin=shared["shared_memory_optin"],
        pcie=shared["pcie"],
        last_driver_branch=shared["last_driver_branch"] or None,
        driver_min=shared["driver_min"],
        source=fields["source"],
    )


def _plain(nvml_name: str) -> str:
    return " ".join(nvml_name.lower().split()).removeprefix("nvidia ")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_sizes(value: object, of: Callable[[object], bool], required: str) -> bool:
    return (
        isinstance(value, dict)
        and required in value
        and set(value) <= {"ecc_on", "ecc_off"}
        and all(of(size) for size in value.values())
    )


_Rule = tuple[Callable[[Any], bool], str]

_SHARED: dict[str, _Rule] = {
    "architecture": (_is_text, "a name"),
    "fp16_rate": (_is_positive, "a number above 0"),
    "bf16": (lambda value: isinstance(value, bool), "true or false"),
    "tensor_cores": (lambda value: isinstance(value, bool), "true or false"),
    "shared_memory_optin": (
        lambda value: _is_count(value) and value >= SHARED_MEMORY_DEFAULT,
        f"bytes, at least {SHARED_MEMORY_DEFAULT}",
    ),
    "pcie": (_is_count, "a generation, such as 3"),
    "last_driver_branch": (
        lambda value: value == 0 or (_is_count(value) and value >= 450),
        "a branch, such as 580, or 0 while drivers still serve it",
    ),
    "driver_min": (
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"\d{3}(\.\d+){1,2}", value)),
        "a driver version, such as 450.80.02",
    ),
    "source": (_is_text, "where the figures come from"),
}

_CARD: dict[str, _Rule] = {
    "nvml_names": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value)),
        "a list of names",
    ),
    "capability": (_is_text, 'a compute capability, such as "6.1"'),
    "memory_mib": (
        lambda value: _is_sizes(value, _is_count, "ecc_off"),
        "MiB as { ecc_on = ..., ecc_off = ... } or { ecc_off = ... }",
    ),
    "also_shown_mib": (
        lambda value: _is_sizes(
            value, lambda sizes: isinstance(sizes, list) and all(map(_is_count, sizes)), "ecc_off"
        ),
        "lists of MiB as { ecc_on = [...], ecc_off = [...] } or { ecc_off = [...] }",
    ),
    "bandwidth_gb_s": (_is_positive, "GB/s, a number above 0"),
    "fp32_tflop_s": (_is_positive, "TFLOP/s, a number above 0"),
    "source": (_is_text, "where the figures come from"),
}


def _check(table: Mapping[str, Any], where: str) -> list[Problem]:
    problems = []
    for kind, rules in (("capability", _SHARED), ("card", _CARD)):
        tables = table.get(kind)
        if not (isinstance(tables, dict) and all(isinstance(one, dict) for one in tables.values())):
            return [
                Problem(f"{where}, {kind}", "is no table of tables", f"[{kind}.NAME]", "add it")
            ]
        for name, fields in tables.items():
            problems += _check_fields(fields, rules, f"{where}, {kind} {name}")
    seen: dict[str, str] = {}
    for name, fields in table["card"].items():
        here = f"{where}, card {name}"
        capability = fields.get("capability")
        if _is_text(capability) and capability not in table["capability"]:
            problems.append(
                Problem(
                    f"{here}, capability",
                    f"{capability!r} has no table of its own",
                    f'[capability."{capability}"]',
                    "add that table, or correct the value",
                )
            )
        names = fields.get("nvml_names")
        for nvml_name in names if isinstance(names, list) else ():
            other = seen.setdefault(str(nvml_name), name)
            if other != name:
                problems.append(
                    Problem(
                        f"{here}, nvml_names",
                        f"{nvml_name!r} is also a name of {other}",
                        "one card for a name",
                        "remove it from one of them",
                    )
                )
    return problems


def _check_fields(
    fields: Mapping[str, Any], rules: Mapping[str, _Rule], where: str
) -> list[Problem]:
    problems = [
        Problem(
            f"{where}, {field}", "is not a known field", ", ".join(rules), "remove or rename it"
        )
        for field in fields
        if field not in rules
    ]
    for field, (is_right, expected) in rules.items():
        if field not in fields:
            problems.append(Problem(f"{where}, {field}", "is missing", expected, "add the field"))
        elif not is_right(fields[field]):
            found = f"is {fields[field]!r}"
            problems.append(Problem(f"{where}, {field}", found, expected, "correct the value"))
    return problems


def _command() -> None:
    print(f"{'card':18} {'cc':>4} {'MiB':>7} {'GB/s':>6} {'TFLOP/s':>8} {'fp16':>7} {'bf16':>5}")
    for card in load().values():
        memory = card.memory_ecc_on_mib or card.memory_ecc_off_mib
        print(
            f"{card.name:18} {card.capability[0]}.{card.capability[1]:<2} {memory:>7} "
            f"{card.bandwidth_gb_s:>6.0f} {card.fp32_tflop_s:>8.1f} {card.fp16_rate:>7.3f} "
            f"{'yes' if card.bf16 else 'no':>5}"
        )


if __name__ == "__main__":
    main(_command)
