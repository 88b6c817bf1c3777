"""Train: ``python -m run.train --preset NAME [hydra overrides]`` (``make train PRESET=NAME``).

Or go on with a run from its newest complete checkpoint, in the same folder: ``--resume latest``
(``make train RESUME=latest``). On one rank of a CPU it goes on as if it had never stopped, bit for
bit.

Fetches the model and prepares the data where they are missing, writes the whole configuration into
the run's folder and starts verl's own ``verl.trainer.main_ppo`` on it. Overrides are Hydra's, over
verl's keys: ``data.train_batch_size=8 trainer.total_training_steps=2``. The command line wins over
the preset, the preset over what is decided here.

Exit codes: 0 done, 1 refused or failed, 3 something could not be fetched, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from env import hardware, paths, variables
from env.disk import refusals_told
from env.errors import INTERRUPTED, OK, REFUSED, main
from run import auto, config, folder, launch, preset, ray_environment, resume, sources, steps
from run.progress import Progress
from run.summary import console as plain_or_terminal
from run.summary import summarise

CONFIG = "config.yaml"
LOG = "train.log"
LOG_TAIL_LINES = 30


def train(options: argparse.Namespace) -> int:
    """One run from the command line's options to its summary; returns the exit code."""
    return _resume(options) if options.resume else _begin(options)


def _begin(options: argparse.Namespace) -> int:
    chosen = preset.load(options.preset)
    settings = config.build(chosen, options.overrides)
    said = auto.resolve(settings, hardware.detect_device())
    place = folder.create(paths.out() / "runs", chosen.name)
    print(f"run {place.name}: {chosen.description}")
    with folder.alone(place):
        with folder.begun(place):
            given = config.given_keys(options.overrides)
            say = functools.partial(print, " ")
            said += sources.provide(settings, chosen, options.model, given, say)
            last_step, decided = steps.settle(settings, given)
            folder.direct(settings, place, chosen.reward, given)
            _write(settings, place, said + decided)
        return _run(place, Progress(place, last_step, plain_or_terminal()))


def _resume(options: argparse.Namespace) -> int:
    place = resume.find(paths.out() / "runs", options.resume)
    with folder.alone(place):
        run = resume.read(place, options.overrides)
        auto.resolve(run.config, hardware.detect_device())
        last_step, said = steps.settle(run.config, config.given_keys(options.overrides))
        if last_step is not None and run.step >= last_step:
            print(f"run {place.name} is through: step {run.step} was its last")
            print("  for more: OVERRIDES=trainer.total_training_steps=N beside RESUME")
            return OK
        of_total = "" if last_step is None else f" of {last_step}"
        print(f"run {place.name} goes on after step {run.step}{of_total}")
        changed = " ".join(["with", *options.overrides] if options.overrides else [])
        said.insert(0, f"resumed after step {run.step} {changed}".rstrip())
        before = (place / CONFIG).read_text(encoding="utf-8")
        # beside a run that was moved away lies what is not ours
        with folder.begun(place, link_latest=place.parent == paths.out() / "runs"):
            resume.take_back(place, run.step)
            _write(run.config, place, said)
        progress = Progress(place, last_step, plain_or_terminal())
        progress.catch_up()
        code = _run(place, progress)
        if code == REFUSED and progress.step <= run.step:
            # It failed before its first step: the next start shall not inherit what may be wrong.
            _replace(place / CONFIG, before)
            if options.overrides:
                print(f"not kept: {' '.join(options.overrides)}", file=sys.stderr)
        return code


def _write(settings: DictConfig, place: Path, said: list[str]) -> None:
    """Say what was decided, and keep it with the configuration that training reads."""
    for sentence in said:
        print(f"  {sentence}")
    # A sentence may quote what has more than one line; in the YAML it is a comment of one.
    header = "".join(f"# decided: {' '.join(sentence.split())}\n" for sentence in said)
    path = place / CONFIG
    _replace(path, _header(path) + header + OmegaConf.to_yaml(settings))
    with refusals_told(place), (place / LOG).open("a", encoding="utf-8") as log:
        log.write(header)


def _replace(path: Path, text: str) -> None:
    """Give ``path`` the contents ``text``, whole or not at all."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with refusals_told(path):
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def _header(path: Path) -> str:
    """The comments at the head of the configuration, where a run has one already."""
    if not path.exists():
        return ""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))


def _run(place: Path, progress: Progress) -> int:
    log = place / LOG
    try:
        with folder.ray_folder() as ray, progress:
            code = launch.supervise(_command(place, ray), _environment(ray), log, progress.update)
    except KeyboardInterrupt:
        _tell_end("interrupted", place)
        return INTERRUPTED
    except launch.Terminated:
        _tell_end("terminated", place)
        return 128 + signal.SIGTERM
    if code != 0:
        _tell_failure(log, code)
        return REFUSED
    plain_or_terminal().print(summarise(place))
    return OK


def _tell_end(how: str, place: Path) -> None:
    print(f"{how}; what was made lies in {place}", file=sys.stderr)
    saved = resume.checkpoints(place / "checkpoints")
    if saved:
        print(f"go on after step {max(saved)}: make train RESUME={place.name}", file=sys.stderr)
    else:
        print(
            "no checkpoint was saved yet; trainer.save_freq=N saves one every N steps",
            file=sys.stderr,
        )


def _command(place: Path, ray: Path) -> list[str]:
    command = [folder.interpreter(ray), "-m", "verl.trainer.main_ppo"]
    command += ["--config-path", str(place), "--config-name", "config"]
    # Hydra would open a folder and a log of its own
    command += ["hydra.run.dir=.", "hydra.output_subdir=null"]
    return [*command, "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]


def _environment(ray: Path) -> Mapping[str, str]:
    environment = {**ray_environment.ENVIRONMENT, **os.environ}
    root = str(paths.ROOT)
    # Ray's workers inherit it: they import run.metrics and run.reward by name.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment["RAY_TMPDIR"] = str(ray)
    environment["RAY_COLOR_PREFIX"] = "0"  # it goes to a file
    # Ray gives its own helpers 30 s to start: too little where a slow disk or a busy host is.
    environment.setdefault("RAY_agent_register_timeout_ms", "300000")
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
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--preset", help=f"one of {', '.join(preset.names())}")
    which.add_argument("--resume", metavar="RUN", help="go on with a run: latest, its id or folder")
    parser.add_argument("--model", help="another model than the preset's, as for make model")
    parser.add_argument("overrides", nargs="*", help="key=value of verl's configuration")
    options = parser.parse_intermixed_args()
    if options.resume and options.model:
        parser.error("--model: a run that goes on has its model already")
    return train(options)


if __name__ == "__main__":
    main(command)
