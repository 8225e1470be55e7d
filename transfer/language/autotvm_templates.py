"""What the knobs of AutoTVM's schedule templates stand for: axes, extents, loops.

A config entity names its knobs only (`tile_oc`, `ann_reduce`); the template, found by the name of the task
function, says which loop each one moves, and the arguments how long that loop is. Facts of TVM 0.8 to 0.13's
templates for NCHW and NHWC convolutions, matrix products and their relatives. Called by
`transfer.language.autotvm` only; knows nothing of entities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transfer.language.primitives import MAX_NUMBER

#: A loop of the nest: (axis, level), level 0 the outermost piece of a split, `INNER` the innermost one.
LoopName = tuple[int, int]
#: The innermost piece of an axis, or the axis itself where it is not split.
INNER = -1

#: Side of the tiles that Winograd templates compute at once.
_WINOGRAD_TILE = 4
#: Largest stride, dilation or padding that is taken for one.
_MOST_STRIDE = 1 << 20
_REDUCTION_NAMES = re.compile(r"tile_(r|k|ic|ci)")


class Axis(NamedTuple):
    """One axis of the operator's main loop nest."""

    #: Knobs that split it.
    knobs: tuple[str, ...]
    #: 0 unknown.
    extent: int
    is_reduction: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """The loop nest that one task's knobs schedule."""

    #: In loop order; empty where the template is unknown.
    axes: tuple[Axis, ...] = ()
    #: Loops that a reorder knob permutes.
    reorder: tuple[LoopName, ...] = ()
    #: Loops that each annotation knob annotates.
    annotated: Mapping[str, tuple[LoopName, ...]] = field(default_factory=dict)
    #: Split knobs of other stages: (axis, whether it is the stage that writes the result).
    aside: Mapping[str, tuple[int, bool]] = field(default_factory=dict)

    def axis_of(self, knob: str) -> int:
        """Index of the axis that a knob splits, -1 unknown."""
        return next((place for place, axis in enumerate(self.axes) if knob in axis.knobs), -1)


def find_template(name: str, arguments: Sequence[Any]) -> Template:
    """The template of a task; an empty one where it, or the form of its arguments, is unknown."""
    for pattern, make in _TEMPLATES:
        if re.match(pattern, name):
            try:
                template = make(name, arguments)
            except (LookupError, TypeError, ValueError, ArithmeticError):
                break
            if all(0 < axis.extent <= MAX_NUMBER for axis in template.axes):
                return template
    return Template()


def is_reduction_knob(knob: str) -> bool:
    """Guess from its name whether a split knob of an unknown template splits a reduction."""
    return _REDUCTION_NAMES.match(knob) is not None


class _Conv(NamedTuple):
    """Sizes of a 2-D convolution."""

    batch: int
    in_channels: int
    out_channels: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int


def _shape(argument: Any) -> tuple[int, ...]:
    """Shape of a `["TENSOR", shape, dtype]` argument.

    Raises:
        ValueError: It is something else, or has an unusable extent.
    """
    kind, shape = argument[0], tuple(argument[1])
    if kind != "TENSOR" or not shape:
        raise ValueError("not a tensor")
    if not all(type(extent) is int and 0 < extent <= MAX_NUMBER for extent in shape):
        raise ValueError("not a static shape")
    return shape


def height_and_width(value: Any) -> tuple[int, int]:
    """Strides or dilation, which one number may give for both.

    Raises:
        ValueError, TypeError: It is neither, or out of range.
    """
    first, second = (value, value) if isinstance(value, int) else value
    if not 0 <= first <= _MOST_STRIDE or not 0 <= second <= _MOST_STRIDE:
        raise ValueError("strides out of range")
    return int(first), int(second)


def _padding(value: Any, kernel: tuple[int, int]) -> tuple[int, int]:
    """Padding of height and width, both sides together."""
    if value == "VALID":
        return 0, 0
    if value == "SAME":
        return kernel[0] - 1, kernel[1] - 1
    if isinstance(value, list) and len(value) == 4:
        top, left, bottom, right = value
        return int(top) + int(bottom), int(left) + int(right)
    height, width = height_and_width(value)
    return 2 * height, 2 * width


def _convolution(name: str, arguments: Sequence[Any]) -> _Conv:
    """Sizes of a convolution from (data, kernel, strides, padding, dilation, ...)."""
    data, kernel = _shape(arguments[0]), _shape(arguments[1])
    if "nhwc" in name.lower():
        batch, height, width, channels = data
        kernel_height, kernel_width, second, first = kernel
        if "depthwise" in name:
            first, second = second, first
    else:
        # Packed forms (NCHWc) end in the block of channels.
        batch, channels, height, width = data[0], data[1] * (data[4] if len(data) == 5 else 1), *data[2:4]
        first, second, kernel_height, kernel_width = kernel[:4]
        for block in kernel[5:6] or kernel[4:5]:
            first *= block
    if "depthwise" in name:
        # The kernel is (channels, multiplier, height, width).
        first *= second
    strides, dilation = height_and_width(arguments[2]), height_and_width(arguments[4])
    spans = ((kernel_height - 1) * dilation[0] + 1, (kernel_width - 1) * dilation[1] + 1)
    padded = _padding(arguments[3], spans)
    return _Conv(
        batch,
        channels,
        first,
        (height + padded[0] - spans[0]) // strides[0] + 1,
        (width + padded[1] - spans[1]) // strides[1] + 1,
        kernel_height,
        kernel_width,
    )


_CHANNEL_KNOBS = ("tile_co", "tile_oc", "tile_f", "tile_c")
_HEIGHT_KNOBS = ("tile_oh", "tile_y", "tile_h")
_WIDTH_KNOBS = ("tile_ow", "tile_x", "tile_w")


def _spatial(conv: _Conv, name: str) -> tuple[Axis, ...]:
    batch, channels = Axis(("tile_n",), conv.batch), Axis(_CHANNEL_KNOBS, conv.out_channels)
    plane = Axis(_HEIGHT_KNOBS, conv.out_height), Axis(_WIDTH_KNOBS, conv.out_width)
    return (batch, *plane, channels) if "nhwc" in name.lower() else (batch, channels, *plane)


def _window(conv: _Conv) -> tuple[Axis, ...]:
    return (
        Axis(("tile_ry", "tile_kh"), conv.kernel_height, True),
        Axis(("tile_rx", "tile_kw"), conv.kernel_width, True),
    )


def _conv2d(name: str, arguments: Sequence[Any]) -> Template:
    conv = _convolution(name, arguments)
    axes = (
        *_spatial(conv, name),
        Axis(("tile_ic", "tile_ci", "tile_rc"), conv.in_channels, True),
        *_window(conv),
    )
    if "nhwc" in name.lower():
        return Template(axes, annotated={"unroll_kw": ((6, INNER),)})
    # Batch, outer tiles, reductions, inner tiles: the order that `reorder_0` counts in.
    outer, inner = ((0, INNER), (1, 0), (2, 0), (3, 0)), ((2, INNER), (3, INNER), (1, INNER))
    window = ((5, INNER), (6, INNER))
    return Template(
        axes,
        reorder=(*outer, (4, INNER), *window, *inner),
        annotated={"ann_reduce": window, "ann_spatial": inner, "unroll_kw": window[1:]},
    )


def _depthwise(name: str, arguments: Sequence[Any]) -> Template:
    conv = _convolution(name, arguments)
    axes = (*_spatial(conv, name), *_window(conv))
    channels, height, width = (1, 2, 3) if "nhwc" not in name.lower() else (3, 1, 2)
    return Template(
        axes,
        annotated={
            "ann": ((height, INNER), (width, INNER), (channels, INNER)),
            "unroll_kw": ((5, INNER),),
        },
        # The blocks of channels that the input is packed in: no loop of the main nest.
        aside={"tile_ic": (channels, False)},
    )


def _winograd(name: str, arguments: Sequence[Any]) -> Template:
    """The batched matrix product in the middle of a Winograd convolution."""
    conv = _convolution(name, arguments)
    tile = _WINOGRAD_TILE
    if name.endswith((".cuda", ".gpu")):
        height = _shape(arguments[0])[1 if "nhwc" in name else 2]
        tile = _WINOGRAD_TILE if height % 8 == 0 else _WINOGRAD_TILE // 2
    side = conv.kernel_width + tile - 1
    tiles = conv.batch * -(-conv.out_height // tile) * -(-conv.out_width // tile)
    return Template(
        (
            Axis(("tile_b",), side * side),
            Axis(("tile_k", "tile_y"), conv.out_channels),
            Axis(("tile_p", "tile_x"), tiles),
            Axis(("tile_c", "tile_rc"), conv.in_channels, True),
        ),
        annotated={"ann_reduce": ((3, INNER),), "ann_spatial": ((1, INNER), (2, INNER))},
    )


def _dense(name: str, arguments: Sequence[Any]) -> Template:
    data, weight = _shape(arguments[0]), _shape(arguments[1])
    rows, depth = data
    columns = weight[0] * (weight[2] if len(weight) == 3 else 1)
    return Template(
        (Axis(("tile_y",), rows), Axis(("tile_x",), columns), Axis(("tile_k",), depth, True)),
        aside={"tile_inner": (0, True)},
    )


def are_transposed(arguments: Sequence[Any]) -> tuple[bool, bool]:
    """Whether each matrix of a batch product is transposed."""
    # Templates before TVM 0.8 had no flags: the second matrix always was.
    return (bool(arguments[4]), bool(arguments[5])) if len(arguments) >= 6 else (False, True)


def _batch_matmul(name: str, arguments: Sequence[Any]) -> Template:
    first_shape, second_shape = _shape(arguments[0]), _shape(arguments[1])
    first, second = are_transposed(arguments)
    rows, depth = (first_shape[2], first_shape[1]) if first else (first_shape[1], first_shape[2])
    columns = second_shape[1] if second else second_shape[2]
    return Template(
        (
            Axis(("tile_b",), max(first_shape[0], second_shape[0])),
            Axis(("tile_y",), rows),
            Axis(("tile_x",), columns),
            Axis(("tile_k",), depth, True),
        )
    )


# Only forms whose loops are known: transposed, deformable, grouped and bit-serial ones are other loop nests.
_TEMPLATES = (
    (r"conv2d_n(chw|hwc)_winograd(_without_weight_transform)?\.(arm_cpu|cuda|gpu)$", _winograd),
    (r"depthwise_conv2d_(?i:nchw|nchwc|nhwc)\.", _depthwise),
    (r"conv2d_(?i:nchw|nchwc|nhwc)(_spatial_pack)?\.", _conv2d),
    (r"dense_", _dense),
    (r"batch_matmul\.", _batch_matmul),
)
