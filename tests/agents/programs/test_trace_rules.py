"""What a trace may say: all that MetaSchedule writes, and nothing that runs foreign code."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agents.programs.index_maps import IndexMapRefusedError, free_names
from agents.programs.trace_rules import TraceRefusedError, check_trace, read_trace
from agents.records import canonical_json
from tests.hostile_fixtures import evil_index_map, running_trace
from tests.log_fixtures import ANSOR_LOGS

HERE = Path(__file__).parents[2]
PACKED = (HERE / "traces" / "meta_schedule.jsonl.gz").read_bytes()
LINES = [json.loads(one) for one in gzip.decompress(PACKED).splitlines()]
TRACES = [one["trace"] for one in LINES]
MAPS = sorted(
    {
        text
        for steps, _ in TRACES
        for step in steps
        for text in (*step[1], *step[2])
        if isinstance(text, str) and text[:1] == "{"
    }
)
DATABASES = sorted(ANSOR_LOGS.rglob("database_tuning_record.json.gz"))

HONEST = (
    '["GetSBlock", [], ["Z", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3", "l4"]],'
    '["SamplePerfectTile", ["l2"], [2, 64], ["v5", "v6"]],'
    '["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v7"]]'
)
DECISIONS = "[[2, [4, 4]], [3, 1]]"
#: Instructions that are not on the list, one a line.
UNLISTED = """
    ["UnsafeSetDType", ["b0"], [0, "float16"], []]
    ["UnsafeHideBufferAccess", ["b0", "\\"read\\"", [0]], [], []]
    ["AnnotateBufferAccess", ["b0", 0, "\\"read\\"", "{}"], [], []]
    ["getloops", ["b0"], [], ["l9"]]
    ["", [], [], []]
    [["GetLoops"], ["b0"], [], ["l9"]]
    ["GetLoops", ["b0"], [], ["l9"], []]
    "GetLoops"
    null
"""
#: Instructions whose inputs or attributes are not.
ODD = """
    ["Annotate", ["l1", "\\"x\\""], ["pragma_import_llvm"], []]
    ["Annotate", ["l1", "\\"x\\""], ["pragma_import_c"], []]
    ["Annotate", ["l1", "\\"x\\""], ["pragma_auto_unroll_max_step"], []]
    ["Annotate", ["l1", {"a": 1}], ["pragma_auto_unroll_max_step"], []]
    ["Annotate", ["b0", "\\"; call system\\""], ["meta_schedule.auto_tensorize"], []]
    ["Annotate", ["b0", 1], ["schedule_rule"], []]
    ["Annotate", ["b0", 1], ["meta_schedule.parallel", "x"], []]
    ["Annotate", ["b0", 1099511627776], ["meta_schedule.parallel"], []]
    ["Annotate", ["b0", 1.5], ["meta_schedule.parallel"], []]
    ["Annotate", ["b0", "{\\"type\\":\\"ir.Call\\"}"], ["meta_schedule.parallel"], []]
    ["Bind", ["l1"], ["threadIdx.x; x"], []]
    ["SetScope", ["b0"], [0, "global\\n"], []]
    ["Tensorize", ["b0"], ["../x", 1], []]
    ["Split", ["l1", "None", 4], [true, true], ["l8", "l9"]]
    ["Split", ["l1", "\\"4\\"", 4], [true, false], ["l8", "l9"]]
    ["GetLoops", ["b0"], [], [7]]
    ["GetLoops", [{"b": 0}], [], ["l9"]]
"""
#: The index map that makes i + 4 of i, as versions of TVM write it.
VERSIONS = {
    "0.27": """{"root_index": 9, "nodes": [
        {"type": "None"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}},
        {"type": "ffi.Array", "data": [3]},
        {"type": "int", "data": 4},
        {"type": "ir.IntImm", "data": {"span": 0, "ty": 1, "value": 5}},
        {"type": "prim.Add", "data": {"span": 0, "ty": 1, "a": 3, "b": 6}},
        {"type": "ffi.Array", "data": [7]},
        {"type": "tirx.IndexMap", "data": {"initial_indices": 4, "final_indices": 8, "inverse_index_map": 0}}
    ]}""",
    "0.21 to 0.26": """{"root_index": 8, "nodes": [
        {"type": "None"},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
        {"type": "tirx.Var", "data": {"span": 0, "dtype": "int32", "name": 1, "type_annotation": 2}},
        {"type": "ffi.Array", "data": [3]},
        {"type": "ir.IntImm", "data": {"span": 0, "dtype": "int32", "value": 4}},
        {"type": "tirx.Add", "data": {"span": 0, "dtype": "int32", "a": 3, "b": 5}},
        {"type": "ffi.Array", "data": [6]},
        {"type": "tirx.IndexMap", "data": {"initial_indices": 4, "final_indices": 7, "inverse_index_map": 0}}
    ], "metadata": {"tvm_version": "0.25.0"}}""",
    "0.20 and older": """{"root": 1, "nodes": [
        {"type_key": ""},
        {"type_key": "tir.IndexMap",
         "attrs": {"final_indices": "7", "initial_indices": "2", "inverse_index_map": "0"}},
        {"type_key": "Array", "data": [3]},
        {"type_key": "tir.Var",
         "attrs": {"dtype": "int32", "name": "4", "span": "0", "type_annotation": "0"}},
        {"type_key": "runtime.String", "repr_str": "i"},
        {"type_key": "IntImm", "attrs": {"dtype": "int32", "span": "0", "value": "4"}},
        {"type_key": "tir.Add", "attrs": {"dtype": "int32", "span": "0", "a": "3", "b": "5"}},
        {"type_key": "Array", "data": [6]}
    ], "b64ndarrays": [], "attrs": {"tvm_version": "0.11.0"}}""",
}
#: In the map of a version this text is replaced by that one; then it is refused for this reason.
ODD_MAPS = """
    0.27 => {"type": "None"} => {"type": "ffi.Function", "data": "runtime.SystemLib"} => of type
    0.27 => {"type": "None"} => {"type": ["x"]}            => of type
    0.27 => "a": 3           => "a": 9                     => computes with a tirx.IndexMap
    0.27 => "a": 3           => "a": 1000000000            => not there
    0.27 => "a": 3           => "a": true                  => not there
    0.27 => "a": 3           => "a": 3, "more": 1          => not as TVM writes it
    0.27 => "dtype": "int32" => "dtype": "handle"          => not as TVM writes it
    0.27 => "span": 0, "ty": 1, "name" => "span": 6, "ty": 1, "name" => source file
    0.27 => "root_index": 9  => "root_index": 0            => where a tirx.IndexMap belongs
    0.27 => "root_index": 9  => "root_index": 9, "more": 1 => no graph
    0.27 => "b": 6           => "b": 7                     => contains itself
    0.21 to 0.26 => "name": 1, "type_annotation": 2 => "name": 1, "type_annotation": 7 => not integers
    0.21 to 0.26 => "dtype": "int32" => "dtype": "handle"  => not as TVM writes it
    0.21 to 0.26 => tirx.Add => tirx.Call                  => of type
    0.21 to 0.26 => tirx.    => evil.                      => of type
    0.21 to 0.26 => "root_index": 8 => "root_index": 8, "root_index": 8 => no JSON
    0.20 and older => tir.Add   => tir.Call                => of type 'tir.Call'
    0.20 and older => "b": "5"  => "b": "99"               => not there
    0.20 and older => "b": "5"  => "b": "x"                => not there
    0.20 and older => {"type_key": "tir.Add" => {"repr_b64": "x", "type_key": "tir.Add" => of type 'tir.Add'
    0.20 and older => "b64ndarrays": [] => "b64ndarrays": ["x"] => arrays
    0.20 and older => "root": 1 => "root": 1, "root_index": 1 => no graph
    0.20 and older => "tir.Add" => 5                       => of type
    0.20 and older => "tir.Add", "attrs" => "tir.Add", "more" => of type
"""


def refused(*steps: str, decisions: str = DECISIONS) -> str:
    """Why a trace with some instructions more is refused."""
    read_trace(f"[[{HONEST}], {DECISIONS}]")
    with pytest.raises(TraceRefusedError) as caught:
        read_trace(f"[[{','.join([HONEST, *steps])}], {decisions}]")
    return str(caught.value)


@pytest.mark.parametrize("line", LINES, ids=lambda one: f"{one['workload']} {one['target']}")
def test_what_meta_schedule_writes_is_accepted(line: dict[str, Any]) -> None:
    assert read_trace(canonical_json(line["trace"])) == line["trace"]


def test_traces_of_real_devices_are_accepted() -> None:
    paths = sorted((HERE / "onboardings" / "profiles" / "records").rglob("*.parquet"))
    traces = {one for path in paths for one in pq.read_table(path, columns=["trace"])[0].to_pylist()}
    assert len(traces) > 50
    for one in traces:
        read_trace(one)


@pytest.mark.skipif(not DATABASES, reason="../shared/data is not beside the checkout")
@pytest.mark.parametrize("path", DATABASES, ids=lambda path: path.parent.name)
def test_traces_of_other_peoples_databases_are_accepted(path: Path) -> None:
    """They were written by an older TVM: names and flags differ."""
    count = 0
    with gzip.open(path) as lines:
        for line in lines:
            value = json.loads(line)
            if isinstance(value[1], list) and count < 300:
                check_trace(value[1][0])
                count += 1
    assert count > 50


def test_a_call_in_an_index_map_is_refused() -> None:
    with pytest.raises(IndexMapRefusedError, match=r"a node of type 'ir\.Op'"):
        free_names(evil_index_map("id"))
    with pytest.raises(TraceRefusedError) as caught:
        read_trace(canonical_json(running_trace("id")))
    assert caught.value.reason == "an index map is no integer arithmetic"
    assert "instruction 2" in str(caught.value)


@pytest.mark.parametrize("step", [*UNLISTED.strip().splitlines(), json.dumps(running_trace("id")[0][2])])
def test_instructions_off_the_list_are_refused(step: str) -> None:
    assert "instruction 4" in refused(step)


@pytest.mark.parametrize(
    "step",
    [
        *ODD.strip().splitlines(),
        json.dumps(["Fuse", ["l1"] * 300, [1], ["l9"]]),
        json.dumps(["TransformLayout", ["b0", MAPS[0]], [0, 1, MAPS[0], 1], []]),
    ],
)
def test_inputs_and_attributes_off_the_list_are_refused(step: str) -> None:
    assert refused(step).startswith(
        "the instruction's inputs or attributes are not on the list: instruction 4"
    )


@pytest.mark.parametrize(
    "decision",
    [
        *("[2, [4, 0]]", "[2, [4, -4]]", "[2, [4]]", '[2, [4, "4"]]', "[2, [4, true]]"),
        *("[2, [4, 1099511627776]]", "[2, 4]", "[3, 2]", "[3, -1]", "[3, true]", "[1, 1]", "[9, 1]", "[2]"),
        '"x"',
    ],
)
def test_decisions_that_are_no_numbers_of_their_instruction_are_refused(decision: str) -> None:
    assert refused(decisions=f"[{decision}]").startswith("a decision ")


LONG = VERSIONS["0.21 to 0.26"].replace("tirx.", "tir.").replace("int32", "int64")


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "FloorDiv", "FloorMod"])
@pytest.mark.parametrize("text", [*VERSIONS.values(), LONG], ids=[*VERSIONS, "64 bits"])
def test_index_maps_of_every_version_are_accepted(text: str, kind: str) -> None:
    text = text.replace(".Add", f".{kind}")
    assert free_names(text) == frozenset()
    step = json.dumps(["TransformLayout", ["b0", text], [0, 0, None, False], []])
    read_trace(f"[[{HONEST}, {step}], []]")


@pytest.mark.parametrize("line", ODD_MAPS.strip().splitlines())
def test_odd_index_maps_are_refused(line: str) -> None:
    version, sound, odd, reason = (part.strip() for part in line.split("=>"))
    text = VERSIONS[version]
    assert sound in text
    with pytest.raises(IndexMapRefusedError, match=reason):
        free_names(text.replace(sound, odd))


@pytest.mark.parametrize("nodes", ["", ",".join(['{"type": "None"}'] * 1025)], ids=["none", "too many"])
def test_an_index_map_has_some_nodes_and_not_too_many(nodes: str) -> None:
    with pytest.raises(IndexMapRefusedError, match="nodes"):
        free_names(f'{{"root_index": 0, "nodes": [{nodes}]}}')


@pytest.mark.parametrize("text", VERSIONS.values(), ids=VERSIONS)
def test_an_index_map_that_divides_by_an_index_is_refused(text: str) -> None:
    divided = re.sub(r'"b": ("?)\d', r'"b": \g<1>3', text.replace(".Add", ".FloorDiv"))
    with pytest.raises(IndexMapRefusedError, match="divides by an index"):
        free_names(divided)


def sums(*pairs: tuple[int, int]) -> str:
    """The index map that makes the first of these sums of i; they stand at nodes 10, 11, ..."""
    graph = json.loads(VERSIONS["0.27"])
    graph["nodes"][8]["data"] = [10]
    graph["nodes"] += [{"type": "prim.Add", "data": {"span": 0, "ty": 1, "a": a, "b": b}} for a, b in pairs]
    return json.dumps(graph, separators=(",", ":"))


def test_index_maps_with_shared_or_deep_parts_end_at_once() -> None:
    # Walked as a tree it has half a thousand million nodes.
    assert free_names(sums(*((11 + n, 11 + n) for n in range(28)), (3, 3))) == frozenset()
    # The second is deeper than the interpreter counts, and takes few characters.
    for depth in (40, 1000):
        deep = sums(*((11 + n, 3) for n in range(depth)), (3, 3))
        with pytest.raises(IndexMapRefusedError, match="deeper"):
            free_names(deep)
        step = json.dumps(["TransformBlockLayout", ["b0"], [deep], []])
        assert refused(step).startswith("an index map is no integer")


def test_a_variable_that_is_not_sampled_is_refused() -> None:
    named = next(text for text in MAPS if free_names(text))
    step = json.dumps(["TransformLayout", ["b0", named], [0, 1, None, 0], []])
    assert refused(step).startswith("an index map names a variable that is not sampled")


def test_text_that_is_no_trace_is_refused() -> None:
    for text in (
        "",
        "{}",
        "[]",
        "[[]]",
        "[[],[],[]]",
        "[{},[]]",
        "null",
        "[" * 100_000,
        "[[],[]]" + " " * (5 << 20),
    ):
        with pytest.raises(TraceRefusedError):
            read_trace(text)
    with pytest.raises(TraceRefusedError, match="too many instructions"):
        read_trace(json.dumps([[["EnterPostproc", [], [], []]] * 10_001, []]))
