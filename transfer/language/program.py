"""Stages and loops of a program before any step, read out of TVM's JSON of the unscheduled module.

Called by the MetaSchedule reader, which numbers stages in the program's order, and by whoever starts a
`transfer.language.loop_nest.LoopNest` from a workload. Needs no TVM; knows nothing of schedules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Largest module text that is parsed; the largest operator of TVM's suite takes 0.1 MB.
_MODULE_LIMIT = 8_000_000
#: Deepest nest of statements that is followed.
_DEPTH_LIMIT = 200
#: `IterVar` type of a reduction axis (tvm/tirx/var.h: kCommReduce).
_REDUCTION = 2
#: Fields of statements that hold statements, in program order.
_BODIES = ("body", "then_case", "else_case")


class ProgramStage(NamedTuple):
    """A block of the unscheduled program, the root left out."""

    name: str
    #: Extents of the stage's own loops, outermost first; 0 where one is no constant.
    extents: tuple[int, ...]
    #: Whether each own loop runs over a reduction axis.
    reductions: tuple[bool, ...]
    #: (stage, position of its own loop) inside of which the own loops stand; None at the root.
    at: tuple[int, int] | None
    #: Axes of the block: as many loops as a compute-at makes.
    axes: int
    #: Numbers that tell the buffers apart, in the block's order.
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def program_stages(module_json: str) -> tuple[ProgramStage, ...]:
    """Stages of a module in program order.

    Loops around several blocks belong to the first of them. Read are TVM 0.27's JSON graph and the one that
    TVM wrote until 0.20; a module of several functions, or in another form, gives nothing, which is no error.
    """
    if len(module_json) > _MODULE_LIMIT:
        return ()
    try:
        return _Graph(json.loads(module_json)["nodes"]).stages()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return ()


class _Graph:
    """Nodes of TVM's JSON graph: `{"type": ..., "data": ...}`, children by their index."""

    def __init__(self, nodes: list[Any]) -> None:
        self._is_old = any("type_key" in node for node in nodes[:2])
        self._nodes = [_renewed(node) for node in nodes] if self._is_old else nodes

    def _type(self, index: int) -> str:
        # Name spaces of types change between TVM versions (tir, tirx, s_tir); their names hardly do.
        return str(self._nodes[index]["type"]).rpartition(".")[2]

    def _data(self, index: int) -> Any:
        return self._nodes[index]["data"]

    def stages(self) -> tuple[ProgramStage, ...]:
        """Every block but the root."""
        functions = [index for index in range(len(self._nodes)) if self._type(index) == "PrimFunc"]
        if len(functions) != 1:
            return ()
        owners: dict[int, tuple[int, int]] = {}
        found: list[ProgramStage] = []
        for nest, realize in self._blocks(self._data(functions[0])["body"], (), 0):
            shared = 0
            while shared < len(nest) and nest[shared] in owners:
                shared += 1
            at = owners[nest[shared - 1]] if shared else None
            own = nest[shared:]
            owners.update({loop: (len(found), place) for place, loop in enumerate(own)})
            found.append(self._stage(own, at, realize))
        return tuple(found)

    def _blocks(
        self, index: int, nest: tuple[int, ...], depth: int
    ) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
        """Blocks under a statement in program order, each with the nodes of the loops around it."""
        if depth > _DEPTH_LIMIT:
            raise ValueError("statements are nested too deeply")
        kind, data = self._type(index), self._data(index)
        if kind == "SeqStmt":
            for child in self._data(data["seq"]):
                yield from self._blocks(child, nest, depth + 1)
        elif kind in ("SBlockRealize", "BlockRealize"):
            block = self._data(data["block"])
            if depth:
                yield nest, data
            else:  # the root, around everything
                yield from self._blocks(block["body"], (), depth + 1)
        else:
            inner = (*nest, index) if kind == "For" else nest
            for field in _BODIES:
                if isinstance(data.get(field), int) and self._nodes[data[field]].get("data") is not None:
                    yield from self._blocks(data[field], inner, depth + 1)

    def _stage(
        self, own: tuple[int, ...], at: tuple[int, int] | None, realize: dict[str, Any]
    ) -> ProgramStage:
        block = self._data(realize["block"])
        axes = [self._data(axis) for axis in self._data(block["iter_vars"])]
        reduced = {
            value
            for value, axis in zip(self._data(realize["iter_values"]), axes, strict=True)
            if axis["iter_type"] == _REDUCTION
        }
        loops = [self._data(loop) for loop in own]
        return ProgramStage(
            name=str(self._data(block["name_hint"])),
            extents=tuple(self._integer(loop["extent"]) for loop in loops),
            reductions=tuple(loop["loop_var"] in reduced for loop in loops),
            at=at,
            axes=len(axes),
            reads=self._buffers(block["reads"]),
            writes=self._buffers(block["writes"]),
        )

    def _buffers(self, regions: int) -> tuple[int, ...]:
        field = "buffer" if self._is_old else "source"
        return tuple(int(self._data(region)[field]) for region in self._data(regions))

    def _integer(self, index: int) -> int:
        """Value of an integer constant; 0 for anything symbolic."""
        if self._type(index) != "IntImm":
            return 0
        value = self._data(index)["value"]
        return int(value if self._is_old else self._data(value))


def _renewed(node: dict[str, Any]) -> dict[str, Any]:
    """A node of the old graph in the form of the new one; there, children are numbers written as text."""
    data = node.get("data", node.get("repr_str", []))
    if "attrs" in node:
        data = {
            name: int(value) if value.lstrip("-").isdigit() else value
            for name, value in node["attrs"].items()
        }
    return {"type": node["type_key"], "data": data}
