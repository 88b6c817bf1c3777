"""verl-patches/0003: packing without flash-attn."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

# Makes CUDA look available before verl asks, as on a card below 8.0 without flash-attn.
IMPORT_ON_CUDA = """
import sys, torch
sys.modules["flash_attn"] = None
torch.cuda.is_available = lambda: True
import verl.workers.actor.dp_actor, verl.workers.critic.dp_critic, verl.utils.padding
"""


def test_actor_and_critic_import_on_a_cuda_host_without_flash_attn() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT_ON_CUDA], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_packed_rows_come_back_where_they_were() -> None:
    from verl.utils.padding import pad_input, unpad_input

    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
    hidden = torch.randn(3, 4, 5) * mask.unsqueeze(-1)
    packed, indices, cu_seqlens, longest, lengths = unpad_input(hidden, mask)
    assert packed.shape == (7, 5)
    assert cu_seqlens.tolist() == [0, 2, 6, 7]
    assert (longest, lengths.tolist()) == (4, [2, 4, 1])
    assert torch.equal(pad_input(packed, indices, 3, 4), hidden)


def test_rearrange_knows_the_patterns_that_verl_uses_and_no_other() -> None:
    from verl.utils.padding import index_first_axis, rearrange

    tensor = torch.arange(24).view(2, 3, 4)
    assert torch.equal(rearrange(tensor, "b s ... -> (b s) ..."), tensor.view(6, 4))
    moved = rearrange(tensor, "c b s ... -> (b s) c ...")
    assert moved.shape == (12, 2)
    assert moved[5].tolist() == [tensor[0, 1, 1], tensor[1, 1, 1]]
    assert torch.equal(index_first_axis(tensor, torch.tensor([1])), tensor[1:])
    with pytest.raises(NotImplementedError):
        rearrange(tensor, "a b c -> c b a")
