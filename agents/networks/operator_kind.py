"""The kind of a fused workload: the operator that its loops are about, by its name and shapes. Pure.

Relax names a fused program after its parts (`conv2d_add_relu`); convolutions are told apart further by their
weights. Workloads of TVM's operator suite have names of their own (`C2D`), and are never asked about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: Kind of each part that may be what a program is about, the weightiest first.
_ANCHORS: Final = (
    (r"conv[123]d_transpose", "conv_transpose"),
    ("conv3d", "conv3d"),
    ("conv2d", "conv2d"),
    ("conv1d", "conv1d"),
    ("matmul|dense", "matmul"),
    ("softmax|log_softmax", "softmax"),
    ("(layer|rms|group|instance|batch)_norm", "norm"),
    (r"(max|avg|adaptive_avg|adaptive_max)_pool[123]d", "pool"),
    (r"resize[123]d", "resize"),
    ("mean|sum|max|min|prod|variance|std|argmax|argmin|cumsum|rsqrt_mean", "reduce"),
    ("take|gather|gather_nd|gather_elements|scatter|scatter_nd|scatter_elements|one_hot|embedding", "gather"),
)
_PATTERNS: Final = tuple((re.compile(rf"(?:^|_)(?:{part})\d*(?=_|$)"), kind) for part, kind in _ANCHORS)
#: Parts that only move numbers: a program of nothing else computes nothing.
_MOVE: Final = (
    r"(?:reshape|transpose|permute_dims|squeeze|expand_dims|strided_slice|concatenate|split|pad|flatten|"
    r"broadcast_to|cast|repeat|tile|flip|full|zeros|ones|arange|layout_transform|where|triu|tril|roll|stack)"
    r"\d*"
)
_MOVES: Final = re.compile(f"{_MOVE}(?:_{_MOVE})*")
#: How `convolutions.py` names programs whose data and weights have their channels in the last axes.
_CHANNELS_LAST: Final = re.compile(r"(?:^|_)conv2d_(?:nhwc|winograd)\d*(?=_|$)")
#: Axes of a convolution's data and weights.
_RANKS: Final = {"conv1d": 3, "conv2d": 4, "conv3d": 5}


def operator_kind(name: str, arg_shapes: Sequence[Sequence[int]]) -> str:
    """Say what a program is about.

    Args:
        name: As Relax makes it of its parts, such as `fused_conv2d_add_relu`.
        arg_shapes: Shapes of its arguments; the last is the output's.

    Returns:
        `conv2d`, `depthwise_conv2d`, `group_conv2d` (and so for `conv1d`, `conv3d`), `conv_transpose`,
        `dense` (weights of two axes), `batch_matmul`, `softmax`, `norm`, `pool`, `resize`, `reduce`,
        `gather`, `data_movement`, or `elementwise`.
    """
    words = name.removeprefix("fused_")
    for pattern, kind in _PATTERNS:
        if pattern.search(words):
            if kind == "matmul":
                return _matmul(arg_shapes)
            if kind not in _RANKS:
                return kind
            is_last = _CHANNELS_LAST.search(words) is not None
            return _grouped(kind, arg_shapes, channels=-1 if is_last else 1, inputs=-2 if is_last else 1)
    return "data_movement" if _MOVES.fullmatch(words) else "elementwise"


def _matmul(arg_shapes: Sequence[Sequence[int]]) -> str:
    """Whether all rows meet the same weights."""
    inputs = [shape for shape in arg_shapes[:-1] if len(shape) >= 2]
    return "dense" if len(inputs) < 2 or len(inputs[1]) == 2 else "batch_matmul"


def _grouped(kind: str, arg_shapes: Sequence[Sequence[int]], *, channels: int, inputs: int) -> str:
    """Distinguish plain, grouped and depthwise convolutions by the channels that a group reads.

    Args:
        kind: The convolution.
        arg_shapes: Shapes of its arguments.
        channels: Axis of the data's channels.
        inputs: Axis of the weights that has the channels of a group.
    """
    tensors = [shape for shape in arg_shapes[:-1] if len(shape) == _RANKS[kind]]
    if len(tensors) < 2:
        return kind
    all_channels, group_channels = tensors[0][channels], tensors[1][inputs]
    if group_channels >= all_channels or all_channels % group_channels:
        return kind
    return f"depthwise_{kind}" if group_channels == 1 else f"group_{kind}"
