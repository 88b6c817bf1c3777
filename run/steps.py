"""How long a run is: verl's two limits and the data's size, made to agree before it starts."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig

from env.errors import Problem, Refused


def settle(config: DictConfig, given: Collection[str]) -> tuple[int | None, list[str]]:
    """Let the run have the steps that ``trainer.total_training_steps`` asks for.

    verl ends after ``trainer.total_epochs`` passes over the data, even short of the steps that were
    asked for, and then makes neither the last validation nor the last checkpoint. So the epochs
    follow from the steps; where the command line sets the epochs, the steps follow from them.

    Args:
        config: with the paths of the data in it; changed in place.
        given: keys that the command line set.

    Returns:
        The number of the last step, None where it cannot be told; what was decided, in sentences.

    Raises:
        Refused: the training data cannot be read, or does not fill one batch.
    """
    trainer, batch = config.trainer, config.data.get("gen_batch_size", config.data.train_batch_size)
    rows = _rows(config)
    if rows is None:
        return trainer.total_training_steps, []
    epoch = rows // batch
    if epoch == 0:
        what = f"the training data has {rows} rows, less than one batch"
        raise Refused(Problem(f"data.train_batch_size={batch}", what, f"at most {rows}"))
    asked, most = trainer.total_training_steps, epoch * trainer.total_epochs
    if asked is None or asked <= most:
        return asked or most, []
    if "trainer.total_epochs" in given:
        trainer.total_training_steps = most
        why = f"{trainer.total_epochs} epochs of {epoch} steps end before step {asked}"
        return most, [f"trainer.total_training_steps={most}: {why}"]
    trainer.total_epochs = -(-asked // epoch)
    why = f"{asked} steps, and one pass over the data has {epoch}"
    return asked, [f"trainer.total_epochs={trainer.total_epochs}: {why}"]


def _rows(config: DictConfig) -> int | None:
    """Rows that verl will train on; None where its own code decides."""
    data = config.data
    files = [data.train_files] if isinstance(data.train_files, str) else list(data.train_files)
    if data.custom_cls.path or data.filter_overlong_prompts or any("://" in file for file in files):
        return None
    problems, rows = [], 0
    for file in files:
        try:
            rows += pyarrow.parquet.read_metadata(file).num_rows
        except (OSError, pyarrow.ArrowException) as error:
            problems.append(Problem(f"data.train_files: {file}", str(error), "a parquet file"))
    if problems:
        raise Refused(problems)
    return rows
