"""How the operators of AutoTVM's templates touch memory, worked out from their arguments.

A task of an AutoTVM log has no TVM module, but for convolutions and matrix products the accesses follow from
shapes, strides and dilation. The axes are those that `transfer.language.autotvm` numbers, in an order that
puts the vectorised one last among the spatial ones, as in the programs of MetaSchedule. Called by
`transfer.features.access` only; knows nothing of schedules.

A packed layout (`NCHWc`, spatial pack) has channel blocks innermost; here it is the layout with all channels
innermost, which has the same neighbours in memory inside of every tile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transfer.features.box_access import BlockAccess, BufferAccess, element_bytes
from transfer.language.autotvm_templates import are_transposed, find_template, height_and_width
from transfer.language.primitives import MAX_NUMBER

#: How a template that runs on a GPU is named; its outer tiles are blocks and threads.
_ON_GPU = re.compile(r"\.(cuda|gpu)$")
_CHANNELS_FIRST_ON_GPU = re.compile(r"conv2d_nchw")


class _Index(NamedTuple):
    """One dimension of a buffer: its extent, and (axis, slope) of each axis that moves in it."""

    extent: int
    moves: tuple[tuple[int, int], ...]


def template_access(name: str, arguments: Sequence[Any]) -> BlockAccess | None:
    """Accesses of the main stage of a task; None where the template or its arguments are unknown.

    Args:
        name: Task function.
        arguments: Its arguments, as logged.
    """
    axes = find_template(name, arguments).axes
    on_gpu = _ON_GPU.search(name) is not None
    extents = [axis.extent for axis in axes]
    order: tuple[int, ...] = tuple(range(len(axes)))
    if not extents or not all(extents):
        return None
    try:
        if "winograd" in name:
            buffers = _winograd(extents)
        elif "conv2d" in name:
            order, buffers = _convolution(name, arguments, extents, on_gpu)
        elif name.startswith("dense"):
            buffers = _dense(extents, packed="pack" in name and "nopack" not in name)
        elif name.startswith("batch_matmul"):
            buffers = _batch_matmul(arguments, extents)
        else:
            return None
        size = element_bytes(str(arguments[0][2]))
    except (IndexError, TypeError, ValueError):
        return None
    return BlockAccess(
        extents=tuple(extents[axis] for axis in order),
        spatial=tuple(not axes[axis].is_reduction for axis in order),
        buffers=tuple(_buffer(indexes, order, size, is_write) for indexes, is_write in buffers),
        axes=order,
        on_gpu=on_gpu,
    )


_Buffers = tuple[tuple[tuple[_Index, ...], bool], ...]


def _convolution(
    name: str, arguments: Sequence[Any], extents: Sequence[int], on_gpu: bool
) -> tuple[tuple[int, ...], _Buffers]:
    """A convolution, or one without input channels of its own (depthwise)."""
    channels_last = "nhwc" in name.lower()
    n, height, width, channel = (0, 1, 2, 3) if channels_last else (0, 2, 3, 1)
    depthwise = "depthwise" in name
    # Axes of the window; in between, where there is one, that of the input channels.
    rows, columns = (4, 5) if depthwise else (5, 6)
    (down, right), (wide, far) = height_and_width(arguments[2]), height_and_width(arguments[4])
    reach = [
        _Index(
            (extents[out] - 1) * stride + (extents[tap] - 1) * dilation + 1,
            ((out, stride), (tap, dilation)),
        )
        for out, stride, tap, dilation in ((height, down, rows, wide), (width, right, columns, far))
    ]

    def whole(axis: int) -> _Index:
        return _Index(extents[axis], ((axis, 1),))

    source = whole(channel) if depthwise else whole(4)
    window = [whole(rows), whole(columns)]
    if on_gpu and _CHANNELS_FIRST_ON_GPU.search(name):
        data = (whole(n), source, *reach)
        kernel = (whole(channel), *window) if depthwise else (whole(channel), source, *window)
        output = (whole(n), whole(channel), whole(height), whole(width))
        spatial: tuple[int, ...] = (n, channel, height, width)
    else:
        data = (whole(n), *reach, source)
        kernel = (*window, whole(channel)) if depthwise else (*window, source, whole(channel))
        output = (whole(n), whole(height), whole(width), whole(channel))
        spatial = (n, height, width, channel)
    return (*spatial, *range(4, len(extents))), ((data, False), (kernel, False), (output, True))


def _winograd(extents: Sequence[int]) -> _Buffers:
    """Products of the transformed kernel (b, c, k) and data (b, c, p): (b, k, p)."""
    b, k, p, c = (_Index(extent, ((axis, 1),)) for axis, extent in enumerate(extents))
    return ((b, c, k), False), ((b, c, p), False), ((b, k, p), True)


def _dense(extents: Sequence[int], *, packed: bool) -> _Buffers:
    """Rows of the data times rows of the weight; a packed weight has its rows innermost."""
    y, x, k = (_Index(extent, ((axis, 1),)) for axis, extent in enumerate(extents))
    return ((y, k), False), ((k, x) if packed else (x, k), False), ((y, x), True)


def _batch_matmul(arguments: Sequence[Any], extents: Sequence[int]) -> _Buffers:
    b, y, x, k = (_Index(extent, ((axis, 1),)) for axis, extent in enumerate(extents))
    if any(len(matrices[1]) != 3 for matrices in arguments[:2]):
        raise ValueError("not two batches of matrices")
    first, second = are_transposed(arguments)
    first_axes, second_axes = (b, k, y) if first else (b, y, k), (b, x, k) if second else (b, k, x)
    return (first_axes, False), (second_axes, False), ((b, y, x), True)


def _buffer(indexes: Sequence[_Index], order: Sequence[int], size: int, is_write: bool) -> BufferAccess:
    place: Mapping[int, int] = {axis: number for number, axis in enumerate(order)}
    coefficients = np.zeros((len(indexes), len(order)))
    for row, index in enumerate(indexes):
        for axis, slope in index.moves:
            coefficients[row, place[axis]] = slope
    return BufferAccess(
        element_bytes=size,
        shape=tuple(min(index.extent, MAX_NUMBER) for index in indexes),
        coefficients=coefficients,
        divisors=np.ones(coefficients.shape),
        base=np.ones(len(indexes)),
        is_write=is_write,
    )
