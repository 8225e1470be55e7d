"""Modules and schedules that were made to take for ever: each is read in its own length, or refused.

`tests/hostile_corpus` has modules with shared or circular parts, and stages without end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.records import canonical_json
from tests.program_fixtures import nrm_module
from transfer.errors import BudgetError, TraceError
from transfer.features.access import block_accesses
from transfer.features.blocks import LAYOUTS, published_features
from transfer.features.slots import block_bucket, encode
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import MAX_ITEMS, MAX_STEPS, check_steps
from transfer.language.autotvm import MAX_KNOBS, AutoTVMReader, check_entity
from transfer.language.knobs import KnobReader
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import MAX_TEXT
from transfer.language.program import program_stages

#: A module of one block, C, in a loop of 8, that reads and writes one place of a buffer.
ONE_BLOCK = """{"root_index": 20, "nodes": [
    {"type": "None"},
    {"type": "int", "data": 8},
    {"type": "ir.IntImm", "data": {"value": 1}},
    {"type": "ir.Var", "data": {}},
    {"type": "ir.Range", "data": {"extent": 2}},
    {"type": "tirx.IterVar", "data": {"iter_type": 0, "var": 3, "dom": 4}},
    {"type": "DataType", "data": {"dtype": "float32"}},
    {"type": "ffi.Array", "data": [2]},
    {"type": "Type", "data": {"dtype": 6, "shape": 7}},
    {"type": "tirx.Buffer", "data": {"ty": 8}},
    {"type": "ir.Range", "data": {"min": 3, "extent": 2}},
    {"type": "ffi.Array", "data": [10]},
    {"type": "tirx.BufferRegion", "data": {"source": 9, "region": 11}},
    {"type": "ffi.Array", "data": [12]},
    {"type": "ffi.Array", "data": [5]},
    {"type": "ffi.String", "data": "C"},
    {"type": "s_tir.SBlock",
     "data": {"iter_vars": 14, "reads": 13, "writes": 13, "name_hint": 15, "body": 0}},
    {"type": "ffi.Array", "data": [3]},
    {"type": "s_tir.SBlockRealize", "data": {"iter_values": 17, "block": 16}},
    {"type": "tirx.For", "data": {"loop_var": 3, "extent": 2, "body": 18}},
    {"type": "tirx.PrimFunc", "data": {"body": 19}}
]}"""
#: The places in it that are changed.
SHAPE, PLACE, AXES, BLOCK, VALUES, LOOP = 7, 10, 14, 16, 17, 19


class Graph:
    """A module in TVM's form, to be changed."""

    def __init__(self, text: str) -> None:
        self.value: dict[str, Any] = json.loads(text)
        self.nodes: list[dict[str, Any]] = self.value["nodes"]

    def add(self, kind: str, data: Any) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def sequence(self, statements: list[int]) -> int:
        return self.add("tirx.SeqStmt", {"seq": self.add("ffi.Array", statements)})

    def data(self, place: int) -> Any:
        return self.nodes[place]["data"]

    @property
    def text(self) -> str:
        return canonical_json(self.value)


def root_of(graph: Graph) -> dict[str, Any]:
    blocks = [node["data"] for node in graph.nodes if node["type"] == "s_tir.SBlock"]
    return next(block for block in blocks if graph.data(block["name_hint"]) == "root")


def no_write(graph: Graph) -> None:
    graph.data(BLOCK)["writes"] = graph.add("ffi.Array", [])


def more_dimensions_than_the_region(graph: Graph) -> None:
    graph.nodes[SHAPE]["data"] = graph.data(SHAPE) * 2


def one_variable_for_two_axes(graph: Graph) -> None:
    graph.nodes[AXES]["data"] = graph.data(AXES) * 2
    other = graph.add("ir.Var", {})
    graph.data(VALUES).append(other)
    graph.data(LOOP)["body"] = graph.add("tirx.For", {**graph.data(LOOP), "loop_var": other})
    graph.data(PLACE)["min"] = other


@pytest.mark.parametrize("change", [no_write, more_dimensions_than_the_region, one_variable_for_two_axes])
def test_a_block_whose_parts_do_not_fit_together_tells_nothing(change: Callable[[Graph], None]) -> None:
    graph = Graph(ONE_BLOCK)
    assert list(block_accesses(graph.text)) == ["C"]
    change(graph)
    assert block_accesses(graph.text) == {}


def long_lists(graph: Graph) -> None:
    """A long list that many blocks share."""
    axis = next(place for place, node in enumerate(graph.nodes) if node["type"] == "tirx.IterVar")
    block, realize = (
        next(node["data"] for node in graph.nodes if node["type"] == kind)
        for kind in ("s_tir.SBlock", "s_tir.SBlockRealize")
    )
    block["iter_vars"] = graph.add("ffi.Array", [axis] * 4000)
    realize["iter_values"] = graph.add("ffi.Array", [1] * 4000)


@pytest.mark.parametrize(
    ("count", "change", "reason"),
    [(300, long_lists, "takes more work"), (513, lambda _: None, "more than 512 blocks")],
    ids=["lists", "blocks"],
)
def test_a_module_beyond_every_program_is_refused(
    count: int, change: Callable[[Graph], None], reason: str
) -> None:
    graph = Graph(nrm_module())
    change(graph)
    realize = next(node["data"] for node in graph.nodes if node["type"] == "s_tir.SBlockRealize")
    root_of(graph)["body"] = graph.sequence(
        [graph.add("s_tir.SBlockRealize", dict(realize)) for _ in range(count)]
    )
    with pytest.raises(BudgetError, match=reason):
        program_stages(graph.text)


# ---- schedules ----


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (AnsorReader().read, "Ansor trace"),
        (AutoTVMReader().read, "AutoTVM entity"),
        (KnobReader().read, "knobs|configuration"),
        (MetaScheduleReader().read, "MetaSchedule"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_schedule_is_one_clear_error(read: Callable[[str], Any], words: str) -> None:
    for text in ("", "{", "[", "3", "null", '"SP"', "[" * 100_000, "[" + " " * MAX_TEXT + "]"):
        with pytest.raises(TraceError, match=words):
            read(text)


def schedule(*instructions: Any, decisions: Any = ()) -> str:
    """A trace that begins with a block, b0, and its loops, l1 to l3."""
    head = [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]
    return canonical_json([[*head, *instructions], list(decisions)])


@pytest.mark.parametrize(
    ("read", "check", "item", "most"),
    [
        (AnsorReader().read, check_steps, ["CI", 0], MAX_STEPS),
        (AutoTVMReader().read, check_entity, ["a", "ot", 1], MAX_KNOBS),
    ],
    ids=["steps", "knobs"],
)
def test_more_parts_than_any_schedule_has_are_refused(
    read: Callable[[str], Any], check: Callable[[Any], str], item: list[Any], most: int
) -> None:
    assert len(read(json.dumps([item] * most))) == most
    assert check([item] * (most + 1)).startswith("too many ")
    with pytest.raises(TraceError, match=f"at most {most}"):
        read(json.dumps([item] * (most + 1)))


@pytest.mark.parametrize("kind", ["Fuse", "Reorder"])
def test_thousands_of_loops_looked_through_for_each_other_are_over_budget(kind: str) -> None:
    loops = [f"l{number}" for number in range(4000)]
    trace = schedule(
        ["GetLoops", ["b0"], [], loops],
        *([kind, loops[:200], [1], ["l9999"]] for _ in range(50)),
        *(["Vectorize", [loop], [], []] for loop in loops[200:]),
    )
    with pytest.raises(BudgetError, match="MetaSchedule trace takes more work"):
        MetaScheduleReader().read(trace)


@pytest.mark.parametrize(("count", "factor"), [(3000, 2**62), (16, 2**30), (40, 2**62)])
def test_a_split_into_thousands_of_factors_has_a_product_of_64_bits(count: int, factor: int) -> None:
    factors = [f"v{number}" for number in range(count)]
    sample = ["SamplePerfectTile", [], [count, 64], factors]
    split = ["Split", ["l1", *factors], [1], [f"l{number}" for number in range(4, count + 4)]]
    [step] = MetaScheduleReader().read(schedule(sample, split, decisions=[[2, [factor] * count]]))
    assert step.numbers[1] == 2**63 - 1
    assert np.isfinite(published_features([[step]], LAYOUTS["cpu"])).all()


def test_a_trace_longer_than_any_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TraceError, match=f"characters, at most {MAX_TEXT} are read"):
        MetaScheduleReader().read(schedule(["Annotate", ["b0", "x" * MAX_TEXT], ["note"], []]))


#: Steps of Ansor, and what becomes of them.
ANSOR = [
    # A stage of endless loops stops growing.
    (
        [["SP", 0, 0, 0, [2] * 200, 1], ["SP", 0, 0, 0, [2] * 200, 1], ["CA", 1, 0, 999], ["CA", 1, 0, 9]],
        "SP UNK UNK CA",
    ),
    # Every step that follows such a split would multiply all of its factors again: a minute a megabyte.
    (
        [["SP", 0, 0, 1, [1] * (MAX_ITEMS + 1), 1], ["FSP", 1, 0, 0, 1], ["RE", 2, [*range(MAX_ITEMS + 1)]]],
        "UNK UNK UNK",
    ),
]


@pytest.mark.parametrize(("steps", "kinds"), ANSOR, ids=["loops", "lists"])
def test_ansor_steps_beyond_every_program_are_unknown_however_they_are_written(
    steps: list[Any], kinds: str
) -> None:
    for text in (canonical_json(steps), json.dumps(steps)):
        assert " ".join(step.kind for step in AnsorReader().read(text)) == kinds


def test_extents_that_a_follower_needs_are_cut_to_64_bits() -> None:
    steps = [
        ["SP", 0, 0, 8, [2, 2, 2], 1],
        ["FSP", 1, 0, 0, 4],
        ["SP", 1, 3, 0, [2**60] * 60, 1],
        ["CA", 0, 1, 0],
        ["RF", 0, 0, 1],
    ]
    *_, factored = AnsorReader().read(canonical_json(steps))
    assert factored.numbers == (0, 1, 2**60)
    assert np.isfinite(encode(factored)[1]).all()


def test_the_number_in_an_endless_block_name_is_not_looked_for() -> None:
    # Looking for it would take the square of the length: hours.
    assert 2 <= block_bucket("_1" * 1_000_000 + "x") < 32
    assert block_bucket("T_add_1") == block_bucket("T_add")


def test_half_a_pair_of_utf_16_in_a_name_is_a_name() -> None:
    trace = '[[["GetSBlock",[],["\\ud800_1","main"],["b0"]],["ComputeInline",["b0"],[],[]]],[]]'
    [step] = MetaScheduleReader().read(trace)
    assert encode(step)[0][3] == block_bucket("\ud800")
    assert 2 <= block_bucket("\ud800") < 32


def test_strides_that_no_operator_has_tell_nothing() -> None:
    call = """{"dialect": "autotvm", "name": "conv2d_nchw.cuda", "args": [
        ["TENSOR", [1, 3, 8, 8], "float32"], ["TENSOR", [8, 3, 3, 3], "float32"],
        [1000000000000000000, 1], [1, 1, 1, 1], [1e300, 1000000000000000000]]}"""
    assert block_accesses(call) == {}
