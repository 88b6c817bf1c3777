"""Fixtures for tests that need a model; a conftest.py imports those it wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tests.fake_hub import FakeHub

PARAMETERS = 4 * 3 + 5


@pytest.fixture(name="hub")
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub on this machine that every download goes to; what is fetched lands in ``tmp_path``."""
    from huggingface_hub import constants
    from huggingface_hub.utils import reset_sessions

    from env.models import download

    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path / "out"))
    monkeypatch.setattr(download, "BACKOFF_S", 0.0)
    # Both are read once, when the library is first imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    reset_sessions()
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.endpoint)
        yield server
    reset_sessions()


@pytest.fixture(name="model_files")
def model_files() -> dict[str, bytes]:
    """The files of a whole model of 17 parameters, in one piece."""
    tensors = {
        "embed": np.arange(12, dtype=np.float32).reshape(4, 3),
        "norm": np.ones(5, np.float32),
    }
    return {
        "config.json": json.dumps({"model_type": "qwen2"}).encode(),
        "generation_config.json": b"{}",
        "tokenizer.json": json.dumps({"version": "1.0"}).encode(),
        "tokenizer_config.json": b"{}",
        "model.safetensors": save(tensors),
    }


@pytest.fixture(name="sharded_files")
def sharded_files(model_files: dict[str, bytes]) -> dict[str, bytes]:
    """The same model in two shards and their index."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = {name: content for name, content in model_files.items() if "safetensors" not in name}
    files[one] = save({"embed": np.arange(12, dtype=np.float32).reshape(4, 3)})
    files[two] = save({"norm": np.ones(5, np.float32)})
    weight_map = {"embed": one, "norm": two}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


def lay(files: dict[str, bytes], folder: Path) -> Path:
    """Write ``files`` into ``folder``, which is made."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
