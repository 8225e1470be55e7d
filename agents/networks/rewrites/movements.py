"""Transposes, reshapes and paddings of a network, moved to where they cost nothing.

TVM fuses an operator with those that compute element by element from its result. A transpose or a reshape
between them keeps them apart: each is then a program that reads and writes all of a tensor. Called by
`graph.py` for CPUs, in the confined process of `reader_process.py`; imports TVM when called.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Final

#: Operators that compute each element from one element, and that transposes and reshapes may follow instead.
_ELEMENTWISE: Final = (
    *("relax.clip", "relax.exp", "relax.erf", "relax.tanh", "relax.sigmoid", "relax.nn.relu"),
    *("relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.silu", "relax.nn.leakyrelu"),
)
#: Operators of two tensors of one shape, or of a tensor and a number.
_PAIRWISE: Final = ("relax.add", "relax.multiply", "relax.subtract", "relax.divide", "relax.power")
_MOVES: Final = ("relax.permute_dims", "relax.reshape")


def settle_movements(module: Any) -> Any:
    """Move transposes and reshapes behind element-by-element operators, and join pairs of them."""
    from tvm import relax

    rules = [_sinking(name, move) for name in _ELEMENTWISE for move in _MOVES]
    rules += [_sinking_pair(name, place) for name in _PAIRWISE for place in (0, 1)]
    rules += [_joining(move) for move in _MOVES]
    return relax.transform.DeadCodeElimination()(functools.reduce(operator.or_, rules)(module))


def fold_paddings(module: Any) -> Any:
    """Let convolutions pad their inputs themselves, if zeros are padded in front of them."""
    from tvm import relax
    from tvm.relax.dpl import PatternMatchingRewriter, is_op, wildcard

    pad = is_op("relax.nn.pad")(data := wildcard())
    conv = is_op("relax.nn.conv2d")(pad, weight := wildcard())

    def rewrite(expr: Any, matches: Any) -> Any:
        attrs, widths = expr.attrs, _zeros_around(matches[pad])
        if widths is None or attrs.data_layout != "NCHW":
            return expr
        return relax.op.nn.conv2d(
            matches[data],
            matches[weight],
            padding=[int(own) + width for own, width in zip(attrs.padding, widths, strict=True)],
            strides=list(attrs.strides),
            dilation=list(attrs.dilation),
            groups=int(attrs.groups),
            kernel_layout=attrs.kernel_layout,
            out_dtype=attrs.out_dtype or None,
        )

    return PatternMatchingRewriter.from_pattern(conv, rewrite)(module)


def _zeros_around(pad: Any) -> list[int] | None:
    """Zeros that are put above, left, below and right of images (n, c, h, w); None if it pads otherwise."""
    attrs = pad.attrs
    widths = [int(width) for width in attrs.pad_width]
    if attrs.pad_mode != "constant" or float(attrs.pad_value) != 0 or len(widths) != 8 or any(widths[:4]):
        return None
    top, bottom, left, right = widths[4:]
    return [top, left, bottom, right]


def _sinking(name: str, move: str) -> Any:
    """The rule that an operator comes before a movement of its input."""
    from tvm import relax
    from tvm.relax.dpl import PatternMatchingRewriter, is_op

    moved, data = _moved(move)
    # A clip's bounds are arguments.
    pattern = is_op(name)(moved, *_others(2 if name == "relax.clip" else 0))

    def rewrite(expr: Any, matches: Any) -> Any:
        return _again(matches[moved], relax.Call(expr.op, [matches[data], *expr.args[1:]], expr.attrs))

    return PatternMatchingRewriter.from_pattern(pattern, rewrite)


def _sinking_pair(name: str, place: int) -> Any:
    """The rule that an operator of two tensors comes before a reshape of one of them into more axes."""
    from tvm import relax
    from tvm.relax.dpl import PatternMatchingRewriter, is_op, wildcard

    moved, data = _moved("relax.reshape")
    other = wildcard()
    pattern = is_op(name)(*((moved, other) if place == 0 else (other, moved)))

    def rewrite(expr: Any, matches: Any) -> Any:
        shape, second = extents_of(matches[data]), matches[other]
        if len(shape) >= len(extents_of(expr)) or extents_of(second) not in ([], extents_of(expr)):
            return expr
        if extents_of(second):
            second = relax.op.reshape(second, shape)
        operands = [matches[data], second]
        return _again(matches[moved], relax.Call(expr.op, operands[:: 1 - 2 * place], expr.attrs))

    return PatternMatchingRewriter.from_pattern(pattern, rewrite)


def _joining(move: str) -> Any:
    """The rule that two transposes or two reshapes in a row are one, or none if they undo each other."""
    from tvm import relax
    from tvm.relax.dpl import PatternMatchingRewriter, is_op

    moved, data = _moved(move)
    pattern = is_op(move)(moved, *_others(1 if move == "relax.reshape" else 0))

    def rewrite(expr: Any, matches: Any) -> Any:
        first = matches[moved]
        if move == "relax.reshape":
            return (
                matches[data]
                if extents_of(expr) == extents_of(matches[data])
                else _again(expr, matches[data])
            )
        axes = [int(first.attrs.axes[int(axis)]) for axis in expr.attrs.axes]
        return matches[data] if axes == sorted(axes) else relax.op.permute_dims(matches[data], axes)

    return PatternMatchingRewriter.from_pattern(pattern, rewrite)


def _moved(move: str) -> tuple[Any, Any]:
    """The pattern of a movement, and that of what it moves."""
    from tvm.relax.dpl import is_op, wildcard

    data = wildcard()
    return is_op(move)(data, *_others(1 if move == "relax.reshape" else 0)), data


def _others(count: int) -> list[Any]:
    from tvm.relax.dpl import wildcard

    return [wildcard() for _ in range(count)]


def _again(movement: Any, data: Any) -> Any:
    """The same movement of other data."""
    from tvm import relax

    return relax.Call(movement.op, [data, *movement.args[1:]], movement.attrs)


def extents_of(expr: Any) -> list[int]:
    """The shape of a tensor whose extents are known."""
    return [int(extent) for extent in expr.ty.shape]
