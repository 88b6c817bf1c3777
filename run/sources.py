"""The model and the data of a run: fetched and prepared where they are missing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from omegaconf import DictConfig

from data import prepare
from data.prepare import Options
from env import models, paths
from env.errors import UNREACHABLE, Problem, Refused
from run.preset import DataSpec, Preset


def provide(
    config: DictConfig,
    preset: Preset,
    model: str | None,
    given: Collection[str],
    say: Callable[[str], None],
) -> list[str]:
    """Put model and data in place and write their paths into ``config``.

    Args:
        model: another model than the preset's, or None.
        given: keys that the command line set; what they name is used as it is.
        say: told what takes time, before it does.

    Returns:
        what was decided on the way, in sentences.

    Raises:
        Refused: a model or data set that is not optional cannot be had.
    """
    if "actor_rollout_ref.model.path" in given:
        folder = _given_model(config.actor_rollout_ref.model.path)
    else:
        folder = _timed(
            f"model {model or preset.model}", say, lambda: models.fetch(model or preset.model)
        )
    config.actor_rollout_ref.model.path = str(folder)
    if "critic.model.path" not in given:
        config.critic.model.path = str(folder)
        config.critic.model.tokenizer_path = str(folder)
    said: list[str] = []
    limit = int(config.data.max_prompt_length)
    if "data.train_files" not in given:
        train = _data(preset.train, folder, limit, say, said)
        config.data.train_files = [str(place / "train.parquet") for place in train]
    if "data.val_files" not in given:
        places = [place for s in preset.validation for place in _data(s, folder, limit, say, said)]
        config.data.val_files = [str(place / "test.parquet") for place in places]
    return said


def _given_model(path: object) -> Path:
    folder = Path(str(path)).expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise Refused(
            Problem(
                where=f"actor_rollout_ref.model.path={path}",
                what="no model lies there",
                expected="a folder with config.json, weights and tokenizer",
                do="--model NAME fetches one; `python -m env.models` lists them",
            )
        )
    return folder


def _data(
    spec: DataSpec, model: Path, limit: int, say: Callable[[str], None], said: list[str]
) -> list[Path]:
    """The folder of ``spec``'s data for this model; none where it is optional and not to be had."""
    options = _options(spec, model, limit)
    try:
        _timed(f"data {spec.name}", say, lambda: prepare.prepare(options, say=_silent))
    except Refused as refused:
        if not spec.optional or refused.exit_code != UNREACHABLE:
            raise
        first = refused.problems[0]
        said.append(f"without {spec.name}, which is optional here: {first.what} -> {first.do}")
        return []
    return [options.folder]


def _options(spec: DataSpec, model: Path, limit: int) -> Options:
    source, folder = spec.source, Path(spec.input) if spec.input else None
    if source == "gsm8k":
        laid = os.environ.get("GSM8K_DIR")
        source, folder = ("dir", Path(laid)) if laid else ("url", None)
    # Filtered by one model's tokenizer and to one length, so it belongs to both.
    rows = "" if spec.rows is None else f".{spec.rows}rows-seed{spec.seed}"
    return Options(
        source=source,
        input=folder,
        name=spec.name,
        out=paths.data(f"{spec.name}{rows}.{model.name}.{limit}"),
        tokenizer=model,
        max_prompt_tokens=limit,
        rows=spec.rows,
        seed=spec.seed,
        level=spec.level,
        train_rows=spec.train_rows,
        test_rows=spec.test_rows,
    )


def _silent(text: str) -> None:
    """The folder's manifest tells it all; a run's own output is about the run."""


def _timed(what: str, say: Callable[[str], None], work: Callable[[], Path | object]) -> Path:
    started = time.monotonic()
    result = work()
    seconds = time.monotonic() - started
    if seconds >= 1:
        say(f"{what}: {seconds:.0f} s")
    return result if isinstance(result, Path) else Path()
