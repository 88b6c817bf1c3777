"""No line of the patched verl asks for half precision, flash-attention, Triton or torch.compile by
itself: the hardware profile does. What is left is listed here, with the reason why it may stay.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from env.hardware import verl_root

LITERAL = re.compile(
    r"bfloat16|bf16|float16|fp16|\bhalf\b(?=\s*\()|torch\.half\b"
    r"|flash_?att|torch\.compile\b|triton|liger_kernel",
    re.IGNORECASE,
)

MEGATRON = "Megatron's part, which the launcher refuses and which cannot be imported without it"
VISION = "vision models alone, where padding is removed or the sequence is split: flash needed"
ULYSSES = "replaces flash-attention's own function where the sequence is split, and only there"
FUSED = "fused_kernel_options.impl_backend=triton, after require_triton"
LIGER = "use_liger=True, after require_triton"
NAMED = "a comparison, a conversion or a name; nothing is computed in it"
DECIDES = "the profile itself"
GENERATED = "a listing of the configuration for readers, which nothing loads"


class Allowed(NamedTuple):
    """``text`` may stand in ``file``; a text of "" allows the whole file."""

    file: str
    text: str
    reason: str


ALLOWED = (
    Allowed("model_merger/megatron_model_merger.py", "", MEGATRON),
    Allowed("models/llama/megatron/checkpoint_utils/llama_loader.py", "", MEGATRON),
    Allowed("models/llama/megatron/checkpoint_utils/llama_loader_depracated.py", "", MEGATRON),
    Allowed("models/llama/megatron/checkpoint_utils/llama_saver.py", "", MEGATRON),
    Allowed("models/llama/megatron/layers/parallel_attention.py", "", MEGATRON),
    Allowed("models/llama/megatron/modeling_llama_megatron.py", "", MEGATRON),
    Allowed("models/mcore/config_converter.py", "", MEGATRON),
    Allowed("models/mcore/loader.py", "", MEGATRON),
    Allowed("models/mcore/qwen2_5_vl/attention.py", "", MEGATRON),
    Allowed("models/mcore/qwen2_5_vl/model.py", "", MEGATRON),
    Allowed("models/mcore/saver.py", "", MEGATRON),
    Allowed("models/qwen2/megatron/checkpoint_utils/qwen2_loader.py", "", MEGATRON),
    Allowed("models/qwen2/megatron/checkpoint_utils/qwen2_loader_depracated.py", "", MEGATRON),
    Allowed("models/qwen2/megatron/checkpoint_utils/qwen2_saver.py", "", MEGATRON),
    Allowed("models/qwen2/megatron/layers/parallel_attention.py", "", MEGATRON),
    Allowed("models/qwen2/megatron/modeling_qwen2_megatron.py", "", MEGATRON),
    Allowed("utils/megatron/pipeline_parallel.py", "", MEGATRON),
    Allowed("utils/megatron/tensor_parallel.py", "", MEGATRON),
    Allowed("utils/megatron_utils.py", "", MEGATRON),
    Allowed("workers/megatron_workers.py", "self.param_dtype = torch.bfloat16", MEGATRON),
    Allowed("models/transformers/dense_common.py", "forward_with_triton_backend", FUSED),
    Allowed("models/transformers/kimi_vl.py", "", VISION),
    Allowed("models/transformers/llama.py", "modeling_flash_attention_utils", ULYSSES),
    Allowed("models/transformers/llama.py", "_flash_attention_forward", ULYSSES),
    Allowed("models/transformers/llama.py", "_flash_attn_uses_top_left_mask", ULYSSES),
    Allowed("models/transformers/llama.py", "llama_flash_attn_forward", ULYSSES),
    Allowed("models/transformers/monkey_patch.py", "modeling_flash_attention_utils", ULYSSES),
    Allowed("models/transformers/monkey_patch.py", "_flash_attention_forward", ULYSSES),
    Allowed("models/transformers/monkey_patch.py", "import flash_attention", ULYSSES),
    Allowed("models/transformers/monkey_patch.py", "flash_attention.", ULYSSES),
    Allowed("models/transformers/monkey_patch.py", "FlashAttention2", VISION),
    Allowed("models/transformers/monkey_patch.py", "ulysses_flash_attn_forward", VISION),
    Allowed("models/transformers/monkey_patch.py", '["triton", "torch"]', NAMED),
    Allowed("models/transformers/monkey_patch.py", 'fused_kernels_backend == "triton"', FUSED),
    Allowed("models/transformers/monkey_patch.py", "forward_with_triton_backend", FUSED),
    Allowed("models/transformers/monkey_patch.py", 'require_triton("fused_kernel_', FUSED),
    Allowed("models/transformers/monkey_patch.py", "impl_backend=triton", FUSED),
    Allowed("models/transformers/monkey_patch.py", "Using Triton backend for fused kernels", FUSED),
    Allowed("models/transformers/monkey_patch.py", "Choose 'triton' or 'torch'.", NAMED),
    Allowed("models/transformers/npu_patch.py", "apply_rotary_pos_emb_flashatt", "Ascend NPUs"),
    Allowed("models/transformers/qwen2.py", "modeling_flash_attention_utils", ULYSSES),
    Allowed("models/transformers/qwen2.py", "_flash_attention_forward", ULYSSES),
    Allowed("models/transformers/qwen2.py", "_flash_attn_uses_top_left_mask", ULYSSES),
    Allowed("models/transformers/qwen2.py", "qwen2_flash_attn_forward", ULYSSES),
    Allowed("models/transformers/qwen2_5_vl.py", "forward_with_triton_backend", FUSED),
    Allowed("models/transformers/qwen2_vl.py", "", VISION),
    Allowed("trainer/config/_generated_ppo_megatron_trainer.yaml", "dtype: bfloat16", GENERATED),
    Allowed("trainer/config/_generated_ppo_trainer.yaml", "dtype: bfloat16", GENERATED),
    Allowed("trainer/config/generation.yaml", "dtype: bfloat16", "read by vLLM and SGLang alone"),
    Allowed("trainer/config/rollout/rollout.yaml", "dtype: bfloat16", "as in generation.yaml"),
    Allowed("trainer/fsdp_sft_trainer.py", "require_triton(", "refuses it"),
    Allowed("trainer/fsdp_sft_trainer.py", "liger_kernel.transformers.monkey_patch import", LIGER),
    Allowed("trainer/fsdp_sft_trainer.py", "_apply_liger_kernel_to_instance", LIGER),
    Allowed("utils/hardware.py", "", DECIDES),
    Allowed("utils/kernel/kernels.py", "", FUSED),
    Allowed("utils/padding.py", "npu_flash_attention", "Ascend NPUs"),
    Allowed("utils/padding.py", "from flash_attn.bert_padding", "plain torch where it is missing"),
    Allowed("utils/torch_dtypes.py", "", NAMED),
    Allowed(
        "utils/torch_functional.py",
        "from flash_attn.ops.triton.cross_entropy import",
        "launched only where the profile has Triton",
    ),
    Allowed("utils/torch_functional.py", "get_hardware_profile().triton", DECIDES),
    Allowed("utils/torch_functional.py", "logprobs_from_logits_flash_attn", "after that"),
    Allowed("workers/actor/dp_actor.py", "torch.compile(entropy_", "after require_torch_compile"),
    Allowed("workers/fsdp_workers.py", "require_triton(", "refuses it"),
    Allowed("workers/fsdp_workers.py", "liger_kernel.transformers.monkey_patch import", LIGER),
    Allowed("workers/fsdp_workers.py", "_apply_liger_kernel_to_instance", LIGER),
    Allowed(
        "workers/rollout/sglang_rollout/sglang_rollout.py",
        "maybe_set_triton_cache_manager",
        "SGLang's own, which starts on no card below 7.0",
    ),
)


class Line(NamedTuple):
    file: str
    number: int
    code: str  # less comments and docstrings

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.code}"


def lines_of_code(root: Path) -> Iterator[Line]:
    """Every line below ``root`` that Python runs or Hydra reads."""
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.yaml")]):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        if path.suffix == ".py":
            _blank_out_prose(text, lines)
        else:
            lines = [line.split("#")[0] for line in lines]
        for number, line in enumerate(lines, start=1):
            yield Line(path.relative_to(root).as_posix(), number, line.strip())


def _blank_out_prose(text: str, lines: list[str]) -> None:
    """Empty comments and strings that are statements of their own, in place."""
    layout = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in layout
    ]
    starts_statement = True
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        ends = following is None or following.type in (tokenize.NEWLINE, tokenize.COMMENT)
        is_statement = token.type == tokenize.STRING and starts_statement and ends
        if token.type == tokenize.COMMENT or is_statement:
            (first, start), (last, end) = token.start, token.end
            if first == last:
                lines[first - 1] = lines[first - 1][:start] + lines[first - 1][end:]
            else:
                lines[first - 1 : last] = [""] * (last - first + 1)
        if token.type != tokenize.COMMENT:
            starts_statement = token.type == tokenize.NEWLINE


def scan(root: Path, allowed: tuple[Allowed, ...]) -> tuple[list[Line], list[Allowed]]:
    """(lines with a literal that is not allowed, entries that allow nothing)."""
    unexpected = []
    stale = set(allowed)
    for line in lines_of_code(root):
        rest = line.code
        if not LITERAL.search(rest):
            continue
        for entry in allowed:
            if entry.file != line.file or entry.text not in line.code:
                continue
            stale.discard(entry)
            rest = rest.replace(entry.text, "") if entry.text else ""
        if LITERAL.search(rest):
            unexpected.append(line)
    return unexpected, [entry for entry in allowed if entry in stale]


@pytest.fixture(scope="module")
def scanned() -> tuple[list[Line], list[Allowed]]:
    return scan(verl_root(), ALLOWED)


def test_every_literal_of_verl_is_allowed_for_a_reason(scanned: Any) -> None:
    assert not scanned[0], "\n".join(map(str, scanned[0]))


def test_every_allowed_literal_is_there(scanned: Any) -> None:
    assert scanned[1] == []
    assert all(entry.reason for entry in ALLOWED)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "a.py").write_text(
        '"""Computes in bfloat16."""\n'
        "def f(x):\n"
        '    """torch.compile is not used,\n    nor flash_attn."""  # fp16\n'
        "    y = x  # .half() would do\n"
        "    return y\n"
    )
    (tmp_path / "a.yaml").write_text("dtype: null # float16 or bfloat16\n")
    return tmp_path


def test_comments_and_docstrings_may_say_what_they_like(tree: Path) -> None:
    assert scan(tree, ()) == ([], [])


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("workers/b.py", "x = x.bfloat16()"),
        ("workers/b.py", "x = x.half()"),
        ("workers/b.py", "x = x.to(torch.float16)"),
        ("workers/b.py", "dtype = torch.half"),
        ("workers/b.py", 'dtype = config.get("dtype", "bf16")'),
        ("workers/b.py", 'load(attn_implementation="flash_attention_2")'),
        ("workers/b.py", "from flash_attn.bert_padding import pad_input"),
        ("workers/b.py", "@torch.compile"),
        ("workers/b.py", "f = torch.compile(f)  # no"),
        ("workers/b.py", "import triton"),
        ("workers/b.py", 'text = "fp16"'),
        ("b.yaml", "dtype: bfloat16  # why not"),
    ],
)
def test_a_planted_literal_is_found(file: str, planted: str, tree: Path) -> None:
    (tree / file).write_text(f"{planted}\n")
    unexpected, _ = scan(tree, ())
    assert [(line.file, line.number) for line in unexpected] == [(file, 1)]


def test_an_allowed_text_excuses_nothing_else_on_its_line(tree: Path) -> None:
    (tree / "b.py").write_text("x = torch.bfloat16 if y else torch.float16\n")
    entry = Allowed("b.py", "torch.bfloat16", "one of two")
    unexpected, stale = scan(tree, (entry,))
    assert [line.file for line in unexpected] == ["b.py"]
    assert stale == []


def test_an_entry_that_allows_nothing_is_told(tree: Path) -> None:
    (tree / "b.py").write_text("x = torch.bfloat16\n")
    needed = Allowed("b.py", "torch.bfloat16", "needed")
    gone = Allowed("b.py", "torch.float16", "was needed once")
    elsewhere = Allowed("c.py", "", "the file is gone")
    assert scan(tree, (needed, gone, elsewhere)) == ([], [gone, elsewhere])
