"""MIOpen's find databases: a line a convolution problem, and the solvers that were timed for it.

Two forms, sometimes in one file; times are in milliseconds, one a solver:

    KEY=SOLVER:ms,workspace,algorithm;SOLVER:...
    KEY=ALGORITHM:SOLVER,ms,workspace,ALGORITHM,<unused>;ALGORITHM:...

A key is `C-[D-]H-W-FILTER-K-[Do-]Ho-Wo-N-PAD-STRIDE-DILATION-BIAS-LAYOUT-TYPE-DIRECTION`: one layout for all
three tensors or one each, and `_gN` behind it where channels are in groups. For the directions `B` (of the
data) and `W` (of the weights) the first sizes are the gradient's and the second ones the data's. A database
keeps the best solvers of a problem: one that it lacks is unknown, and no failure. The GPU is in the name of
the file only: architecture and compute units, more than 64 of them as a hexadecimal number (`gfx906_60`,
`gfx90878`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Final

from agents.records import Family, Outcome
from fleet.interchange.logs.catalog import (
    Catalog,
    Environment,
    FileFormat,
    LoggedWorkload,
    Measurement,
    key_id,
)
from fleet.interchange.logs.json_values import (
    LoggedResult,
    Rejected,
    careful,
    check_secs,
    text_of,
)
from fleet.interchange.logs.knobs import DIALECT
from fleet.interchange.logs.lines import LogLines, Unreadable
from fleet.interchange.logs.operators import Operator, Shape, shape_of
from fleet.interchange.logs.targets import Machine, Target

TOOL: Final = "miopen"
#: Real lines have some hundred bytes a solver, and six solvers.
_MAX_LINE_BYTES = 1 << 16
#: Solvers whose traces are kept; MIOpen has about a hundred.
_MAX_SOLVERS = 4096

#: How a first line begins, whatever is wrong with it.
_HEAD = re.compile(rb"[0-9]+-[0-9x-]{8,200}-[A-Za-z0-9]{3,16}-[A-Z]+[0-9]+\w*-[FBW](?:_\w+)?=")
_KEY_WORD = re.compile(r"[0-9A-Za-z_-]{1,256}")
_SOLVER = re.compile(r"[A-Za-z][A-Za-z0-9_<>.+-]{0,127}")
_GPU = re.compile(r"(gfx1[0-9a-f]{3}|gfx[2-9][0-9a-f]{2})(?:_([0-9]{1,3})|([0-9a-f]{2,3}))(?:\.|$)")
_DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8", "FP64": "float64"}
#: Data, weights, output: a key has one layout for all of them, or one each.
_TENSORS = 3
_BACKWARD = {"B": "backward_data", "W": "backward_weights"}
#: Data, weights, output by direction: what is computed stands last.
_ORDERS = {"F": (0, 1, 2), "B": (2, 1, 0), "W": (0, 2, 1)}


def _is_problem(line: bytes) -> bool:
    """Whether a first line begins with the key of a problem."""
    return _HEAD.match(line[:1024]) is not None


def read_find_db(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    """Yield each timed solver of a database, or why there is none; a faulty line counts once."""
    name, architecture = gpu_of(lines.path.name)
    reader = _ProblemReader(catalog, _environment(catalog, name, architecture))
    for line in lines:
        try:
            yield from careful(reader.solvers, line)
        except Rejected as reason:
            yield reason


def gpu_of(file_name: str) -> tuple[str, str]:
    """Name of the GPU in a file's name, as `gfx906 60` (architecture, compute units), and its architecture.

    Both are empty where the name does not say.
    """
    match = _GPU.search(file_name)
    if match is None:
        return "", ""
    architecture, units, hexadecimal = match.groups()
    return f"{architecture} {int(units) if units else int(hexadecimal, 16)}", architecture


def _environment(catalog: Catalog, name: str, architecture: str) -> Environment:
    options = {"kind": "rocm", **({"mcpu": architecture} if architecture else {})}
    value = {"imported": DIALECT, "tool": TOOL, "device_name": name, "target": options}
    facts = (("arch", architecture),) if architecture else ()
    machine = Machine(Target(options, Family.GPU), device_name=name, device_facts=facts)
    return catalog.environment((DIALECT, TOOL, name), lambda: (value, machine))


class _ProblemReader:
    """Turns lines into measurements of one environment."""

    def __init__(self, catalog: Catalog, environment: Environment) -> None:
        self._catalog = catalog
        self._environment = environment

    def solvers(self, line: bytes | Unreadable) -> list[Measurement | Rejected]:
        """The timed solvers of one line; a faulty one among them costs no other.

        Raises:
            Rejected: The line is no problem.
        """
        text = text_of(line)
        key, equals, timed = text.rstrip("\r").partition("=")
        if not equals:
            raise Rejected("truncated", "no '=' behind the key; ends in ", got=text[-20:])
        if not timed:
            raise Rejected("not measured", "no solver behind the key")
        workload = self._catalog.workload((TOOL, key), lambda: problem_of(key))
        entries: list[Measurement | Rejected] = []
        for part in timed.split(";"):
            try:
                entries.append(self._measurement(workload, part))
            except Rejected as reason:
                entries.append(reason)
        return entries

    def _measurement(self, workload: LoggedWorkload, part: str) -> Measurement:
        """One solver, in either form."""
        solver, _, rest = part.partition(":")
        fields = rest.split(",")
        if len(fields) == 5:
            solver, duration = fields[:2]
        elif len(fields) == 3:
            duration = fields[0]
        else:
            raise Rejected("a solver has a wrong number of fields", f"{len(fields)}, not 3 or 5: ", got=part)
        trace = _trace_of(solver)
        try:
            secs = float(duration) / 1e3
        except ValueError:
            raise Rejected("a cost is not a number", got=duration) from None
        # To Python `1_0` is ten, to no other tool.
        if "_" in duration:
            raise Rejected("a cost is not a number", got=duration)
        return Measurement(workload, self._environment, trace, LoggedResult(Outcome.OK, check_secs([secs])))


@lru_cache(maxsize=_MAX_SOLVERS)
def _trace_of(solver: str) -> str:
    """The canonical JSON of `{"solver": name}`; the name has no letter that JSON would escape."""
    if not _SOLVER.fullmatch(solver):
        raise Rejected("a solver's name is no word of up to 128 letters", got=solver)
    return f'{{"solver":"{solver}"}}'


def problem_of(key: str) -> LoggedWorkload:
    """The workload that a key names.

    Raises:
        Rejected: It is no key of a convolution.
    """
    if not _KEY_WORD.fullmatch(key):
        raise Rejected("a key has other characters than numbers and words", got=key)
    sizes, *words = key.rsplit("-", 2)
    if len(words) != 2:
        raise Rejected("a key has a wrong number of fields", key[:80])
    word, direction = words
    direction, _, group = direction.partition("_g")
    order = _ORDERS.get(direction)
    if order is None:
        raise Rejected("a direction is none of F, B and W", got=direction)
    tensors, flops = _tensors(sizes, group, direction == "F")
    dimensions = len(tensors[0]) - 2
    backward = _BACKWARD.get(direction)
    operator = f"conv{dimensions}d_{backward}" if backward else "GRP" if group else f"C{dimensions}D"
    dtype = _DTYPES.get(word) or word.lower()
    first, second, last = order
    named = f'"kernel":"convolution","problem":"{key}","tool":"{TOOL}"}}'
    return LoggedWorkload.of(
        DIALECT,
        key_id(DIALECT, f"{{{named}"),
        f"convolution {key}",
        Operator(operator, (tensors[first], tensors[second], tensors[last]), (dtype, dtype, dtype), flops),
        f'{{"dialect":"{DIALECT}",{named}',
    )


@lru_cache(maxsize=1024)
def _tensors(sizes: str, group: str, is_forward: bool) -> tuple[tuple[Shape, ...], float]:
    """Shapes of data, weights and output, and FLOPs; neighbouring lines differ in type and direction only.

    Args:
        sizes: A key without its type and direction.
        group: Number of groups; empty for one.
        is_forward: Whether the first sizes are the data's.

    Raises:
        Rejected: No such convolution can be.
    """
    fields = sizes.split("-")
    dimensions = next((place - 1 for place in (3, 4) if "x" in "".join(fields[place : place + 1])), 0)
    layouts = fields[2 * dimensions + 8 :]
    if not dimensions or len(layouts) not in (1, _TENSORS):
        raise Rejected("a key has a wrong number of fields", sizes[:80])
    try:
        groups = int(group or 1)
        channels, *size = map(int, fields[: dimensions + 1])
        taps = [*map(int, fields[dimensions + 1].split("x"))]
        others, *other_size = map(int, fields[dimensions + 2 : 2 * dimensions + 3])
        batch = int(fields[2 * dimensions + 3])
    except ValueError:
        raise Rejected("a size of a key is not a number", sizes[:80]) from None
    if len(taps) != dimensions or groups < 1 or channels % groups or others % groups:
        raise Rejected("sizes of a key contradict each other", sizes[:80])
    first, second = (channels, size), (others, other_size)
    data, output = (first, second) if is_forward else (second, first)
    tensors = (batch, *data), (output[0], data[0] // groups, taps), (batch, *output)
    by_layout = zip(layouts * (_TENSORS // len(layouts)), tensors, strict=True)
    shapes = tuple(_laid_out(layout, *tensor) for layout, tensor in by_layout)
    if None in [shape_of(list(shape)) for shape in shapes]:
        raise Rejected("a size of a key is out of range", sizes[:80])
    return shapes, 2.0 * batch * output[0] * prod(output[1]) * (data[0] // groups) * prod(taps)


def _laid_out(layout: str, count: int, channels: int, size: list[int]) -> Shape:
    """A tensor's shape: channels last in `NHWC` and `NDHWC`."""
    return (count, *size, channels) if layout.endswith("C") else (count, channels, *size)


FORMATS = (
    FileFormat(
        tool="MIOpen",
        dialect=DIALECT,
        read=read_find_db,
        is_head=_is_problem,
        max_line_bytes=_MAX_LINE_BYTES,
    ),
)
