from __future__ import annotations

import gzip
import json
import math
from typing import Any

import pytest

from agents.records import Workload
from tests.language_fixtures import as_lines, columns
from tests.log_fixtures import AUTOTVM_LOGS
from tests.program_fixtures import program_workload
from tests.table_fixtures import rows
from transfer.language.autotvm import AutoTVMReader, check_entity
from transfer.language.autotvm_templates import Template, find_template
from transfer.language.primitives import Kind

DENSE = '["TENSOR", [16, 768], "float32"], ["TENSOR", [512, 768], "float32"], null, "float32"'
CONV = '["TENSOR", [1, 64, 56, 56]], ["TENSOR", [128, 64, 3, 3]], [2, 2], [1, 1, 1, 1], [1, 1]'
STEPS = (
    '[["CHW", 2, "local"], ["SP", 2, 0, 1000, [1, 20, 2], 1], ["SP", 2, 4, 700, [1, 7, 20], 1],'
    ' ["SP", 2, 8, 800, [10], 1]]'
)
#: Function and arguments of a task; then its knobs, each with the steps that it becomes.
TASKS = f"""
conv2d_nchw_spatial_pack.arm_cpu
    [{CONV}, "float32"]
    ["tile_co", "sp", [-1, 16]]                      -> SP 1 128 8 16 | tiled spatial | 0 | 1
    ["tile_oh", "sp", [-1, 2]]                       -> SP 2 28 14 2 | tiled spatial | 0 | 3
    ["tile_ow", "sp", [-1, 7]]                       -> SP 3 28 4 7 | tiled spatial | 0 | 5
    ["reorder_0", "re", [0, 1, 2, 3, 4, 5, 6, 9, 7, 8]] -> RE 10 7 | tiled | 0 | 0 1 3 5 7 8 9 2 4 6
    ["ann_reduce", "an", ["none", "unroll"]]         -> AN 5 3 | tiled none | 0 | 5
                                                     -> AN 6 3 | tiled unroll | 0 | 6
    ["ann_spatial", "an", ["unroll", "vec", "none"]] -> AN 2 2 | tiled unroll | 0 | 8
                                                     -> AN 3 7 | tiled vectorize | 0 | 9
                                                     -> AN 1 16 | tiled none | 0 | 7

conv2d_NCHWc.x86
    [{CONV}, "NCHW", "NCHW", "float32"]
    ["tile_ic", "sp", [-1, 8]]  -> SP 4 64 8 8 | tiled reduction | 0 | 4
    ["tile_oc", "sp", [-1, 16]] -> SP 1 128 8 16 | tiled spatial | 0 | 1
    ["tile_ow", "sp", [-1, 5]]  -> SP 3 28 6 5 | tiled spatial | 0 | 4
    ["unroll_kw", "ot", true]   -> AN 6 3 | tiled unroll | 0 | 9

conv2d_NCHWc.x86
    [["TENSOR", [1, 64, 35, 35]], ["TENSOR", [128, 64, 1, 1]], [1, 1], [0, 0, 0, 0], [1, 1], "NCHW"]
    ["tile_ow", "sp", [-1, 5]] -> SP 3 35 7 5 | tiled spatial | 0 | 3
    ["tile_oh", "ot", 2]       -> SP 2 35 18 2 | tiled spatial | 0 | 2

conv2d_nchw.cuda
    [["TENSOR", [1, 64, 56, 56]], ["TENSOR", [128, 64, 3, 3]], 1, "SAME", 1, "float32"]
    ["tile_f", "sp", [-1, 4, 8, 2]]     -> SP 1 128 2 4 8 2 | tiled spatial | 0 | 1
    ["tile_y", "sp", [-1, 4, 1, 1]]     -> SP 2 56 14 4 1 1 | tiled spatial | 0 | 5
    ["tile_x", "sp", [-1, 2, 2, 1]]     -> SP 3 56 14 2 2 1 | tiled spatial | 0 | 9
    ["tile_rc", "sp", [-1, 8]]          -> SP 4 64 8 8 | tiled reduction | 0 | 13
    ["tile_ry", "sp", [-1, 3]]          -> SP 5 3 1 3 | tiled reduction | 0 | 15
    ["tile_rx", "sp", [-1, 1]]          -> SP 6 3 3 1 | tiled reduction | 0 | 17
    ["auto_unroll_max_step", "ot", 512] -> PR 512 | tiled auto_unroll_max_step | 0
    ["unroll_explicit", "ot", 1]        -> PR 1 | tiled unroll_explicit | 0

conv2d_nhwc_spatial_pack.arm_cpu
    [["TENSOR", [1, 56, 28, 64]], ["TENSOR", [3, 3, 64, 128]], [1, 1], "VALID", [1, 1]]
    ["tile_co", "sp", [-1, 16]] -> SP 3 128 8 16 | tiled spatial | 0 | 3
    ["tile_oh", "sp", [-1, 2]]  -> SP 1 54 27 2 | tiled spatial | 0 | 1
    ["tile_ow", "sp", [-1, 13]] -> SP 2 26 2 13 | tiled spatial | 0 | 3

depthwise_conv2d_nchw.arm_cpu
    [["TENSOR", [1, 96, 28, 28]], ["TENSOR", [96, 1, 3, 3]], [1, 1], [1, 1, 1, 1], [1, 1]]
    ["tile_c", "sp", [-1, 8]] -> SP 1 96 12 8 | tiled spatial | 0 | 1
    ["tile_h", "sp", [-1, 4]] -> SP 2 28 7 4 | tiled spatial | 0 | 3
    ["tile_w", "sp", [-1, 7]] -> SP 3 28 4 7 | tiled spatial | 0 | 5

depthwise_conv2d_NCHWc.x86
    [["TENSOR", [1, 96, 28, 28]], ["TENSOR", [96, 1, 3, 3]], [1, 1], [1, 1, 1, 1], [1, 1]]
    ["tile_ic", "sp", [-1, 8]] -> TL 8 12 96 | read_cache | -1

# 71 x 71 results in tiles of 4 x 4: 18 * 18 of them.
conv2d_nchw_winograd.arm_cpu
    [["TENSOR", [1, 80, 73, 73]], ["TENSOR", [192, 80, 3, 3]], [1, 1], [0, 0, 0, 0], [1, 1]]
    ["tile_p", "sp", [-1, 4]] -> SP 2 324 81 4 | tiled spatial | 0 | 2
    ["tile_k", "sp", [-1, 8]] -> SP 1 192 24 8 | tiled spatial | 0 | 1
    ["tile_c", "sp", [-1, 2]] -> SP 3 80 40 2 | tiled reduction | 0 | 5

# Tiles of 2 x 2 here, for the height is no multiple of 8.
conv2d_nchw_winograd.cuda
    [["TENSOR", [1, 80, 73, 73]], ["TENSOR", [192, 80, 3, 3]], [1, 1], [0, 0, 0, 0], [1, 1]]
    ["tile_b", "sp", [-1, 1, 1, 1]] -> SP 0 16 16 1 1 1 | tiled spatial | 0 | 0
    ["tile_x", "sp", [-1, 4, 3, 1]] -> SP 2 1296 108 4 3 1 | tiled spatial | 0 | 5
    ["tile_rc", "sp", [-1, 16]]     -> SP 3 80 5 16 | tiled reduction | 0 | 9

dense_nopack.x86
    [{DENSE}]
    ["tile_y", "sp", [-1, 4]]  -> SP 0 16 4 4 | tiled spatial | 0 | 0
    ["tile_x", "sp", [-1, 64]] -> SP 1 512 8 64 | tiled spatial | 0 | 2
    ["tile_k", "sp", [-1, 12]] -> SP 2 768 64 12 | tiled reduction | 0 | 4

dense_pack.x86
    [{DENSE}]
    ["tile_y", "sp", [-1, 2, 8]]  -> SP 0 16 1 2 8 | tiled spatial | 0 | 0
    ["tile_inner", "sp", [-1, 4]] -> SP 0 8 2 4 | write_cache spatial | -1

# The knobs of tensor cores become the tiles that they make.
dense_tensorcore.cuda
    [["TENSOR", [16, 1024], "float32"], ["TENSOR", [1024, 1024], "float32"]]
    ["block_row_warps", "ot", 2]
    ["block_col_warps", "ot", 4]
    ["warp_row_tiles", "ot", 1]
    ["warp_col_tiles", "ot", 2]
    ["chunk", "ot", 8]
    ["offset", "ot", 8]
    ["offsetCS", "ot", 0]
    ["vec", "ot", 4]
    ["wmma_m", "ot", 8]
    -> SP 0 16 1 2 1 8 | tiled spatial | 0 | 0
    -> SP 1 1024 4 4 2 32 | tiled spatial | 0 | 4
    -> SP 2 1024 8 8 16 | tiled reduction | 0 | 8
    -> TZ 8 32 16 | tiled | 0
    -> SA 0 128 8 | read_cache | -1
    -> SA 0 256 0 | write_cache | -1
    -> AN -1 4 | read_cache vectorize | -1

batch_matmul.x86
    [["TENSOR", [12, 128, 64]], ["TENSOR", [12, 64, 32]], [12, 128, 32], "float32", 0, 0]
    ["tile_y", "sp", [-1, 64]] -> SP 1 128 2 64 | tiled spatial | 0 | 1
    ["tile_x", "sp", [-1, 4]]  -> SP 2 32 8 4 | tiled spatial | 0 | 3
    ["tile_k", "sp", [-1, 16]] -> SP 3 64 4 16 | tiled reduction | 0 | 5

batch_matmul.cuda
    [["TENSOR", [12, 128, 64]], ["TENSOR", [12, 32, 64]]]
    ["tile_x", "sp", [-1, 2, 4]] -> SP 2 32 4 2 4 | tiled spatial | 0 | 2
    ["tile_k", "sp", [-1, 16]]   -> SP 3 64 4 16 | tiled reduction | 0 | 5

# Steps of Ansor among the arguments are filled in.
matmul
    [1000, 800, 700, "float32", {STEPS}]
    ["CHW", "ot", "None"]   -> CHW 0 | tiled local | 2
    ["SP_0_0", "ot", 4]     -> SP 0 1000 2 4 20 8 | tiled spatial | 2 | 0
    ["SP_0_2", "ot", 8]     -> SP 1 700 5 1 7 20 | tiled spatial | 2 | 4
    ["SP_2_0", "ot", 16]    -> SP 2 800 50 16 | tiled reduction | 2 | 8
    ["FSP_1_0", "ot", 4]

matmul
    [1000, 800, 700, "float32", {STEPS}]
    ["tile", "ot", 3] -> PR 3 | tiled tile | 0

matmul
    [1000, 800, 700, "float32", {STEPS}]

# Of a workload that nobody knows extents are unknown, and axes count by knob.
unknown
    []
    ["tile_oc", "sp", [-1, 16]] -> SP 0 0 0 16 | tiled spatial | 0
    ["tile_ic", "sp", [-1, 4]]  -> SP 1 0 0 4 | tiled reduction | 0
    ["ann", "an", ["unroll"]]   -> AN -1 0 | tiled unroll | 0
    ["layout", "ot", "None"]    -> PR | tiled layout | 0
"""
#: Knobs that make no sense, and what is counted for each.
SENSELESS = """
    ["tile_x", "xx", [1]]           -> xx
    ["tile_x", "sp", "x"]           -> sp: not a list
    ["tile_x", "sp", [-1, 2.5]]     -> sp: not whole numbers
    ["tile_x", "sp", [-1, -1]]      -> sp: not factors with at most the first left open
    ["tile_x", "sp", [4]]           -> sp: not factors with at most the first left open
    ["tile_x", "sp", [-1, 9223372036854775808]] -> sp: not whole numbers
    ["r", "re", [0, 0]]             -> re: not a permutation
    ["a", "an", ["spin"]]           -> an: no such annotation
    ["a", "an", 3]                  -> an: not a list of annotations
    ["o", "ot", [1]]                -> ot: not a plain value
    ["o", "ot", 9223372036854775808] -> ot: not a plain value
    ["o", "ot"]                     -> not a knob
    null                            -> not a knob
"""
#: What importers ask of an entity, and what they hear.
CHECKS = """
    []                         ->
    [["r", "re", [1, 0]], ["a", "an", ["vec"]], ["o", "ot", 512]] ->
    [["a", "new", {"x": 1}]]   ->
    {}                         -> entity is not a list
    [["a", "ot"]]              -> a knob is not [name, kind, value]
    [[1, "ot", 1]]             -> a knob is not [name, kind, value]
    [["a", "sp", [-1, "4"]]]   -> malformed sp knob
    [["a", "re", [true]]]      -> malformed re knob
    [["a", "an", [1]]]         -> malformed an knob
    [["a", "ot", [1]]]         -> malformed ot knob
"""


def workload(name: str, arguments: Any) -> Workload:
    return program_workload(json.dumps({"dialect": "autotvm", "name": name, "args": arguments}))


def task_of(block: str) -> tuple[Workload, str]:
    """The workload of a block above, and its table."""
    name, arguments, *knobs = [line for line in block.splitlines() if not line.startswith("#")]
    return workload(name, json.loads(arguments)), "\n".join(knobs)


@pytest.mark.parametrize("block", TASKS.strip().split("\n\n"))
def test_a_knob_gets_the_axes_and_extents_of_its_template(block: str) -> None:
    task, table = task_of(block)
    entity, steps = columns(table)
    assert as_lines(AutoTVMReader().read(entity, task)) == steps
    assert check_entity(json.loads(entity)) == ""


#: Of the task of CONV, what is replaced by what.
UNKNOWN = """
    [1, 64, 56, 56] -> [1, 64, 56]
    [1, 64, 56, 56] -> [1, "n", 56, 56]
    [2, 2]          -> [0, 0]
    [2, 2]          -> null
    [1, 1, 1, 1]    -> [1, 1, 1, Infinity]
"""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("conv2d_transpose_nchw.x86", CONV),
        ("conv2d_nchw.cuda", ""),
        ("dense_nopack.x86", '{"TENSOR": 1}, 2'),
        ("conv2d_nchw.cuda", CONV.replace("56, 56", "2, 2").replace("[1, 1, 1, 1]", "[0, 0]")),
        *(("conv2d_nchw.cuda", CONV.replace(sound, odd)) for sound, odd in rows(UNKNOWN)),
    ],
)
def test_an_unknown_task_has_an_empty_template(name: str, arguments: str) -> None:
    assert find_template(name, json.loads(f"[{arguments}]")) == Template()


@pytest.mark.parametrize(("knob", "reason"), rows(SENSELESS))
def test_a_knob_that_makes_no_sense_is_unknown_and_shifts_nothing(knob: str, reason: str) -> None:
    reader = AutoTVMReader()
    task = workload("dense_nopack.x86", json.loads(f"[{DENSE}]"))
    before, after = '["tile_y", "sp", [-1, 4]]', '["tile_k", "sp", [-1, 12]]'
    steps = reader.read(f"[{before}, {knob}, {after}]", task)
    assert steps[1].kind is Kind.UNK
    assert (steps[0], steps[2]) == AutoTVMReader().read(f"[{before}, {after}]", task)


@pytest.mark.parametrize(("entity", "reason"), rows(CHECKS))
def test_the_check_of_importers_names_what_is_wrong(entity: str, reason: str) -> None:
    assert check_entity(json.loads(entity)) == reason


@pytest.mark.data
@pytest.mark.skipif(not AUTOTVM_LOGS.exists(), reason="the published logs do not lie beside the checkout")
def test_factors_of_published_entities_multiply_to_the_extent_of_their_axis() -> None:
    reader = AutoTVMReader()
    for path in sorted(AUTOTVM_LOGS.rglob("random.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for number, line in enumerate(lines):
                if number % 50:
                    continue
                record = json.loads(line)
                name, arguments = record["input"][1:3]
                assert check_entity(record["config"]["entity"]) == ""
                entity = json.dumps(record["config"]["entity"])
                for step in reader.read(entity, workload(name, arguments)):
                    assert step.kind is not Kind.UNK
                    if step.kind is Kind.SP and step.stage == 0:
                        assert step.numbers[1] > 0, (name, step)
                        assert step.loops
                        is_ragged = math.prod(step.numbers[2:]) != step.numbers[1]
                        # That template alone lets a tile of the width, or of two rows, stand over.
                        assert not is_ragged or (name == "conv2d_NCHWc.x86" and step.numbers[0] in (2, 3))
