"""Exponentials of a network become polynomials: as right as torch's, and nothing that a processor calls."""

from __future__ import annotations

from typing import Any

import pytest

from agents.networks.graph import fused
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family
from tests.tvm_fixtures import run_network

#: What is left of TVM's own lowering where there is any.
_CALLS = ("T.exp(", "T.erf(", "T.tanh(", "T.sigmoid(")


#: Operators that have the same name everywhere.
PLAIN = ("erf", "exp", "tanh", "sigmoid")


def network(dtype: str) -> Any:
    """Every operator that has a polynomial, of one input."""
    from tvm import relax

    op = relax.op
    x = relax.Var("x", relax.TensorType((64, 80), dtype))
    builder = relax.BlockBuilder()
    made = [getattr(op, name)(x) for name in PLAIN]
    made += [op.nn.gelu(x), op.nn.gelu_tanh(x), op.nn.silu(x)]
    made += [op.nn.softmax(x, axis=axis) for axis in (-1, 0)]
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit_output(relax.Tuple([builder.emit(one) for one in made]))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.tvm
def test_polynomials_are_as_right_as_torch_s_float32() -> None:
    import numpy as np
    import torch
    from torch.nn import functional as nn

    load_tensor_intrinsics(Family.CPU)
    made = fused(network("float32"), Family.CPU, "net")
    assert not [call for call in _CALLS if call in made.script()]
    x = torch.linspace(-30, 30, 64 * 80).reshape(64, 80)
    x[0, :2] = torch.tensor([-torch.inf, 0.0])
    found = run_network(made, x)
    wide = x.double()
    wanted = [getattr(torch, name)(wide) for name in PLAIN]
    wanted += [nn.gelu(wide), nn.gelu(wide, approximate="tanh"), nn.silu(wide)]
    wanted += [torch.softmax(wide, axis) for axis in (-1, 0)]
    for one, right in zip(found, wanted, strict=True):
        # Infinity times nothing is no number in torch either.
        known = ~torch.isnan(right).numpy()
        apart = np.abs(one.numpy()[known] - right.numpy()[known])
        assert apart.max() <= 1e-6 * np.abs(right.numpy()[known]).max()
