"""verl-patches "imports: …" and "ray: ranks run in the processes …": what a start does not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env.paths import ROOT
from run.folder import ray_folder
from run.ray_environment import ENVIRONMENT, RAY, VERL
from tests.verl.conftest import settings

HEAVY = ("torch", "transformers", "tensordict", "pandas", "datasets", "peft")


def interpreter(code: str, *arguments: str, **environment: str) -> str:
    """What ``code`` prints in a fresh interpreter."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported_by(statement: str) -> set[str]:
    """Which of the heavy packages are there after ``statement``."""
    code = f"{statement}\nimport sys; print('found', *(set({HEAVY}) & set(sys.modules)))"
    return set(interpreter(code).splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "statement",
    ["import verl", "import verl.utils", "import verl.trainer.main_ppo"],
)
def test_the_driver_imports_nothing_heavy(statement: str) -> None:
    assert imported_by(statement) == set()


def test_a_name_of_a_package_is_imported_when_it_is_asked_for() -> None:
    assert "torch" in imported_by("import verl; verl.DataProto")
    assert "torch" not in imported_by("from verl.utils import omega_conf_to_dataclass")


def test_a_package_has_the_names_that_it_had() -> None:
    import verl
    import verl.utils
    from verl.protocol import DataProto
    from verl.utils.tokenizer import hf_processor, hf_tokenizer

    assert verl.DataProto is DataProto
    assert verl.utils.hf_tokenizer is hf_tokenizer
    assert verl.utils.hf_processor is hf_processor
    assert {"hf_tokenizer", "hf_processor", "omega_conf_to_dataclass"} == set(verl.utils.__all__)
    for package in (verl, verl.utils):
        with pytest.raises(AttributeError, match="nothing_of_this_name"):
            _ = package.nothing_of_this_name


def test_a_worker_without_lora_imports_neither_peft_nor_pandas() -> None:
    found = imported_by("import verl.workers.fsdp_workers")
    assert found.isdisjoint({"peft", "pandas", "datasets"})


RANKS = """
import json, os, sys
from pathlib import Path
import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls, get_node_address
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

class Rank(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell(self):
        keys = ("RANK", "WORLD_SIZE", "RAY_LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        cards = os.environ.get("CUDA_VISIBLE_DEVICES")
        return {"pid": os.getpid(), "cards": cards, **{key: os.environ[key] for key in keys}}

def group(cls, ranks, device):
    pool = RayResourcePool([ranks], use_gpu=device != "cpu", max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=cls, device_name=device)

environment = get_ppo_ray_runtime_env()
slots = {"num_cpus": 3, "num_gpus": 2}  # Ray counts cards, it does not look for them
ray.init(**slots, include_dashboard=False, runtime_env=environment, _temp_dir=sys.argv[1])
both = create_colocated_worker_cls({"r": RayClassWithInitArgs(ray.remote(Rank))})
together = group(both, 2, "cuda")
told = together.spawn({"r"})["r"].tell()
logs = Path(ray._private.worker._global_node.get_session_dir_path(), "logs")
started = [int(log.stem.rsplit("_", 1)[1]) for log in logs.glob("python-core-worker-*.log")]
alone = group(RayClassWithInitArgs(ray.remote(Rank)), 1, "cpu").tell()
nodes = [*together.node_ids, ray.get_runtime_context().get_node_id()]
print()
print(json.dumps({"environment": environment, "told": told, "started": started, "alone": alone,
                  "nodes": nodes}))
"""


@pytest.fixture(scope="module")
def ranks() -> dict[str, object]:
    """What two ranks of a colocated group tell, and one of a group of its own."""
    quick = {**ENVIRONMENT, "RAY_preload_python_modules": "json"}
    with ray_folder() as place:
        said: dict[str, object] = json.loads(
            interpreter(RANKS, str(place), **quick).splitlines()[-1]
        )
    return said


def test_ranks_take_the_processes_that_ray_has_started(ranks: dict[str, list[int]]) -> None:
    pids = {rank["pid"] for rank in ranks["told"]}
    assert len(pids) == 2
    # one a slot at most: none for a placement group, an address, or a rank's environment
    assert pids <= set(ranks["started"])
    assert len(ranks["started"]) <= 3


def test_each_rank_knows_its_place_and_all_know_one_address(ranks: dict[str, list[dict]]) -> None:
    told = ranks["told"]
    assert [rank["RANK"] for rank in told] == ["0", "1"]
    assert [rank["RAY_LOCAL_RANK"] for rank in told] == ["0", "1"]
    assert {rank["WORLD_SIZE"] for rank in told} == {"2"}
    assert len({(rank["MASTER_ADDR"], int(rank["MASTER_PORT"])) for rank in told}) == 1


def test_a_rank_in_such_a_process_sees_its_own_card_alone(ranks: dict[str, list[dict]]) -> None:
    assert sorted(rank["cards"] for rank in ranks["told"]) == ["0", "1"]


def test_a_class_that_takes_no_environment_is_still_given_its_own(
    ranks: dict[str, list[dict]],
) -> None:
    (rank,) = ranks["alone"]
    assert (rank["RANK"], rank["WORLD_SIZE"]) == ("0", "1")
    assert rank["MASTER_PORT"] != ranks["told"][0]["MASTER_PORT"]


def test_the_nodes_of_a_group_are_told_by_rank(ranks: dict[str, list[str]]) -> None:
    assert len(ranks["nodes"]) == 3
    assert len(set(ranks["nodes"])) == 1


def test_a_run_leaves_verl_no_environment_to_give_to_workers(
    ranks: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV, get_ppo_ray_runtime_env

    assert PPO_RAY_RUNTIME_ENV["env_vars"] == VERL
    assert ranks["environment"] == {}
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    assert get_ppo_ray_runtime_env()["env_vars"]["NCCL_DEBUG"] == "WARN"


def test_what_waiting_workers_import_does_not_ask_cuda_for_its_devices() -> None:
    # It would then see those of the moment, and not those that the rank is given later.
    code = """
import importlib, sys, torch
def asked(*arguments):
    raise AssertionError("CUDA was asked for its devices")
torch._C._cuda_getDeviceCount = torch._C._cuda_init = torch.cuda.is_available = asked
for module in sys.argv[1].split(","):
    importlib.import_module(module)
"""
    interpreter(code, RAY["RAY_preload_python_modules"])


def test_ray_gets_one_slot_a_process_however_many_cores(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert settings(tiny_model).ray_init.num_cpus == 2
    assert settings(tiny_model, "trainer.n_gpus_per_node=3").ray_init.num_cpus == 4
    scoring = "reward_model.launch_reward_fn_async=true"
    assert settings(tiny_model, scoring).ray_init.num_cpus == 3


LOADS = """
import sys
from pathlib import Path
import torch
from verl.workers.fsdp_workers import ActorRolloutRefWorker, CriticWorker
from verl.workers.rollout.hf_rollout import HFRollout
from tests.verl.conftest import settings

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024

def loaded(role, model):
    built = settings(Path(model))
    if role == "critic":
        worker = CriticWorker(built.critic)
    else:
        worker = ActorRolloutRefWorker(built.actor_rollout_ref, role=role)
    worker.init_model()
    return worker

torch.distributed.init_process_group(
    "cpu:gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
large, small = sys.argv[1:3]
kept = []
for role in ("actor_rollout", "ref", "critic"):
    loaded(role, small)  # modules, tokenizers and threads of the first time
    before = anonymous()
    kept.append(loaded(role, large))
    print("\\nanonymous", role, anonymous() - before)
"""


def test_weights_are_mapped_from_their_file_and_not_made_or_copied(
    tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    shape = AutoConfig.from_pretrained(tiny_model, intermediate_size=100_000)
    model = AutoModelForCausalLM.from_config(shape)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size > 100 * 2**20
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    said = interpreter(LOADS, str(tmp_path), str(tiny_model), **rank)
    grown = {
        line.split()[1]: int(line.split()[2])
        for line in said.splitlines()
        if line.startswith("anonymous ")
    }
    assert grown.keys() == {"actor_rollout", "ref", "critic"}
    assert max(grown.values()) < size / 4, (grown, size)
