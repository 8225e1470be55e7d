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
    import numpy as np
    from tvm import te, topi

    batch, height, width, channels_in = (int(extent) for extent in data.shape)
    channels_out = int(kernel.shape[3])
    top, left, bottom, right = padding
    side = _TILE + _KERNEL - 1
    out_height, out_width = height + top + bottom - _KERNEL + 1, width + left + right - _KERNEL + 1
    rows, columns = -(-out_height // _TILE), -(-out_width // _TILE)
    tiles = batch * rows * columns
    after = [
        0,
        rows * _TILE + _KERNEL - 1 - height - top,
        columns * _TILE + _KERNEL - 1 - width - left,
        0,
    ]
    output_transform = topi.utils.const_matrix(np.array(_OUTPUT_TRANSFORM, "float32"))
    input_transform = topi.utils.const_matrix(np.array(_INPUT_TRANSFORM, "float32"))
    padded = topi.nn.pad(data, [0, top, left, 0], after, name="data_pad", attrs={"schedule_rule": "None"})
    inputs = te.compute(
        (side, side, tiles, channels_in),
        lambda row, column, place, channel: padded[
            place // (rows * columns),
            place // columns % rows * _TILE + row,
            place % columns * _TILE + column,
            channel,
        ],
        name="input_tile",
        attrs={"schedule_rule": "None"},
    )
    down, across = te.reduce_axis((0, side), "r_a"), te.reduce_axis((0, side), "r_b")
    packed = te.compute(
        (side, side, tiles, channels_in),
        lambda eps, nu, place, channel: te.sum(
            inputs[down, across, place, channel] * input_transform[down, eps] * input_transform[across, nu],
            axis=[down, across],
        ),
        name="data_pack",
        attrs={"schedule_rule": "conv2d_nhwc_winograd_data_pack"},
    )
    channel_in = te.reduce_axis((0, channels_in), "ci")
    products = te.compute(
        (side, side, tiles, channels_out),
        lambda eps, nu, place, channel: te.sum(
            packed[eps, nu, place, channel_in] * kernel[eps, nu, channel_in, channel], axis=[channel_in]
        ),
        name="bgemm",
    )
    down, across = te.reduce_axis((0, side), "r_a"), te.reduce_axis((0, side), "r_b")
    inverse = te.compute(
        (_TILE, _TILE, tiles, channels_out),
        lambda row, column, place, channel: te.sum(
            products[down, across, place, channel]
            * output_transform[down, row]
            * output_transform[across, column],
            axis=[down, across],
        ),
        name="inverse",
        attrs={"schedule_rule": "conv2d_nhwc_winograd_inverse"},
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
