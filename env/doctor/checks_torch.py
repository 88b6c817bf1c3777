"""torch: is it there, does it hold code for the card, and does it compute right?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from env.doctor.facts import Computed, Facts
from env.doctor.finding import (
    Finding,
    Level,
    dotted,
    is_hidden,
    recommended,
    take,
    visible,
)
from env.pins import pins

# fp32 against fp64 differs by about 1e-6 in sums of this length; TF32 would by 1e-3.
TOLERANCE = 1e-4


def serving(flags: Iterable[str], capability: tuple[int, int]) -> str | None:
    """The build's code that runs on ``capability``; None: no kernel would.

    ``sm_60`` serves 6.0 and, as the same major version with no larger a minor, 6.1; ``sm_90a``
    serves 9.0 alone; ``compute_70`` is compiled by the driver for 7.0 and all that is newer.
    """
    best: tuple[int, int, str] | None = None
    for flag in flags:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", flag)
        if found is None:
            continue
        kind, major, minor, special = found[1], int(found[2]), int(found[3]), found[4]
        held = (major, minor)
        if kind == "compute":
            is_served = held <= capability and not special
        elif special == "a":
            is_served = held == capability
        else:
            is_served = major == capability[0] and minor <= capability[1]
        if is_served and (best is None or (kind == "sm", *held) > (best[2][:2] == "sm", *best[:2])):
            best = (major, minor, flag)
    return best[2] if best else None


def check_torch(facts: Facts, profile: str) -> Iterator[Finding]:
    torch, pinned = facts.torch, pins()["python"]["torch"]
    if torch.version is None:
        why = torch.ended or "nothing was told"
        what = "torch cannot be imported"
        yield Finding("torch", "problem", what, why, take(facts, recommended(facts)))
        return
    built = f"CUDA {torch.cuda}" if torch.cuda else "the CPU alone"
    what = f"{torch.version}, built for {built}"
    level: Level = "ok"
    why = cure = ""
    if torch.cuda is None and _cards(facts):
        level, why = "problem", "it cannot use a card"
        cure = take(facts, recommended(facts))
    elif torch.version.partition("+")[0] != pinned:
        level, why = "warning", f"env/pins.toml pins {pinned}, which the tests run on"
        cure = take(facts, recommended(facts))
    yield Finding("torch", level, what, why, cure)
    if torch.ended:
        why = "what was found before stands here; what would have come later is not known"
        cure = "run it again; if it stays so, nvidia-smi and dmesg tell of a hung card"
        yield Finding("torch", "problem", f"the process that tried torch {torch.ended}", why, cure)


def check_arch(facts: Facts, profile: str) -> Iterator[Finding]:
    torch = facts.torch
    if torch.version is None or torch.cuda is None:
        return
    for name, capability in _cards(facts):
        who = f"{name} ({dotted(capability)})"
        if not torch.arch_flags:
            why = "torch._C._cuda_getArchFlags() is empty"
            yield Finding("arch", "warning", f"which code torch holds for {who} is not known", why)
            continue
        code = serving(torch.arch_flags, capability)
        if code:
            yield Finding("arch", "ok", f"torch's {code} code serves {who}")
            continue
        what = f"torch {torch.version} holds no code for {who}"
        why = f"it holds {' '.join(torch.arch_flags)}: every kernel fails, no kernel image"
        best = recommended(facts)
        is_pinned = torch.version.partition("+")[0] == pins()["python"]["torch"]
        if is_pinned and facts.installed_profile == best:
            cure = "use another card, or the CPU: CUDA_VISIBLE_DEVICES="
        else:
            cure = take(facts, best)
        yield Finding("arch", "problem", what, why, cure)


def check_compute(facts: Facts, profile: str) -> Iterator[Finding]:
    torch = facts.torch
    if torch.version is None:
        return
    cards = _cards(facts)
    if torch.cuda and torch.cuda_error and cards:
        what = "torch cannot initialise CUDA, though the driver shows a card"
        cure = "cure the driver first; else sudo modprobe nvidia-uvm, and ls -l /dev/nvidia*"
        yield Finding("compute", "problem", what, torch.cuda_error, cure)
    elif torch.cuda and 0 < sum(c.device != "cpu" for c in torch.computed) < len(cards):
        what = f"torch sees fewer cards than the driver shows ({len(cards)})"
        yield Finding("compute", "warning", what, "", "check CUDA_VISIBLE_DEVICES")
    for computed in torch.computed:
        yield _computed(computed)


def _computed(computed: Computed) -> Finding:
    where = computed.device if computed.device == "cpu" else f"{computed.device} {computed.name}"
    if computed.error:
        what = f"fp32 fails on {where}: {computed.error}"
        return Finding("compute", "problem", what, "", "cure what stands above first")
    figures = [("matmul", computed.matmul), ("attention", computed.sdpa)]
    told = ", ".join(f"{name} {value:.0e}" for name, value in figures if value is not None)
    what = f"fp32 on {where} against fp64: {told}"
    if not all(value is not None and value <= TOLERANCE for _, value in figures):
        why = f"more than {TOLERANCE:.0e}, or nothing, came out: training would learn from noise"
        cure = "memory faults show so: nvidia-smi -q -d ECC" if computed.capability else ""
        return Finding("compute", "problem", what, why, cure)
    if computed.is_efficient is False:
        why = "the memory-efficient attention kernel does not run: attention takes more memory"
        return Finding("compute", "warning", what, why)
    return Finding("compute", "ok", what)


def check_gold(facts: Facts, profile: str) -> Iterator[Finding]:
    """What the public write-ups check first: is_available, name, capability, verl's version."""
    torch = facts.torch
    if torch.version is None:
        return
    if torch.verl is None:
        if not torch.ended:
            cure = take(facts, profile)
            yield Finding("gold", "problem", "verl cannot be imported", torch.verl_error, cure)
        return
    pinned = pins()["verl"]["version"]
    verl = f"verl {torch.verl} imports"
    if torch.verl != pinned:
        cure = take(facts, profile)
        yield Finding("gold", "warning", verl, f"env/pins.toml pins {pinned}", cure)
        return
    seen = [f"{c.name} {c.capability}" for c in torch.computed if c.device != "cpu"]
    if seen:
        yield Finding("gold", "ok", f"torch.cuda is available: {', '.join(seen)}; {verl}")
    elif _cards(facts):
        what = f"torch.cuda is not available; {verl}"
        yield Finding("gold", "problem", what, "", "cure what stands above first")
    else:
        yield Finding("gold", "ok", f"{verl}; torch.cuda is not available, as without a card")


def _cards(facts: Facts) -> list[tuple[str, tuple[int, int]]]:
    """Name and capability of the cards that training would use."""
    if is_hidden(facts):
        return []
    return [(c.name, c.capability) for c in visible(facts) if c.capability is not None]
