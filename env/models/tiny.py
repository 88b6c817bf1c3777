"""A model of two layers and random numbers that has everything a real one has.

The same seed and tokenizer give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
from pathlib import Path
from typing import Any

from env.errors import Problem, Refused
from env.models.folder import make_readable
from env.paths import ROOT

TOKENIZER = ROOT / "run" / "assets" / "tiny-tokenizer"
SEED = 20

# Raise it when build() makes other files from the same tokenizer.
_VERSION = 1


def revision(tokenizer: Path = TOKENIZER) -> str:
    """Changes when the tokenizer or the recipe does.

    Raises:
        Refused: the tokenizer is missing.
    """
    digest = hashlib.sha256()
    for path in _files(tokenizer):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"seed {SEED}, version {_VERSION}, tokenizer {digest.hexdigest()[:12]}"


def build(folder: Path, tokenizer: Path = TOKENIZER) -> None:
    """Write config, generation config, tokenizer and weights (float32) into ``folder``.

    Raises:
        Refused: the tokenizer is missing, or has no end or padding token.
    """
    files = _files(tokenizer)
    # Slow to import, and only needed here.
    import torch

    transformers: Any = importlib.import_module("transformers")  # untyped
    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
    eos, pad = loaded.eos_token_id, loaded.pad_token_id
    if eos is None or pad is None:
        raise Refused(
            Problem(str(tokenizer), "has no end or padding token", "both", "train it anew")
        )
    config = transformers.Qwen2Config(
        vocab_size=len(loaded),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        sliding_window=None,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
        torch_dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = transformers.Qwen2ForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    make_readable(folder)


def _files(tokenizer: Path) -> list[Path]:
    files = sorted(path for path in tokenizer.glob("*") if path.is_file())
    if not (tokenizer / "tokenizer.json").is_file():
        do = f"restore it: git checkout {TOKENIZER.relative_to(ROOT)}"
        raise Refused(Problem(str(tokenizer), "holds no tokenizer.json", "the tokenizer", do))
    return files
