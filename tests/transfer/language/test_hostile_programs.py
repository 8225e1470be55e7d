"""Modules and schedules that were made to take for ever: each is read in its own length, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.records import Candidate, Workload, canonical_json
from tests.program_fixtures import nrm_module, program_workload
from transfer.errors import BudgetError, TraceError
from transfer.features.access import block_accesses
from transfer.features.extractor import Extractor
from transfer.features.published_features import LAYOUTS, published_features
from transfer.features.slots import block_bucket, encode
from transfer.features.summary import SUMMARY_NAMES
from transfer.language import program as program_module
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import MAX_ITEMS
from transfer.language.budget import MAX_TEXT
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind
from transfer.language.program import program_stages


class Graph:
    """TVM's module of the fixtures, to be changed."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = json.loads(nrm_module())
        self.nodes: list[dict[str, Any]] = self.value["nodes"]

    def add(self, kind: str, data: Any) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def root(self) -> dict[str, Any]:
        return next(
            node["data"]
            for node in self.nodes
            if node["type"] == "s_tir.SBlock" and self.nodes[node["data"]["name_hint"]]["data"] == "root"
        )

    def blocks(self) -> list[dict[str, Any]]:
        return [
            node["data"]
            for node in self.nodes
            if node["type"] == "s_tir.SBlock" and node["data"] is not self.root()
        ]

    @property
    def text(self) -> str:
        return canonical_json(self.value)


def shared_statements(levels: int) -> str:
    """Every level holds the one below twice: 2 ** levels statements to who walks it as a tree."""
    graph = Graph()
    root = graph.root()
    body = root["body"]
    for _ in range(levels):
        body = graph.add("tirx.SeqStmt", {"seq": graph.add("ffi.Array", [body, body])})
    root["body"] = body
    return graph.text


def test_a_statement_in_many_places_is_walked_once() -> None:
    assert program_stages(shared_statements(150)) == program_stages(nrm_module())


@pytest.mark.parametrize("kind", ["Add", "Mul", "FloorMod"])
def test_an_index_that_shares_its_parts_is_walked_once(kind: str) -> None:
    text = accessed(lambda graph, variable: deep_index(graph, variable, kind, 30))
    found = block_accesses(text)
    assert found["C"].buffers[0].coefficients.max() > 0


def deep_index(graph: Graph, variable: int, kind: str, levels: int) -> int:
    index = variable
    for _ in range(levels):
        index = graph.add(f"tirx.{kind}", {"a": index, "b": index})
    return index


def accessed(index_of: Callable[[Graph, int], int]) -> str:
    """A module of one block, C, that reads and writes one buffer at an index."""
    graph = Graph()
    graph.nodes[:] = [{"type": "None"}]
    add = graph.add
    integer = add("ir.IntImm", {"value": add("int", 8)})
    variable = add("ir.Var", {})
    axis = add("tirx.IterVar", {"iter_type": 0, "var": variable, "dom": add("ir.Range", {"extent": integer})})
    ty = add(
        "ffi.TensorType",
        {"dtype": add("DataType", {"dtype": "float32"}), "shape": add("ffi.Array", [integer])},
    )
    buffer = add("tirx.Buffer", {"ty": add("Type", ty)})
    for node in graph.nodes:
        if node["type"] == "Type":
            node["data"] = graph.nodes[ty]["data"]
    place = add("ir.Range", {"min": index_of(graph, variable), "extent": integer})
    region = add("tirx.BufferRegion", {"source": buffer, "region": add("ffi.Array", [place])})
    block = add(
        "s_tir.SBlock",
        {
            "iter_vars": add("ffi.Array", [axis]),
            "reads": add("ffi.Array", [region]),
            "writes": add("ffi.Array", [region]),
            "name_hint": add("ffi.String", "C"),
            "body": 0,
        },
    )
    realize = add("s_tir.SBlockRealize", {"iter_values": add("ffi.Array", [variable]), "block": block})
    loop = add("tirx.For", {"loop_var": variable, "extent": integer, "body": realize})
    add("tirx.PrimFunc", {"body": loop})
    return graph.text


def loop_around_itself() -> str:
    """A module whose loop holds itself and a block: the way from the block to the root never ends."""
    graph = Graph()
    graph.value = json.loads(accessed(lambda graph, variable: variable))
    graph.nodes = graph.value["nodes"]
    loop = next(node for node in graph.nodes if node["type"] == "tirx.For")
    both = graph.add("ffi.Array", [graph.nodes.index(loop), loop["data"]["body"]])
    loop["data"]["body"] = graph.add("tirx.SeqStmt", {"seq": both})
    return graph.text


def test_a_loop_around_itself_is_over_budget() -> None:
    with pytest.raises(BudgetError, match="takes more work"):
        block_accesses(loop_around_itself())


def no_write(graph: Graph) -> None:
    node_of(graph, "s_tir.SBlock")["writes"] = graph.add("ffi.Array", [])


def more_dimensions_than_the_region(graph: Graph) -> None:
    shape = graph.nodes[node_of(graph, "Type")["shape"]]
    shape["data"] = shape["data"] * 2


def one_variable_for_two_axes(graph: Graph) -> None:
    block, realize = (node_of(graph, kind) for kind in ("s_tir.SBlock", "s_tir.SBlockRealize"))
    axes = graph.nodes[block["iter_vars"]]
    axes["data"] = axes["data"] * 2
    other = graph.add("ir.Var", {})
    graph.nodes[realize["iter_values"]]["data"].append(other)
    loop = node_of(graph, "tirx.For")
    loop["body"] = graph.add("tirx.For", {**loop, "loop_var": other})
    region = graph.nodes[node_of(graph, "tirx.BufferRegion")["region"]]["data"]
    graph.nodes[region[0]]["data"]["min"] = other


def node_of(graph: Graph, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node["data"] for node in graph.nodes if node["type"] == kind)
    return found


@pytest.mark.parametrize("change", [no_write, more_dimensions_than_the_region, one_variable_for_two_axes])
def test_a_block_whose_parts_do_not_fit_together_tells_nothing(change: Callable[[Graph], None]) -> None:
    graph = Graph()
    graph.value = json.loads(accessed(lambda graph, variable: variable))
    graph.nodes = graph.value["nodes"]
    assert list(block_accesses(graph.text)) == ["C"]
    change(graph)
    assert block_accesses(graph.text) == {}


def test_a_module_that_writes_nothing_gives_features() -> None:
    graph = Graph()
    graph.value = json.loads(accessed(lambda graph, variable: variable))
    graph.nodes = graph.value["nodes"]
    no_write(graph)
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["SamplePerfectTile", ["l1"], [4, 64], ["v1", "v2", "v3", "v4"]],
        ["Split", ["l1", "v1", "v2", "v3", "v4"], [1], ["l2", "l3", "l4", "l5"]],
    ]
    workload = program_workload(graph.text)
    trace = canonical_json([instructions, [[3, [1, 2, 2, 2]]]])
    block = Extractor().extract([workload], [Candidate(workload_id=workload.workload_id, trace=trace)])
    assert block.summary[0, SUMMARY_NAMES.index("tiled")] == 1
    assert np.isfinite(block.summary).all()


def test_a_long_list_that_many_blocks_share_is_over_budget() -> None:
    graph = Graph()
    [block] = graph.blocks()[:1]
    axis = next(index for index, node in enumerate(graph.nodes) if node["type"] == "tirx.IterVar")
    block["iter_vars"] = graph.add("ffi.Array", [axis] * 4000)
    realize = next(node for node in graph.nodes if node["type"].endswith("Realize"))
    realize["data"]["iter_values"] = graph.add("ffi.Array", [1] * 4000)
    body = [graph.add("s_tir.SBlockRealize", dict(realize["data"])) for _ in range(300)]
    graph.root()["body"] = graph.add("tirx.SeqStmt", {"seq": graph.add("ffi.Array", body)})
    with pytest.raises(BudgetError, match="takes more work"):
        program_stages(graph.text)


def test_more_blocks_than_any_program_has_are_refused() -> None:
    graph = Graph()
    realize = next(node for node in graph.nodes if node["type"].endswith("Realize"))
    body = [graph.add("s_tir.SBlockRealize", dict(realize["data"])) for _ in range(513)]
    graph.root()["body"] = graph.add("tirx.SeqStmt", {"seq": graph.add("ffi.Array", body)})
    with pytest.raises(BudgetError, match="more than 512 blocks"):
        program_stages(graph.text)


def test_a_module_over_budget_is_read_once_for_all_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(text: str) -> Any:
        asked.append(text)
        raise BudgetError("too much")

    monkeypatch.setattr("transfer.language.meta_schedule.program_stages", refuse)
    assert program_module.program_stages is program_stages
    reader, workload = MetaScheduleReader(), program_workload(nrm_module())
    for _ in range(3):
        with pytest.raises(TraceError, match="too much"):
            reader.read(canonical_json([[], []]), workload)
    assert len(asked) == 1


def refused_by_extractor(workload: Workload, trace: str, dialect: str = "meta_schedule") -> str:
    with pytest.raises(TraceError) as caught:
        Extractor().read(Candidate(workload_id=workload.workload_id, trace=trace, dialect=dialect), workload)
    return str(caught.value)


def test_a_candidate_of_a_module_over_budget_cannot_be_read() -> None:
    workload = program_workload(loop_around_itself())
    for _ in range(2):
        assert "takes more work" in refused_by_extractor(workload, canonical_json([[], []]))


# ---- schedules ----


def meta_schedule(instructions: list[Any]) -> str:
    return canonical_json([instructions, []])


@pytest.mark.parametrize("kind", ["Fuse", "Reorder"])
def test_thousands_of_loops_looked_through_for_each_other_are_over_budget(kind: str) -> None:
    loops = [f"l{number}" for number in range(4000)]
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], loops],
        *([kind, loops[:200], [1], ["l9999"]] for _ in range(50)),
        *(["Vectorize", [loop], [], []] for loop in loops[200:]),
    ]
    with pytest.raises(BudgetError, match="MetaSchedule trace takes more work"):
        MetaScheduleReader().read(meta_schedule(instructions))


def test_a_loop_that_a_reorder_names_twice_stays_where_it_is() -> None:
    twice = ["Reorder", ["l1", "l1", "l2"], [], []]
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        *(twice, twice, ["Reorder", ["l1"], [], []], ["Vectorize", ["l2"], [], []]),
    ]
    steps = MetaScheduleReader().read(meta_schedule(instructions))
    assert [step.loops for step in steps] == [(), (), (0, 1, 2), (1,)]


def test_sampled_choices_are_kept_once_for_all_outputs() -> None:
    choices = list(range(3000))
    outputs = [f"v{number}" for number in range(3000)]
    instructions = [
        ["SampleCategorical", [], [choices, []], outputs],
        *(["Annotate", ["b0", one], ["x"], []] for one in outputs[:5]),
    ]
    trace = canonical_json([instructions, [[0, 7]]])
    steps = MetaScheduleReader().read(trace)
    assert [step.numbers for step in steps] == [(-1, 7)] * 5


@pytest.mark.parametrize(("count", "factor"), [(3000, 2**62), (16, 2**30), (40, 2**62)])
def test_a_split_into_thousands_of_factors_has_a_product_of_64_bits(count: int, factor: int) -> None:
    factors = [f"v{number}" for number in range(count)]
    instructions = [
        ["SamplePerfectTile", [], [count, 64], factors],
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["Split", ["l1", *factors], [1], [f"l{number}" for number in range(2, count + 2)]],
    ]
    trace = canonical_json([instructions, [[0, [factor] * count]]])
    [step] = MetaScheduleReader().read(trace)
    assert step.numbers[1] == 2**63 - 1
    assert np.isfinite(published_features([[step]], LAYOUTS["cpu"])).all()


def test_plans_of_long_texts_are_not_all_kept() -> None:
    reader = MetaScheduleReader()
    for number in range(40):
        long = ["Annotate", ["b0", "x" * 500_000], [f"note{number}"], []]
        reader.read(canonical_json([[["SampleCategorical", [], [[1], [1.0]], ["v0"]], long], [[0, 0]]]))
    assert sum(len(text) for _, text in reader._plans) < 13_000_000


def test_what_is_kept_of_faulty_candidates_counts() -> None:
    reader = MetaScheduleReader()
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["SampleComputeLocation", ["b0"], [], ["l1"]],
        ["SamplePerfectTile", ["l2"], [2, 64], ["v1", "v2"]],
        ["Split", ["l2", "v1", "v2"], [1], ["l3", "l4"]],
        *(["ComputeInline", ["b0"], [], []] for _ in range(300)),
    ]
    for read, first in ((reader.read, 0), (reader.check, 10)):
        before = reader._plan_chars
        for location in range(first, first + 10):
            with pytest.raises(TraceError, match="needs 2 tile factors, got None"):
                read(canonical_json([instructions, [[1, location]]]))
        assert reader._plan_chars - before > 10 * 300 * 16


def test_candidates_of_one_space_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer.language.meta_schedule._PLAN_CHARS", 50_000)
    reader = MetaScheduleReader()
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["SampleComputeLocation", ["b0"], [], ["l1"]],
        *(["ComputeInline", ["b0"], [], []] for _ in range(300)),
    ]
    for location in range(50):
        reader.read(canonical_json([instructions, [[1, location]]]))
    [plan] = reader._plans.values()
    assert len(plan._tails) < 8


def test_a_trace_longer_than_any_is_refused_before_it_is_parsed() -> None:
    long = ["Annotate", ["b0", "x" * MAX_TEXT], ["note"], []]
    with pytest.raises(TraceError, match=f"characters, at most {MAX_TEXT} are read"):
        MetaScheduleReader().read(meta_schedule([long]))


@pytest.mark.parametrize(
    "decisions", [[[0, [1] * 9999]], [[0, 1, *range(9999)]], [[0, [*range(9999), True]]], [[2, [1] * 9999]]]
)
def test_a_message_does_not_repeat_a_whole_log(decisions: list[Any]) -> None:
    instructions = [
        ["SamplePerfectTile", [], [2, 64], ["v1", "v2"]],
        ["Split", ["l0", "v1", "v2"], [1], ["l1", "l2"]],
        ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v3"]],
        ["Annotate", ["b0", "v3"], ["note"], []],
    ]
    with pytest.raises(TraceError) as caught:
        MetaScheduleReader().read(canonical_json([instructions, [[0, [1, 1]], *decisions]]))
    assert len(str(caught.value)) < 200


def test_an_ansor_stage_of_endless_loops_stops_growing() -> None:
    steps = [["SP", 0, 0, 0, [2] * 200, 1], ["SP", 0, 0, 0, [2] * 200, 1], ["CA", 1, 0, 999], ["CA", 1, 0, 9]]
    reader = AnsorReader()
    kinds = [step.kind for step in reader.read(canonical_json(steps))]
    assert kinds == [Kind.SP, Kind.UNK, Kind.UNK, Kind.CA]
    assert reader.unknown == {"SP: too many loops": 1, "CA: too many loops": 1}


def test_a_list_longer_than_any_is_unknown_however_it_is_written() -> None:
    # Every step that follows such a split would multiply all of its factors again: a minute a megabyte.
    steps = [
        ["SP", 0, 0, 1, [1] * (MAX_ITEMS + 1), 1],
        ["FSP", 1, 0, 0, 1],
        ["RE", 2, [*range(MAX_ITEMS + 1)]],
    ]
    for text in (canonical_json(steps), json.dumps(steps)):
        reader = AnsorReader()
        assert [step.kind for step in reader.read(text)] == [Kind.UNK] * 3
        assert reader.unknown == {
            "SP: malformed": 1,
            "FSP: no split at the step it follows": 1,
            "RE: malformed": 1,
        }


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


def test_an_alignment_of_a_stage_that_no_program_has_is_unknown() -> None:
    # Stages up to that number would be made: memory without end, from one short line.
    reader = AnsorReader()
    steps = [["SA", 2**62, 0, 1, 1], ["SA", 0, 2**62, 1, 1], ["SA", 0, 0, 2**62, 2**62]]
    assert [step.kind for step in reader.read(canonical_json(steps))] == [Kind.UNK, Kind.UNK, Kind.SA]


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
    arguments = [
        ["TENSOR", [1, 3, 8, 8], "float32"],
        ["TENSOR", [8, 3, 3, 3], "float32"],
        [10**18, 1],
        [1, 1, 1, 1],
        [1e300, 10**18],
    ]
    name = "conv2d_nchw.cuda"
    assert block_accesses(canonical_json({"dialect": "autotvm", "name": name, "args": arguments})) == {}
