"""Configurations of other tuners' kernels (Kernel Tuner, Triton, Helion) as primitive sequences.

A trace is the JSON object of one configuration: `{"block_size_x": 32, "tile_size_x": 2, "use_shmem": 1}`. The
workload's `module_json` names the kernel and its problem size. No step of a loop nest is known, so a knob
becomes what its name says, in the words of the other dialects:

| knob | primitive |
|---|---|
| threads, elements along an axis (`block_size_x`, `tile_size_x`, `BLOCK_M`) | SP: threads, elements of each |
| unrolling | PR `auto_unroll_max_step` |
| width of vectors | AN `vectorize` |
| a switch, or a word | AN named after knob and state; of a word in parts (`ConvAsm1x1U`) also one a part |
| any other number | AN named after the knob, with the number |

Derived numbers come first: threads of a block, elements of a thread, elements of a tile, bytes of shared
memory where the knobs give them. Called by `transfer.features.extractor`; knows nothing of records and files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from agents.records import Workload
from transfer.errors import TraceError
from transfer.language.primitives import (
    MAX_NUMBER,
    REDUCTION,
    SPATIAL,
    Kind,
    Primitive,
    Role,
    extent_product,
    parse_json,
)

#: Knobs of one configuration at most, and values within them.
MAX_KNOBS = 64
MAX_VALUES = 256
#: Characters of a name, and of a word, at most.
MAX_NAME = 128
MAX_WORD = 512
#: Parts of one word that are read.
_MOST_PARTS = 16
#: Levels of lists in one knob's value at most; Helion has two.
_LEVELS = 4

#: Threads of a warp, for tuners that count in warps.
_WARP_THREADS = 32
#: Bytes of an element where the workload does not name its type.
_ELEMENT_BYTES = 4
_TYPE_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

#: Position of an axis by its letter; x is contiguous, so it is the innermost.
_AXES = {"z": 0, "y": 1, "x": 2, "m": 3, "n": 4, "k": 5}
_PROBLEM_PLACE = {"x": 0, "y": 1, "z": 2}
_FIRST_FREE_AXIS = 6

#: What a knob is, by its name in small letters; a group is the axis.
_MEANINGS = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        (
            "threads",
            r"(?:thread_)?block_?(?:size|dim)_?([xyz])|(?:threads|local_size|workgroup_size)_?([xyz])",
        ),
        (
            "elements",
            r"(?:thread_)?tile_?(?:size)?_?([xyz])|(?:work|elements|items)_per_thread_?([xyz])|wpt_?([xyz])",
        ),
        ("tile", r"block(?:_size)?_([mnk])|([mnk])wg|block_sizes\[(\d)\]"),
        ("all_threads", r"block_?(?:size|dim)|num_threads|threads(?:_per_block)?|workgroup_size"),
        ("unroll", r".*unroll.*"),
        ("vector", r"vec(?:tor)?_?(?:width|size|length)?_?[a-z]?|vw[mn]"),
        ("shared_bytes", r"(?:dynamic_)?(?:sh(?:ared)?_?mem(?:ory)?|smem|lds)(?:_(?:size|bytes))?"),
        ("warps", "num_warps"),
        ("stages", "num_stages"),
    )
)
#: A word that is made of parts, and the parts: algorithms of one family share some.
_COMPOUND = re.compile(r"[a-z0-9][A-Z]")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+(?:x[0-9]+)*")


def check_knobs(value: object) -> str:
    """Say why a value is no configuration, "" where it is one.

    Args:
        value: What JSON gave: an object of names and numbers, words, or short lists of them.

    Returns:
        A short reason, the same for all values with the same fault, or "".
    """
    if type(value) is not dict:
        return "configuration is not an object"
    if len(value) > MAX_KNOBS:
        return "too many knobs"
    remaining = MAX_VALUES
    for name, chosen in value.items():
        if not 0 < len(name) <= MAX_NAME:
            return "name of a knob is empty or too long"
        if type(chosen) is int:
            if not -MAX_NUMBER <= chosen <= MAX_NUMBER:
                return "a knob is out of range"
            continue
        remaining = _check_value(chosen, remaining, _LEVELS)
        if remaining < 0:
            return "value of a knob is not a number, a word or a short list"
    return ""


def _check_value(value: Any, remaining: int, levels: int) -> int:
    """How many values may still come, negative for a faulty one."""
    if value is None or type(value) is bool:
        return remaining - 1
    if type(value) is str:
        return remaining - 1 if len(value) <= MAX_WORD else -1
    if type(value) is int:
        return remaining - 1 if -MAX_NUMBER <= value <= MAX_NUMBER else -1
    if type(value) is float:
        return remaining - 1 if math.isfinite(value) else -1
    if type(value) is not list or levels == 0:
        return -1
    for member in value:
        remaining = _check_value(member, remaining - 1, levels - 1)
        if remaining < 0:
            return -1
    return remaining


class KnobReader:
    """Reads configurations; a knob of unknown meaning is read as its name and number."""

    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Read one configuration.

        Args:
            trace: JSON text of an object.
            workload: The kernel with its problem size; without it, extents are 0.

        Raises:
            TraceError: The text is no configuration, or is larger than any.
        """
        value = parse_json(trace, "configuration")
        if fault := check_knobs(value):
            raise TraceError(f"{fault}; the configuration begins {trace[:60]!r}")
        knobs = dict(item for name in sorted(value) for item in _items(name, value[name]))
        return _read(knobs, *_problem_of(workload.module_json if workload else ""))


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A knob by its name, the items of a list by place."""
    if isinstance(value, list):
        for place, member in enumerate(value):
            yield from _items(f"{name}[{place}]", member)
    else:
        yield name, value


@lru_cache(maxsize=256)
def _problem_of(module_json: str) -> tuple[tuple[int, ...], int]:
    """Problem size by axis, and bytes of an element; empty for a workload of another dialect."""
    try:
        value = json.loads(module_json)
    except (ValueError, RecursionError):
        return (), _ELEMENT_BYTES
    problem = value.get("problem") if isinstance(value, dict) else None
    listed = problem if isinstance(problem, list) else [problem]
    size = tuple(extent if type(extent) is int and 0 < extent <= MAX_NUMBER else 0 for extent in listed[:8])
    problem_text = str(problem)
    width = next((size for name, size in _TYPE_BYTES.items() if name in problem_text), _ELEMENT_BYTES)
    return size, width


@lru_cache(maxsize=4096)
def _meaning(name: str) -> tuple[str, str]:
    """What a knob is, by its name, and its axis; each empty where the name does not say."""
    for role, pattern in _MEANINGS:
        if match := pattern.fullmatch(name.lower()):
            return role, next(filter(None, match.groups()), "")
    return "", ""


def _read(knobs: Mapping[str, Any], problem: tuple[int, ...], element_bytes: int) -> tuple[Primitive, ...]:
    threads: dict[str, int] = {}
    elements: dict[str, int] = {}
    tiles: dict[str, int] = {}
    counts: dict[str, int] = {}
    steps: list[Primitive] = []
    for name, value in knobs.items():
        role, axis = _meaning(name)
        number = value if type(value) is int and value >= 0 else None
        if number is None or not role:
            steps += _plain(name, value)
        elif axis:
            {"threads": threads, "elements": elements, "tile": tiles}[role][axis] = max(1, number)
        elif role == "unroll":
            steps.append(Primitive(Kind.PR, (number,), (name, Role.TILED.value, "auto_unroll_max_step")))
        elif role == "vector":
            steps.append(Primitive(Kind.AN, (-1, number), (name, Role.TILED.value, "vectorize")))
        else:
            counts[role] = number
            steps += _plain(name, value)
    splits = [
        _split(axis, problem, (threads.get(axis, 1), elements.get(axis, 1)))
        for axis in sorted(threads.keys() | elements.keys(), key=_AXES.__getitem__)
    ]
    splits += [_split(axis, problem, (size,)) for axis, size in sorted(tiles.items())]
    block = extent_product([*threads.values()]) if threads else counts.get("all_threads", 0)
    block = block or counts.get("warps", 0) * _WARP_THREADS
    each = extent_product([*elements.values()]) if elements else 0
    area = extent_product([size for axis, size in tiles.items() if axis != "k"]) if tiles else 0
    area = area or (extent_product([block, each]) if each else 0)
    derived = [
        ("threads", "threadIdx.x", block),
        ("elements", "none", each),
        ("area", "tiling_structure", area),
        ("shared", "shared", _shared_bytes(knobs, threads, elements, tiles, counts, element_bytes)),
    ]
    annotations = [
        Primitive(Kind.AN, (-1, number), (name, Role.TILED.value, detail))
        for name, detail, number in derived
        if number
    ]
    return (*splits, *annotations, *steps)


def _split(axis: str, problem: tuple[int, ...], factors: tuple[int, ...]) -> Primitive:
    """An axis that blocks of threads share, and each thread's elements of it."""
    place = _PROBLEM_PLACE.get(axis, -1)
    extent = problem[place] if 0 <= place < len(problem) else 0
    position = _AXES[axis] if axis in _AXES else _FIRST_FREE_AXIS + int(axis) % 6
    detail = REDUCTION if axis == "k" else SPATIAL
    return Primitive(Kind.SP, (position, extent, *factors), ("", Role.TILED.value, detail))


def _plain(name: str, value: Any) -> list[Primitive]:
    """A knob as name and number; switches and words are told by their names, parts of a word by theirs."""
    if type(value) is bool or value in (0, 1) or not isinstance(value, int | float):
        words = [f"{name}={value}"]
        if isinstance(value, str) and _COMPOUND.search(value):
            words += [f"{name}~{part}" for part in dict.fromkeys(_PART.findall(value)[:_MOST_PARTS])]
        return [Primitive(Kind.AN, (-1, 1), (word, "", "none")) for word in words]
    return [Primitive(Kind.AN, (-1, round(value)), (name, "", "none"))]


def _shared_bytes(
    knobs: Mapping[str, Any],
    threads: Mapping[str, int],
    elements: Mapping[str, int],
    tiles: Mapping[str, int],
    counts: Mapping[str, int],
    element_bytes: int,
) -> int:
    """Bytes of shared memory of a block, where the knobs give them; 0 where they do not.

    Either a knob is that number; or the kernel stages the tiles of a matrix product; or it keeps a block of a
    stencil with its border, which `use_shmem` and the filter's size say.
    """
    if "shared_bytes" in counts and counts["shared_bytes"] > 1:
        return counts["shared_bytes"]
    if tiles.keys() >= {"m", "n", "k"}:
        stage = (tiles["m"] + tiles["n"]) * tiles["k"] * element_bytes
        return min(MAX_NUMBER, stage * max(1, counts.get("stages", 1)))
    filter_size = (knobs.get("filter_width"), knobs.get("filter_height"))
    border = [side for side in filter_size if type(side) is int and side > 0]
    if knobs.get("use_shmem") == 1 and len(border) == len(filter_size):
        sides = [
            threads.get(axis, 1) * elements.get(axis, 1) + size - 1
            for axis, size in zip("xy", border, strict=True)
        ]
        return min(MAX_NUMBER, sides[0] * sides[1] * element_bytes)
    return 0
