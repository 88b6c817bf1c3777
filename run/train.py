"""Train: ``python -m run.train --preset NAME [hydra overrides]`` (``make train PRESET=NAME``).

Fetches the model and prepares the data where they are missing, writes the whole configuration into
the run's folder and starts verl's own ``verl.trainer.main_ppo`` on it. Overrides are Hydra's, over
verl's keys: ``data.train_batch_size=8 trainer.total_training_steps=2``. The command line wins over
the preset, the preset over what is decided here.

Exit codes: 0 done, 1 refused or failed, 3 something could not be fetched, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from env import hardware, paths, variables
from env.disk import refusals_told
from env.errors import INTERRUPTED, OK, REFUSED, main
from run import auto, config, folder, launch, preset, sources, steps
from run.progress import Progress
from run.summary import console as plain_or_terminal
from run.summary import summarise

LOG = "train.log"
LOG_TAIL_LINES = 30


def train(options: argparse.Namespace) -> int:
    """One run from the command line's options to its summary; returns the exit code."""
    chosen = preset.load(options.preset)
    settings = config.build(chosen, options.overrides)
    said = auto.resolve(settings, hardware.detect_device())
    place = folder.create(paths.out() / "runs", chosen.name)
    print(f"run {place.name}: {chosen.description}")
    with folder.begun(place):
        last_step = _prepare(settings, chosen, options, place, said)
    return _run(last_step, place, plain_or_terminal())


def _prepare(
    settings: DictConfig,
    chosen: preset.Preset,
    options: argparse.Namespace,
    place: Path,
    said: list[str],
) -> int | None:
    """Put in place what the run needs, and its configuration; returns its last step."""
    given = config.given_keys(options.overrides)
    said += sources.provide(settings, chosen, options.model, given, lambda text: print(f"  {text}"))
    last_step, decided = steps.settle(settings, given)
    said += decided
    folder.direct(settings, place, chosen.reward, given)
    for sentence in said:
        print(f"  {sentence}")
    # A sentence may quote what has more than one line; in the YAML it is a comment of one.
    header = "".join(f"# decided: {' '.join(sentence.split())}\n" for sentence in said)
    with refusals_told(place):
        (place / "config.yaml").write_text(header + OmegaConf.to_yaml(settings), encoding="utf-8")
        (place / LOG).write_text(header, encoding="utf-8")
    return last_step


def _run(last_step: int | None, place: Path, console: Console) -> int:
    log = place / LOG
    progress = Progress(place, last_step, console)
    try:
        with folder.ray_folder() as ray, progress:
            code = launch.supervise(_command(place, ray), _environment(ray), log, progress.update)
    except KeyboardInterrupt:
        print(f"interrupted; what was made lies in {place}", file=sys.stderr)
        return INTERRUPTED
    except launch.Terminated:
        print(f"terminated; what was made lies in {place}", file=sys.stderr)
        return 128 + signal.SIGTERM
    if code != 0:
        _tell_failure(log, code)
        return REFUSED
    console.print(summarise(place))
    return OK


def _command(place: Path, ray: Path) -> list[str]:
    command = [folder.interpreter(ray), "-m", "verl.trainer.main_ppo"]
    command += ["--config-path", str(place), "--config-name", "config"]
    # Hydra would open a folder and a log of its own
    command += ["hydra.run.dir=.", "hydra.output_subdir=null"]
    return [*command, "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]


def _environment(ray: Path) -> Mapping[str, str]:
    environment = dict(os.environ)
    root = str(paths.ROOT)
    # Ray's workers inherit it: they import run.metrics and run.reward by name.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment["RAY_TMPDIR"] = str(ray)
    environment["RAY_COLOR_PREFIX"] = "0"  # it goes to a file
    # Ray gives an actor as many threads as it has CPU slots (one); a CPU run wants the cores.
    environment.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    # Model, tokenizer and data are local by now; a look-up would only fail or wait.
    environment["HF_HUB_OFFLINE"] = "1"
    return environment


def _tell_failure(log: Path, code: int) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # Ray prefixes every line with the actor it comes from
    plain = [re.sub(r"^\(\w+ pid=\d+\) ", "", line) for line in lines]
    killed = f" (killed by {signal.Signals(-code).name})" if code < 0 else ""
    print(f"training ended with exit code {code}{killed}; the end of {log}:", file=sys.stderr)
    for line in plain[-LOG_TAIL_LINES:]:
        print(f"  {line}", file=sys.stderr)


def command() -> int:
    variables.apply()
    parser = argparse.ArgumentParser(
        prog="python -m run.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", required=True, help=f"one of {', '.join(preset.names())}")
    parser.add_argument("--model", help="another model than the preset's, as for make model")
    parser.add_argument("overrides", nargs="*", help="key=value of verl's configuration")
    return train(parser.parse_intermixed_args())


if __name__ == "__main__":
    main(command)
