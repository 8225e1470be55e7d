from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from agents.records import Candidate, canonical_json
from tests.program_fixtures import program_workload
from tests.scenario_fixtures import check_facts
from tests.table_fixtures import rows
from transfer.features.access import block_accesses, template_access
from transfer.features.extractor import DEFAULT_SPEC, Extractor

CONVOLUTION = 'T[1, 16, 8, 8], T[32, 16, 3, 3], [1, 1], [1, 1, 1, 1], [1, 1], "NCHW"'
CPU_ENTITY = """[
    ["tile_ic", "sp", [-1, 4]], ["tile_oc", "sp", [-1, 8]], ["tile_ow", "sp", [-1, 4]],
    ["unroll_kw", "ot", true]
]"""


def arguments_of(text: str) -> list[Any]:
    """The arguments of a task; T[...] is a tensor of this shape."""
    return json.loads("[" + re.sub(r"T(\[.*?\])", r'["TENSOR", \1, "float32"]', text) + "]")


def summary(name: str, arguments: str, trace: str, dialect: str = "autotvm") -> dict[str, float]:
    task = {"dialect": "autotvm", "name": name, "args": arguments_of(arguments)}
    workload = program_workload(canonical_json(task))
    candidate = Candidate(workload_id=workload.workload_id, trace=trace, dialect=dialect)
    block = Extractor().extract(workload, [candidate])
    return dict(zip(DEFAULT_SPEC.summary_names, block.summary[0].tolist(), strict=True))


#: The vectorised axis is the block of channels, the next one the width; all is 32 channels of 8 x 8.
PACKED = """
spatial_0_factor_0 = 3
spatial_1_factor_0 = 2
spatial_0_factor_3 = 2
spatial_1_factor_3 = 1
by_8_lanes = 1
cut_0_spatial = 5
cut_2_spatial = 5
cut_3_spatial = 5
cut_5_spatial = 11
cut_1_reduction = 2
contiguous_reads = 1
broadcast_reads = 1
contiguous_write = 1
"""


def test_a_packed_convolution_has_levels_inside_and_outside_of_the_reductions() -> None:
    found = summary("conv2d_NCHWc.x86", CONVOLUTION, CPU_ENTITY)
    check_facts(found, PACKED)
    # Axes without a split, here the window, are whole.
    assert found["cut_5_reduction"] == pytest.approx(np.log2(16 * 9))
    # Four columns, four input channels, eight output channels, one tap.
    assert found["cut_1_bytes"] == pytest.approx(np.log2(1 + 4 * (4 * 4 + 4 * 8 + 4 * 8)))
    # All taps: six columns of three rows.
    assert found["cut_3_bytes"] == pytest.approx(np.log2(1 + 4 * (3 * 6 * 16 + 9 * 16 * 8 + 4 * 8)))
    assert found["cut_5_bytes"] == pytest.approx(
        np.log2(1 + 4 * (10 * 10 * 16 + 9 * 16 * 32 + 64 * 32)), rel=1e-6
    )


@pytest.mark.parametrize(
    ("task", "strides"),
    rows("""
        dense_pack.x86    | T[6, 16], T[8, 16], null, "float32"                          -> [0, 1]
        batch_matmul.cuda | T[2, 6, 16], T[2, 16, 8], [2, 6, 8], "float32", 0, 0         -> [0, 1]
        batch_matmul.x86  | T[2, 6, 16], T[2, 8, 16], [2, 6, 8], "float32"               -> [0, 16]
    """),
)
def test_matrix_products(task: str, strides: str) -> None:
    name, arguments = (part.strip() for part in task.split("|"))
    access = template_access(name, arguments_of(arguments))
    assert access.extents[-3:] == (6, 8, 16)
    assert access.spatial[-3:] == (True, True, False)
    left, right, output = access.buffers
    columns = len(access.extents) - 2
    assert [buffer.stride(columns) for buffer in (left, right)] == json.loads(strides)
    assert left.shape[-2:] == (6, 16)
    assert right.shape[-2:] == ((8, 16) if strides == "[0, 16]" else (16, 8))
    assert (output.is_write, output.stride(columns)) == (True, 1)
    assert access.on_gpu == name.endswith("cuda")


@pytest.mark.parametrize(
    "arguments", [[], [1, 2], arguments_of(CONVOLUTION)[:3], [["TENSOR", [-1], "float32"]] * 6, "abc"]
)
@pytest.mark.parametrize(
    "name", ["conv2d_NCHWc.x86", "dense_pack.x86", "batch_matmul.x86", "conv2d_nchw_winograd.cuda"]
)
def test_arguments_that_make_no_sense_give_nothing(name: str, arguments: Any) -> None:
    assert template_access(name, arguments) is None
    assert block_accesses(canonical_json({"dialect": "autotvm", "name": name, "args": arguments})) == {}
