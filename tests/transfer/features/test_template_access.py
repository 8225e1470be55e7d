from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agents.records import Candidate, canonical_json
from tests.autotvm_fixtures import autotvm_workload
from transfer.features.access import block_accesses
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.template_access import template_access
from transfer.language.autotvm import AutoTVMReader


def tensor(*shape: int, dtype: str = "float32") -> list[Any]:
    return ["TENSOR", list(shape), dtype]


CONVOLUTION = [tensor(1, 16, 8, 8), tensor(32, 16, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1]]
PACKED = [*CONVOLUTION, "NCHW", "NCHW", "float32"]
CPU_ENTITY = [
    ["tile_ic", "sp", [-1, 4]],
    ["tile_oc", "sp", [-1, 8]],
    ["tile_ow", "sp", [-1, 4]],
    ["unroll_kw", "ot", True],
]
GPU_ENTITY = [
    ["tile_f", "sp", [-1, 2, 4, 2]],
    ["tile_y", "sp", [-1, 1, 2, 1]],
    ["tile_x", "sp", [-1, 1, 4, 2]],
    ["tile_rc", "sp", [-1, 4]],
    ["tile_ry", "sp", [-1, 1]],
    ["tile_rx", "sp", [-1, 3]],
    ["auto_unroll_max_step", "ot", 512],
    ["unroll_explicit", "ot", 1],
]


def summary(name: str, arguments: Sequence[Any], entity: Sequence[Any]) -> dict[str, float]:
    workload = autotvm_workload(name, list(arguments))
    candidate = Candidate(
        workload_id=workload.workload_id, trace=canonical_json(list(entity)), dialect="autotvm"
    )
    block = Extractor().extract([workload], [candidate])
    return dict(zip(DEFAULT_SPEC.summary_names, block.summary[0].tolist(), strict=True))


def test_two_levels_of_a_cpu_template_stand_inside_and_outside_of_the_reductions() -> None:
    found = summary("conv2d_NCHWc.x86", PACKED, CPU_ENTITY)
    # The vectorised axis is the block of channels, the next one the width.
    assert (found["spatial_0_factor_0"], found["spatial_1_factor_0"]) == (3, 2)
    assert (found["spatial_0_factor_3"], found["spatial_1_factor_3"]) == (2, 1)
    assert found["by_8_lanes"] == 1
    assert found["cut_0_spatial"] == found["cut_2_spatial"] == found["cut_3_spatial"] == 5
    assert found["cut_5_spatial"] == np.log2(32 * 64)
    assert found["cut_1_reduction"] == 2
    # Axes without a split, here the window, are whole.
    assert found["cut_5_reduction"] == pytest.approx(np.log2(16 * 9))


def test_bytes_of_a_packed_convolution() -> None:
    found = summary("conv2d_NCHWc.x86", PACKED, CPU_ENTITY)
    # Four columns, four input channels, eight output channels, one tap.
    assert found["cut_1_bytes"] == pytest.approx(np.log2(1 + 4 * (4 * 4 + 4 * 8 + 4 * 8)))
    # All taps: six columns of three rows.
    assert found["cut_3_bytes"] == pytest.approx(np.log2(1 + 4 * (3 * 6 * 16 + 9 * 16 * 8 + 4 * 8)))
    assert found["cut_5_bytes"] == pytest.approx(
        np.log2(1 + 4 * (10 * 10 * 16 + 9 * 16 * 32 + 64 * 32)), rel=1e-6
    )
    assert (found["contiguous_reads"], found["broadcast_reads"], found["contiguous_write"]) == (1, 1, 1)


def test_four_levels_of_a_gpu_template_are_blocks_virtual_threads_threads_and_one_inside() -> None:
    found = summary("conv2d_nchw.cuda", [*CONVOLUTION, "float32"], GPU_ENTITY)
    assert found["cut_0_spatial"] == 2
    assert found["cut_3_spatial"] == 2, "what one thread computes"
    assert found["cut_3_reduction"] == pytest.approx(np.log2(16 * 9))
    assert found["cut_4_spatial"] == 2 + 5, "what a block's threads compute"
    assert found["cut_5_spatial"] == np.log2(32 * 64)
    # Channels first: the width is contiguous.
    assert (found["spatial_0_factor_0"], found["contiguous_write"]) == (1, 1)
    assert found["unroll"] == pytest.approx(np.log2(513))


def test_features_of_an_unknown_template_have_tiles_but_no_bytes() -> None:
    found = summary("conv9d.x86", PACKED, CPU_ENTITY)
    assert found["tiled"] == 1
    assert found["cut_0_spatial"] == 5
    assert found["cut_5_bytes"] == 0


@pytest.mark.parametrize(
    ("name", "arguments", "reads", "strides"),
    [
        ("dense_nopack.x86", [tensor(6, 16), tensor(8, 16), None, "float32"], [(6, 16), (8, 16)], [0, 16]),
        ("dense_pack.x86", [tensor(6, 16), tensor(8, 16), None, "float32"], [(6, 16), (16, 8)], [0, 1]),
        (
            "batch_matmul.x86",
            [tensor(2, 6, 16), tensor(2, 8, 16), [2, 6, 8], "float32", 0, 1],
            [(2, 6, 16), (2, 8, 16)],
            [0, 16],
        ),
        (
            "batch_matmul.cuda",
            [tensor(2, 6, 16), tensor(2, 16, 8), [2, 6, 8], "float32", 0, 0],
            [(2, 6, 16), (2, 16, 8)],
            [0, 1],
        ),
        (
            "batch_matmul.x86",
            [tensor(2, 6, 16), tensor(2, 8, 16), [2, 6, 8], "float32"],
            [(2, 6, 16), (2, 8, 16)],
            [0, 16],
        ),
    ],
)
def test_matrix_products(
    name: str, arguments: list[Any], reads: list[tuple[int, ...]], strides: list[int]
) -> None:
    access = template_access(name, arguments)
    assert access is not None
    assert access.extents[-3:] == (6, 8, 16)
    assert access.spatial[-3:] == (True, True, False)
    *inputs, output = access.buffers
    assert [one.shape for one in inputs] == reads
    columns = len(access.extents) - 2
    assert [one.stride(columns) for one in inputs] == strides
    assert output.is_write
    assert output.stride(columns) == 1
    assert access.on_gpu == name.endswith("cuda")


def test_a_depthwise_convolution_reads_each_channel_once() -> None:
    arguments = [tensor(1, 16, 8, 8), tensor(16, 1, 3, 3), [2, 2], [1, 1, 1, 1], [1, 1], "float32"]
    access = template_access("depthwise_conv2d_nchw.cuda", arguments)
    assert access is not None
    assert access.extents == (1, 16, 4, 4, 3, 3)
    data, kernel, output = access.buffers
    tile = np.array([1, 2, 1, 2, 3, 3], dtype=np.float64)
    # Two columns at a stride of 2 with three taps: five; three rows.
    assert data.elements(tile) == 2 * 3 * 5
    assert kernel.elements(tile) == 2 * 9
    assert output.elements(tile) == 4


def test_the_product_inside_a_winograd_convolution() -> None:
    arguments = [tensor(1, 16, 8, 8), tensor(32, 16, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "float32"]
    access = template_access("conv2d_nchw_winograd.cuda", arguments)
    assert access is not None
    assert access.extents == (36, 32, 4, 16)
    assert access.buffers[2].shape == (36, 32, 4)


@pytest.mark.parametrize("arguments", [[], [1, 2], PACKED[:3], [["TENSOR", [-1], "float32"]] * 6, "abc"])
@pytest.mark.parametrize(
    "name", ["conv2d_NCHWc.x86", "dense_pack.x86", "batch_matmul.x86", "conv2d_nchw_winograd.cuda"]
)
def test_arguments_that_make_no_sense_give_nothing(name: str, arguments: Any) -> None:
    assert template_access(name, arguments) is None
    assert block_accesses(canonical_json({"dialect": "autotvm", "name": name, "args": arguments})) == {}


def test_axes_are_those_that_the_reader_numbers() -> None:
    workload = autotvm_workload("conv2d_NCHWc.x86", PACKED)
    access = template_access("conv2d_NCHWc.x86", PACKED)
    assert access is not None
    for step in AutoTVMReader().read(json.dumps(CPU_ENTITY), workload)[:3]:
        place = access.axes.index(step.numbers[0])
        assert access.extents[place] == step.numbers[1]
        assert access.spatial[place] == (step.names[2] == "spatial")


def test_ansor_tiles_are_read_like_those_of_meta_schedule() -> None:
    steps = [["SP", 2, 0, 64, [2, 4, 8], 1], ["SP", 2, 4, 32, [1, 2, 16], 1], ["SP", 2, 8, 16, [4], 1]]
    workload = autotvm_workload("", [])
    candidate = Candidate(workload_id=workload.workload_id, trace=canonical_json(steps), dialect="ansor")
    block = Extractor().extract([workload], [candidate])
    found = dict(zip(DEFAULT_SPEC.summary_names, block.summary[0].tolist(), strict=True))
    assert (found["spatial_0_factor_0"], found["spatial_1_factor_0"]) == (4, 3)
    assert (found["cut_0_spatial"], found["cut_1_reduction"], found["cut_5_spatial"]) == (7, 2, 11)
    assert (found["tiled"], found["steps"]) == (1, 3)
