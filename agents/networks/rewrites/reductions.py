"""Means over whole images of a network, as products with a row of equal weights.

A mean reads each number once, so TVM tiles no loop of it: its programs add up one channel after the other. As
a product its vectors run along the channels. Called by `graph.py` for CPUs, in the confined process of
`reader_process.py`; imports TVM when called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agents.networks.rewrites.movements import extents_of

#: Axes of images (n, h, w, c).
_AREA = [1, 2]


def means_as_products(module: Any) -> Any:
    """Compute means over the rows and columns of images, channels last, as products.

    A window of a pooling that holds the whole image is such a mean.
    """
    from tvm.relax.dpl import PatternMatchingRewriter, is_op, wildcard

    pooling = is_op("relax.nn.avg_pool2d")(wildcard())
    mean = is_op("relax.mean")(wildcard())
    module = PatternMatchingRewriter.from_pattern(pooling, _pooled)(module)
    return PatternMatchingRewriter.from_pattern(mean, _averaged)(module)


def _pooled(expr: Any, _: Any) -> Any:
    attrs, (image,) = expr.attrs, expr.args
    _, rows, columns, _ = extents_of(image)
    window_rows, window_columns = map(int, attrs.pool_size)
    is_whole = (
        attrs.layout == attrs.out_layout == "NHWC"
        and not any(map(int, attrs.padding))
        and window_rows >= rows
        and window_columns >= columns
    )
    return _product(image, extents_of(expr)) if is_whole and _is_float32(image) else expr


def _averaged(expr: Any, _: Any) -> Any:
    (image,) = expr.args
    is_over_area = len(extents_of(image)) == 4 and [int(axis) for axis in expr.attrs.axis or ()] == _AREA
    return _product(image, extents_of(expr)) if is_over_area and _is_float32(image) else expr


def _product(image: Any, shape: list[int]) -> Any:
    """Means of each channel of images (n, h, w, c), in a shape of n x c numbers."""
    from tvm import relax

    count, rows, columns, channels = extents_of(image)
    area = rows * columns
    weights = relax.const(np.full((1, area), 1 / area, "float32"))
    pixels = relax.op.reshape(image, (count, area, channels))
    return relax.op.reshape(relax.op.matmul(weights, pixels), shape)


def _is_float32(image: Any) -> bool:
    """Wider types have no such tensor programs, and sums in narrower ones lose digits."""
    return str(image.ty.dtype) == "float32"
