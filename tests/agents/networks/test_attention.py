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

# torch warns about its own export.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS, COLUMNS = 37, 41


def attend(mask: str) -> Any:
    """A module that attends from rows to columns by a kind of mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    class Attend(torch.nn.Module):
        def forward(self, query: Any, keys: Any) -> Any:
            choices: dict[str, Any] = {}
            if mask == "causal":
                choices = {"is_causal": True}
            elif mask == "window":
                apart = torch.arange(ROWS).unsqueeze(1) - torch.arange(COLUMNS)
                choices = {"attn_mask": apart.abs() < 9}
            elif mask == "bias by head":
                bias = torch.arange(3 * COLUMNS).reshape(1, 3, 1, COLUMNS) * 0.01
                choices = {"attn_mask": bias.expand(1, 3, ROWS, COLUMNS), "scale": 0.3}
            elif mask == "nothing for some":
                choices = {"attn_mask": torch.arange(ROWS).unsqueeze(1).expand(ROWS, COLUMNS) > 1}
            elif mask == "of the input":
                choices = {"attn_mask": query.new_zeros(ROWS, COLUMNS) + keys[0, 0, :, 0]}
            elif mask == "shared keys":
                keys, choices = keys[:, :1], {"enable_gqa": True}
            return scaled_dot_product_attention(query, keys, keys * 0.5, **choices)

    return Attend()


@pytest.mark.parametrize(
    ("mask", "is_simple"),
    [
        ("none", True),
        ("causal", True),
        ("window", True),
        ("bias by head", True),
        ("shared keys", True),
        ("nothing for some", False),
        ("of the input", False),
    ],
)
def test_attention_is_torch_s_with_every_mask(mask: str, is_simple: bool, tmp_path: Path) -> None:
    import numpy as np
    import torch
    import tvm
    from tvm import relax

    load_tensor_intrinsics(Family.CPU)
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, ROWS, 8), torch.randn(2, 3, COLUMNS, 8))
    path = save_program(attend(mask), inputs, tmp_path / "net.pt2")
    module = lowered(load(read_network_name(str(path))), Family.CPU)
    names = [workload.name for workload in workloads_of(module, Family.CPU, "net")]
    assert any("where" in name for name in names) is not is_simple
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1, "opt-level": 1})
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    output = machine["main"](*[tvm.runtime.tensor(tensor.numpy()) for tensor in inputs])
    [output] = output if not hasattr(output, "numpy") else [output]
    expected = attend(mask)(*inputs).numpy()
    assert np.abs(output.numpy() - expected).max() < 2e-6 * np.abs(expected).max()
