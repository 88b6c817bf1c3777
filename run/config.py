"""verl's configuration for a run: its own defaults, then the preset, then the command line.

Every key is checked against verl's, so a misspelled one is refused with its nearest neighbour
instead of being carried along and never read.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from env.errors import Problem, Refused
from env.hardware import verl_root
from run.preset import Preset, nearest


@functools.cache
def defaults() -> DictConfig:
    """verl's ``ppo_trainer`` as it ships, patches included; interpolations unresolved."""
    return _compose([])


def build(preset: Preset, overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration; values that say ``auto`` are left for :mod:`run.auto`.

    Args:
        overrides: Hydra overrides as typed: ``key=value``, ``+key=value``, ``++key=value``.

    Raises:
        Refused: unknown keys, values of the wrong type, or what Hydra cannot parse; all at once.
    """
    problems: list[Problem] = []
    typed = list(_checked(overrides, problems))
    where = f"run/presets/{preset.name}.yaml: verl."
    for key, value in flatten(preset.verl):
        _check(where + key, key, value, problems)
    if problems:
        raise Refused(problems)
    preset_overrides = [f"{key}={quote(value)}" for key, value in flatten(preset.verl)]
    try:
        return _compose([*preset_overrides, *typed])
    except HydraException as error:
        raise Refused(Problem("configuration", str(error))) from error


def change(config: DictConfig, overrides: Sequence[str], problems: list[Problem]) -> None:
    """Apply ``overrides`` to a configuration that is whole already, in place.

    Args:
        problems: takes what is wrong with them, as :func:`build` would refuse it.
    """
    parser = OverridesParser.create()
    for override in map(parser.parse_override, _checked(overrides, problems)):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)


def given_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that ``overrides`` set, however they are prefixed, those in a mapping too."""
    parsed = map(OverridesParser.create().parse_override, overrides)
    values = ({override.key_or_group: _value(override)} for override in parsed)
    return {key for value in values for key, _ in flatten(value)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``(dotted key, value)`` of every leaf; lists and empty mappings are leaves."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def quote(value: Any) -> str:
    """``value`` in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # the grammar unescapes \\' and, before a quote, \\\\
        return "'" + re.sub(r"(\\*)('|\Z)", _escape, value) + "'"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(quote, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(k)}:{quote(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _escape(found: re.Match[str]) -> str:
    backslashes, quoted = found.groups()
    return backslashes * 2 + (f"\\{quoted}" if quoted else "")


def known_keys() -> list[str]:
    """Every key of verl's configuration, leaves and nodes, dotted."""
    keys: set[str] = set()
    for key, _ in flatten(OmegaConf.to_container(defaults(), resolve=False)):  # type: ignore[arg-type]
        parts = key.split(".")
        keys.update(".".join(parts[:i]) for i in range(1, len(parts) + 1))
    return sorted(keys)


def _compose(overrides: list[str]) -> DictConfig:
    folder = str(verl_root() / "trainer" / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def _checked(overrides: Sequence[str], problems: list[Problem]) -> Iterator[str]:
    parser = OverridesParser.create()
    for text in overrides:
        where = f"command line: {text}"
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            first = str(error).splitlines()[0]
            problems.append(
                Problem(where, first, "key=value", "quote it for the shell: 'key=value'")
            )
            continue
        if override.is_delete():
            problems.append(Problem(where, "no key can be left out", "key=value, or key=null"))
            continue
        if override.is_sweep_override():
            problems.append(Problem(where, "one run has one value", "key=value, a list in [...]"))
            continue
        if override.type is OverrideType.CHANGE:
            _check(where, override.key_or_group, _value(override), problems)
        yield text


def _value(override: Override) -> Any:
    value = override.value()
    return value if isinstance(value, (bool, int, float, str, list, dict)) else None


_MISSING = object()


def _check(where: str, key: str, value: Any, problems: list[Problem]) -> None:
    known = _default(key)
    if known is _MISSING:
        expected = "a key of verl's configuration"
        problems.append(Problem(where, f"unknown key {key}", expected, _hint(key)))
        return
    expected = _expected_type(known, value)
    if expected:
        problems.append(Problem(where, f"{key} is {value!r}", expected))


def default(key: str) -> Any:
    """verl's own value of ``key``; None where it is an interpolation or must be given."""
    value = _default(key)
    return None if value is _MISSING else value


def _default(key: str) -> Any:
    node: Any = defaults()
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node.keys():  # noqa: SIM118
            return _MISSING
        if OmegaConf.is_interpolation(node, part) or OmegaConf.is_missing(node, part):
            return None
        node = node[part]
    return node


def _hint(key: str) -> str:
    known = known_keys()
    longer = [name for name in known if name.endswith(f".{key}")]
    last = key.split(".")[-1]
    return (
        _meant(longer)
        or nearest(key, known)
        or _meant([name for name in known if name.split(".")[-1] == last])
    )


def _meant(keys: list[str]) -> str:
    return f"did you mean {' or '.join(keys[:3])}?" if keys else ""


def _expected_type(default: Any, value: Any) -> str:
    """What should have stood in place of ``value``; "" where it is fine or cannot be told."""
    if value is None or value == "auto" or (isinstance(value, str) and "${" in value):
        return ""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, (int, float)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if number else f"a number (verl's default is {default})"
    if isinstance(default, DictConfig):
        return "" if isinstance(value, dict) else "a mapping: name a key below it"
    return ""
