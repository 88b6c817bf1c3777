"""``python -m env.models``: see the package."""

from __future__ import annotations

import argparse

from env.errors import main
from env.models import catalogue, fetch
from env.models.folder import read_record
from env.models.names import SOURCES


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m env.models",
        description="Put a model, whole and checked, into out/models. Without MODEL: list them.",
    )
    parser.add_argument("model", nargs="?", help="a name, a folder, or ORGANISATION/NAME of a hub")
    parser.add_argument("--source", choices=SOURCES, default="auto")
    parser.add_argument("--revision", help="a commit, branch or tag instead of the pinned one")
    parser.add_argument("--endpoint", help="the hub's address, for a mirror")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file of a model that is there, and hash it",
    )
    return parser.parse_args()


def _command() -> None:
    arguments = _arguments()
    if arguments.model is None:
        for entry in catalogue().values():
            where = entry.repo or "made here"
            print(f"{entry.name:24} {entry.source:8} {entry.license:14} {where}")
        return
    folder = fetch(
        arguments.model,
        source=arguments.source,
        revision=arguments.revision,
        endpoint=arguments.endpoint,
        check_hashes=arguments.verify,
    )
    record = read_record(folder)
    assert record is not None
    size = sum(fact.bytes or 0 for fact in record.files.values())
    print(
        f"{record.name}: {record.parameters:,} parameters, {size / 1e6:,.0f} MB, {record.license}"
    )
    print(f"  from {record.source}, revision {record.revision or 'unknown'}")
    print(f"  in {folder}")


if __name__ == "__main__":
    main(_command)
