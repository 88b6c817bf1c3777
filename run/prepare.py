"""Fetch a preset's model and prepare its data: ``python -m run.prepare --preset NAME``.

What training would do first, apart, so that it can be done where the network is.
"""

from __future__ import annotations

import argparse

from env import variables
from env.errors import OK, main
from run import config, preset, sources


def command() -> int:
    variables.apply()
    parser = argparse.ArgumentParser(prog="python -m run.prepare", description=__doc__)
    parser.add_argument("--preset", required=True, help=f"one of {', '.join(preset.names())}")
    parser.add_argument("--model", help="another model than the preset's, as for make model")
    parser.add_argument("overrides", nargs="*", help="key=value of verl's configuration")
    options = parser.parse_intermixed_args()
    chosen = preset.load(options.preset)
    settings = config.build(chosen, options.overrides)
    given = config.given_keys(options.overrides)
    for text in sources.provide(settings, chosen, options.model, given, print):
        print(text)
    print(f"ready for {chosen.name}: {settings.actor_rollout_ref.model.path}")
    for file in [*settings.data.train_files, *settings.data.val_files]:
        print(f"  {file}")
    return OK


if __name__ == "__main__":
    main(command)
