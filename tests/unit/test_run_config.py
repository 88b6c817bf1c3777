"""The configuration of a run: what a command line may say, and what is decided from it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from env.errors import Refused
from env.hardware import CPU, Device
from run import auto, config, folder, preset, sources, steps


def built(*overrides: str) -> DictConfig:
    return config.build(preset.load("tiny"), overrides)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from("aé'\"\\ =,:[]{}$\n")),
    lambda inner: st.lists(inner, max_size=3),
)


@given(VALUES)
def test_a_presets_value_reaches_hydra_as_it_is(value: object) -> None:
    override = OverridesParser.create().parse_override(f"key={config.quote(value)}")
    assert override.value() == value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train_files=[/a,'/b c/it\\'s.parquet']", ["/a", "/b c/it's.parquet"]),
        ('data.train_files="/a b/x=1,2.parquet"', "/a b/x=1,2.parquet"),
        ("data.train_files=null", None),
        ("++data.train_files=/a", "/a"),
        ("data.train_files=${data.val_files}", "~/data/rlhf/gsm8k/test.parquet"),
    ],
)
def test_values_of_the_command_line_keep_their_form(override: str, expected: object) -> None:
    assert built(override).data.train_files == expected


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("a.b=1", {"a.b"}),
        ("++a.b=x", {"a.b"}),
        ("~a.b", {"a.b"}),
        ("a={b:1,c:{d:'x=y'}}", {"a.b", "a.c.d"}),
        ("a.b=[1,2]", {"a.b"}),
    ],
)
def test_what_is_given_is_known_by_its_leaves(override: str, keys: set[str]) -> None:
    assert config.given_keys([override]) == keys


def test_what_the_command_line_gives_is_not_written_over(tmp_path: Path) -> None:
    overrides = [
        "custom_reward_function={path:/x.py,name:mine}",
        "trainer={rollout_data_dir:/elsewhere}",
    ]
    settings = built(*overrides)
    folder.direct(settings, tmp_path, "graded", config.given_keys(overrides))
    assert settings.custom_reward_function.path == "/x.py"
    assert settings.custom_reward_function.name == "mine"
    assert settings.trainer.rollout_data_dir == "/elsewhere"
    assert settings.trainer.default_local_dir == str(tmp_path / "checkpoints")


@pytest.mark.parametrize("key", [*auto.COUNTS, "trainer.total_training_steps"])
@pytest.mark.parametrize("value", ["auto", "0", "-1", "2.5", "ten", "true"])
def test_a_size_that_is_no_count_is_refused_by_its_key(key: str, value: str) -> None:
    with pytest.raises(Refused, match=key):
        auto.resolve(built(f"{key}={value}"), CPU)


@pytest.mark.parametrize("key", auto.COUNTS)
def test_a_size_that_is_missing_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(Refused, match=f"{key}: is None"):
        auto.resolve(built(f"{key}=null"), CPU)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.device=gpu",
        "trainer.device=null",
        "actor_rollout_ref.actor.strategy=ddp",
        "critic.strategy=null",
        "actor_rollout_ref.model.use_liger=true",
        "actor_rollout_ref.model.use_remove_padding=true",
    ],
)
def test_what_cannot_run_here_is_refused_before_anything_starts(override: str) -> None:
    with pytest.raises(Refused):
        auto.resolve(built(override), CPU)


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-0.5B-Instruct", "null", "''"])
def test_a_model_path_where_none_lies_says_how_to_fetch_one(path: str) -> None:
    overrides = [f"actor_rollout_ref.model.path={path}"]
    given_keys = config.given_keys(overrides)
    with pytest.raises(Refused, match="--model NAME fetches one"):
        sources.provide(built(*overrides), preset.load("tiny"), None, given_keys, print)


def with_rows(folder_: Path, *rows: int) -> str:
    """An override that names one parquet file for each number of ``rows``."""
    files = []
    for number, count in enumerate(rows):
        files.append(folder_ / f"{number}.parquet")
        pq.write_table(pa.table({"prompt": ["x"] * count}), files[-1])
    return f"data.train_files=[{','.join(map(str, files))}]"


@pytest.mark.parametrize(
    ("overrides", "last", "epochs"),
    [
        (["trainer.total_training_steps=null"], 4, 1),  # 18 rows are 4 batches of 4
        (["trainer.total_training_steps=null", "trainer.total_epochs=3"], 12, 3),
        (["trainer.total_training_steps=4"], 4, 1),
        (["trainer.total_training_steps=5"], 5, 2),
        (["trainer.total_training_steps=9"], 9, 3),
        # both are asked for: the sooner end is the run's, so that it ends as a run does
        (["trainer.total_training_steps=9", "trainer.total_epochs=2"], 8, 2),
        (["trainer.total_training_steps=3", "trainer.total_epochs=2"], 3, 2),
    ],
)
def test_a_run_has_the_steps_that_were_asked_for(
    tmp_path: Path, overrides: list[str], last: int, epochs: int
) -> None:
    settings = built(with_rows(tmp_path, 10, 8), *overrides)
    found, said = steps.settle(settings, config.given_keys(overrides))
    trainer = settings.trainer
    assert (found, trainer.total_epochs) == (last, epochs)
    assert trainer.total_training_steps in (None, last)
    changed = OmegaConf.to_yaml(trainer) != OmegaConf.to_yaml(built(*overrides).trainer)
    assert bool(said) == changed


def test_fewer_rows_than_one_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"data\.train_batch_size=4: the training data has 3 rows"):
        steps.settle(built(with_rows(tmp_path, 3)), set())


def test_training_data_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("no")
    files = f"data.train_files=[{tmp_path}/no.parquet,{tmp_path}/missing.parquet]"
    with pytest.raises(Refused, match=r"(?s)no\.parquet.*missing\.parquet"):
        steps.settle(built(files), set())


def test_a_runs_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="file"):
        folder.create(tmp_path / "file" / "runs", "tiny")


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    made = [folder.create(tmp_path, "tiny") for _ in range(3)]
    assert len(set(made)) == 3


def test_latest_follows_the_runs_that_begin(tmp_path: Path) -> None:
    for _ in range(2):
        place = folder.create(tmp_path, "tiny")
        with folder.begun(place):
            assert (tmp_path / "latest").resolve() != place
        assert (tmp_path / "latest").resolve() == place


@pytest.mark.parametrize("ending", [Refused([]), KeyboardInterrupt()])
def test_what_is_refused_or_interrupted_before_it_began_leaves_no_trace(
    tmp_path: Path, ending: BaseException
) -> None:
    before = folder.create(tmp_path, "tiny")
    with folder.begun(before):
        pass
    place = folder.create(tmp_path, "tiny")
    with pytest.raises(type(ending)), folder.begun(place):
        raise ending
    assert not place.exists()
    assert (tmp_path / "latest").resolve() == before


@pytest.mark.parametrize("name", ["d" * 60, "it's", "a b"])
def test_rays_sockets_have_a_short_plain_path_whatever_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given_folder = tmp_path / name
    given_folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(given_folder))
    with folder.ray_folder() as ray:
        assert len(str(ray)) + folder.BELOW_RAY_BYTES <= folder.SOCKET_BYTES
        assert shlex.quote(str(ray)) == str(ray)
        assert ray.is_dir()
    assert not ray.exists()
    assert list(given_folder.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "a b", "it's"])
def test_ray_gets_a_python_that_its_shell_can_start(tmp_path: Path, name: str) -> None:
    environment = tmp_path / name
    environment.symlink_to(sys.prefix)
    tell = "import sys; from pathlib import Path; from run.folder import interpreter;"
    tell += "print(interpreter(Path(sys.argv[1])))"
    python = str(environment / Path(sys.executable).relative_to(sys.prefix))
    with folder.ray_folder() as ray:
        told = subprocess.check_output([python, "-c", tell, str(ray)], text=True).strip()
        assert (told == python) == (name == "plain")
        # as Ray does: unquoted
        code = "'import ray, sys; print(sys.executable)'"
        started = subprocess.check_output(["bash", "-c", f"exec {told} -c {code}"], text=True)
    assert started.strip() == told


T4 = Device("cuda", "Tesla T4", (7, 5), 15_109 * 2**20, 1)


def test_torch_compile_is_left_off_where_no_launcher_can_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    settings = built("trainer.device=cuda")
    said = auto.resolve(settings, T4)
    assert "torch.compile is left off: there is no C compiler (gcc or clang)" in said
    assert settings.hardware.torch_compile is False
    assert settings.actor_rollout_ref.actor.use_torch_compile is False


def test_torch_compile_that_is_asked_for_without_a_compiler_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Refused, match="no C compiler"):
        auto.resolve(built("trainer.device=cuda", "hardware.torch_compile=true"), T4)


def test_torch_compile_is_on_where_card_compiler_and_headers_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", "/usr/bin/cc")
    monkeypatch.setattr("env.hardware.sysconfig.get_path", lambda _: str(tmp_path))
    settings = built("trainer.device=cuda")
    auto.resolve(settings, T4)
    assert settings.hardware.torch_compile is True
    (tmp_path / "Python.h").unlink()
    assert "torch.compile is left off: there is no Python.h (Debian's python3-dev)" in auto.resolve(
        built("trainer.device=cuda"), T4
    )
