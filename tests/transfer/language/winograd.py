"""The one operator of TVM's suite that TVM 0.27 refuses to make, written out: Winograd convolution, NHWC.

`te_workload.conv2d_winograd_nhwc` calls `topi.nn.conv2d._conv2d_winograd_nhwc_impl` with a pre-computed
kernel, a path that 0.27 has closed. The stages, names and schedule rules here are those of that function, so
the design spaces are the suite's.
"""

from __future__ import annotations

from typing import Any

#: Side of an output tile, and of the kernel.
_TILE, _KERNEL = 4, 3


def winograd_module(n: int, h: int, w: int, ci: int, co: int, write_cache_level: int) -> Any:
    """Make the `tvm.IRModule` of a 3x3 convolution of stride 1 and padding 1.

    Args:
        n: Images.
        h: Rows of the image and of the result.
        w: Columns.
        ci: Channels in.
        co: Channels out.
        write_cache_level: Loop level of the write cache: 2 on a CPU, 3 under CUDA, as the suite has it.
    """
    import tvm
    from tvm import te
    from tvm.topi.nn.pad import pad
    from tvm.topi.nn.winograd_util import winograd_transform_matrices

    alpha = _TILE + _KERNEL - 1
    data = te.placeholder((n, h, w, ci), "float32", name="data")
    weight = te.placeholder((alpha, alpha, co, ci), "float32", name="weight")
    a, b, _ = winograd_transform_matrices(_TILE, _KERNEL, "float32")
    rows, columns = -(-h // _TILE), -(-w // _TILE)
    tiles = n * rows * columns
    extra = (columns - 1) * _TILE + alpha - (h + 2)
    padded = pad(
        data, (0, 1, 1, 0), (0, 1 + extra, 1 + extra, 0), name="data_pad", attrs={"schedule_rule": "None"}
    )
    picked = te.compute(
        (alpha, alpha, tiles, ci),
        lambda eps, nu, p, c: padded[
            p // (rows * columns), ((p // columns) % rows) * _TILE + eps, (p % columns) * _TILE + nu, c
        ],
        name="input_tile",
        attrs={"schedule_rule": "None"},
    )
    r_a, r_b = te.reduce_axis((0, alpha), "r_a"), te.reduce_axis((0, alpha), "r_b")
    packed = te.compute(
        (alpha, alpha, tiles, ci),
        lambda eps, nu, p, c: te.sum(picked[r_a, r_b, p, c] * b[r_a, eps] * b[r_b, nu], axis=[r_a, r_b]),
        name="data_pack",
        attrs={
            "auto_scheduler_simplify_const_tensor_indices": ["eps", "nu", "r_a", "r_b"],
            "schedule_rule": "conv2d_nhwc_winograd_data_pack",
        },
    )
    r_c = te.reduce_axis((0, ci), name="ci")
    product = te.compute(
        (alpha, alpha, tiles, co),
        lambda eps, nu, p, c: te.sum(packed[eps, nu, p, r_c] * weight[eps, nu, c, r_c], axis=[r_c]),
        name="bgemm",
        attrs={
            "layout_free_placeholders": [weight],
            "meta_schedule.write_cache_level": [write_cache_level],
        },
    )
    r_d, r_e = te.reduce_axis((0, alpha), "r_a"), te.reduce_axis((0, alpha), "r_b")
    inverse = te.compute(
        (_TILE, _TILE, tiles, co),
        lambda vh, vw, p, c: te.sum(product[r_d, r_e, p, c] * a[r_d, vh] * a[r_e, vw], axis=[r_d, r_e]),
        name="inverse",
        attrs={
            "auto_scheduler_simplify_const_tensor_indices": ["vh", "vw", "r_a", "r_b"],
            "schedule_rule": "conv2d_nhwc_winograd_inverse",
        },
    )
    out = te.compute(
        (n, h, w, co),
        lambda i, y, x, c: inverse[
            y % _TILE, x % _TILE, i * rows * columns + (y // _TILE) * columns + (x // _TILE), c
        ],
        name="conv2d_winograd",
    )
    return tvm.IRModule({"main": te.create_prim_func((data, weight, out))})
