"""The image alone trains on the GSM8K in it: an empty volume, and no network."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.image.engine import HOME, OUT, Engine, check_log, files, finish

GSM8K = f"{HOME}/share/gsm8k"
# tiny's own data are generated: here it takes what is baked, less what is longer than its prompts.
ON_GSM8K = [
    f"data.train_files={GSM8K}/train.parquet",
    f"data.val_files={GSM8K}/test.parquet",
    "data.filter_overlong_prompts=true",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
]


def test_no_network_is_there(engine: Engine) -> None:
    code = "import os; print(sorted(os.listdir('/sys/class/net')))"
    assert engine.run(["python", "-c", code]).out == "['lo']\n"


@pytest.fixture(scope="module")
def made(engine: Engine) -> dict[str, bytes]:
    """What a whole run leaves in out/."""
    command = ["python", "-m", "run.train", "--preset", "tiny", *ON_GSM8K]
    with engine.container(command) as container:
        done = finish(container)
        found = {path: content for path, (_, content) in files(container, OUT).items()}
    assert done.code == 0, done.err
    assert "step 3/3 done" in done.out
    return found


def file_of_run(made: dict[str, bytes], name: str) -> str:
    (found,) = (content for path, content in made.items() if path.endswith(f"-tiny/{name}"))
    return found.decode()


def test_every_step_is_made_on_gsm8ks_problems(made: dict[str, bytes]) -> None:
    lines = [json.loads(line) for line in file_of_run(made, "metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["metrics"]["actor/grad_norm"] > 0 for line in lines)
    samples = file_of_run(made, "samples/train/1.jsonl").splitlines()
    assert len(samples) == 16
    assert all("####" in json.loads(sample)["input"] for sample in samples)
    config = yaml.safe_load(file_of_run(made, "config.yaml"))
    assert config["data"]["train_files"] == f"{GSM8K}/train.parquet"


def test_its_log_is_clean(made: dict[str, bytes]) -> None:
    check_log(file_of_run(made, "train.log"), "train.log")


def test_nothing_was_fetched(made: dict[str, bytes]) -> None:
    folders = {path.partition("/")[0] for path in made}
    assert folders == {"models", "runs"}
    assert {path.split("/")[1] for path in made if path.startswith("models/")} == {"tiny"}
