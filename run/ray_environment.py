"""What Ray and its workers find in their environment, so that a run starts fast.

Ray starts one worker a CPU slot as soon as it is up. Actors take those workers as long as they need
no environment of their own; until then the workers wait. Here they use that time to import what
takes longest, side by side.
"""

from __future__ import annotations

# What verl's driver would give to every worker as a runtime_env, and then none could be taken that
# is there already. Ray's processes inherit the driver's environment instead.
VERL = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}

RAY = {
    # Nothing that asks CUDA for its devices: Ray tells a worker which of them are its own only when
    # it becomes a rank.
    "RAY_preload_python_modules": "tensordict,transformers.modeling_utils",
    # Otherwise Ray may stop a worker in the moment between a slot's reservation and its use.
    "RAY_idle_worker_killing_time_threshold_ms": str(10 * 60 * 1000),
}

ENVIRONMENT = {**VERL, **RAY}
