"""One rank of two over gloo: ``python -m tests.verl.two_ranks_lora RANK PORT MODEL OUT``.

LoRA under FSDP on a CPU, actor and critic: rolls out, takes a step, saves, and goes on from what
was saved. Writes what test_lora.py looks at.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.verl.batches import changed, rolled_out, step, weights
from tests.verl.conftest import prompts, settings
from tests.verl.test_hf_rollout import delta_log_probs, generate

LORA = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "critic.model.lora_rank=4",
    "critic.optim.lr=1e-2",
)


def run(rank: int, port: str, model: Path, out: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "cpu:gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    from verl.workers.fsdp_workers import ActorRolloutRefWorker, CriticWorker

    built = settings(
        model,
        *LORA,
        "actor_rollout_ref.actor.strategy=fsdp",
        "critic.strategy=fsdp",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "critic.ppo_mini_batch_size=4",
        "critic.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.rollout.response_length=8",
        # on a CPU they are to change nothing
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        "critic.model.fsdp_config.param_offload=true",
        "critic.model.fsdp_config.optimizer_offload=true",
    )
    actor, again = (
        ActorRolloutRefWorker(copy.deepcopy(built.actor_rollout_ref), role="actor_rollout")
        for _ in range(2)
    )
    critic = CriticWorker(copy.deepcopy(built.critic))
    for worker in (actor, critic):
        worker.init_model()
    before = weights(actor), weights(critic)

    mine = prompts(4)[2 * rank : 2 * rank + 2]
    if rank == 0:  # its rows end at once, the other rank's go on
        actor.generation_config.eos_token_id = list(range(1, 512))
    batch = rolled_out(actor, mine)
    mask = batch.batch["response_mask"]
    advantages = torch.ones_like(mask, dtype=torch.float32) * mask * (1 if rank else -1)
    batch.batch.update(dict.fromkeys(("advantages", "returns", "values"), advantages))
    norms = {
        "actor": step(actor, batch)["actor/grad_norm"][0],
        "critic": step(critic, batch)["critic/grad_norm"][0],
    }
    after = weights(actor), weights(critic)
    scored = actor.compute_log_prob(copy.deepcopy(batch)).batch["old_log_probs"]
    reference = actor.compute_ref_log_prob(copy.deepcopy(batch)).batch["ref_log_prob"]
    delta = delta_log_probs(actor, generate(actor, prompts(4)[2 * rank : 2 * rank + 2]))

    actor.save_checkpoint(str(out / "actor"), global_step=1)
    if rank == 0:
        save_file(after[0], out / "weights.safetensors")
    step(actor, batch)
    again.config.seed = 7  # its adapter begins elsewhere
    again.init_model()
    again.load_checkpoint(str(out / "actor"))
    step(again, batch)

    result = {
        "delta": float(delta.max()),
        "lengths": mask.sum(-1).tolist(),
        "grad_norms": norms,
        "changed": {
            role: sorted(changed(*pair))
            for role, pair in zip(("actor", "critic"), zip(before, after, strict=True), strict=True)
        },
        "policy_moved": float((scored - batch.batch["old_log_probs"]).abs().max()),
        "reference_moved": float((reference - batch.batch["ref_log_prob"]).abs().max()),
        "resumed_differs": sorted(changed(weights(actor), weights(again))),
    }
    (out / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
