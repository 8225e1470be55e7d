"""Convolutions as a processor computes them best: channels last, and fewer products by Winograd's way.

Called by `graph.py` for CPUs. Runs in the confined process of `reader_process.py`; imports TVM when called.
"""

from __future__ import annotations

from typing import Any, Final

#: Rows and columns of outputs per tile, and of kernels: F(2 x 2, 3 x 3) of Lavin and Gray (2016, section 4.1)
#: takes 16 products instead of 36. Tiles of 4 x 4 take fewer, but for their unrolled transforms LLVM needs
#: 1.7 s per candidate instead of .5 s.
_TILE: Final = 2
_KERNEL: Final = 3
_SIDE: Final = _TILE + _KERNEL - 1
_OUTPUT_TRANSFORM: Final = ((1, 0), (1, 1), (1, -1), (0, -1))
_INPUT_TRANSFORM: Final = ((1, 0, 0, 0), (0, 1, -1, 1), (-1, 1, 1, 0), (0, 0, 0, -1))
_KERNEL_TRANSFORM: Final = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
#: Channels on each side from which the saved products are worth the two transforms.
_LEAST_CHANNELS: Final = 32


def channels_last(module: Any) -> Any:
    """Give convolutions their channels last, so that a processor's vectors run along them.

    TVM puts transposes where other operators need the order that the network had. Its pass fails on some
    networks, such as those with windows that roll; they keep their order.
    """
    from tvm import relax

    # Transposed convolutions have no program with channels last.
    layouts = {"relax.nn.conv2d": ["NHWC", "HWIO"], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
    try:
        return relax.transform.ConvertLayout(layouts)(module)
    except Exception:
        return module


def lower_convolution(builder: Any, call: Any) -> Any:
    """Lower a convolution: dense ones of 3 x 3 by Winograd's way, others as TVM does."""
    from tvm import topi
    from tvm.ir import Op

    attrs = call.attrs
    if attrs.data_layout != "NHWC":
        return Op.get("relax.nn.conv2d").get_attr("FLegalize")(builder, call)
    if _is_for_winograd(call):
        return _lower_winograd(builder, call)
    strides, padding, dilation = (
        [int(extent) for extent in extents] for extents in (attrs.strides, attrs.padding, attrs.dilation)
    )
    return builder.call_te(
        topi.nn.conv,
        *call.args,
        strides,
        padding,
        dilation,
        int(attrs.groups),
        attrs.data_layout,
        attrs.kernel_layout,
        str(call.ty.dtype),
        primfunc_name_hint="conv2d_nhwc",
    )


def _lower_winograd(builder: Any, call: Any) -> Any:
    import numpy as np
    from tvm import relax

    data, weight = call.args
    transform = np.array(_KERNEL_TRANSFORM)
    transformed = np.einsum("ax,by,xyio->abio", transform, transform, weight.value.numpy())
    return builder.call_te(
        _winograd,
        data,
        relax.const(transformed.astype("float32")),
        [int(width) for width in call.attrs.padding],
        primfunc_name_hint="conv2d_winograd",
    )


def _is_for_winograd(call: Any) -> bool:
    from tvm.ir.expr import GenericConst

    (data, weight), attrs = call.args, call.attrs
    if not isinstance(weight, GenericConst) or {str(data.ty.dtype), str(weight.ty.dtype)} != {"float32"}:
        return False
    rows, columns, channels_in, channels_out = (int(extent) for extent in weight.ty.shape)
    return (
        int(attrs.groups) == 1
        and rows == columns == _KERNEL
        and {int(stride) for stride in (*attrs.strides, *attrs.dilation)} == {1}
        and min(channels_in, channels_out) >= _LEAST_CHANNELS
    )


def _winograd(data: Any, kernel: Any, padding: list[int]) -> Any:
    """A convolution of stride 1 of data (n, h, w, i) with a transformed kernel (4, 4, i, o).

    Blocks have the rules that MetaSchedule has for them: the transforms' small loops are unrolled.
    """
    from tvm import te

    batch, height, width, channels_in = (int(extent) for extent in data.shape)
    channels_out = int(kernel.shape[3])
    top, left, bottom, right = padding
    out_height, out_width = height + top + bottom - _KERNEL + 1, width + left + right - _KERNEL + 1
    rows, columns = -(-out_height // _TILE), -(-out_width // _TILE)
    tiles = batch * rows * columns
    packed = _transform(
        _tiles_of(data, (top, left), (rows, columns)),
        _INPUT_TRANSFORM,
        (_SIDE, tiles, channels_in),
        name="data_pack",
        rule="conv2d_nhwc_winograd_data_pack",
    )
    channel_in = te.reduce_axis((0, channels_in), "ci")
    products = te.compute(
        (_SIDE, _SIDE, tiles, channels_out),
        lambda eps, nu, place, channel: te.sum(
            packed[eps, nu, place, channel_in] * kernel[eps, nu, channel_in, channel], axis=[channel_in]
        ),
        name="bgemm",
    )
    inverse = _transform(
        products,
        _OUTPUT_TRANSFORM,
        (_TILE, tiles, channels_out),
        name="inverse",
        rule="conv2d_nhwc_winograd_inverse",
    )
    return te.compute(
        (batch, out_height, out_width, channels_out),
        lambda image, row, column, channel: inverse[
            row % _TILE,
            column % _TILE,
            (image * rows + row // _TILE) * columns + column // _TILE,
            channel,
        ],
        name="conv2d_winograd",
    )


def _tiles_of(data: Any, before: tuple[int, int], counts: tuple[int, int]) -> Any:
    """The overlapping tiles (4, 4, tile, channel) of images that are padded with zeros around."""
    from tvm import te, topi

    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns = counts
    after = [count * _TILE + _KERNEL - 1 for count in counts]
    padded = topi.nn.pad(
        data,
        [0, *before, 0],
        [0, after[0] - height - before[0], after[1] - width - before[1], 0],
        name="data_pad",
        attrs={"schedule_rule": "None"},
    )
    return te.compute(
        (_SIDE, _SIDE, batch * rows * columns, channels),
        lambda row, column, place, channel: padded[
            place // (rows * columns),
            place // columns % rows * _TILE + row,
            place % columns * _TILE + column,
            channel,
        ],
        name="input_tile",
        attrs={"schedule_rule": "None"},
    )


def _transform(
    tiles: Any,
    matrix: tuple[tuple[int, ...], ...],
    shape: tuple[int, int, int],
    *,
    name: str,
    rule: str,
) -> Any:
    """Multiply each tile (4, 4, tile, channel) by a matrix from both sides: (side, side, tile, channel)."""
    import numpy as np
    from tvm import te, topi

    side, *others = shape
    constant = topi.utils.const_matrix(np.array(matrix, "float32"))
    down, across = te.reduce_axis((0, _SIDE), "r_a"), te.reduce_axis((0, _SIDE), "r_b")
    return te.compute(
        (side, side, *others),
        lambda row, column, place, channel: te.sum(
            tiles[down, across, place, channel] * constant[down, row] * constant[across, column],
            axis=[down, across],
        ),
        name=name,
        attrs={"schedule_rule": rule},
    )
