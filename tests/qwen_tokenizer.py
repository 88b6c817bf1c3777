"""Qwen2.5's tokenizer without a hub: converted from the ranks that the package dashscope carries.

The wheel is fetched once by pip, checked against the pinned hash and kept under out/.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

from data import manifest
from env import paths
from env.pins import pins

SPECIAL = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
_RANKS = "dashscope/resources/qwen.tiktoken"
# How Qwen2 cuts text before merging: words, single digits, punctuation, white space.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# ChatML with Qwen2.5's default system prompt; without tools, which no prompt here has.
_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class UnavailableError(Exception):
    """The wheel could not be had; the message says why."""


@cache
def folder() -> Path:
    """Folder of the converted tokenizer, made at the first call.

    Raises:
        UnavailableError: no package index, or none that has the wheel.
    """
    cache_folder = paths.out() / "cache" / "qwen-tokenizer"
    made: Path = cache_folder / pins()["test"]["dashscope"]["sha256"][:16]
    if not (made / "tokenizer_config.json").is_file():
        _save(_ranks(_wheel(cache_folder)), made)
    return made


def _wheel(cache_folder: Path) -> Path:
    pinned = pins()["test"]["dashscope"]
    wheel = cache_folder / f"dashscope-{pinned['version']}-py3-none-any.whl"
    if not wheel.is_file():
        requirement = f"dashscope=={pinned['version']}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--dest", str(cache_folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"pip could not download {requirement}: {done.stderr[-200:]}")
    found = manifest.sha256(wheel)
    assert found == pinned["sha256"], f"{wheel} has sha256 {found}, not the pinned one"
    return wheel


def _ranks(wheel: Path) -> dict[bytes, int]:
    lines = zipfile.ZipFile(wheel).read(_RANKS).splitlines()
    pairs = (line.split() for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _save(ranks: dict[bytes, int], target: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE
    from transformers.models.qwen2 import Qwen2TokenizerFast

    letters = _byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    merges = [
        tuple(map(spelled, _halves(token, rank, ranks)))
        for token, rank in ranks.items()
        if len(token) > 1
    ]
    tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=_TEMPLATE,
    )
    fast.save_pretrained(target)


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    written = {byte: byte for byte in plain} | {byte: 256 + n for n, byte in enumerate(others)}
    return [chr(written[byte]) for byte in range(256)]


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The last merge that makes ``token``: merge its bytes with lower ranks until two are left."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        merged = [ranks.get(parts[at] + parts[at + 1], rank) for at in range(len(parts) - 1)]
        lowest = min(merged)
        assert lowest < rank, f"no merges make {token!r}"
        at = merged.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
