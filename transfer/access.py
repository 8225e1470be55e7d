"""How the blocks of a workload touch memory, read out of TVM's JSON of the unscheduled module.

A tile of loops touches a box of each buffer; how large follows from the index expressions, which are the same
for every schedule of the workload. So they are parsed once a workload, without TVM. Called by
`transfer.summary` only.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from transfer.box_access import BlockAccess, BufferAccess, element_bytes
from transfer.template_access import template_access

#: Largest module text that is parsed; the largest operator of TVM's suite takes 0.1 MB.
_MODULE_LIMIT = 8_000_000
#: Deepest index expression that is followed; those of TVM's operator suite stay under ten.
_DEPTH_LIMIT = 40
#: `IterVar` type of a data-parallel axis (tvm/tirx/var.h: kDataPar).
_DATA_PARALLEL = 0


def block_accesses(module_json: str) -> dict[str, BlockAccess]:
    """Blocks of a module by name.

    A module in another form than TVM 0.27's JSON graph, or a block whose loops are not its axes one to one,
    gives nothing: the numbers that rest on it then stay 0, which is no error. The workload of an AutoTVM log
    has one nameless block, if its template is known.
    """
    if len(module_json) > _MODULE_LIMIT:
        return {}
    try:
        module = json.loads(module_json)
        if module.get("dialect") == "autotvm":
            access = template_access(str(module["name"]), list(module["args"]))
            return {} if access is None else {"": access}
        return _Graph(module["nodes"]).blocks()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return {}


class _Graph:
    """Nodes of TVM's JSON graph: `{"type": ..., "data": ...}`, children by their index."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        self._loops: dict[int, tuple[int, dict[str, Any]]] = {}
        for index, node in enumerate(nodes):
            if self._type(index) == "For":
                for child in self._statements(node["data"]["body"]):
                    self._loops[child] = (index, node["data"])

    def _type(self, index: int) -> str:
        # Name spaces of types change between TVM versions (tir, tirx, s_tir); their names hardly do.
        return str(self._nodes[index]["type"]).rpartition(".")[2]

    def _data(self, index: int) -> Any:
        return self._nodes[index]["data"]

    def _statements(self, index: int) -> list[int]:
        if self._type(index) == "SeqStmt":
            return list(self._data(self._data(index)["seq"]))
        return [index]

    def blocks(self) -> dict[str, BlockAccess]:
        """Every block that can be told, by name."""
        found: dict[str, BlockAccess] = {}
        for index in range(len(self._nodes)):
            if self._type(index) in ("SBlockRealize", "BlockRealize"):
                realize = self._data(index)
                block = self._data(realize["block"])
                access = self._block(index, realize, block)
                if access is not None:
                    found[str(self._data(block["name_hint"]))] = access
        return found

    def _block(self, index: int, realize: dict[str, Any], block: dict[str, Any]) -> BlockAccess | None:
        nest: list[int] = []
        while index in self._loops:
            index, loop = self._loops[index]
            nest.insert(0, loop["loop_var"])
        values = list(self._data(realize["iter_values"]))
        if not values or sorted(nest) != sorted(values):
            return None
        axes = [self._data(axis) for axis in self._data(block["iter_vars"])]
        axes = [axes[values.index(variable)] for variable in nest]
        place = {axis["var"]: number for number, axis in enumerate(axes)}
        extents = [self._integer(self._data(axis["dom"])["extent"]) for axis in axes]
        buffers = [
            self._buffer(self._data(region), place, is_write)
            for regions, is_write in ((block["reads"], False), (block["writes"], True))
            for region in self._data(regions)
        ]
        return BlockAccess(
            extents=tuple(extents),
            spatial=tuple(axis["iter_type"] == _DATA_PARALLEL for axis in axes),
            buffers=tuple(buffers),
        )

    def _buffer(self, region: dict[str, Any], place: dict[int, int], is_write: bool) -> BufferAccess:
        kind = self._data(self._data(region["source"])["ty"])
        dtype = self._data(kind["dtype"])["dtype"]
        shape = tuple(self._integer(extent) for extent in self._data(kind["shape"]))
        ranges = [self._data(one) for one in self._data(region["region"])]
        coefficients = np.zeros((len(ranges), len(place)))
        divisors = np.ones(coefficients.shape)
        for row, one in enumerate(ranges):
            for variable, (slope, divisor) in self._slopes(one["min"]).items():
                if variable in place:
                    coefficients[row, place[variable]] = abs(slope)
                    divisors[row, place[variable]] = divisor
        return BufferAccess(
            element_bytes=element_bytes(dtype),
            shape=shape,
            coefficients=coefficients,
            divisors=divisors,
            base=np.array([self._integer(one["extent"]) for one in ranges], dtype=np.float64),
            is_write=is_write,
        )

    def _integer(self, index: int) -> int:
        """Value of an integer constant; 1 for anything symbolic."""
        if self._type(index) != "IntImm":
            return 1
        value = self._data(index)["value"]
        return int(self._data(value))

    def _slopes(self, index: int, depth: int = 0) -> dict[int, tuple[float, int]]:
        """(slope, divisor) of an index expression in each variable: it moves by slope every divisor steps."""
        kind, data = self._type(index), self._nodes[index].get("data")
        if kind == "Var":
            return {index: (1.0, 1)}
        if depth > _DEPTH_LIMIT or not isinstance(data, dict) or "a" not in data or "b" not in data:
            return {}
        left, right = self._slopes(data["a"], depth + 1), self._slopes(data["b"], depth + 1)
        if kind in ("Add", "Sub"):
            # An axis on both sides (padding tricks) keeps its steeper side.
            return {
                variable: max(left.get(variable, (0.0, 1)), right.get(variable, (0.0, 1)))
                for variable in {**left, **right}
            }
        if kind == "Mul":
            slopes, factor = (left, data["b"]) if left else (right, data["a"])
            scale = self._integer(factor)
            return {variable: (slope * scale, divisor) for variable, (slope, divisor) in slopes.items()}
        if kind in ("FloorDiv", "Div"):
            whole = max(1, self._integer(data["b"]))
            return {
                variable: (slope, divisor * whole) if slope == 1 else (slope / whole, divisor)
                for variable, (slope, divisor) in left.items()
            }
        # FloorMod keeps the slope; the shape of the buffer bounds the rest.
        return left
