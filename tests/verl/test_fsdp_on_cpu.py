"""verl-patches/0005 (and 0001): two FSDP ranks over gloo on a host without an accelerator."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from env.errors import Refused
from env.hardware import CPU
from run import auto, config, preset


@pytest.fixture(scope="module")
def ranks(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.verl.two_ranks"]
    rest = [port, str(tiny_model), str(out)]
    started = [
        subprocess.Popen(
            [*command, str(rank), *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return out, [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_both_ranks_sample_from_the_policy_that_they_score(ranks: Any) -> None:
    assert max(rank["delta"] for rank in ranks[1]) <= 1e-5


def test_the_ranks_sample_different_responses(ranks: Any) -> None:
    first, second = (rank["responses"] for rank in ranks[1])
    assert first != second


def test_the_gradient_is_one_for_both(ranks: Any) -> None:
    first, second = (rank["grad_norm"] for rank in ranks[1])
    assert first == second > 0


def test_timings_are_averaged_over_the_ranks(ranks: Any) -> None:
    assert [rank["timing"] for rank in ranks[1]] == [{"t": 0.5}, {"t": 0.5}]


def test_each_rank_saves_its_shard(ranks: Any) -> None:
    names = {path.name for path in (ranks[0] / "checkpoint").glob("model_*.pt")}
    assert names == {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}


def test_fsdp2_is_refused_on_a_cpu_before_anything_starts() -> None:
    overrides = ["actor_rollout_ref.actor.strategy=fsdp2", "trainer.n_gpus_per_node=2"]
    built = config.build(preset.load("tiny"), overrides)
    with pytest.raises(Refused, match=r"fsdp2.*needs an accelerator"):
        auto.resolve(built, CPU)
