"""What a run did, in one screen.

    python -m run.summary [RUN]        # an id below out/runs/, or a folder; the latest by default

Reads only the files of the run's folder, and whatever is missing there shows as "-".
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from env import errors, paths
from env.errors import Problem, Refused
from run.jsonl import Tail, number
from run.phases import OTHER_POLICY, ROLLOUT_DIFF_LIMIT, WORDS, in_words, rollout_astray

MISSING = "-"
MAX_ROWS = 24
# A plain log or a pipe has no width of its own; this one holds the table with a critic.
PLAIN_WIDTH = 120

# Heading -> verl's names, the first that is there.
COLUMNS: dict[str, tuple[str, ...]] = {
    "reward": ("critic/score/mean",),
    "policy loss": ("actor/pg_loss",),
    "KL to ref": ("actor/kl_loss", "actor/reward_kl_penalty"),
    "KL to old": ("actor/ppo_kl",),
    "grad norm": ("actor/grad_norm",),
    "value loss": ("critic/vf_loss",),
    "response tokens": ("response_length/mean",),
    "seconds": ("timing_s/step",),
}
ONLY_WITH_CRITIC = "value loss"

# The scorers' variables in words.
LABELS = {
    "acc": "right",
    "format": "in the asked format",
    "score": "mean score",
    "reward": "mean reward",
}

CONTENTS = {
    "config.yaml": "every setting, resolved",
    "metrics.jsonl": "verl's metrics, a line a step",
    "phases.jsonl": "start and end of every phase",
    "train.log": "what training printed",
    "checkpoints": "weights and optimizer state",
    "samples": "prompts, responses and their scores",
}


@dataclass
class Validation:
    """One data source's means of one validation.

    Args:
        step: after how many steps.
        means: variable of the scorer (``acc``, ``score``, ``format``, ``reward``) to its mean.
    """

    step: int
    means: dict[str, float] = field(default_factory=dict)


def summarise(folder: Path) -> RenderableType:
    """The summary of the run in ``folder``, to be printed by a rich console.

    Raises:
        Refused: there is no such folder.
    """
    if not folder.is_dir():
        raise Refused(
            Problem(
                where=str(folder),
                what="no run lies there",
                expected="an id below out/runs/, or a run's folder",
                do=f"ls {paths.out() / 'runs'}; make train PRESET=tiny makes one",
            )
        )
    config = _config(folder / "config.yaml")
    lines = [
        (int(line["step"]), line["metrics"])
        for line in Tail(folder / "metrics.jsonl").read()
        if isinstance(line.get("step"), int) and isinstance(line.get("metrics"), dict)
    ]
    steps = {step: metrics for step, metrics in lines if "timing_s/step" in metrics}
    parts: list[RenderableType] = [Text(f"Run {folder.name}", style="bold")]
    if steps:
        parts += [_steps(steps), *_astray(steps)]
    else:
        parts += [Text("No step was finished; train.log says why.")]
    parts += ["", *_validations(lines, config), "", _phases(steps), "", _contents(folder)]
    parts += ["", Text(_caveat(config, len(steps))), "", _next()]
    return Group(*parts)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def _get(config: Mapping[str, Any], *keys: str) -> Any:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _figure(value: float | None, heading: str) -> str:
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if heading in ("seconds", "response tokens"):
        return f"{value:.1f}"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.1e}"


def _steps(steps: Mapping[int, dict[str, Any]]) -> Table:
    headings = list(COLUMNS)
    if not any(name in metrics for metrics in steps.values() for name in COLUMNS[ONLY_WITH_CRITIC]):
        headings.remove(ONLY_WITH_CRITIC)
    table = Table("step", box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right")
    recorded = {
        heading: read
        for heading, read in (("tied groups", _tied_groups), ("truncated", _truncated))
        if any(read(metrics) is not None for metrics in steps.values())
    }
    for heading in recorded:
        table.add_column(heading, justify="right")
    shown = sorted(steps)
    if len(shown) > MAX_ROWS:
        shown = shown[: MAX_ROWS // 2] + shown[-MAX_ROWS // 2 :]
    before = shown[0]
    for step in shown:
        if step - before > 1:
            table.add_row("...")
        before = step
        metrics = steps[step]
        row = [str(step)]
        for heading in headings:
            name = next((name for name in COLUMNS[heading] if name in metrics), "")
            row.append(_figure(number(metrics.get(name)), heading))
        table.add_row(*row, *(read(metrics) or MISSING for read in recorded.values()))
    return table


def _tied_groups(metrics: Mapping[str, Any]) -> str | None:
    """In how many of a step's groups every response has the same score, as "1/4"."""
    tied, groups = (
        number(metrics.get(f"critic/groups/{name}")) for name in ("equal_scores", "num")
    )
    return None if tied is None or groups is None else f"{tied:.0f}/{groups:.0f}"


def _truncated(metrics: Mapping[str, Any]) -> str | None:
    """The share of a step's responses that were cut before they ended."""
    share = number(metrics.get("response_length/truncated_ratio"))
    return None if share is None else f"{share:.1%}"


def _astray(steps: Mapping[int, dict[str, Any]]) -> Iterator[RenderableType]:
    found = {
        step: diff
        for step, metrics in steps.items()
        if (diff := rollout_astray(metrics)) is not None
    }
    if found:
        # NaN is the worst of all
        worst = max(found, key=lambda step: (math.isnan(found[step]), found[step]))
        yield Text(
            f"Warning: in {len(found)} of {len(steps)} steps the log-probs of rollout and trainer "
            f"differ by more than {ROLLOUT_DIFF_LIMIT:g} on average (most at step {worst}, by "
            f"{found[worst]:.3g}): {OTHER_POLICY}. train.log names likely causes."
        )


def _validations(
    lines: list[tuple[int, dict[str, Any]]], config: Mapping[str, Any]
) -> Iterator[RenderableType]:
    """One paragraph a data source, since their figures must not be mixed."""
    sources: dict[str, list[Validation]] = defaultdict(list)
    for step, metrics in lines:
        for source, means in _validation_means(metrics).items():
            sources[source].append(Validation(step, means))
    if not sources:
        yield Text("No validation was made.")
        return
    counts = _problems(config)
    scorer = _get(config, "custom_reward_function", "name") or "verl's own"
    for source, validations in sources.items():
        problems = counts.get(source)
        many = f"{problems} problems" if problems else "an unknown number of problems"
        heading = f"Validation on {source}, {many}, scored by {scorer}"
        yield Text(heading, style="bold")
        yield Text("\n".join(_means(validations, problems)))


def _validation_means(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    # val-core/openai/gsm8k/acc/mean@1: the source may hold slashes itself.
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, raw in metrics.items():
        section, _, rest = name.partition("/")
        head, _, last = rest.rpartition("/")
        source, _, variable = head.rpartition("/")
        value = number(raw)
        if section in ("val-core", "val-aux") and last.startswith("mean@") and value is not None:
            found[source][variable] = value
    return found


def _problems(config: Mapping[str, Any]) -> dict[str, int]:
    """How many problems of each data source were validated on, from verl's own input files."""
    import pyarrow.compute
    import pyarrow.parquet

    files = _get(config, "data", "val_files")
    counts: dict[str, int] = defaultdict(int)
    for file in [files] if isinstance(files, str) else files or []:
        try:
            column = pyarrow.parquet.read_table(file, columns=["data_source"])["data_source"]
        except (OSError, KeyError, pyarrow.ArrowException):
            continue  # moved since, or of another make: the count stays unknown
        for entry in pyarrow.compute.value_counts(column).to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts


def _means(validations: list[Validation], problems: int | None) -> Iterator[str]:
    first, last = validations[0], validations[-1]
    variables = {**first.means, **last.means}
    if "score" in variables:
        variables.pop("reward", None)  # the same figure by verl's name
    for variable in sorted(variables, key=lambda name: (name != "acc", name)):
        before, after = (_mean(variable, made.means.get(variable)) for made in (first, last))
        line = f"  {LABELS.get(variable, variable)}: {before} after {first.step} steps"
        yield line if first is last else f"{line}, {after} after {last.step} steps"
    if problems and "acc" in variables:
        yield f"  one problem more or less is {1 / problems:.1%}"


def _mean(variable: str, value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.1%}" if variable in ("acc", "format") else f"{value:.4f}"


def _phases(steps: Mapping[int, dict[str, Any]]) -> RenderableType:
    seconds: dict[str, list[float]] = defaultdict(list)
    for metrics in steps.values():
        for name, raw in metrics.items():
            value = number(raw)
            if name.startswith("timing_s/") and value is not None and math.isfinite(value):
                seconds[name.removeprefix("timing_s/")].append(value)
    whole = seconds.pop("step", [])
    table = Table("phase", box=None, header_style="bold")
    table.add_column("median seconds a step", justify="right")
    for phase, values in sorted(seconds.items(), key=lambda item: -median(item[1])):
        # generate_sequences and its like are parts of a phase, as the worker timed them
        if phase in WORDS and median(values) >= 0.05:
            table.add_row(in_words(phase), f"{median(values):.1f}")
    table.add_row("the whole step", f"{median(whole):.1f}" if whole else MISSING)
    return table


def _contents(folder: Path) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, what in CONTENTS.items():
        table.add_row(f"  {name}", what if (folder / name).exists() else MISSING)
    # As text, since rich would read a bracket in a path as markup.
    return Group(Text(f"In {folder}", overflow="fold"), table)


def _caveat(config: Mapping[str, Any], steps: int) -> str:
    prompts = _get(config, "data", "train_batch_size")
    samples = _get(config, "actor_rollout_ref", "rollout", "n")
    trained = f"{steps} step{'' if steps == 1 else 's'}"
    if isinstance(prompts, int) and isinstance(samples, int):
        trained += f", {steps * prompts} prompts, {steps * prompts * samples} responses"
    told = (
        "So few steps show that it runs, not that it learns."
        if steps < 20
        else ("Whether it learned, only a validation on enough problems can tell.")
    )
    return f"Trained on {trained}. {told}"


def _next() -> Text:
    return Text(
        "Next:\n"
        "  make train PRESET=toy-grpo      a toy that learns, in two minutes\n"
        "  make train PRESET=cpu-gsm8k     real GSM8K, on a CPU\n"
        "  make train PRESET=p40-grpo      GRPO on GSM8K, on a 24 GB card\n"
        "  make train PRESET=p40-ppo       PPO with a critic, on a 24 GB card\n"
        "  make help                       everything else"
    )


def console() -> Console:
    """Where a run is shown: the terminal as it is, elsewhere lines of a fixed width."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=PLAIN_WIDTH)


def find(run: str) -> Path:
    """The folder of ``run``: a path, or an id below out/runs/ (``latest`` is one too)."""
    folder = Path(run)
    return (folder if "/" in run or folder.is_dir() else paths.run(run)).resolve()


def command() -> None:
    parser = argparse.ArgumentParser(prog="python -m run.summary", description="What a run did.")
    parser.add_argument("run", nargs="?", default="latest", help="an id or a folder")
    folder = find(parser.parse_args().run)
    console().print(summarise(folder))


if __name__ == "__main__":
    errors.main(command)
