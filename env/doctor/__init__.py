"""What stops training on this machine, why, and what to do: ``python -m env.doctor``.

:mod:`env.doctor.gather` looks at the machine and writes down :class:`env.doctor.facts.Facts`;
:mod:`env.doctor.checks` are pure functions of them, so that machines nobody here owns are tested.
torch is imported by a process of its own (:mod:`env.doctor.probe`), which may crash or hang.

``--json`` prints one object. Keys are only added as long as ``schema`` stays 1::

    {
      "schema": 1,
      "exit_code": 0 | 1,
      "profile": {"installed": str | null, "checked": str, "recommended": str},
      "findings": [{"check": str, "level": "ok" | "warning" | "problem",
                    "what": str, "why": str, "cure": str}, ...],
      "facts": {...}
    }

``checked`` is the profile that the driver was held against. ``why`` and ``cure`` may be empty. A
check that concerns cards gives a finding a card, in CUDA's order, and none where there is no card.
``facts`` is :class:`env.doctor.facts.Facts`, sizes in bytes; null is what could not be had.
"""
