"""Imports torch and computes: ``python -m env.doctor.probe``, a process that may crash or hang.

Each line on stdout is one JSON object: ``{"doing": str}`` before a step, and what a step found,
by the fields of :class:`env.doctor.facts.Torch`. So what was found before a crash is kept.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def _say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference over the largest expected value; infinite for a NaN."""
    ratio = float((found.cpu().double() - expected).abs().max() / expected.abs().max())
    return ratio if math.isfinite(ratio) else 1e30


def _matmul(device: str) -> float:
    import torch

    left, right = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    return _difference(left.to(device) @ right.to(device), left.double() @ right.double())


def _sdpa(device: str, is_efficient: bool) -> float:
    """Causal attention over (batch 1, heads 4, tokens 64, head size 64), forward and backward."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads = torch.randn(3, 1, 4, 64, 64, generator=torch.Generator().manual_seed(1))
    exact = [each.double().requires_grad_() for each in heads]
    query, key, value = exact
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    hidden = torch.ones(64, 64, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(hidden, -math.inf).softmax(-1) @ value
    torch.autograd.backward(expected.square().sum())

    query, key, value = inputs = [each.to(device).requires_grad_() for each in heads]
    one = sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) if is_efficient else contextlib.nullcontext()
    with one:
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.autograd.backward(found.square().sum())
    differences = [_difference(found.detach(), expected.detach())]
    for ours, theirs in zip(inputs, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        differences.append(_difference(ours.grad, theirs.grad))
    return max(differences)


def _compute(device: str, name: str, capability: tuple[int, int] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "name": name, "capability": capability}
    try:
        _say(doing=f"an fp32 matmul on {device}")
        found["matmul"] = _matmul(device)
        _say(doing=f"fp32 attention on {device}")
        if capability is None:
            found["sdpa"] = _sdpa(device, is_efficient=False)
            return found
        try:
            found["sdpa"] = _sdpa(device, is_efficient=True)
            found["is_efficient"] = True
        except RuntimeError:
            found["sdpa"] = _sdpa(device, is_efficient=False)
            found["is_efficient"] = False
    except Exception as error:
        found["error"] = _first_line(error)
    return found


def main() -> None:
    _say(doing="import torch")
    import torch

    torch.set_float32_matmul_precision("highest")
    _say(version=torch.__version__, cuda=torch.version.cuda)
    if torch.version.cuda:
        _say(arch_flags=(torch._C._cuda_getArchFlags() or "").split())
    _say(doing="initialise CUDA")
    devices: list[tuple[str, str, tuple[int, int] | None]] = []
    try:
        torch.cuda.current_device()
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(index)
            devices.append((f"cuda:{index}", name, torch.cuda.get_device_capability(index)))
    except Exception as error:
        _say(cuda_error=_first_line(error))
    computed: list[dict[str, Any]] = []
    for device in devices or [("cpu", "cpu", None)]:
        computed.append(_compute(*device))
        _say(computed=computed)
    _say(doing="import verl")
    try:
        import verl

        _say(verl=verl.__version__)
    except Exception as error:
        _say(verl_error=_first_line(error))
    _say(doing="")


if __name__ == "__main__":
    main()
