"""verl-patches/0002: Ray's resource pool on a host without an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from run.folder import ray_folder


@pytest.fixture(scope="module")
def ray_with_two_slots() -> Iterator[Any]:
    import ray

    with ray_folder() as place:
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=str(place), log_to_driver=False)
        yield ray
        ray.shutdown()


def manager(ranks: int, device: str) -> Any:
    from verl.trainer.ppo.ray_trainer import ResourcePoolManager, Role

    return ResourcePoolManager(
        resource_pool_spec={"pool": [ranks]},
        mapping={Role.ActorRollout: "pool"},
        device_name=device,
    )


def test_a_cpu_pool_takes_one_slot_a_rank(ray_with_two_slots: Any) -> None:
    pools = manager(2, "cpu")
    pools.create_resource_pool()
    (pool,) = pools.resource_pool_dict.values()
    assert not pool.use_gpu
    assert pool.world_size == 2


def test_too_few_slots_name_cpus_and_the_key_that_helps(ray_with_two_slots: Any) -> None:
    with pytest.raises(ValueError, match=r"CPUs.*less than.*3.*ray_init\.num_cpus"):
        manager(3, "cpu").create_resource_pool()


def test_a_gpu_pool_still_wants_gpus(ray_with_two_slots: Any) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        manager(1, "cuda").create_resource_pool()
