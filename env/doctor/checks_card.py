"""Driver and cards: does the driver serve the profile, and which cards does it show?"""

from __future__ import annotations

from collections.abc import Iterator

from env import cards
from env.doctor.facts import Card, Facts
from env.doctor.finding import (
    GIB,
    Finding,
    Level,
    branch,
    dotted,
    ended_branches,
    gib,
    is_hidden,
    is_older,
    last_branch,
    minimum,
    of_capability,
    profiles,
    recommended,
    take,
    unseen,
    visible,
)

# What p40-ppo reserves at most (19.5 GiB, README: What has been verified) and a CUDA context.
PRESET_BYTES = 20 * GIB
CPU_PATH = (
    "the CPU trains: make demo and the presets cpu-*, toy-* and tiny; "
    "p40-* and seed-batch1 refuse to start"
)


def check_driver(facts: Facts, profile: str) -> Iterator[Finding]:
    """The driver itself, then against the profile, then against the cards it does not show."""
    version = facts.driver.version
    if facts.driver.state != "answers":
        yield _silent(facts)
        return
    if version is None:
        yield Finding("driver", "warning", "NVML does not tell the driver's version")
        return
    level: Level = "warning" if is_hidden(facts) else "problem"
    wanted = minimum(profile)
    for capability in {card.capability for card in visible(facts)}:
        known = of_capability(capability)
        if known and is_older(wanted, known.driver_min):
            wanted = known.driver_min
    if is_older(version, wanted):
        what = f"{version} is too old for profile {profile}"
        other = recommended(facts)
        cure = f"a driver of branch {branch(wanted)} or newer{_newest(facts)}"
        if other != profile and not is_older(version, minimum(other)):
            cure = f"{take(facts, other)}, or {cure}"
        yield Finding("driver", level, what, f"it needs {wanted} or newer", cure)
    else:
        full = profiles()[profile].get("driver_full")
        why = ""
        if isinstance(full, str) and is_older(version, full):
            why = f"older than {full}, which came with the toolkit: by minor-version compatibility"
        yield Finding("driver", "ok", f"{version} serves profile {profile} ({wanted} on)", why)
    yield from _ended(facts, version)


def _silent(facts: Facts) -> Finding:
    """No answer from NVML: no card, or something is in its way."""
    state, error, version = facts.driver.state, facts.driver.error, facts.driver.version
    if not unseen(facts) and _is_absent(facts):
        if facts.pci is None:
            why = "the PCI bus cannot be read, so a card without a driver would not be noticed"
            return Finding("driver", "ok", "no NVIDIA driver", why)
        return Finding("driver", "ok", "no NVIDIA driver, and no card for one")
    served_by = {each.kernel_driver for each in unseen(facts)}
    if facts.is_container and state == "no library":
        what = "this container was not given the card"
        why = f"the host has {_count(facts)}" + (f" and driver {version}" if version else "")
        cure = "docker run --gpus all ..., or on the host: make build DEVICE=cuda"
    elif state == "mismatch":
        what, why = "the driver's kernel module and its library are of two versions", error
        cure = "restart the machine, as after every driver update"
    elif state == "no permission":
        what, why, cure = "this user may not reach the driver", error, "ls -l /dev/nvidia*"
    elif "nouveau" in served_by:
        what, why = "the card is served by nouveau", "nouveau has no CUDA"
        cure = f"install NVIDIA's driver{_newest(facts)}, and restart"
    elif state == "no library" and version is None:
        what, why = f"{_count(facts)}, but no NVIDIA driver", error
        cure = f"install NVIDIA's driver{_newest(facts)}"
    elif state == "not loaded":
        what, why = "NVIDIA's driver is installed, but not loaded", error
        cure = "sudo modprobe nvidia; dmesg tells why not (Secure Boot, another kernel's module)"
    elif state == "no library":
        what, why = f"kernel module {version}, but no libnvidia-ml.so.1", error
        cure = "install the driver's library of the same version (libnvidia-compute, libnvidia-ml1)"
    else:
        what, why, cure = "NVIDIA's driver does not answer", error, "nvidia-smi and dmesg tell more"
    if is_hidden(facts):
        return Finding("driver", "warning", what, why, cure)
    cure += "; or CUDA_VISIBLE_DEVICES= where the CPU is meant"
    return Finding("driver", "problem", what, f"{why}; until then {CPU_PATH}", cure)


def _is_absent(facts: Facts) -> bool:
    """Whether there is no trace of NVIDIA's driver."""
    return facts.driver.state in ("no library", "not loaded") and facts.driver.version is None


def _ended(facts: Facts, version: str) -> Iterator[Finding]:
    """Cards that this driver does not serve: it ignores old ones, so the bus alone shows them."""
    for card in visible(facts):
        last = last_branch(card.capability)
        if last is not None and branch(version) > last:
            what = f"{version} no longer serves {card.name}"
            why = f"R{last} is the last branch for capability {dotted(card.capability)}"
            yield Finding("driver", "problem", what, why, f"install a driver of branch {last}")
    missing = unseen(facts)
    over = {last: names for last, names in ended_branches().items() if branch(version) > last}
    level: Level = "warning" if facts.cards or is_hidden(facts) else "problem"
    if missing and over:
        last, names = max(over.items())
        what = f"{version} shows {len(facts.cards)} of {_count(facts)}"
        why = f"drivers after R{last} ignore {names}"
        yield Finding("driver", level, what, why, f"install a driver of branch {last}")
    elif missing:
        what = f"{version} shows {len(facts.cards)} of {_count(facts)}"
        cure = "dmesg tells why: grep it for NVRM"
        if facts.is_container:
            cure = "docker run --gpus all ..., or on the host: make build DEVICE=cuda"
        yield Finding("driver", level, what, "", cure)


def check_profile(facts: Facts, profile: str) -> Iterator[Finding]:
    best, version = recommended(facts), facts.driver.version
    because = f"driver {version}" if version else "no driver needs the older one"
    what = f"{best} is recommended ({because})"
    if facts.installed_profile is None:
        yield Finding("profile", "ok", f"{what}; none is installed", cure=take(facts, best))
    elif facts.installed_profile == best:
        yield Finding("profile", "ok", f"{best} is installed and recommended ({because})")
    else:
        yield Finding("profile", "ok", f"{what}; {facts.installed_profile} is installed")


def check_capability(facts: Facts, profile: str) -> Iterator[Finding]:
    """Which cards there are, and what is computed on them."""
    if is_hidden(facts):
        value = facts.cuda_visible_devices
        what = f"CUDA_VISIBLE_DEVICES={value!r} hides every card"
        yield Finding("capability", "warning", what, CPU_PATH, "unset CUDA_VISIBLE_DEVICES")
        return
    is_told = _is_absent(facts) or facts.driver.state == "answers"
    if not facts.cards and not unseen(facts) and is_told:
        yield Finding("capability", "ok", f"no NVIDIA card is seen: {CPU_PATH}")
    for card in facts.cards:
        if card.error:
            what = f"card {card.index} does not answer: {card.error}"
            level: Level = "warning" if visible(facts) else "problem"
            yield Finding("capability", level, what, "", "restart the machine; dmesg: grep NVRM")
        elif card.is_visible:
            yield _capability(card)


def _capability(card: Card) -> Finding:
    what = f"{card.name}, capability {dotted(card.capability)}"
    if card.decided:
        what += f": {card.decided}"
    if cards.find(card.name, card.total_bytes // 2**20):
        return Finding("capability", "ok", what)
    why = "not in env/cards.toml with this memory: its speed and last driver branch are not known"
    if of_capability(card.capability):
        why = "not in env/cards.toml with this memory: its speed is not known here"
    return Finding("capability", "ok", what, why)


def check_vram(facts: Facts, profile: str) -> Iterator[Finding]:
    if is_hidden(facts):
        return
    for card in visible(facts):
        used = card.total_bytes - card.free_bytes
        what = f"card {card.index}: {gib(card.free_bytes)} free of {gib(card.total_bytes)}"
        known = cards.find(card.name, card.total_bytes // 2**20)
        if known and known.memory_ecc_on_mib not in (None, known.memory_ecc_off_mib):
            what += ", ECC on" if known.ecc(card.total_bytes // 2**20) else ", ECC off"
        if card.free_bytes >= PRESET_BYTES:
            yield Finding("vram", "ok", what)
        elif card.total_bytes >= PRESET_BYTES:
            why = f"p40-ppo wants {gib(PRESET_BYTES)}, and {gib(used)} are taken"
            yield Finding("vram", "warning", what, why, "nvidia-smi lists the processes: end them")
        else:
            why = f"the p40-* presets are made for 24 GB: p40-ppo wants {gib(PRESET_BYTES)}"
            cure = 'smaller micro-batches (OVERRIDES="...micro_batch_size_per_gpu=1"), or toy-*'
            yield Finding("vram", "warning", what, why, cure)


def _count(facts: Facts) -> str:
    found = facts.pci or ()
    listed = ", ".join(f"10de:{each.device_id}" for each in found)
    return f"{len(found)} NVIDIA card{'s' if len(found) != 1 else ''} ({listed})"


def _newest(facts: Facts) -> str:
    """``, at most 580`` for cards that later branches do not serve."""
    lasts = [last_branch(card.capability) for card in visible(facts)]
    known = [last for last in lasts if last is not None]
    if known:
        return f", R{min(known)} at most"
    if facts.cards:
        return ""
    return "".join(f" (for {names}: R{last} at most)" for last, names in ended_branches().items())
