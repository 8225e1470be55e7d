"""Hostile modules in TVM's JSON form: graphs whose nodes are shared, contain themselves, or lead nowhere.

A module is `{"root_index", "nodes"}`; children are named by their index, so a graph of a few kilobytes may
have more paths than anybody can walk. Called by `benchmarks.hostile_traces`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.hostile_tuners import size
from benchmarks.hostile_values import NUMBERS, deep_text, text, value, with_fault

#: Levels of a graph whose paths double, or grow by `_FANOUT`, at each.
_LEVELS = (4, 12, 30, 60, 150, 600)
_FANOUTS = (2, 2, 3, 4)


class Graph:
    """Nodes under construction, each `{"type", "data"}`."""

    def __init__(self) -> None:
        self.nodes: list[Any] = [{"type": "None"}]

    def add(self, kind: str, data: Any) -> int:
        """Add a node and return its index."""
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def integer(self, number: Any) -> int:
        """Add a constant."""
        return self.add("ir.IntImm", {"value": self.add("int", number)})

    def array(self, items: list[int]) -> int:
        """Add an array of nodes."""
        return self.add("ffi.Array", items)

    def text(self, found: str) -> int:
        """Add a text."""
        return self.add("ffi.String", found)

    def variable(self, dtype: str = "float32", shape: tuple[Any, ...] = ()) -> int:
        """Add a buffer's variable, or a plain one."""
        kind = {"dtype": self.add("ir.PrimType", {"dtype": dtype})}
        kind["shape"] = self.array([self.integer(extent) for extent in shape])
        return self.add("ir.Var", {"ty": self.add("tirx.BufferType", kind), "name": self.text("x")})

    def region(self, buffer: int, indices: list[int]) -> int:
        """Add the part of a buffer that a block touches: one element."""
        ranges = [self.add("ir.Range", {"min": one, "extent": self.integer(1)}) for one in indices]
        return self.add("ir.TensorRegion", {"source": buffer, "region": self.array(ranges)})

    def block(self, name: str, extents: list[Any], index: Callable[[list[int]], list[int]]) -> int:
        """Add loops around a block; `index` makes the index expressions of what it reads."""
        loops = [self.variable() for _ in extents]
        axes = [self.variable() for _ in extents]
        ends = [self.integer(extent) for extent in extents]
        kinds = [0] * (len(extents) - 1) + [2]
        domains = [self.add("ir.Range", {"min": 0, "extent": end}) for end in ends]
        iter_vars = [
            self.add("tirx.IterVar", {"dom": domain, "var": axis, "iter_type": kind})
            for domain, axis, kind in zip(domains, axes, kinds, strict=False)
        ]
        source, target = self.variable(shape=tuple(extents)), self.variable(shape=tuple(extents[:1]))
        data = {
            "iter_vars": self.array(iter_vars),
            "reads": self.array([self.region(source, index(axes))]),
            "writes": self.array([self.region(target, axes[:1])]),
            "name_hint": self.text(name),
            "body": 0,
        }
        body = self.add(
            "s_tir.SBlockRealize",
            {"iter_values": self.array(loops), "block": self.add("s_tir.SBlock", data), "predicate": 0},
        )
        for loop, end in zip(reversed(loops), reversed(ends), strict=True):
            body = self.add("tirx.For", {"loop_var": loop, "extent": end, "min": 0, "body": body})
        return body

    def module(self, body: int) -> dict[str, Any]:
        """The module whose only function has this body."""
        root = self.add("s_tir.SBlock", {"name_hint": self.text("root"), "body": body})
        self.add("tirx.PrimFunc", {"body": self.add("s_tir.SBlockRealize", {"block": root})})
        return {"root_index": len(self.nodes) - 1, "nodes": self.nodes, "metadata": {}}


def plain(rng: Random, name: str = "matmul") -> dict[str, Any]:
    """A product of matrices, as TVM writes it, with extents of any size."""
    graph = Graph()
    extents = [size(rng) for _ in range(3)]
    return graph.module(graph.block(name, extents, lambda axes: [axes[0], axes[-1]]))


def shared_statements(rng: Random) -> dict[str, Any]:
    """Each level holds the level below several times: a sequence, a loop, or both branches of a condition."""
    graph = Graph()
    body = graph.block("matmul", [4, 4, 4], lambda axes: axes[:2])
    loop, end = graph.variable(), graph.integer(2)
    for _ in range(rng.choice(_LEVELS)):
        kind = rng.randrange(4)
        if kind == 0:
            body = graph.add("tirx.SeqStmt", {"seq": graph.array([body] * rng.choice(_FANOUTS))})
        elif kind == 1:
            body = graph.add("tirx.IfThenElse", {"then_case": body, "else_case": body, "condition": 0})
        elif kind == 2:
            inner = graph.add("tirx.SeqStmt", {"seq": graph.array([body, body])})
            body = graph.add("tirx.For", {"loop_var": loop, "extent": end, "body": inner, "then_case": inner})
        else:
            body = graph.add("tirx.For", {"loop_var": loop, "extent": end, "body": body, "else_case": body})
    return graph.module(body)


def shared_indices(rng: Random) -> dict[str, Any]:
    """An index expression in which each level adds, multiplies or divides the level below by itself."""
    graph = Graph()
    levels, alone = rng.choice(_LEVELS), rng.random() < 0.3

    def index(axes: list[int]) -> list[int]:
        found = axes[0]
        for _ in range(levels):
            kind = rng.choice(("prim.Add", "prim.Sub", "prim.Mul", "prim.FloorDiv", "prim.FloorMod"))
            other = graph.integer(rng.choice(NUMBERS)) if alone else found
            found = graph.add(kind, {"a": found, "b": other})
        return [found] * rng.choice((1, 2, 50))

    return graph.module(graph.block("matmul", [4, 4, 4], index))


def circular(rng: Random) -> dict[str, Any]:
    """Some node leads back to one that leads to it."""
    made = plain(rng)
    nodes = made["nodes"]
    for _ in range(rng.choice((1, 3, 20))):
        place = rng.randrange(1, len(nodes))
        data = nodes[place]["data"]
        target = rng.choice((place, len(nodes) - 1, rng.randrange(len(nodes)), -1, len(nodes) + 5))
        if isinstance(data, dict) and data:
            data[rng.choice(sorted(data))] = target
        elif isinstance(data, list) and data:
            data[rng.randrange(len(data))] = target
    return made


def wide(rng: Random) -> dict[str, Any]:
    """Very many blocks, axes or regions."""
    graph = Graph()
    kind = rng.randrange(3)
    if kind == 0:
        one = graph.block("matmul", [2, 2], lambda axes: axes)
        count = rng.choice((100, 1_000, 5_000))
        return graph.module(graph.add("tirx.SeqStmt", {"seq": graph.array([one] * count)}))
    if kind == 1:
        extents: list[Any] = [2] * rng.choice((50, 190, 250, 1_000))
        return graph.module(graph.block("matmul", extents, lambda axes: axes))
    blocks = [graph.block(f"b{place}", [2, 2], lambda axes: axes) for place in range(rng.choice((20, 300)))]
    return graph.module(graph.add("tirx.SeqStmt", {"seq": graph.array(blocks)}))


def deep(rng: Random) -> dict[str, Any]:
    """Loops in loops, thousands of them."""
    graph = Graph()
    body = graph.block("matmul", [4, 4, 4], lambda axes: axes[:2])
    for _ in range(rng.choice((100, 199, 201, 1_000))):
        body = graph.add("tirx.For", {"loop_var": graph.variable(), "extent": 0, "body": body})
    return graph.module(body)


def old(rng: Random) -> dict[str, Any]:
    """The form that TVM wrote until 0.20: attributes as texts."""
    made = plain(rng)
    nodes = []
    for node in made["nodes"]:
        data = node.get("data")
        new: dict[str, Any] = {"type_key": str(node["type"])}
        if isinstance(data, dict):
            new["attrs"] = {name: str(child) for name, child in data.items()}
        elif isinstance(data, list):
            new["data"] = data
        else:
            new["repr_str"] = str(data)
        nodes.append(new)
    return {"root": made["root_index"], "nodes": nodes, "attrs": {"tvm_version": "0.16.0"}}


def foreign(rng: Random) -> Any:
    """Something that says it is another dialect's workload, or nothing at all."""
    made = {"nodes": value(rng), "dialect": "autotvm", "name": text(rng), "args": value(rng)}
    return rng.choice((made, {"nodes": []}, {"nodes": [value(rng)]}, {"nodes": {"0": {}}}, value(rng)))


MODULES: tuple[Callable[[Random], Any], ...] = (
    plain,
    plain,
    shared_statements,
    shared_indices,
    circular,
    wide,
    deep,
    old,
    foreign,
)


def module(rng: Random) -> Any:
    """A module of any kind, now and then with faults."""
    made = rng.choice(MODULES)(rng)
    while rng.random() < 0.3:
        made = with_fault(rng, made)
    return made


def packed(module_text: bytes) -> str:
    """A module as it stands in a workload line: base64 of its length and its text."""
    return base64.b64encode(len(module_text).to_bytes(8, "little") + module_text).decode()


def workload_line(rng: Random, structural_hash: int, made: Any = None) -> list[str]:
    """`[structural hash, module]`; a few are cut, or no base64."""
    whole = module(rng) if made is None else made
    encoded = packed(deep_text(whole) if rng.random() < 0.1 else _text(whole))
    if rng.random() < 0.05:
        encoded = rng.choice((encoded[: len(encoded) // 2], "!" + encoded, "", "AAAA" * 50))
    return [str(structural_hash), encoded]


def _text(whole: Any) -> bytes:
    try:
        return json.dumps(whole).encode()
    except RecursionError:
        return deep_text(whole)
