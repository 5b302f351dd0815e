"""workloads.train.context: parts of sequences, and attention to the keys of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from workloads.common.errors import SettingsError
from workloads.common.layout import Layout
from workloads.common.process_group import process_group
from workloads.train import context
from workloads.train.context import Context, attend_to_last, own_context, require_context
from workloads.train.load_settings import load_settings


def contexts(size: int, length: int) -> list[Context]:
    """Return the parts of all ranks."""
    with process_group(device="cpu", timeout_s=60, layout=Layout(context=1)) as group:
        masks = (causal_lower_right(1, 1), causal_lower_right(1, 1))
        return [Context(group.background, size, (rank, 2 * size - 1 - rank), length // (2 * size), masks) for rank in range(size)]


def test_the_ranks_share_all_positions_and_the_causal_products_evenly() -> None:
    """Each has one chunk from the first and one from the second half."""
    positions = [part.positions() for part in contexts(4, 32)]

    assert sorted(torch.cat(positions).tolist()) == list(range(32))
    assert len({int(own.sum()) for own in positions}) == 1


def test_without_context_parallelism_there_is_no_part() -> None:
    """The model then takes whole sequences."""
    with process_group(device="cpu", timeout_s=60) as group:
        assert own_context(group, 32) is None


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_the_last_query_sees_the_last_key(backend: str) -> None:
    """And each query before sees one key fewer, with two query heads per key head."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, length, 16, generator=generator) for heads, length in ((4, 4), (2, 12), (2, 12)))
    hidden = torch.ones(4, 12, dtype=torch.bool).triu(9)
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4).masked_fill(hidden, float("-inf"))
    expected = scores.softmax(-1) @ v.repeat_interleave(2, 1)

    assert torch.allclose(attend_to_last(q, k, v, causal_lower_right(4, 12), backend), expected, atol=1e-5)


def test_a_kernel_that_aligns_the_mask_with_the_first_key_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start finds it, instead of training with wrong attention."""
    settings = load_settings(["debug-dense"], [])
    with process_group(device="cpu", timeout_s=60) as group:
        shared = replace(group, context_mesh=group.mesh)
        require_context(settings, shared)
        monkeypatch.setattr(context, "causal_lower_right", causal_upper_left)
        with pytest.raises(SettingsError, match="wrong attention"):
            require_context(settings, shared)
