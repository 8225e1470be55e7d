"""What a trace may say: all that MetaSchedule writes, and nothing that runs foreign code."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.programs.index_maps import IndexMapRefusedError, free_names
from agents.programs.trace_rules import TraceRefusedError, check_trace, read_trace
from agents.records import canonical_json
from tests.hostile_fixtures import evil_index_map, linking_trace, running_trace
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

HONEST = [
    ["GetSBlock", [], ["Z", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2", "l3", "l4"]],
    ["SamplePerfectTile", ["l2"], [2, 64], ["v5", "v6"]],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v7"]],
]
DECISIONS = [[2, [4, 4]], [3, 1]]


def refused(*steps: Any, decisions: Any = DECISIONS) -> str:
    """Why a trace with some instructions more is refused."""
    check_trace([HONEST, DECISIONS])
    with pytest.raises(TraceRefusedError) as caught:
        check_trace([[*HONEST, *steps], decisions])
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
            if isinstance(value[1], list) and count < 2000:
                check_trace(value[1][0])
                count += 1
    assert count > 50


@pytest.mark.parametrize("text", MAPS)
def test_index_maps_of_meta_schedule_are_accepted(text: str) -> None:
    free_names(text)


def test_a_call_in_an_index_map_is_refused() -> None:
    with pytest.raises(IndexMapRefusedError, match=r"a node of type 'ir\.Op'"):
        free_names(evil_index_map("id"))
    with pytest.raises(TraceRefusedError) as caught:
        read_trace(canonical_json(running_trace("id")))
    assert caught.value.reason == "an index map is no integer arithmetic"
    assert "instruction 2" in str(caught.value)


def test_code_to_be_linked_is_refused() -> None:
    with pytest.raises(TraceRefusedError, match="inputs or attributes are not on the list: instruction 2"):
        read_trace(canonical_json(linking_trace()))


@pytest.mark.parametrize(
    "step",
    [
        ["UnsafeSetDType", ["b0"], [0, "float16"], []],
        ["UnsafeHideBufferAccess", ["b0", '"read"', [0]], [], []],
        ["AnnotateBufferAccess", ["b0", 0, '"read"', running_trace("id")[0][2][1][1]], [], []],
        ["getloops", ["b0"], [], ["l9"]],
        ["", [], [], []],
        [["GetLoops"], ["b0"], [], ["l9"]],
        ["GetLoops", ["b0"], [], ["l9"], []],
        "GetLoops",
        None,
    ],
    ids=lambda one: str(one)[:30],
)
def test_instructions_off_the_list_are_refused(step: Any) -> None:
    assert "instruction 4" in refused(step)


@pytest.mark.parametrize(
    "step",
    [
        ["Annotate", ["l1", '"x"'], ["pragma_import_llvm"], []],
        ["Annotate", ["l1", '"x"'], ["pragma_import_c"], []],
        ["Annotate", ["l1", '"x"'], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["l1", {"a": 1}], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["b0", '"; call system"'], ["meta_schedule.auto_tensorize"], []],
        ["Annotate", ["b0", 1], ["schedule_rule"], []],
        ["Annotate", ["b0", 1], ["meta_schedule.parallel", "x"], []],
        ["Annotate", ["b0", 2**40], ["meta_schedule.parallel"], []],
        ["Annotate", ["b0", 1.5], ["meta_schedule.parallel"], []],
        ["Annotate", ["b0", '{"type":"ir.Call"}'], ["meta_schedule.parallel"], []],
        ["Bind", ["l1"], ["threadIdx.x; x"], []],
        ["SetScope", ["b0"], [0, "global\n"], []],
        ["Tensorize", ["b0"], ["../x", 1], []],
        ["Split", ["l1", "None", 4], [True, True], ["l8", "l9"]],
        ["Split", ["l1", '"4"', 4], [True, False], ["l8", "l9"]],
        ["Fuse", ["l1"] * 300, [1], ["l9"]],
        ["GetLoops", ["b0"], [], [7]],
        ["GetLoops", [{"b": 0}], [], ["l9"]],
        ["TransformLayout", ["b0", MAPS[0]], [0, 1, MAPS[0], 1], []],
    ],
    ids=lambda one: str(one)[:40],
)
def test_inputs_and_attributes_off_the_list_are_refused(step: Any) -> None:
    assert refused(step).startswith(
        "the instruction's inputs or attributes are not on the list: instruction 4"
    )


@pytest.mark.parametrize(
    "decision",
    [
        [2, [4, 0]],
        [2, [4, -4]],
        [2, [4]],
        [2, [4, "4"]],
        [2, [4, True]],
        [2, [4, 2**40]],
        [2, 4],
        [3, 2],
        [3, -1],
        [3, True],
        [1, 1],
        [9, 1],
        [2],
        "x",
    ],
    ids=str,
)
def test_decisions_that_are_no_numbers_of_their_instruction_are_refused(decision: Any) -> None:
    assert refused(decisions=[decision]).startswith("a decision ")


def changed(change: Any) -> str:
    """An honest index map with one change: a function of the parsed graph."""
    graph = json.loads(max(MAPS, key=len))
    change(graph)
    return json.dumps(graph)


def first(graph: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(one for one in graph["nodes"] if one["type"] == kind)["data"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g: g["nodes"].append({"type": "ffi.Function", "data": "runtime.SystemLib"}), "of type"),
        (lambda g: g["nodes"].append({"type": ["x"]}), "of type"),
        (lambda g: first(g, "prim.Mul").update(a=len(g["nodes"]) - 1), "computes with a tirx.IndexMap"),
        (lambda g: first(g, "prim.Mul").update(a=10**9), "not there"),
        (lambda g: first(g, "prim.Mul").update(a=True), "not there"),
        (lambda g: first(g, "prim.Mul").update(more=1), "not as TVM writes it"),
        (lambda g: first(g, "ir.PrimType").update(dtype="handle"), "not as TVM writes it"),
        (lambda g: first(g, "ir.Var").update(span=3), "source file"),
        (lambda g: g.update(root_index=0), "where a tirx.IndexMap belongs"),
        (lambda g: g.update(more=1), "no graph"),
        (lambda g: g.update(nodes=[]), "nodes"),
        (lambda g: g.update(nodes=g["nodes"] * 30), "nodes"),
    ],
)
def test_odd_index_maps_are_refused(change: Any, reason: str) -> None:
    with pytest.raises(IndexMapRefusedError, match=reason):
        free_names(changed(change))


def a_map(nodes: list[Any], final: int) -> str:
    """The index map of one variable (node 3) that gives the expression at node `final`."""
    head = [
        {"type": "None"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}},
        {"type": "ffi.Array", "data": [3]},
        *nodes,
    ]
    root = {"initial_indices": 4, "final_indices": len(head), "inverse_index_map": 0}
    tail = [{"type": "ffi.Array", "data": [final]}, {"type": "tirx.IndexMap", "data": root}]
    return json.dumps({"root_index": len(head) + 1, "nodes": [*head, *tail]})


def add(left: int, right: int, kind: str = "prim.Add") -> dict[str, Any]:
    return {"type": kind, "data": {"span": 0, "ty": 1, "a": left, "b": right}}


def oldest_map(expression: dict[str, Any], **more: Any) -> str:
    """An index map as TVM 0.20 and older wrote it: i becomes an expression of `i` (node 3) and 4 (node 5)."""
    nodes = [
        {"type_key": ""},
        {
            "type_key": "tir.IndexMap",
            "attrs": {"final_indices": "7", "initial_indices": "2", "inverse_index_map": "0"},
        },
        {"type_key": "Array", "data": [3]},
        {
            "type_key": "tir.Var",
            "attrs": {"dtype": "int32", "name": "4", "span": "0", "type_annotation": "0"},
        },
        {"type_key": "runtime.String", "repr_str": "i"},
        {"type_key": "IntImm", "attrs": {"dtype": "int32", "span": "0", "value": "4"}},
        expression,
        {"type_key": "Array", "data": [6]},
    ]
    graph = {"root": 1, "nodes": nodes, "b64ndarrays": [], "attrs": {"tvm_version": "0.11.0"}, **more}
    return json.dumps(graph)


def oldest(kind: str, left: str = "3", right: str = "5") -> dict[str, Any]:
    return {"type_key": kind, "attrs": {"dtype": "int32", "span": "0", "a": left, "b": right}}


def later_map(kind: str, prefix: str = "tirx", dtype: str = "int32") -> str:
    """An index map as TVM 0.21 to 0.26 wrote it: i becomes an expression of i and 4."""
    own = {"span": 0, "dtype": dtype}
    nodes = [
        {"type": "None"},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.PrimType", "data": own},
        {"type": f"{prefix}.Var", "data": {**own, "name": 1, "type_annotation": 2}},
        {"type": "ffi.Array", "data": [3]},
        {"type": "ir.IntImm", "data": {**own, "value": 4}},
        {"type": f"{prefix}.{kind}", "data": {**own, "a": 3, "b": 5}},
        {"type": "ffi.Array", "data": [6]},
        {
            "type": f"{prefix}.IndexMap",
            "data": {"initial_indices": 4, "final_indices": 7, "inverse_index_map": 0},
        },
    ]
    return json.dumps({"root_index": 8, "nodes": nodes, "metadata": {"tvm_version": "0.25.0"}})


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "FloorDiv", "FloorMod"])
def test_index_maps_of_older_versions_are_accepted(kind: str) -> None:
    for text in (oldest_map(oldest(f"tir.{kind}")), later_map(kind), later_map(kind, "tir", "int64")):
        assert free_names(text) == frozenset()
        read_trace(json.dumps([[*HONEST, ["TransformLayout", ["b0", text], [0, 0, None, False], []]], []]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (oldest_map({"type_key": "tir.Call", "attrs": {"op": "4", "args": "2"}}), "of type 'tir.Call'"),
        (oldest_map(oldest("tir.Add", right="99")), "not there"),
        (oldest_map(oldest("tir.FloorDiv", left="5", right="3")), "divides by an index"),
        (oldest_map(oldest("tir.Add", right="x")), "not there"),
        (oldest_map(oldest("tir.Add") | {"repr_b64": "x"}), "of type 'tir.Add'"),
        (oldest_map(oldest("tir.Add"), b64ndarrays=["x"]), "arrays"),
        (oldest_map(oldest("tir.Add"), root_index=1), "no graph"),
        (oldest_map({"type_key": 5}), "of type"),
        (oldest_map({"type_key": "tir.Add"}), "of type"),
        (later_map("Add", dtype="handle"), "not as TVM writes it"),
        (later_map("Add").replace('"type_annotation": 2', '"type_annotation": 8'), "not integers"),
        (later_map("Call"), "of type"),
        (later_map("Add", "evil"), "of type"),
        (later_map("Add").replace('"root_index": 8', '"root_index": 8, "root_index": 8'), "no JSON"),
    ],
)
def test_odd_index_maps_of_older_versions_are_refused(text: str, reason: str) -> None:
    with pytest.raises(IndexMapRefusedError, match=reason):
        free_names(text)


def test_index_maps_with_shared_deep_or_circular_parts_end_at_once() -> None:
    assert free_names(a_map([add(3, 3)], 5)) == frozenset()
    # Walked as a tree it has half a thousand million nodes.
    shared = [add(3, 3), *(add(5 + n, 5 + n) for n in range(28))]
    assert free_names(a_map(shared, 5 + 28)) == frozenset()
    with pytest.raises(IndexMapRefusedError, match="deeper"):
        free_names(a_map([add(3, 3), *(add(5 + n, 3) for n in range(40))], 45))
    # Deeper than the interpreter counts, and written by hand into few characters.
    chain = [*(add(6 + n, 3) for n in range(1000)), add(3, 3)]
    deep = json.dumps(json.loads(a_map(chain, 5)), separators=(",", ":"))
    with pytest.raises(IndexMapRefusedError, match="deeper"):
        free_names(deep)
    assert refused(["TransformBlockLayout", ["b0"], [deep], []]).startswith("an index map is no integer")
    with pytest.raises(IndexMapRefusedError, match="contains itself"):
        free_names(a_map([add(5, 3)], 5))
    with pytest.raises(IndexMapRefusedError, match="divides by an index"):
        free_names(a_map([add(3, 3, "prim.FloorDiv")], 5))


def test_a_variable_that_is_not_sampled_is_refused() -> None:
    named = next(one for one in MAPS if free_names(one))
    step = ["TransformLayout", ["b0", named], [0, 1, None, 0], []]
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
        read_trace(json.dumps([[HONEST[0]] * 10_001, []]))


SAFE_KINDS = {step[0] for steps, _ in TRACES for step in steps} | {"GetBlock", "Unroll", "EnterPostproc"}
SAFE_KEYS = {step[2][0] for steps, _ in TRACES for step in steps if step[0].endswith("nnotate")}
SAFE_NODES = {node["type"] for text in MAPS for node in json.loads(text)["nodes"]} | {"prim.Sub"}
#: What an attacker would put somewhere, beside plain nonsense.
POISON: list[Any] = [
    evil_index_map("id"),
    '{"root_index":0,"nodes":[{"type":"ffi.Function","data":"runtime.SystemLib"}]}',
    "pragma_import_llvm",
    "pragma_import_c",
    '"define void @f() { ret void }"',
    "UnsafeSetDType",
    {"type": "ir.Call"},
    [[]],
    None,
    -1,
    2**63,
    1.5,
    "",
    "b0",
    "l1",
    MAPS[0],
]


def places(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Ways to every part of nested lists."""
    found = [path]
    if isinstance(value, list):
        for number, one in enumerate(value):
            found += places(one, (*path, number))
    return found


@given(st.data())
def test_a_changed_trace_is_refused_or_still_safe(data: st.DataObject) -> None:
    trace = copy.deepcopy(data.draw(st.sampled_from(TRACES), label="trace"))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(trace)[1:]))
        owner = trace
        for number in path[:-1]:
            owner = owner[number]
        if data.draw(st.booleans()):
            owner[path[-1]] = data.draw(st.sampled_from(POISON) | st.text(max_size=8))
        else:
            owner.insert(path[-1], data.draw(st.sampled_from([*POISON, owner[path[-1]]])))
    try:
        check_trace(trace)
    except TraceRefusedError:
        return
    for kind, inputs, attrs, _ in trace[0]:
        assert kind in SAFE_KINDS | {"AddUnitLoop", "DecomposePadding", "GetOutputBlocks"}
        if kind == "Annotate":
            assert attrs[0] in SAFE_KEYS
        for one in (*inputs, *attrs):
            assert not isinstance(one, dict)
            if isinstance(one, str) and ("{" in one or "}" in one) and kind not in ("GetSBlock", "GetBlock"):
                assert {node["type"] for node in json.loads(one)["nodes"]} <= SAFE_NODES
    for place, value in trace[1]:
        assert trace[0][place][0].startswith("Sample")
        assert all(type(one) is int for one in (value if isinstance(value, list) else [value]))
