"""How the blocks of a workload touch memory, read out of TVM's JSON of the unscheduled module.

A tile of loops touches a box of each buffer; how large follows from the index expressions, which are the same
for every schedule of the workload. So they are parsed once a workload, without TVM. Called by
`transfer.features.summary` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transfer.features.box_access import BlockAccess, BufferAccess, element_bytes
from transfer.language.autotvm_templates import are_transposed, find_template, height_and_width
from transfer.language.module_graph import GRAPH_ERRORS, ModuleGraph, parse_module
from transfer.language.primitives import MAX_NUMBER, WalkBudget

# How the operators of AutoTVM's templates touch memory, worked out from their arguments.
#
# A task of an AutoTVM log has no TVM module, but for convolutions and matrix products the accesses follow
# from shapes, strides and dilation. The axes are those that `transfer.language.autotvm` numbers, in an
# order that puts the vectorised one last among the spatial ones, as in the programs of MetaSchedule.
#
# A packed layout (`NCHWc`, spatial pack) has channel blocks innermost; here it is the layout with all
# channels innermost, which has the same neighbours in memory inside of every tile.

#: How a template that runs on a GPU is named; its outer tiles are blocks and threads.
_ON_GPU = re.compile(r"\.(cuda|gpu)$")
_CHANNELS_FIRST_ON_GPU = re.compile(r"conv2d_nchw")


class _Index(NamedTuple):
    """One dimension of a buffer: its extent, and (axis, slope) of each axis that moves in it."""

    extent: int
    moves: tuple[tuple[int, int], ...]


def template_access(name: str, arguments: Sequence[Any]) -> BlockAccess | None:
    """Accesses of the main stage of a task; None where the template or its arguments are unknown.

    Args:
        name: Task function.
        arguments: Its arguments, as logged.
    """
    axes = find_template(name, arguments).axes
    on_gpu = _ON_GPU.search(name) is not None
    extents = [axis.extent for axis in axes]
    order: tuple[int, ...] = tuple(range(len(axes)))
    if not extents or not all(extents):
        return None
    try:
        if "winograd" in name:
            buffers = _winograd(extents)
        elif "conv2d" in name:
            order, buffers = _convolution(name, arguments, extents, on_gpu)
        elif name.startswith("dense"):
            buffers = _dense(extents, packed="pack" in name and "nopack" not in name)
        elif name.startswith("batch_matmul"):
            buffers = _batch_matmul(arguments, extents)
        else:
            return None
        size = element_bytes(str(arguments[0][2]))
    except (IndexError, TypeError, ValueError):
        return None
    return BlockAccess(
        extents=tuple(extents[axis] for axis in order),
        spatial=tuple(not axes[axis].is_reduction for axis in order),
        buffers=tuple(_buffer(indexes, order, size, is_write) for indexes, is_write in buffers),
        axes=order,
        on_gpu=on_gpu,
    )


def _whole(extents: Sequence[int]) -> list[_Index]:
    """Each axis as a dimension of its own."""
    return [_Index(extent, ((axis, 1),)) for axis, extent in enumerate(extents)]


_Buffers = tuple[tuple[tuple[_Index, ...], bool], ...]


def _convolution(
    name: str, arguments: Sequence[Any], extents: Sequence[int], on_gpu: bool
) -> tuple[tuple[int, ...], _Buffers]:
    """A convolution, or one without input channels of its own (depthwise)."""
    channels_last = "nhwc" in name.lower()
    n, height, width, channel = (0, 1, 2, 3) if channels_last else (0, 2, 3, 1)
    depthwise = "depthwise" in name
    # Axes of the window; in between, where there is one, that of the input channels.
    rows, columns = (4, 5) if depthwise else (5, 6)
    (down, right), (wide, far) = height_and_width(arguments[2]), height_and_width(arguments[4])
    reach = [
        _Index(
            (extents[out] - 1) * stride + (extents[tap] - 1) * dilation + 1,
            ((out, stride), (tap, dilation)),
        )
        for out, stride, tap, dilation in ((height, down, rows, wide), (width, right, columns, far))
    ]

    whole = _whole(extents)
    source = whole[channel] if depthwise else whole[4]
    window = [whole[rows], whole[columns]]
    if on_gpu and _CHANNELS_FIRST_ON_GPU.search(name):
        data = (whole[n], source, *reach)
        kernel = (whole[channel], *window) if depthwise else (whole[channel], source, *window)
        output = (whole[n], whole[channel], whole[height], whole[width])
        spatial: tuple[int, ...] = (n, channel, height, width)
    else:
        data = (whole[n], *reach, source)
        kernel = (*window, whole[channel]) if depthwise else (*window, source, whole[channel])
        output = (whole[n], whole[height], whole[width], whole[channel])
        spatial = (n, height, width, channel)
    return (*spatial, *range(4, len(extents))), ((data, False), (kernel, False), (output, True))


def _winograd(extents: Sequence[int]) -> _Buffers:
    """Products of the transformed kernel (b, c, k) and data (b, c, p): (b, k, p)."""
    b, k, p, c = _whole(extents)
    return ((b, c, k), False), ((b, c, p), False), ((b, k, p), True)


def _dense(extents: Sequence[int], *, packed: bool) -> _Buffers:
    """Rows of the data times rows of the weight; a packed weight has its rows innermost."""
    y, x, k = _whole(extents)
    return ((y, k), False), ((k, x) if packed else (x, k), False), ((y, x), True)


def _batch_matmul(arguments: Sequence[Any], extents: Sequence[int]) -> _Buffers:
    b, y, x, k = _whole(extents)
    if any(len(matrices[1]) != 3 for matrices in arguments[:2]):
        raise ValueError("not two batches of matrices")
    first, second = are_transposed(arguments)
    first_axes, second_axes = (b, k, y) if first else (b, y, k), (b, x, k) if second else (b, k, x)
    return (first_axes, False), (second_axes, False), ((b, y, x), True)


def _buffer(indexes: Sequence[_Index], order: Sequence[int], size: int, is_write: bool) -> BufferAccess:
    place: Mapping[int, int] = {axis: number for number, axis in enumerate(order)}
    coefficients = np.zeros((len(indexes), len(order)))
    for row, index in enumerate(indexes):
        for axis, slope in index.moves:
            coefficients[row, place[axis]] = slope
    return BufferAccess(
        element_bytes=size,
        shape=tuple(min(index.extent, MAX_NUMBER) for index in indexes),
        coefficients=coefficients,
        divisors=np.ones(coefficients.shape),
        base=np.ones(len(indexes)),
        is_write=is_write,
    )


#: Deepest index expression that is followed; those of TVM's operator suite stay under ten.
_DEPTH_LIMIT = 40
#: Axes and buffers of a block, and dimensions of a buffer, that are described; real ones stay under ten. A
#: block with more has no numbers that the features could hold.
_MOST_AXES, _MOST_BUFFERS, _MOST_DIMENSIONS = 32, 64, 32
#: `IterVar` type of a data-parallel axis (tvm/tirx/var.h: kDataPar).
_DATA_PARALLEL = 0

#: (slope, divisor) by variable: an index moves by slope every divisor steps of it.
_Slopes = dict[int, tuple[float, int]]


def block_accesses(module_json: str) -> dict[str, BlockAccess]:
    """Blocks of a module by name.

    A module in another form than TVM 0.27's JSON graph, or a block whose loops are not its axes one to one,
    gives nothing: the numbers that rest on it then stay 0, which is no error. The workload of an AutoTVM log
    has one nameless block, if its template is known.

    Raises:
        BudgetError: The module takes more work to read than any real one.
    """
    try:
        module = parse_module(module_json)
        if module is None:
            return {}
        if module.get("dialect") == "autotvm":
            access = template_access(str(module["name"]), list(module["args"]))
            return {} if access is None else {"": access}
        return _Blocks(ModuleGraph(module["nodes"], WalkBudget(len(module_json), "the module"))).blocks()
    except GRAPH_ERRORS:
        return {}


class _Blocks:
    """The blocks of a module and the loops around them."""

    def __init__(self, graph: ModuleGraph) -> None:
        self._graph = graph
        self._loops: dict[int, tuple[int, dict[str, Any]]] = {}
        #: Of the index expressions met so far: their parts may be shared.
        self._slopes_of: dict[int, _Slopes] = {}
        for index in range(len(graph)):
            if graph.type(index) == "For":
                loop = graph.data(index)
                for child in self._statements(loop["body"]):
                    self._loops[child] = (index, loop)

    def _statements(self, index: int) -> list[int]:
        if self._graph.type(index) == "SeqStmt":
            return list(self._graph.data(self._graph.data(index)["seq"]))
        return [index]

    def blocks(self) -> dict[str, BlockAccess]:
        """Every block that can be told, by name."""
        accesses: dict[str, BlockAccess] = {}
        data = self._graph.data
        for index in range(len(self._graph)):
            if self._graph.type(index) in ("SBlockRealize", "BlockRealize"):
                realize = data(index)
                block = data(realize["block"])
                access = self._block(index, realize, block)
                if access is not None:
                    accesses[self._graph.text(block["name_hint"])] = access
        return accesses

    def _block(self, index: int, realize: dict[str, Any], block: dict[str, Any]) -> BlockAccess | None:
        data = self._graph.data
        nest: list[int] = []
        while index in self._loops:
            index, loop = self._loops[index]
            self._graph.budget.spend(1)
            nest.append(loop["loop_var"])
        nest.reverse()
        values = list(data(realize["iter_values"]))
        if not 0 < len(values) <= _MOST_AXES or sorted(nest) != sorted(values):
            return None
        axes_of = dict(zip(values, (data(axis) for axis in data(block["iter_vars"])), strict=True))
        axes = [axes_of[variable] for variable in nest]
        place = {axis["var"]: number for number, axis in enumerate(axes)}
        if len(place) != len(axes):  # two axes of one variable: no block is so
            return None
        extents = [self._graph.integer(data(axis["dom"])["extent"], 1) for axis in axes]
        regions = [
            (data(region), is_write)
            for listed, is_write in ((block["reads"], False), (block["writes"], True))
            for region in data(listed)
        ]
        if len(regions) > _MOST_BUFFERS:
            return None
        buffers = []
        for region, is_write in regions:
            buffer = self._buffer(region, place, is_write)
            if buffer is None:
                return None
            buffers.append(buffer)
        if not any(buffer.is_write for buffer in buffers):  # a block is there for what it writes
            return None
        return BlockAccess(
            extents=tuple(extents),
            spatial=tuple(axis["iter_type"] == _DATA_PARALLEL for axis in axes),
            buffers=tuple(buffers),
        )

    def _buffer(self, region: dict[str, Any], place: dict[int, int], is_write: bool) -> BufferAccess | None:
        data, integer = self._graph.data, self._graph.integer
        kind = data(data(region["source"])["ty"])
        dtype = data(kind["dtype"])["dtype"]
        shape = tuple(integer(extent, 1) for extent in data(kind["shape"]))
        ranges = [data(index) for index in data(region["region"])]
        if len(shape) != len(ranges) or len(shape) > _MOST_DIMENSIONS:
            return None
        self._graph.budget.spend(len(ranges) * len(place))
        coefficients = np.zeros((len(ranges), len(place)))
        divisors = np.ones(coefficients.shape)
        for row, dimension in enumerate(ranges):
            for variable, (slope, divisor) in self._slopes(dimension["min"]).items():
                if variable in place:
                    coefficients[row, place[variable]] = abs(slope)
                    divisors[row, place[variable]] = divisor
        return BufferAccess(
            element_bytes=element_bytes(dtype),
            shape=shape,
            coefficients=coefficients,
            divisors=divisors,
            base=np.array([integer(dimension["extent"], 1) for dimension in ranges], dtype=np.float64),
            is_write=is_write,
        )

    def _slopes(self, index: int, depth: int = 0) -> _Slopes:
        """Slopes of an index expression in its variables."""
        slopes = self._slopes_of.get(index)
        if slopes is None:
            slopes = self._slopes_of[index] = self._new_slopes(index, depth)
        self._graph.budget.spend(1 + len(slopes))
        return slopes

    def _new_slopes(self, index: int, depth: int) -> _Slopes:
        kind, data = self._graph.type(index), self._graph.nodes[index].get("data")
        if kind == "Var":
            return {index: (1.0, 1)}
        if depth > _DEPTH_LIMIT or not isinstance(data, dict) or "a" not in data or "b" not in data:
            return {}
        first, second = self._slopes(data["a"], depth + 1), self._slopes(data["b"], depth + 1)
        if kind in ("Add", "Sub"):
            # An axis on both sides (padding tricks) keeps its steeper side.
            return {
                variable: max(first.get(variable, (0.0, 1)), second.get(variable, (0.0, 1)))
                for variable in {**first, **second}
            }
        if kind == "Mul":
            slopes, factor = (first, data["b"]) if first else (second, data["a"])
            scale = self._graph.integer(factor, 1)
            return {variable: (slope * scale, divisor) for variable, (slope, divisor) in slopes.items()}
        if kind in ("FloorDiv", "Div"):
            whole = max(1, self._graph.integer(data["b"], 1))
            return {
                variable: (slope, divisor * whole) if slope == 1 else (slope / whole, divisor)
                for variable, (slope, divisor) in first.items()
            }
        # FloorMod keeps the slope; the shape of the buffer bounds the rest.
        return first
