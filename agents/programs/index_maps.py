"""What an index map in a trace may be: integer arithmetic on its variables, sampled numbers and constants.

Called by `agents.programs.trace_rules`; standard library only. An index map is the JSON graph of a TVM
object, and TVM builds whatever the graph names: a call of a C function would become part of the program. So
every node of the graph must be of a kind that is listed here, whether the map uses it or not. Graphs of older
TVMs, which imported logs hold, are brought into the form of today's first; TVM itself gets the text as it is.

| TVM | a node |
|---|---|
| 0.20 and older | `{"type_key": "tir.Add", "attrs": {"dtype": "int32", "span": "0", "a": "3", "b": "4"}}` |
| 0.21 to 0.26 | `{"type": "tir.Add" or "tirx.Add", "data": {"dtype": "int32", "span": 0, "a": 3, "b": 4}}` |
| 0.27 | `{"type": "prim.Add", "data": {"ty": 1, "span": 0, "a": 3, "b": 4}}` |
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from agents.errors import AgentError

#: Nodes and depth of a graph, and characters of its text, at most. MetaSchedule's own have 60 nodes and less.
_MOST_NODES, _MOST_DEPTH, _MOST_TEXT = 1024, 32, 64 << 10
_MOST_INT = 2**31
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")
_ARITHMETIC = frozenset({"prim.Add", "prim.Sub", "prim.Mul", "prim.FloorDiv", "prim.FloorMod"})
_DIVISIONS = frozenset({"prim.FloorDiv", "prim.FloorMod"})
_FIELDS = {
    "ir.PrimType": {"span", "dtype"},
    "ir.Var": {"span", "ty", "name"},
    "ir.IntImm": {"span", "ty", "value"},
    "tirx.IndexMap": {"initial_indices", "final_indices", "inverse_index_map"},
    **{kind: {"span", "ty", "a", "b"} for kind in _ARITHMETIC},
}
_KINDS = {"None", "int", "ffi.String", "ffi.Array", *_FIELDS}


#: Kinds of older TVMs; those of the oldest by what they are called since.
_OLDER_KIND = re.compile(r"tirx?\.(?:(Var|IndexMap)|(Add|Sub|Mul|FloorDiv|FloorMod))")
_NOW = {"Var": "ir.Var", "IndexMap": "tirx.IndexMap"}
_OLDEST_PLAIN = {"Array": "ffi.Array", "runtime.String": "ffi.String"}
_OLDEST_KINDS = {"IntImm": "ir.IntImm", "PrimType": "ir.PrimType"}
_OLDEST_KEYS = {"root", "nodes", "b64ndarrays", "attrs"}
_PLACE = re.compile(r"-?[0-9]{1,10}")


class IndexMapRefusedError(AgentError):
    """An index map that holds something else than integer arithmetic."""


@lru_cache(maxsize=512)
def free_names(text: str) -> frozenset[str]:
    """Check an index map.

    Args:
        text: The JSON graph of a `tirx.IndexMap`.

    Returns:
        Names of the variables that it uses and does not declare: they must be numbers that the trace samples.

    Raises:
        IndexMapRefusedError: It is no index map, too large, or holds anything but integer arithmetic.
    """
    if len(text) > _MOST_TEXT:
        raise IndexMapRefusedError(f"it has {len(text):,} characters")
    try:
        graph = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise IndexMapRefusedError("it is no JSON") from None
    if isinstance(graph, dict) and graph.keys() == _OLDEST_KEYS:
        graph = _of_oldest(graph)
    if not isinstance(graph, dict) or not graph.keys() <= {"root_index", "nodes", "metadata"}:
        raise IndexMapRefusedError("it is no graph of nodes")
    nodes = _listed(graph.get("nodes"))
    return _Graph(_of_older(nodes)).map(graph.get("root_index"), may_invert=True)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated keys, of which another reader may take another value."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is repeated")
    return value


def _listed(nodes: Any) -> list[Any]:
    if not isinstance(nodes, list) or not 0 < len(nodes) <= _MOST_NODES:
        raise IndexMapRefusedError(f"its nodes are not 1 to {_MOST_NODES}")
    return nodes


def _of_oldest(graph: dict[str, Any]) -> dict[str, Any]:
    """A graph of TVM 0.20 and older in the form of 0.21: places of other nodes were texts."""
    if graph["b64ndarrays"] != []:
        raise IndexMapRefusedError("it holds arrays")
    nodes = [_node_of_oldest(node) for node in _listed(graph["nodes"])]
    return {"root_index": graph["root"], "nodes": nodes}


def _node_of_oldest(node: Any) -> dict[str, Any]:
    kind = node.get("type_key") if isinstance(node, dict) else None
    rest = {key: value for key, value in node.items() if key != "type_key"} if isinstance(kind, str) else {}
    if kind == "" and not rest:
        return {"type": "None"}
    if kind in _OLDEST_PLAIN and len(rest) == 1:
        return {"type": _OLDEST_PLAIN[kind], "data": rest.get("data" if kind == "Array" else "repr_str")}
    attrs = rest.get("attrs")
    if not isinstance(kind, str) or rest.keys() != {"attrs"} or not isinstance(attrs, dict):
        raise IndexMapRefusedError(f"it holds a node of type {str(kind)[:60]!r}")
    data = {
        key: int(value) if isinstance(value, str) and _PLACE.fullmatch(value) else value
        for key, value in attrs.items()
    }
    if kind == "tir.IndexMap":
        data.setdefault("inverse_index_map", None)
    return {"type": _OLDEST_KINDS.get(kind, kind), "data": data}


def _of_older(nodes: list[Any]) -> list[Any]:
    """Nodes of TVM 0.21 to 0.26 in today's form, those of today as they are.

    An expression named its type by a text; it gets a node of its own, as does a constant's value.
    """
    converted = list(nodes)

    def place(kind: str, data: Any = None) -> int:
        converted.append({"type": kind, "data": data})
        return len(converted) - 1

    for at, node in enumerate(nodes):
        kind = node.get("type") if isinstance(node, dict) else None
        data = node.get("data") if isinstance(node, dict) else None
        older = _OLDER_KIND.fullmatch(kind) if isinstance(kind, str) else None
        if not isinstance(data, dict) or not (older or kind in _OLDEST_KINDS.values()):
            continue
        data = dict(data)
        if kind == "ir.PrimType":
            data.setdefault("span", None)
        elif "dtype" in data:
            data["ty"] = place("ir.PrimType", {"span": place("None"), "dtype": data.pop("dtype")})
            if kind == "ir.IntImm":
                data["value"] = place("int", data.get("value"))
            _check_annotation(nodes, data.pop("type_annotation", None))
        data = {key: place("None") if value is None else value for key, value in data.items()}
        if older:
            kind = f"prim.{older[2]}" if older[2] else _NOW[older[1]]
        converted[at] = {**node, "type": kind, "data": data}
    return converted


def _check_annotation(nodes: list[Any], index: Any) -> None:
    """Check that a variable's second type, which today's TVM no longer writes, is one of numbers or none."""
    if index is None:
        return
    node = nodes[index] if type(index) is int and 0 <= index < len(nodes) else None
    if not isinstance(node, dict) or node.get("type") not in ("None", "ir.PrimType"):
        raise IndexMapRefusedError("its numbers are not integers")


class _Graph:
    """The nodes of one index map."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        #: Depth of what was checked; -1 while it is being checked.
        self._depths: dict[tuple[int, bool], int] = {}
        self._free: set[str] = set()
        for node in nodes:
            self._check_node(node)

    def map(self, index: Any, *, may_invert: bool) -> frozenset[str]:
        """Check the map at a node; returns the free names of the whole graph so far."""
        fields = self._fields(index, "tirx.IndexMap")
        own = frozenset(self._list(fields["initial_indices"]))
        for variable in own:
            self._fields(variable, "ir.Var")
        self._depths.clear()
        for expression in self._list(fields["final_indices"]):
            self._expression(expression, own, as_divisor=False, level=1)
        inverse = fields["inverse_index_map"]
        if self._kind(inverse) != "None":
            if not may_invert:
                raise IndexMapRefusedError("the inverse of its inverse is given")
            self.map(inverse, may_invert=False)
        return frozenset(self._free)

    def _check_node(self, node: Any) -> None:
        kind = node.get("type") if isinstance(node, dict) else None
        data: Any = node.get("data") if isinstance(node, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise IndexMapRefusedError(f"it holds a node of type {str(kind)[:60]!r}")
        if not node.keys() <= {"type", "data"}:
            raise IndexMapRefusedError(f"its node of type {kind} has other keys than type and data")
        if kind == "None":
            is_fine = data is None
        elif kind == "int":
            is_fine = type(data) is int and abs(data) < _MOST_INT
        elif kind == "ffi.String":
            is_fine = isinstance(data, str) and _NAME.fullmatch(data) is not None
        elif kind == "ffi.Array":
            is_fine = isinstance(data, list) and all(type(member) is int for member in data)
        else:
            is_fine = isinstance(data, dict) and data.keys() == _FIELDS[kind]
        if kind == "ir.PrimType" and is_fine:
            is_fine = data["dtype"] in ("int32", "int64")
        if not is_fine:
            raise IndexMapRefusedError(f"its node of type {kind} is not as TVM writes it")

    def _kind(self, index: Any) -> str:
        if type(index) is not int or not 0 <= index < len(self._nodes):
            raise IndexMapRefusedError("it names a node that is not there")
        return str(self._nodes[index]["type"])

    def _fields(self, index: Any, kind: str) -> dict[str, Any]:
        if self._kind(index) != kind:
            raise IndexMapRefusedError(f"it has a {self._kind(index)} where a {kind} belongs")
        fields: dict[str, Any] = self._nodes[index]["data"]
        if "span" in fields and self._kind(fields["span"]) != "None":
            raise IndexMapRefusedError("it names a place in a source file")
        if "ty" in fields and self._kind(fields["ty"]) != "ir.PrimType":
            raise IndexMapRefusedError("its numbers are not integers")
        return fields

    def _list(self, index: Any) -> list[int]:
        if self._kind(index) != "ffi.Array":
            raise IndexMapRefusedError(f"it has a {self._kind(index)} where a list belongs")
        indices: list[int] = self._nodes[index]["data"]
        return indices

    def _expression(self, index: Any, own: frozenset[int], *, as_divisor: bool, level: int) -> int:
        """Check an expression that stands at a level; returns its depth. Shared parts are looked at once."""
        # On the way down as well: a graph may be deeper than the interpreter counts.
        if level > _MOST_DEPTH:
            raise _too_deep()
        kind = self._kind(index)
        noted_depth = self._depths.get((index, as_divisor))
        if noted_depth is not None:
            if noted_depth < 0:
                raise IndexMapRefusedError("a node contains itself")
            return noted_depth
        self._depths[index, as_divisor] = -1
        depth = 1
        if kind == "ir.Var":
            name = self._fields(index, kind)["name"]
            if self._kind(name) != "ffi.String":
                raise IndexMapRefusedError("a variable has no name")
            if index not in own:
                self._free.add(self._nodes[name]["data"])
            elif as_divisor:
                raise IndexMapRefusedError("it divides by an index")
        elif kind == "ir.IntImm":
            value = self._fields(index, kind)["value"]
            if self._kind(value) != "int" or (as_divisor and self._nodes[value]["data"] < 1):
                raise IndexMapRefusedError(
                    "it divides by a number below one, or has a constant without value"
                )
        elif kind in _ARITHMETIC and (kind == "prim.Mul" or not as_divisor):
            both = self._fields(index, kind)
            below, divides = level + 1, as_divisor or kind in _DIVISIONS
            first_depth = self._expression(both["a"], own, as_divisor=as_divisor, level=below)
            second_depth = self._expression(both["b"], own, as_divisor=divides, level=below)
            depth = 1 + max(first_depth, second_depth)
        else:
            raise IndexMapRefusedError(f"it computes with a {kind}")
        if depth > _MOST_DEPTH:
            raise _too_deep()
        self._depths[index, as_divisor] = depth
        return depth


def _too_deep() -> IndexMapRefusedError:
    return IndexMapRefusedError(f"it is deeper than {_MOST_DEPTH} levels")
