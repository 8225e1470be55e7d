"""Outputs of networks: as NumPy arrays, how far two sides are apart, and how far their types allow.

NumPy has no `bfloat16`: arrays of it are those of `ml_dtypes`, which comes with TVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

#: Largest relative difference of right outputs, by the narrowest type that a network computes in.
_TOLERANCES: Final = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
#: Of types without one, the narrower first: float8 and the like.
COARSEST_TOLERANCE: Final = 2.5e-1


def tolerance_of(precision: str) -> float:
    """How far an output may be from the expected one, relative to its largest value.

    Args:
        precision: As `narrowest` gives it.
    """
    return _TOLERANCES.get(precision, COARSEST_TOLERANCE if "float" in precision else 1e-4)


def narrowest(dtypes: Iterable[str]) -> str:
    """The floating type of the fewest digits among some; `float32` if there is none."""
    floats = sorted({dtype for dtype in dtypes if "float" in dtype})
    return max(floats, key=tolerance_of, default="float32")


def difference(outputs: Sequence[Any], expected: Sequence[Any]) -> float:
    """Largest difference of two lists of arrays, relative to the largest finite value of each expected one.

    NaN agrees with NaN, and an infinity with the same infinity.

    Returns:
        The difference; infinite if shapes differ, or if one side alone is no finite number somewhere.
    """
    if len(outputs) != len(expected):
        return float("inf")
    return max(map(_apart, outputs, expected), default=0.0)


def _apart(output: Any, expected: Any) -> float:
    import numpy as np

    if output.shape != expected.shape:
        return float("inf")
    actual, reference = output.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(actual) & np.isfinite(reference)
    if not (finite | (actual == reference) | (np.isnan(actual) & np.isnan(reference))).all():
        return float("inf")
    if not finite.any():
        return 0.0
    apart, scale = np.abs(actual[finite] - reference[finite]).max(), np.abs(reference[finite]).max()
    return float(apart / scale) if scale > 0 else float(apart)


def has_finite(array: Any) -> bool:
    """Whether an array holds a number that says anything when it is compared."""
    import numpy as np

    return bool(np.isfinite(array).any())


def tvm_arrays(outputs: Any) -> list[Any]:
    """The NumPy arrays of a TVM tensor, or of a nested list of such."""
    return [tensor.numpy() for tensor in tvm_tensors(outputs)]


def tvm_tensors(outputs: Any) -> list[Any]:
    """A TVM tensor, or a nested list of such, as a flat list."""
    if hasattr(outputs, "numpy"):
        return [outputs]
    return [tensor for output in outputs for tensor in tvm_tensors(output)]


def array_of(tensor: Any) -> Any:
    """The NumPy array of a torch tensor."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(array: Any) -> Any:
    """The torch tensor of a NumPy array, with its memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
