"""Stages of a program before any step, read out of TVM's JSON of its module.

Called by the MetaSchedule reader, which numbers stages in this order. Needs no TVM; applies no steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from transfer.errors import BudgetError
from transfer.language.module_graph import GRAPH_ERRORS, ModuleGraph, parse_module
from transfer.language.primitives import WalkBudget

#: Deepest nest of statements that is followed.
_DEPTH_LIMIT = 200
#: Blocks of a program at most: the largest fused operators have some thirty. Each design space is compiled
#: against all of them.
_MOST_STAGES = 512
#: Buffers that one block reads, or writes, at most.
_MOST_BUFFERS = 256
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

    Loops around several blocks belong to the first of them; a statement that stands in several places counts
    where it is met first. Read are TVM 0.27's JSON graph and the one that TVM wrote until 0.20; a module of
    several functions, or in another form, gives nothing, which is no error.

    Raises:
        BudgetError: The module takes more work to read than any real one.
    """
    try:
        value = parse_module(module_json)
        if value is None:
            return ()
        return _Program(ModuleGraph(value["nodes"], WalkBudget(len(module_json), "the module"))).stages()
    except GRAPH_ERRORS:
        return ()


class _Program:
    """The statements of a module."""

    def __init__(self, graph: ModuleGraph) -> None:
        self._graph = graph
        #: Statements met so far; False once all below them was met, too.
        self._met: dict[int, bool] = {}

    def stages(self) -> tuple[ProgramStage, ...]:
        """Every block but the root."""
        graph = self._graph
        functions = [index for index in range(len(graph)) if graph.type(index) == "PrimFunc"]
        if len(functions) != 1:
            return ()
        owners: dict[int, tuple[int, int]] = {}
        stages: list[ProgramStage] = []
        for nest, realize in self._blocks(graph.data(functions[0])["body"], (), 0):
            if len(stages) >= _MOST_STAGES:
                raise BudgetError(f"the module has more than {_MOST_STAGES} blocks")
            shared = 0
            while shared < len(nest) and nest[shared] in owners:
                shared += 1
            at = owners[nest[shared - 1]] if shared else None
            own = nest[shared:]
            owners.update({loop: (len(stages), place) for place, loop in enumerate(own)})
            stages.append(self._stage(own, at, realize))
        return tuple(stages)

    def _blocks(
        self, index: int, nest: tuple[int, ...], depth: int
    ) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
        """Blocks under a statement in program order, each with the nodes of the loops around it."""
        if depth > _DEPTH_LIMIT:
            raise ValueError("statements are nested too deeply")
        if self._met.get(index):
            raise ValueError("a statement contains itself")
        if index in self._met:
            return
        self._met[index] = True
        graph = self._graph
        kind, data = graph.type(index), graph.data(index)
        if kind == "SeqStmt":
            for child in graph.data(data["seq"]):
                yield from self._blocks(child, nest, depth + 1)
        elif kind in ("SBlockRealize", "BlockRealize"):
            block = graph.data(data["block"])
            if depth:
                yield nest, data
            else:  # the root, around everything
                yield from self._blocks(block["body"], (), depth + 1)
        else:
            inner = (*nest, index) if kind == "For" else nest
            for field in _BODIES:
                if isinstance(data.get(field), int) and graph.nodes[data[field]].get("data") is not None:
                    yield from self._blocks(data[field], inner, depth + 1)
        self._met[index] = False

    def _stage(
        self, own: tuple[int, ...], at: tuple[int, int] | None, realize: dict[str, Any]
    ) -> ProgramStage:
        data = self._graph.data
        block = data(realize["block"])
        axes = [data(axis) for axis in data(block["iter_vars"])]
        reduced = {
            value
            for value, axis in zip(data(realize["iter_values"]), axes, strict=True)
            if axis["iter_type"] == _REDUCTION
        }
        loops = [data(loop) for loop in own]
        return ProgramStage(
            name=self._graph.text(block["name_hint"]),
            extents=tuple(self._graph.integer(loop["extent"], 0) for loop in loops),
            reductions=tuple(loop["loop_var"] in reduced for loop in loops),
            at=at,
            axes=len(axes),
            reads=self._buffers(block["reads"]),
            writes=self._buffers(block["writes"]),
        )

    def _buffers(self, regions: int) -> tuple[int, ...]:
        data, field = self._graph.data, "buffer" if self._graph.is_old else "source"
        listed = data(regions)
        if len(listed) > _MOST_BUFFERS:
            raise BudgetError(f"a block of the module touches more than {_MOST_BUFFERS} buffers")
        return tuple(int(data(region)[field]) for region in listed)
