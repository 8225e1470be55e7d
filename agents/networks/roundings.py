"""How much of an output of half precision is roundings: torch's own, against the same program in `float32`.

Imports torch when called. A deep network, or one that takes near numbers from each other, may blow its
roundings up beyond what its type usually allows. TVM rounds less often than torch: operators that become one
tensor program hand `float32` on. Then both are as far from the right output, and farther from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.networks.outputs import COARSEST_TOLERANCE, array_of, difference, tensor_of, tolerance_of
from agents.networks.sources import LoadedNetwork, load

_HALVES = ("float16", "bfloat16")


def tolerance_for(
    loaded: LoadedNetwork, values: Sequence[Any], expected: Sequence[Any], apart: float
) -> float:
    """How far an output may be from torch's.

    An output that is as exact as torch's is at most twice torch's error away from it. More than the coarsest
    tolerance would say nothing of an output.

    Args:
        loaded: The network.
        values: Its inputs.
        expected: Torch's outputs.
        apart: How far the output is; torch runs once more only where its type does not allow so much.
    """
    allowed = tolerance_of(precision := loaded.precision())
    if apart <= allowed or precision not in _HALVES or loaded.program is None:
        return allowed
    try:
        own = difference(expected, _wide_outputs(loaded, values))
    except Exception:
        # Of many kinds: an operator does not take float32, or the memory is too small for both.
        return allowed
    return max(allowed, min(2 * own, COARSEST_TOLERANCE))


def _wide_outputs(loaded: LoadedNetwork, values: Sequence[Any]) -> list[Any]:
    """The outputs of a program that computes in `float32` where its own type is half precision."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

    halves = [getattr(torch, name) for name in _HALVES]

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in halves:
            return value.float()
        return torch.float32 if isinstance(value, torch.dtype) and value in halves else value

    class Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*tree_map(wide, args), **tree_map(wide, kwargs or {}))

    # The weights of a program are changed in place, and others still need it.
    program = load(loaded.network).program
    module = program.module(check_guards=False)._apply(wide)
    # An input is checked for its type, which the program then widens itself.
    args, named = tree_unflatten([tensor_of(value) for value in values], program.call_spec.in_spec)
    with torch.no_grad(), Wide():  # type: ignore[no-untyped-call]
        outputs = tree_leaves(module(*args, **named))
    return [array_of(output) for output in outputs if isinstance(output, torch.Tensor)]
