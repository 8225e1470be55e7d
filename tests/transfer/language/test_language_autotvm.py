from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Workload, WorkloadId
from tests.log_fixtures import AUTOTVM_LOGS
from tests.transfer.language.interpreted_loops import LoopNest
from transfer.errors import TraceError
from transfer.language.autotvm import MAX_KNOBS, AutoTVMReader, check_entity
from transfer.language.autotvm_templates import Template, find_template
from transfer.language.primitives import Kind, Primitive

UNROLL = [["auto_unroll_max_step", "ot", 512], ["unroll_explicit", "ot", 1]]
STEPS = [
    ["CHW", 2, "local"],
    ["SP", 2, 0, 1000, [1, 20, 2], 1],
    ["SP", 2, 4, 700, [1, 7, 20], 1],
    ["SP", 2, 8, 800, [10], 1],
]


def tensor(*shape: int) -> list[Any]:
    return ["TENSOR", list(shape), "float32"]


CONV = [tensor(1, 64, 56, 56), tensor(128, 64, 3, 3), [2, 2], [1, 1, 1, 1], [1, 1]]
POINTWISE = [tensor(1, 64, 35, 35), tensor(128, 64, 1, 1), [1, 1], [0, 0, 0, 0], [1, 1]]
DEPTHWISE = [tensor(1, 96, 28, 28), tensor(96, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1]]
SAME = [tensor(1, 80, 73, 73), tensor(192, 80, 3, 3), [1, 1], [0, 0, 0, 0], [1, 1]]
DENSE = [tensor(16, 768), tensor(512, 768), None, "float32"]


def workload(name: str, arguments: list[Any]) -> Workload:
    return Workload(
        workload_id=WorkloadId("0" * 16),
        name=name,
        operator=name,
        arg_shapes=(),
        arg_dtypes=(),
        flops=0.0,
        networks=(),
        module_json=json.dumps({"dialect": "autotvm", "name": name, "args": arguments}),
    )


def read(entity: list[Any], name: str = "", arguments: list[Any] | None = None) -> tuple[Primitive, ...]:
    reader = AutoTVMReader()
    task = workload(name, arguments or []) if name else None
    sequence = reader.read(json.dumps(entity), task)
    assert not reader.unknown
    return sequence


def splits(sequence: tuple[Primitive, ...]) -> dict[tuple[int, ...], str]:
    return {step.numbers: step.names[2] for step in sequence if step.kind is Kind.SP and step.stage == 0}


def test_a_spatial_pack_convolution_is_read_knob_by_knob() -> None:
    entity = [
        ["tile_co", "sp", [-1, 16]],
        ["tile_oh", "sp", [-1, 2]],
        ["tile_ow", "sp", [-1, 7]],
        ["reorder_0", "re", [0, 1, 2, 3, 4, 5, 6, 9, 7, 8]],
        ["ann_reduce", "an", ["none", "unroll"]],
        ["ann_spatial", "an", ["unroll", "vec", "none"]],
    ]
    steps = read(entity, "conv2d_nchw_spatial_pack.arm_cpu", [*CONV, "float32"])
    tiled = ("", "tiled")
    assert steps == (
        Primitive(Kind.SP, (1, 128, 8, 16), (*tiled, "spatial"), 0, (1,)),
        Primitive(Kind.SP, (2, 28, 14, 2), (*tiled, "spatial"), 0, (3,)),
        Primitive(Kind.SP, (3, 28, 4, 7), (*tiled, "spatial"), 0, (5,)),
        # n co oh ow ci kh kw vc vh vw out of n co vc oh vh ow vw ci kh kw; the innermost loop has 7.
        Primitive(Kind.RE, (10, 7), (*tiled, ""), 0, (0, 1, 3, 5, 7, 8, 9, 2, 4, 6)),
        Primitive(Kind.AN, (5, 3), (*tiled, "none"), 0, (5,)),
        Primitive(Kind.AN, (6, 3), (*tiled, "unroll"), 0, (6,)),
        Primitive(Kind.AN, (2, 2), (*tiled, "unroll"), 0, (8,)),
        Primitive(Kind.AN, (3, 7), (*tiled, "vectorize"), 0, (9,)),
        Primitive(Kind.AN, (1, 16), (*tiled, "none"), 0, (7,)),
    )
    nest = LoopNest({0: (1, 128, 28, 28, 64, 3, 3)})
    for step in steps:
        nest.apply(step)
    assert not nest.mismatches
    assert [loop.extent for loop in nest.stages[0].loops] == [1, 8, 14, 4, 64, 3, 3, 16, 2, 7]
    assert [loop.annotation for loop in nest.stages[0].loops][6:] == ["unroll", "", "unroll", "vectorize"]


@pytest.mark.parametrize(
    ("name", "arguments", "entity", "expected"),
    [
        (
            "conv2d_NCHWc.x86",
            [*CONV, "NCHW", "NCHW", "float32"],
            [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 5]]],
            {(4, 64, 8, 8): "reduction", (1, 128, 8, 16): "spatial", (3, 28, 6, 5): "spatial"},
        ),
        (
            "conv2d_NCHWc.x86",
            [*POINTWISE, "NCHW", "NCHW", "float32"],
            [["tile_ow", "sp", [-1, 5]], ["tile_oh", "ot", 2]],
            {(3, 35, 7, 5): "spatial", (2, 35, 18, 2): "spatial"},
        ),
        (
            "conv2d_nchw.cuda",
            [*CONV[:2], 1, "SAME", 1, "float32"],
            [
                ["tile_f", "sp", [-1, 4, 8, 2]],
                ["tile_y", "sp", [-1, 4, 1, 1]],
                ["tile_x", "sp", [-1, 2, 2, 1]],
                ["tile_rc", "sp", [-1, 8]],
                ["tile_ry", "sp", [-1, 3]],
                ["tile_rx", "sp", [-1, 1]],
            ],
            {
                (1, 128, 2, 4, 8, 2): "spatial",
                (2, 56, 14, 4, 1, 1): "spatial",
                (3, 56, 14, 2, 2, 1): "spatial",
                (4, 64, 8, 8): "reduction",
                (5, 3, 1, 3): "reduction",
                (6, 3, 3, 1): "reduction",
            },
        ),
        (
            "conv2d_nhwc_spatial_pack.arm_cpu",
            [tensor(1, 56, 28, 64), tensor(3, 3, 64, 128), [1, 1], "VALID", [1, 1], "float32"],
            [["tile_co", "sp", [-1, 16]], ["tile_oh", "sp", [-1, 2]], ["tile_ow", "sp", [-1, 13]]],
            {(3, 128, 8, 16): "spatial", (1, 54, 27, 2): "spatial", (2, 26, 2, 13): "spatial"},
        ),
        (
            "depthwise_conv2d_nchw.arm_cpu",
            [*DEPTHWISE, "float32"],
            [["tile_c", "sp", [-1, 8]], ["tile_h", "sp", [-1, 4]], ["tile_w", "sp", [-1, 7]]],
            {(1, 96, 12, 8): "spatial", (2, 28, 7, 4): "spatial", (3, 28, 4, 7): "spatial"},
        ),
        (
            "conv2d_nchw_winograd.arm_cpu",
            [*SAME, "float32"],
            [["tile_p", "sp", [-1, 4]], ["tile_k", "sp", [-1, 8]], ["tile_c", "sp", [-1, 2]]],
            # 71 x 71 results in tiles of 4 x 4: 18 * 18 of them.
            {(2, 324, 81, 4): "spatial", (1, 192, 24, 8): "spatial", (3, 80, 40, 2): "reduction"},
        ),
        (
            "conv2d_nchw_winograd.cuda",
            [*SAME, "float32"],
            [["tile_b", "sp", [-1, 1, 1, 1]], ["tile_x", "sp", [-1, 4, 3, 1]], ["tile_rc", "sp", [-1, 16]]],
            # Tiles of 2 x 2 here, for the height is no multiple of 8.
            {
                (0, 16, 16, 1, 1, 1): "spatial",
                (2, 1296, 108, 4, 3, 1): "spatial",
                (3, 80, 5, 16): "reduction",
            },
        ),
        (
            "dense_nopack.x86",
            DENSE,
            [["tile_y", "sp", [-1, 4]], ["tile_x", "sp", [-1, 64]], ["tile_k", "sp", [-1, 12]]],
            {(0, 16, 4, 4): "spatial", (1, 512, 8, 64): "spatial", (2, 768, 64, 12): "reduction"},
        ),
        (
            "batch_matmul.x86",
            [tensor(12, 128, 64), tensor(12, 64, 32), [12, 128, 32], "float32", 0, 0],
            [["tile_y", "sp", [-1, 64]], ["tile_x", "sp", [-1, 4]], ["tile_k", "sp", [-1, 16]]],
            {(1, 128, 2, 64): "spatial", (2, 32, 8, 4): "spatial", (3, 64, 4, 16): "reduction"},
        ),
        (
            "batch_matmul.cuda",
            [tensor(12, 128, 64), tensor(12, 32, 64)],
            [["tile_x", "sp", [-1, 2, 4]], ["tile_k", "sp", [-1, 16]]],
            {(2, 32, 4, 2, 4): "spatial", (3, 64, 4, 16): "reduction"},
        ),
    ],
)
def test_splits_get_the_axes_and_extents_of_their_template(
    name: str, arguments: list[Any], entity: list[Any], expected: dict[tuple[int, ...], str]
) -> None:
    assert splits(read(entity, name, arguments)) == expected


def test_other_choices_stay_numbers() -> None:
    *_, limit, explicit = read(UNROLL, "conv2d_nchw.cuda", [*CONV, "float32"])
    assert limit == Primitive(Kind.PR, (512,), ("", "tiled", "auto_unroll_max_step"), 0)
    assert explicit.numbers == (1,)
    kept = read([["unroll_kw", "ot", True]], "conv2d_NCHWc.x86", [*CONV, "NCHW", "NCHW", "float32"])
    assert kept == (Primitive(Kind.AN, (6, 3), ("", "tiled", "unroll"), 0, (6,)),)
    text = read([["layout", "ot", "None"]])
    assert text == (Primitive(Kind.PR, (), ("", "tiled", "layout"), 0),)


def test_splits_of_other_stages_do_not_pass_for_the_main_one() -> None:
    packed = read([["tile_ic", "sp", [-1, 8]]], "depthwise_conv2d_NCHWc.x86", [*DEPTHWISE, "NCHW", "NCHW"])
    assert packed == (Primitive(Kind.LAYOUT, (8, 12, 96), ("", "read_cache", ""), -1),)
    cached = read([["tile_y", "sp", [-1, 2, 8]], ["tile_inner", "sp", [-1, 4]]], "dense_pack.x86", DENSE)
    assert cached[1] == Primitive(Kind.SP, (0, 8, 2, 4), ("", "write_cache", "spatial"), -1)


def test_tensor_core_knobs_become_the_tiles_they_make() -> None:
    knobs = {
        "block_row_warps": 2,
        "block_col_warps": 4,
        "warp_row_tiles": 1,
        "warp_col_tiles": 2,
        "chunk": 8,
        "offset": 8,
        "offsetCS": 0,
        "vec": 4,
        "wmma_m": 8,
    }
    entity = [[name, "ot", value] for name, value in knobs.items()]
    steps = read(entity, "dense_tensorcore.cuda", [tensor(16, 1024), tensor(1024, 1024)])
    assert [(step.kind, step.numbers) for step in steps] == [
        (Kind.SP, (0, 16, 1, 2, 1, 8)),
        (Kind.SP, (1, 1024, 4, 4, 2, 32)),
        (Kind.SP, (2, 1024, 8, 8, 16)),
        (Kind.TENSORIZE, (8, 32, 16)),
        (Kind.SA, (0, 128, 8)),
        (Kind.SA, (0, 256, 0)),
        (Kind.AN, (-1, 4)),
    ]


def test_without_a_workload_extents_are_unknown_and_axes_count_by_knob() -> None:
    steps = read([["tile_oc", "sp", [-1, 16]], ["tile_ic", "sp", [-1, 4]], ["ann", "an", ["unroll"]]])
    assert [(step.kind, step.numbers, step.names[2]) for step in steps] == [
        (Kind.SP, (0, 0, 0, 16), "spatial"),
        (Kind.SP, (1, 0, 0, 4), "reduction"),
        (Kind.AN, (-1, 0), "unroll"),
    ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("conv2d_transpose_nchw.x86", CONV),
        ("conv2d_nchw.cuda", []),
        ("conv2d_nchw.cuda", [tensor(1, 64, 56), *CONV[1:]]),
        ("conv2d_nchw.cuda", [["TENSOR", [1, "n", 56, 56], "float32"], *CONV[1:]]),
        ("conv2d_nchw.cuda", [CONV[0], CONV[1], [0, 0], *CONV[3:]]),
        ("conv2d_nchw.cuda", [CONV[0], CONV[1], None, *CONV[3:]]),
        ("conv2d_nchw.cuda", [tensor(1, 64, 2, 2), *CONV[1:3], [0, 0], [1, 1]]),
        ("conv2d_nchw.cuda", [*CONV[:2], [2, 2], [1, 1, 1, float("inf")], [1, 1]]),
        ("dense_nopack.x86", [{"TENSOR": 1}, 2]),
    ],
)
def test_an_unknown_task_has_an_empty_template(name: str, arguments: list[Any]) -> None:
    assert find_template(name, arguments) == Template()


def test_ansor_steps_among_the_arguments_are_filled_in() -> None:
    arguments = [1000, 800, 700, "float32", STEPS]
    entity = [["SP_0_0", "ot", 4], ["SP_0_2", "ot", 8], ["SP_2_0", "ot", 16], ["FSP_1_0", "ot", 4]]
    steps = read([["CHW", "ot", "None"], *entity], "matmul", arguments)
    assert [step.numbers for step in steps] == [
        (0,),
        (0, 1000, 2, 4, 20, 8),
        (1, 700, 5, 1, 7, 20),
        (2, 800, 50, 16),
    ]
    # The steps of the task itself stay as they are, and other knobs are plain ones.
    assert read([], "matmul", arguments) == ()
    assert read([["tile", "ot", 3]], "matmul", arguments)[0].kind is Kind.PR


@pytest.mark.parametrize(
    ("knob", "reason"),
    [
        (["tile_x", "xx", [1]], "xx"),
        (["tile_x", "sp", "x"], "sp: not a list"),
        (["tile_x", "sp", [-1, 2.5]], "sp: not whole numbers"),
        (["tile_x", "sp", [-1, -1]], "sp: not factors with at most the first left open"),
        (["tile_x", "sp", [4]], "sp: not factors with at most the first left open"),
        (["tile_x", "sp", [-1, 2**70]], "sp: not whole numbers"),
        (["r", "re", [0, 0]], "re: not a permutation"),
        (["a", "an", ["spin"]], "an: no such annotation"),
        (["a", "an", 3], "an: not a list of annotations"),
        (["o", "ot", [1]], "ot: not a plain value"),
        (["o", "ot", 2**70], "ot: not a plain value"),
        (["o", "ot"], "not a knob"),
        (None, "not a knob"),
    ],
)
def test_a_knob_that_makes_no_sense_is_unknown_and_shifts_nothing(knob: Any, reason: str) -> None:
    reader = AutoTVMReader()
    task = workload("dense_nopack.x86", DENSE)
    others = [["tile_y", "sp", [-1, 4]], ["tile_k", "sp", [-1, 12]]]
    steps = reader.read(json.dumps([others[0], knob, others[1]]), task)
    assert reader.unknown == Counter({reason: 1})
    assert steps[1] == Primitive(Kind.UNK)
    assert (steps[0], steps[2]) == read(others, "dense_nopack.x86", DENSE)


@pytest.mark.parametrize("text", ["", "{}", "[", "3", "[" * 100_000])
def test_what_is_no_entity_is_one_clear_error(text: str) -> None:
    with pytest.raises(TraceError, match="AutoTVM entity"):
        AutoTVMReader().read(text)


def test_too_many_knobs_are_refused() -> None:
    with pytest.raises(TraceError, match="at most 64"):
        AutoTVMReader().read(json.dumps([["a", "ot", 1]] * (MAX_KNOBS + 1)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], ""),
        ([["tile_oc", "sp", [-1, 16]], ["r", "re", [1, 0]], ["a", "an", ["vec"]], *UNROLL], ""),
        ([["a", "new", {"x": 1}]], ""),
        ({}, "entity is not a list"),
        ([["a", "ot", 1]] * (MAX_KNOBS + 1), "too many knobs"),
        ([["a", "ot"]], "a knob is not [name, kind, value]"),
        ([[1, "ot", 1]], "a knob is not [name, kind, value]"),
        ([["a", "sp", [-1, "4"]]], "malformed sp knob"),
        ([["a", "re", [True]]], "malformed re knob"),
        ([["a", "an", [1]]], "malformed an knob"),
        ([["a", "ot", [1]]], "malformed ot knob"),
    ],
)
def test_the_check_of_importers_names_what_is_wrong(value: Any, reason: str) -> None:
    assert check_entity(value) == reason


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**65) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
knobs = st.lists(
    st.tuples(
        st.sampled_from(["tile_oc", "tile_y", "tile_k", "ann_spatial", "reorder_0", "SP_0_0", "wmma_m"]),
        st.sampled_from(["sp", "re", "an", "ot", "xx"]),
        values,
    ).map(list)
    | values,
    max_size=6,
)
tasks = st.sampled_from(
    ["conv2d_NCHWc.x86", "depthwise_conv2d_nchw.cuda", "dense_pack.x86", "batch_matmul.cuda", "matmul"]
)


@given(
    knobs,
    tasks,
    st.lists(values | st.sampled_from([*CONV, STEPS]), max_size=6) | st.sampled_from([CONV, DENSE]),
)
def test_no_value_crashes_reader_or_check(entity: list[Any], name: str, arguments: list[Any]) -> None:
    reader = AutoTVMReader()
    sequence = reader.read(json.dumps(entity), workload(name, arguments))
    assert sum(reader.unknown.values()) == sum(step.kind is Kind.UNK for step in sequence)
    assert all(type(number) is int for step in sequence for number in step.numbers)
    check_entity(entity)
    nest = LoopNest()
    for step in sequence:
        nest.apply(step)


@pytest.mark.data
@pytest.mark.skipif(not AUTOTVM_LOGS.exists(), reason="the published logs do not lie beside the checkout")
def test_factors_of_published_entities_multiply_to_the_extent_of_their_axis() -> None:
    reader = AutoTVMReader()
    tasks_met: dict[str, Workload] = {}
    exact: Counter[str] = Counter()
    ragged: Counter[str] = Counter()
    for path in sorted(AUTOTVM_LOGS.rglob("random.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for number, line in enumerate(lines):
                if number % 50:
                    continue
                record = json.loads(line)
                name, arguments = record["input"][1:3]
                key = json.dumps([name, arguments])
                if key not in tasks_met:
                    tasks_met[key] = workload(name, arguments)
                assert check_entity(record["config"]["entity"]) == ""
                for step in reader.read(json.dumps(record["config"]["entity"]), tasks_met[key]):
                    if step.kind is Kind.SP and step.stage == 0:
                        assert step.numbers[1] > 0, (name, step)
                        assert step.loops
                        same = math.prod(step.numbers[2:]) == step.numbers[1]
                        (exact if same else ragged)[f"{name} {step.numbers[0]}"] += 1
    assert not reader.unknown
    # That template alone lets a tile of the width, or of two rows, stand over.
    assert ragged.keys() <= {"conv2d_NCHWc.x86 2", "conv2d_NCHWc.x86 3"}
    assert sum(exact.values()) > 15 * sum(ragged.values())
