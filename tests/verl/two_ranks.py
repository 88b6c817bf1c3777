"""One rank of two over gloo: ``python -m tests.verl.two_ranks RANK PORT MODEL OUT``.

Rolls out, scores and takes a step with verl's worker under FSDP on a CPU, and writes what
test_fsdp_on_cpu.py looks at.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from tests.verl.conftest import prompts, settings


def run(rank: int, port: str, model: Path, out: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
    torch.distributed.init_process_group(
        "cpu:gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    from verl.utils.profiler.performance import reduce_timing
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    built = settings(
        model,
        "actor_rollout_ref.actor.strategy=fsdp",
        "critic.strategy=fsdp",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.rollout.response_length=8",
    )
    worker = ActorRolloutRefWorker(built.actor_rollout_ref, role="actor_rollout_ref")
    worker.init_model()
    mine = prompts(4)[2 * rank : 2 * rank + 2]
    mine.meta_info["global_steps"] = 1
    batch = worker.generate_sequences(mine)
    scored = worker.compute_log_prob(batch).batch["old_log_probs"]
    mask = batch.batch["attention_mask"][:, -scored.size(1) :]
    delta = (scored - batch.batch["rollout_log_probs"]).abs()[mask.bool()]
    batch.batch.update(
        {
            "response_mask": mask,
            "old_log_probs": scored,
            "ref_log_prob": worker.compute_ref_log_prob(batch).batch["ref_log_prob"],
            "advantages": torch.ones_like(scored) * mask * (1 if rank else -1),
        }
    )
    batch.meta_info.update(temperature=1.0, global_token_num=[1])
    metrics = worker.update_actor(batch).meta_info["metrics"]
    worker.save_checkpoint(str(out / "checkpoint"), global_step=1)
    result = {
        "delta": float(delta.max()),
        "responses": batch.batch["responses"].tolist(),
        "grad_norm": float(torch.tensor(metrics["actor/grad_norm"]).mean()),
        "timing": reduce_timing({"t": float(rank)}),
    }
    (out / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
