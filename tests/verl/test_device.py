"""verl-patches/0001: a host without an accelerator is a device like others."""

from __future__ import annotations

import torch


def test_collectives_run_over_gloo() -> None:
    from verl.utils.device import get_device_name, get_dist_backend, get_nccl_backend

    assert (get_device_name(), get_nccl_backend()) == ("cpu", "gloo")
    assert get_dist_backend() == "cpu:gloo"


def test_the_device_answers_every_call_that_workers_make() -> None:
    from verl.utils.device import get_device_id, get_torch_device

    device = get_torch_device()
    assert torch.zeros(1, device=get_device_id()).device.type == "cpu"
    device.empty_cache()
    assert 0 < device.memory_allocated() <= device.mem_get_info()[1]
    assert device.max_memory_reserved() > 0
    assert device.get_device_name()
    assert device.current_device() == "cpu"


def test_timings_are_averaged_without_nccl(one_rank: None) -> None:
    from verl.utils.profiler.performance import reduce_timing

    assert reduce_timing({"b": 2.0, "a": 1.0}) == {"a": 1.0, "b": 2.0}
