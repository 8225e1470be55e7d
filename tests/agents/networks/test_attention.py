"""Attention with a known mask: what torch computes, without its rows of nothing, in few programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.networks.graph import lowered, workloads_of
from agents.networks.network_name import read_network_name
from agents.networks.sources import load
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family
from tests.network_fixtures import save_program
from tests.tvm_fixtures import furthest, run_network

# torch warns about its own export.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS, COLUMNS = 37, 41


#: Options of attention from rows to columns.
MASKS = {
    "none": "{}",
    "causal": "{'is_causal': True}",
    "window": "{'attn_mask': (rows - torch.arange(COLUMNS)).abs() < 9}",
    "bias by head": """{
        'attn_mask': (torch.arange(3 * COLUMNS).reshape(1, 3, 1, COLUMNS) * 0.01).expand(1, 3, ROWS, COLUMNS),
        'scale': 0.3,
    }""",
    "shared keys": "{'enable_gqa': True}",
    "nothing for some": "{'attn_mask': rows.expand(ROWS, COLUMNS) > 1}",
    "of the input": "{'attn_mask': query.new_zeros(ROWS, COLUMNS) + keys[0, 0, :, 0]}",
}
#: Those with which the rows of nothing stay.
HARD = ("nothing for some", "of the input")


def attend(mask: str) -> Any:
    """A module that attends from rows to columns by a kind of mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    class Attend(torch.nn.Module):
        def forward(self, query: Any, keys: Any) -> Any:
            if mask == "shared keys":
                keys = keys[:, :1]
            words = {"torch": torch, "query": query, "keys": keys, "rows": torch.arange(ROWS).unsqueeze(1)}
            return scaled_dot_product_attention(
                query, keys, keys * 0.5, **eval(MASKS[mask], globals() | words)
            )

    return Attend()


@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_torch_s_with_every_mask(mask: str, tmp_path: Path) -> None:
    import torch

    load_tensor_intrinsics(Family.CPU)
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, ROWS, 8), torch.randn(2, 3, COLUMNS, 8))
    path = save_program(attend(mask), inputs, tmp_path / "net.pt2")
    module = lowered(load(read_network_name(str(path))), Family.CPU)
    names = [workload.name for workload in workloads_of(module, Family.CPU, "net")]
    assert any("where" in name for name in names) is (mask in HARD)
    assert furthest(run_network(module, *inputs), attend(mask)(*inputs).numpy()) < 2e-6
