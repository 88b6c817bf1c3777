"""Room: /dev/shm for Ray's object store, and the disk for models and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from env.doctor.facts import Facts
from env.doctor.finding import GIB, Finding, gib, visible

# Ray's own rule (2.47): 30 % of the memory that is available, and at most 10 GB where /dev/shm is
# smaller than that.
RAY_SHARE, RAY_MOST = 0.3, 10**10

# fp32 weights and two Adam moments of Qwen2.5-0.5B, and its weights as published (bf16).
CHECKPOINT_BYTES = 494_032_768 * 12
MODEL_BYTES = 494_032_768 * 2
# Two are kept while a third is written beside them.
GRPO_BYTES = 3 * CHECKPOINT_BYTES + MODEL_BYTES
PPO_BYTES = 6 * CHECKPOINT_BYTES + MODEL_BYTES
# SmolLM2-135M, its download, data and a run.
DEMO_BYTES = GIB


def check_shm(facts: Facts, profile: str) -> Iterator[Finding]:
    if facts.shm is None:
        why = "Ray puts its object store in /tmp, which is slower"
        yield Finding("shm", "warning", "/dev/shm is not here", why, "mount a tmpfs there")
        return
    free = facts.shm.free_bytes
    what = f"/dev/shm: {_size(free)} free of {_size(facts.shm.total_bytes)}"
    wanted = min(RAY_SHARE * facts.memory_bytes, RAY_MOST)
    if free >= wanted:
        yield Finding("shm", "ok", what)
        return
    why = f"Ray's object store wants up to {gib(wanted)} and goes to /tmp, which is slower"
    if len(visible(facts)) > 1:
        why += "; NCCL may fail between cards"
    size = int(wanted / 1e9) + 1
    if facts.is_container:
        cure = f"docker run --shm-size={size}g ..., or SHM_SIZE={size}gb docker compose up"
    else:
        cure = f"remove files there, or sudo mount -o remount,size={size}G /dev/shm"
    yield Finding("shm", "warning", what, why, cure)


def check_disk(facts: Facts, profile: str) -> Iterator[Finding]:
    disk = facts.disk
    if disk is None:
        yield Finding("disk", "warning", "the file system of out/ does not tell its size")
        return
    what = f"{gib(disk.free_bytes)} free at {disk.path}"
    move = "VERL_P40_OUT moves out/ elsewhere"
    if not disk.is_writable:
        why = "models, data and runs are written there"
        cure = f"let this user write there; {move}"
        yield Finding("disk", "problem", f"{disk.path} cannot be written", why, cure)
    elif disk.free_bytes < DEMO_BYTES:
        why = f"even make demo wants {gib(DEMO_BYTES)}"
        yield Finding("disk", "problem", what, why, f"free some; {move}")
    elif disk.free_bytes < PPO_BYTES:
        why = f"with checkpoints p40-grpo takes {gib(GRPO_BYTES)}, p40-ppo {gib(PPO_BYTES)}"
        cure = f"free some; {move}; trainer.max_actor_ckpt_to_keep=1 keeps fewer"
        yield Finding("disk", "warning", what, why, cure)
    else:
        yield Finding("disk", "ok", what)


def _size(size: int) -> str:
    """MiB where GiB would round to nothing."""
    return gib(size) if size >= GIB else f"{size / 2**20:.0f} MiB"
