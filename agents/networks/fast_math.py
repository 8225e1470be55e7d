"""Exponentials that a processor computes eight or sixteen at a time.

TVM lowers `exp`, `tanh` and `erf` to a call of the C library for each number: a GELU of 65,536 numbers takes
480 us, with TVM's own polynomials 27 us. They are right to some 4e-7 of the largest output. GPUs
have instructions of their own for them. Called by `graph.py`, inside the confined process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

#: A Relax operator's tensor program: (block builder, call) -> expression.
Lowering = Callable[[Any, Any], Any]


def fast_lowerings() -> dict[str, Lowering]:
    """Lowerings of Relax operators to polynomials, as `relax.transform.LegalizeOps` takes them.

    Operators of other types than float32 keep TVM's lowering.
    """
    from tvm import topi

    def sigmoid(x: Any) -> Any:
        return topi.divide(1.0, topi.add(1.0, topi.fast_exp(topi.negative(x))))

    def gelu(x: Any) -> Any:
        return topi.multiply(
            x, topi.add(0.5, topi.multiply(0.5, topi.fast_erf(topi.multiply(x, math.sqrt(0.5)))))
        )

    def gelu_tanh(x: Any) -> Any:
        cubic = topi.multiply(x, topi.add(1.0, topi.multiply(0.044715, topi.multiply(x, x))))
        inner = topi.fast_tanh(topi.multiply(math.sqrt(2 / math.pi), cubic))
        return topi.multiply(x, topi.add(0.5, topi.multiply(0.5, inner)))

    def silu(x: Any) -> Any:
        return topi.multiply(x, sigmoid(x))

    plain = {
        "relax.erf": topi.fast_erf,
        "relax.exp": topi.fast_exp,
        "relax.tanh": topi.fast_tanh,
        "relax.sigmoid": sigmoid,
        "relax.nn.gelu": gelu,
        "relax.nn.gelu_tanh": gelu_tanh,
        "relax.nn.silu": silu,
    }
    found = {operator: _lowering(operator, compute) for operator, compute in plain.items()}
    return found | {"relax.nn.softmax": _lowering("relax.nn.softmax", topi.nn.fast_softmax, "axis")}


def _lowering(operator: str, compute: Callable[..., Any], *attributes: str) -> Lowering:
    """Lower an operator by a function of its input and of the values of some attributes."""
    from tvm.ir import Op

    usual, name = Op.get(operator).get_attr("FLegalize"), operator.rpartition(".")[2]

    def lower(builder: Any, call: Any) -> Any:
        if call.ty.dtype != "float32":
            return usual(builder, call)
        values = [int(call.attrs[one]) for one in attributes]
        return builder.call_te(compute, call.args[0], *values, primfunc_name_hint=name)

    return lower
