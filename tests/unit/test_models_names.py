import subprocess
import sys
from pathlib import Path

import pytest

from env import models
from env.errors import Refused
from env.models import names
from env.models.names import resolve
from env.paths import ROOT


def test_the_catalogue_holds_what_the_presets_need() -> None:
    sources = {entry.name: entry.source for entry in models.catalogue().values()}
    assert sources == {
        "tiny": "tiny",
        "smollm2-135m-instruct": "package",
        "qwen2.5-0.5b-instruct": "hf",
        "qwen2.5-1.5b-instruct": "hf",
        "qwen2.5-3b-instruct": "hf",
    }
    assert models.catalogue()["qwen2.5-0.5b-instruct"].files["model.safetensors"].bytes == 988097824


@pytest.mark.parametrize(
    "what", ["qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"]
)
def test_a_model_is_known_by_name_and_repository_in_any_case(what: str) -> None:
    wanted = resolve(what)
    assert (wanted.name, wanted.source) == ("qwen2.5-0.5b-instruct", "hf")
    assert wanted.revision == "7ae557604adf67be50417f59c2c2f167def9a775"
    assert len(wanted.pinned) == 8


def test_another_revision_is_not_held_to_the_pins() -> None:
    wanted = resolve("qwen2.5-0.5b-instruct", revision="main")
    assert (wanted.revision, wanted.pinned) == ("main", {})


def test_what_is_converted_here_is_not_held_against_the_hub() -> None:
    assert resolve("smollm2-135m-instruct", source="hf").pinned == {}
    assert list(resolve("smollm2-135m-instruct").pinned) == ["model.safetensors"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match=r"did you mean qwen2\.5-0\.5b-instruct\?"):
        resolve("qwen2.5-0.5-instruct")


@pytest.mark.parametrize(
    ("what", "source"), [("tiny", "hf"), ("tiny", "package"), ("org/x", "tiny"), ("tiny", "ftp")]
)
def test_a_source_that_cannot_serve_it_is_refused(what: str, source: str) -> None:
    with pytest.raises(Refused, match="--source"):
        resolve(what, source=source)


@pytest.mark.parametrize("what", ["/no/such/folder", "./nothing", "~/nothing"])
def test_a_folder_that_is_not_there_is_refused(what: str) -> None:
    with pytest.raises(Refused, match="is no folder"):
        resolve(what)


def test_options_of_a_hub_are_refused_for_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--revision: says nothing about a folder"):
        resolve(str(tmp_path), revision="main")


def test_every_missing_key_of_the_pins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"a": {"from": "hf"}, "b": {"license": "MIT"}, "c": {"from": "tiny", "license": "MIT"}}
    monkeypatch.setattr(names, "pins", lambda: {"models": tables})
    with pytest.raises(Refused) as refused:
        models.catalogue()
    assert [problem.where for problem in refused.value.problems] == [
        "env/pins.toml, models.a.license",
        "env/pins.toml, models.a.repo",
        "env/pins.toml, models.b.from",
    ]


def run(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "env.models", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "VERL_P40_OUT": str(out), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_lists_the_catalogue(tmp_path: Path) -> None:
    ended = run(out=tmp_path)
    assert ended.returncode == 0
    assert "qwen2.5-3b-instruct" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_with_3_where_a_model_cannot_be_had(tmp_path: Path) -> None:
    ended = run("qwen2.5-0.5b-instruct", out=tmp_path)
    assert ended.returncode == 3
    assert "HF_HUB_OFFLINE forbids" in ended.stderr
    assert f"in {tmp_path}/models/qwen2.5-0.5b-instruct and run the same command" in ended.stderr
    line = "model.safetensors  988,097,824 bytes  sha256 fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f7"
    assert line in ended.stderr


def test_the_command_ends_with_1_for_an_unknown_name(tmp_path: Path) -> None:
    ended = run("nothing", out=tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (1, "refused: 1 problem")


def test_torch_is_not_imported_to_look_at_a_model() -> None:
    code = (
        "import sys; from env import models; models.catalogue(); slow = {'torch', 'transformers'};"
        "sys.exit(len(slow & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
