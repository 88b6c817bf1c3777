"""The summary of a run, from whatever its folder holds."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from env import paths
from env.errors import Refused
from run.phases import ROLLOUT_DIFF
from run.progress import KL_METRICS
from run.summary import COLUMNS, PLAIN_WIDTH, find, summarise

STEP = {
    "critic/score/mean": 0.25,
    "actor/pg_loss": -0.0123,
    "actor/kl_loss": 0.00004,
    "actor/ppo_kl": 0.0,
    "actor/grad_norm": 1.5,
    "response_length/mean": 47.25,
    "timing_s/step": 30.04,
    "timing_s/gen": 20.0,
    "timing_s/update_actor": 9.0,
    "timing_s/adv": 0.001,
}
BEFORE = {
    "val-core/openai/gsm8k/acc/mean@1": 0.0,
    "val-aux/openai/gsm8k/score/mean@1": 0.1,
    "val-aux/openai/gsm8k/reward/mean@1": 0.1,
    "val-aux/openai/gsm8k/format/mean@1": 0.125,
    "val-core/demo/acc/mean@1": 0.25,
    "val-aux/num_turns/mean": 2.0,
}
AFTER = {**BEFORE, "val-core/demo/acc/mean@1": 0.5, "val-core/openai/gsm8k/acc/mean@1": 0.125}


def metrics(folder: Path, *lines: tuple[int, dict[str, Any]]) -> None:
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step, values in lines:
            file.write(json.dumps({"time": 0.0, "step": step, "metrics": values}) + "\n")


def config(folder: Path, **more: Any) -> None:
    sources = {"test": ["openai/gsm8k"] * 8 + ["demo"] * 12}
    for name, column in sources.items():
        pq.write_table(pa.table({"data_source": column}), folder / f"{name}.parquet")
    settings = {
        "data": {"train_batch_size": 4, "val_files": [str(folder / "test.parquet")]},
        "actor_rollout_ref": {"rollout": {"n": 4}},
        "custom_reward_function": {"name": "graded"},
        "trainer": {"rollout_data_dir": str(folder / "samples" / "train")},
        **more,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def shown(folder: Path) -> str:
    output = io.StringIO()
    Console(file=output, width=160).print(summarise(folder))
    return output.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    return {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "20250101-000000-demo"
    place.mkdir()
    return place


def test_every_step_is_a_row_of_the_table(folder: Path) -> None:
    metrics(folder, (1, STEP), (2, {**STEP, "critic/score/mean": 0.5}))
    table = rows(shown(folder))
    assert table["1"] == ["0.2500", "-0.0123", "4.0e-05", "0.0000", "1.5000", "47.2", "30.0"]
    assert table["2"][0] == "0.5000"


def test_a_critic_gets_a_column_of_its_own_only_where_there_is_one(folder: Path) -> None:
    metrics(folder, (1, STEP))
    assert "value loss" not in shown(folder)
    metrics(folder, (1, {**STEP, "critic/vf_loss": 0.75}))
    assert "value loss" in shown(folder)
    assert "0.7500" in rows(shown(folder))["1"]


def test_a_kl_in_the_reward_stands_where_the_kl_loss_stands(folder: Path) -> None:
    values = {name: value for name, value in STEP.items() if name != "actor/kl_loss"}
    metrics(folder, (1, {**values, "actor/reward_kl_penalty": 0.125}))
    assert rows(shown(folder))["1"][2] == "0.1250"


def test_each_data_source_is_told_apart_before_and_after(folder: Path) -> None:
    config(folder)
    metrics(folder, (0, BEFORE), (1, STEP), (2, {**STEP, **AFTER}))
    text = shown(folder)
    assert "Validation on openai/gsm8k, 8 problems, scored by graded" in text
    assert "  right: 0.0% after 0 steps, 12.5% after 2 steps\n" in text
    assert "  one problem more or less is 12.5%\n" in text
    assert "  in the asked format: 12.5% after 0 steps" in text
    assert text.count("0.1000 after 0 steps") == 1  # score and reward are one figure
    assert "Validation on demo, 12 problems" in text
    assert "  right: 25.0% after 0 steps, 50.0% after 2 steps\n" in text
    assert "num_turns" not in text


def test_one_validation_alone_is_compared_with_nothing(folder: Path) -> None:
    metrics(folder, (0, BEFORE), (1, STEP))
    text = shown(folder)
    assert "Validation on demo, an unknown number of problems" in text
    assert "  right: 25.0% after 0 steps\n" in text


def test_tied_groups_and_truncated_responses_are_columns_where_they_are_recorded(
    folder: Path,
) -> None:
    metrics(folder, (1, STEP))
    assert not {"tied", "truncated"} & set(shown(folder).split())
    groups = {"critic/groups/num": 3, "critic/groups/equal_scores": 1}
    both = {**STEP, **groups, "response_length/truncated_ratio": 0.125}
    metrics(folder, (1, both), (2, STEP))
    text = shown(folder)
    assert "tied groups" in text
    assert rows(text)["1"][-2:] == ["1/3", "12.5%"]
    assert rows(text)["2"][-2:] == ["-", "-"]


def test_the_widest_table_fits_a_plain_log(folder: Path) -> None:
    wide = {
        **dict.fromkeys((name for names in COLUMNS.values() for name in names), -1.5e-05),
        **{"response_length/mean": 1024.0, "timing_s/step": 1234.5},
        **{"critic/groups/num": 128, "critic/groups/equal_scores": 100},
        "response_length/truncated_ratio": 1.0,
    }
    metrics(folder, *[(step, wide) for step in range(1, 2000)])
    output = io.StringIO()
    Console(file=output, width=PLAIN_WIDTH).print(summarise(folder))
    assert rows(output.getvalue())["1999"][-4:] == ["1024.0", "1234.5", "100/128", "100.0%"]


@pytest.mark.parametrize(("worst", "said"), [(0.0123, "0.0123"), ("NaN", "nan")])
def test_a_rollout_that_samples_from_another_policy_is_warned_of_in_one_line(
    folder: Path, worst: Any, said: str
) -> None:
    diffs = {1: 1e-6, 2: 0.002, 3: worst, 4: 1e-3}
    metrics(folder, *[(step, {**STEP, ROLLOUT_DIFF: diff}) for step, diff in diffs.items()])
    text = " ".join(shown(folder).split())
    assert text.count("Warning:") == 1
    assert "in 2 of 4 steps the log-probs of rollout and trainer differ by more than 0.001" in text
    assert f"most at step 3, by {said})" in text
    assert "another policy" in text


def test_a_sound_rollout_and_one_without_log_probs_are_not_warned_of(folder: Path) -> None:
    metrics(folder, (1, {**STEP, ROLLOUT_DIFF: 1e-6}), (2, STEP))
    assert "Warning" not in shown(folder)


def test_phases_are_listed_by_their_median_and_short_ones_left_out(folder: Path) -> None:
    lines = [(n, {**STEP, "timing_s/gen": s}) for n, s in enumerate((9.5, 20.0, 700.0), 1)]
    metrics(folder, *lines)
    text = shown(folder)
    assert "generating responses" in text
    assert rows(text)["generating"][-1] == "20.0"
    assert rows(text)["updating"][-1] == "9.0"
    assert "advantages" not in text


def test_it_says_how_much_was_trained_on_and_claims_no_learning(folder: Path) -> None:
    config(folder)
    metrics(folder, *[(step, STEP) for step in range(1, 5)])
    text = shown(folder)
    assert "Trained on 4 steps, 16 prompts, 64 responses." in text
    assert "So few steps show that it runs, not that it learns." in text
    metrics(folder, *[(step, STEP) for step in range(1, 501)])
    assert "So few steps" not in shown(folder)


def test_a_long_run_shows_its_beginning_and_its_end(folder: Path) -> None:
    metrics(folder, *[(step, STEP) for step in range(1, 1001)])
    table = rows(shown(folder))
    assert {"1", "12", "...", "989", "1000"} <= set(table)
    assert not {"13", "500", "988"} & set(table)


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"step": 1}\n', '{"step": 1, "metr'])
def test_a_run_that_never_finished_a_step_is_told_as_that(folder: Path, content: str) -> None:
    (folder / "metrics.jsonl").write_text(content, encoding="utf-8")
    text = shown(folder)
    assert "No step was finished" in text
    assert "No validation was made." in text


def test_an_empty_folder_and_a_broken_config_do_not_stop_it(folder: Path) -> None:
    assert "No step was finished" in shown(folder)
    for content in (b"", b"a: [", b"\xff\xfe", b"- 1", b"data: {val_files: [/nowhere.parquet]}"):
        (folder / "config.yaml").write_bytes(content)
        metrics(folder, (0, BEFORE), (1, STEP))
        assert "an unknown number of problems" in shown(folder)


def test_missing_and_strange_figures_are_a_dash_or_what_they_are(folder: Path) -> None:
    strange = {"timing_s/step": 1, "critic/score/mean": "NaN", "actor/grad_norm": [1]}
    metrics(folder, (1, {**strange, "actor/pg_loss": math.inf, "actor/ppo_kl": None}))
    assert rows(shown(folder))["1"] == ["nan", "inf", "-", "-", "-", "-", "1.0"]


def test_it_says_where_everything_lies_and_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "with [brackets]"
    folder.mkdir()
    metrics(folder, (1, STEP))
    text = shown(folder)
    assert f"In {folder}" in text.replace("\n", "")
    assert rows(text)["metrics.jsonl"] == ["verl's", "metrics,", "a", "line", "a", "step"]
    assert rows(text)["train.log"] == ["-"]
    assert "make train PRESET=" in text


def test_a_run_is_found_by_id_by_folder_and_as_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path))
    place = tmp_path / "runs" / "one"
    place.mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("one")
    assert find("one") == find("latest") == find(str(place)) == place


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no run lies there"):
        summarise(tmp_path / "nothing")


def test_the_command_prints_the_summary_without_torch_or_verl(folder: Path) -> None:
    metrics(folder, (0, BEFORE), (1, STEP))
    code = (
        "import sys, run.summary\n"
        f"sys.argv = ['summary', {str(folder)!r}]\n"
        "run.summary.command()\n"
        "assert not {'torch', 'verl'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True
    )
    assert f"Run {folder.name}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120
    missing = subprocess.run(
        [sys.executable, "-m", "run.summary", str(folder / "nothing")],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no run lies there" in missing.stderr


def test_the_names_of_the_metrics_are_verls() -> None:
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    places = ["trainer/ppo/metric_utils.py", "trainer/ppo/ray_trainer.py"]
    places += ["workers/actor/dp_actor.py", "workers/critic/dp_critic.py"]
    source = "".join((root / place).read_text(encoding="utf-8") for place in places)
    for name in {*KL_METRICS, *(name for names in COLUMNS.values() for name in names)}:
        if name == "timing_s/step":
            assert 'f"timing_s/{name}"' in source
            assert 'marked_timer("step", timing_raw' in source
        else:
            assert f'"{name}"' in source, name
