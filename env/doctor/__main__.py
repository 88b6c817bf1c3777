"""Tells what stops training on this machine, why, and what to do about it.

Exit codes: 0 nothing stops it (there may be warnings), 1 a problem does, 2 wrong command line.
A machine without an NVIDIA card is no problem: training takes the CPU there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap

from env import variables
from env.doctor.checks import examine
from env.doctor.facts import Facts
from env.doctor.finding import Finding, profiles, recommended
from env.doctor.gather import gather
from env.errors import OK, REFUSED, main

WIDTH = 100
INDENT = " " * 20


def exit_code(findings: list[Finding]) -> int:
    return REFUSED if any(finding.level == "problem" for finding in findings) else OK


def report(findings: list[Finding], best: str) -> str:
    """A line a check; below it why it matters and the cure, where there is one."""
    lines = []
    for finding in findings:
        lines += _wrapped(f"{finding.level:8} {finding.check:10} ", finding.what)
        if finding.why:
            lines += _wrapped(INDENT, finding.why)
        if finding.cure:
            lines += _wrapped(f"{INDENT}-> ", finding.cure)
    problems, warnings = (
        sum(finding.level == level for finding in findings) for level in ("problem", "warning")
    )
    counts = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}"
    lines.append(f"{counts}; recommended profile: {best}")
    return "\n".join(lines)


def as_json(facts: Facts, findings: list[Finding], checked: str) -> str:
    """The object that :mod:`env.doctor` describes."""
    told = {
        "schema": 1,
        "exit_code": exit_code(findings),
        "profile": {
            "installed": facts.installed_profile,
            "checked": checked,
            "recommended": recommended(facts),
        },
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "facts": dataclasses.asdict(facts),
    }
    return json.dumps(told, indent=1)


def _wrapped(start: str, text: str) -> list[str]:
    # Commands and paths are never broken at a hyphen: they are copied from here.
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def command() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m env.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (see env/doctor)")
    parser.add_argument(
        "--profile",
        choices=list(profiles()),
        help="the profile to hold the driver against; the installed one otherwise",
    )
    options = parser.parse_args()
    variables.apply()
    facts = gather()
    installed = facts.installed_profile if facts.installed_profile in profiles() else None
    checked = options.profile or installed or recommended(facts)
    findings = examine(facts, checked)
    if options.json:
        print(as_json(facts, findings, checked))
    else:
        print(report(findings, recommended(facts)))
    return exit_code(findings)


if __name__ == "__main__":
    main(command)
