"""Operator, shapes and FLOPs of a logged workload, from what its log says of the arguments.

Called by the readers of the dialects. Only what follows from the arguments is told: where an operator or a
layout is not known, FLOPs are 0 and the output is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agents.values import Value

Shape = tuple[int, ...]

#: Dimensions and extents that a tensor may have at most; others are not taken for tensors.
_MAX_RANK = 16
_MAX_EXTENT = 1 << 40
#: Elements of a tensor at most: far beyond any memory, and the bytes of all arguments fit in 64 bits.
_MAX_ELEMENTS = 1 << 48
#: Arguments of a workload that are listed at most, and characters of a type.
MAX_TENSORS = 64
_MAX_DTYPE = 32


class Operator(Value, frozen=True):
    """What is known of a workload."""

    #: A word of TVM's operator suite (`C2D`, `DEP`, `GMM`, ...) or the name the log uses.
    name: str
    #: Outputs last; without them where they do not follow from the arguments.
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    flops: float = 0.0


def shape_of(value: Any) -> Shape | None:
    """A list of extents as a shape; None where it is something else."""
    if type(value) is not list or len(value) > _MAX_RANK:
        return None
    for extent in value:
        if type(extent) is not int or not 0 < extent <= _MAX_EXTENT:
            return None
    return tuple(value) if math.prod(value) <= _MAX_ELEMENTS else None


def is_dtype(value: Any) -> bool:
    """Whether a value may be the name of a type."""
    return type(value) is str and len(value) <= _MAX_DTYPE


def tensor_of(value: Any) -> tuple[Shape, str] | None:
    """Shape and type of AutoTVM's `["TENSOR", shape, dtype]`; None where it is something else."""
    if type(value) is not list or len(value) != 3 or value[0] != "TENSOR" or not is_dtype(value[2]):
        return None
    shape = shape_of(value[1])
    return None if shape is None else (shape, value[2])


def autotvm_operator(function: str, args: Sequence[Any]) -> Operator:
    """Read the arguments of an AutoTVM function such as `conv2d_NCHWc.x86`.

    Argument orders are those of TVM's templates (data, kernel, strides, padding, dilation, ...).
    """
    tensors = [tensor for tensor in map(tensor_of, args) if tensor is not None]
    shapes = tuple(shape for shape, _ in tensors)
    dtypes = tuple(dtype for _, dtype in tensors)
    if len(tensors) > MAX_TENSORS:
        return Operator(function)
    if len(tensors) >= 2 and tensor_of(args[0]) and tensor_of(args[1]):
        try:
            guess = _with_output(function.split(".")[0].lower(), shapes, args)
        except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
            guess = None
        if guess is not None and math.prod(guess[1]) <= _MAX_ELEMENTS:
            name, output, flops = guess
            return Operator(name, (*shapes, output), (*dtypes, dtypes[0]), flops)
    return Operator(function, shapes, dtypes)


def _with_output(name: str, shapes: Sequence[Shape], args: Sequence[Any]) -> tuple[str, Shape, float] | None:
    """Operator's word, shape of the output, FLOPs; None where they are not known."""
    data, kernel = shapes[:2]
    ranks = len(data), len(kernel)
    if name.startswith(("dense", "matmul")) and ranks == (2, 2):
        return _matmul(data, kernel)
    if name.startswith("batch_matmul") and ranks == (3, 3):
        return _batch_matmul(data, kernel, args)
    if name.startswith("conv2d_transpose_nchw") and ranks == (4, 4):
        return _transposed(data, kernel, args)
    for dimensions, spatial in ((1, "w"), (2, "hw"), (3, "dhw")):
        prefixes = (f"conv{dimensions}d", f"group_conv{dimensions}d", f"depthwise_conv{dimensions}d")
        if name.startswith(prefixes) and "transpose" not in name:
            has_form = f"nc{spatial}" in name or f"n{spatial}c" in name
            if has_form and ranks == (dimensions + 2, dimensions + 2):
                return _convolution(name, f"n{spatial}c" in name, data, kernel, args)
    return None


def _convolution(
    name: str, channels_last: bool, data: Shape, kernel: Shape, args: Sequence[Any]
) -> tuple[str, Shape, float]:
    """Kernel (O, I, ...), or (..., I, O) where channels come last."""
    if channels_last:
        size, taps, (inputs, channels) = data[1:-1], kernel[:-2], kernel[-2:]
    else:
        size, taps, (channels, inputs) = data[2:], kernel[2:], kernel[:2]
    products = math.prod(taps)
    if name.startswith("depthwise"):
        # What each input channel is multiplied to stands beside it.
        word, channels = "DEP", channels * inputs
    else:
        products *= inputs
        is_dilated = len(size) == 2 and max(_several(args[4], 2), default=1) > 1
        word = "GRP" if name.startswith("group") else "DIL" if is_dilated else f"C{len(size)}D"
    convolved = _convolved(size, taps, args)
    output = (data[0], *convolved, channels) if channels_last else (data[0], channels, *convolved)
    return word, output, 2.0 * math.prod(output) * products


def _matmul(data: Shape, kernel: Shape) -> tuple[str, Shape, float] | None:
    """(M, K) times (N, K), as `dense` has it; (K, N) where only that fits."""
    rows, inner = data
    if inner not in kernel:
        return None
    columns = kernel[0] if inner == kernel[1] else kernel[1]
    return "GMM", (rows, columns), 2.0 * rows * columns * inner


def _batch_matmul(data: Shape, kernel: Shape, args: Sequence[Any]) -> tuple[str, Shape, float] | None:
    flags = [argument for argument in args[2:] if type(argument) in (bool, int)]
    transposed_a, transposed_b = (bool(flag) for flag in flags[-2:]) if len(flags) >= 2 else (False, True)
    rows, inner = (data[2], data[1]) if transposed_a else data[1:]
    columns, other = kernel[1:] if transposed_b else (kernel[2], kernel[1])
    if inner != other:
        return None
    output = (max(data[0], kernel[0]), rows, columns)
    return "GMM", output, 2.0 * math.prod(output) * inner


def _transposed(data: Shape, kernel: Shape, args: Sequence[Any]) -> tuple[str, Shape, float]:
    """Kernel (I, O, H, W); every input element meets the kernel once."""
    strides, extra = _several(args[2], 2), _several(args[5], 2) if len(args) > 5 else (0, 0)
    before, after = _padding(args[3], data[2:], kernel[2:], strides)
    size = tuple(
        (extent - 1) * stride - front - back + taps + more
        for extent, stride, front, back, taps, more in zip(
            data[2:], strides, before, after, kernel[2:], extra, strict=True
        )
    )
    if min(size) < 1:
        raise ValueError("no output")
    return "T2D", (data[0], kernel[1], *size), 2.0 * math.prod(data) * math.prod(kernel[1:])


def _convolved(size: Shape, taps: Shape, args: Sequence[Any]) -> Shape:
    """Spatial extents of the output."""
    strides = _several(args[2], len(size))
    dilations = _several(args[4], len(size)) if len(args) > 4 else (1,) * len(size)
    reach = tuple((tap - 1) * dilation + 1 for tap, dilation in zip(taps, dilations, strict=True))
    before, after = _padding(args[3], size, reach, strides)
    result = tuple(
        (extent + front + back - tap) // stride + 1
        for extent, front, back, tap, stride in zip(size, before, after, reach, strides, strict=True)
    )
    if min(result) < 1:
        raise ValueError("no output")
    return result


def _padding(value: Any, size: Shape, reach: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Padding in front and behind: a word, one number, one a dimension, or (all in front, all behind)."""
    if value == "VALID":
        return (0,) * len(size), (0,) * len(size)
    if value == "SAME":
        total = tuple(
            max((-(-extent // stride) - 1) * stride + taps - extent, 0)
            for extent, taps, stride in zip(size, reach, strides, strict=True)
        )
        return tuple(amount // 2 for amount in total), tuple(amount - amount // 2 for amount in total)
    if type(value) is list and len(value) == 2 * len(size):
        both = _several(value, 2 * len(size))
        return both[: len(size)], both[len(size) :]
    amounts = _several(value, len(size))
    return amounts, amounts


def _several(value: Any, count: int) -> Shape:
    """One number for all dimensions, or one each."""
    values = [value] * count if type(value) is int else value
    if type(values) is not list or len(values) != count or any(type(extent) is not int for extent in values):
        raise TypeError("expected whole numbers")
    if any(not 0 <= extent <= _MAX_EXTENT for extent in values):
        raise ValueError("out of range")
    return tuple(values)


#: Name of a block of TOPI's operators begins with one of these: (prefix, operator's word).
_BLOCKS = (
    ("depthwise", "DEP"),
    ("group_conv2d", "GRP"),
    ("conv2d_transpose", "T2D"),
    ("conv2d", "C2D"),
    ("conv1d", "C1D"),
    ("conv3d", "C3D"),
    ("t_batch_matmul", "GMM"),
    ("t_matmul", "GMM"),
    ("t_dense", "GMM"),
    ("matmul", "GMM"),
    ("t_softmax", "SFM"),
)
#: Blocks that only move data, or stand for the whole program.
_AUXILIARY = (
    "root",
    "pad_temp",
    "paddedinput",
    "data_pad",
    "data_pack",
    "data_vec",
    "compute",
    "bgemm",
    "inverse",
)


def block_operator(blocks: Sequence[str], shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> Operator:
    """Guess the operator of a MetaSchedule program from the names of its blocks; FLOPs from its shapes.

    The trace asks for the blocks in this order; shapes and types are those of the arguments, outputs last.
    """
    for block in blocks:
        for prefix, word in _BLOCKS:
            if block.lower().startswith(prefix):
                return Operator(word, shapes, dtypes, _flops_of_shapes(block.lower(), word, shapes))
    main = next((block for block in blocks if not block.lower().startswith(_AUXILIARY)), "meta_schedule")
    return Operator(main, shapes, dtypes)


def _flops_of_shapes(block: str, word: str, shapes: tuple[Shape, ...]) -> float:
    if len(shapes) < 3 or "winograd" in block:  # its kernel's own size is lost in the transformed one
        return 0.0
    data, kernel, output = shapes[0], shapes[1], shapes[-1]
    if word == "GMM" and len(data) in (2, 3) and len(output) == len(data):
        return 2.0 * math.prod(output) * data[-1]
    if word == "C2D" and "nchw" in block and len(kernel) == 4 and len(output) == 4:
        return 2.0 * math.prod(output) * math.prod(kernel[1:])
    if word == "DEP" and "nhwc" not in block and len(kernel) == 4 and len(output) == 4:
        return 2.0 * math.prod(output) * math.prod(kernel[2:])
    return 0.0


def tensor_name(operator: str, shapes: Sequence[Shape]) -> str:
    """Name of a workload for people: operator and shapes."""
    return " ".join([operator, *("x".join(map(str, shape)) or "scalar" for shape in shapes)])
