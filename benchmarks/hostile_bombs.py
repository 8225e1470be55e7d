"""Small files that take much time or memory where nothing bounds it: one idea each, drawn in some sizes.

Called by `benchmarks.hostile_files`; each gives (form, files, lines). Every file stays below some ten
megabytes once it is unpacked, but for the packed ones that are about that.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from benchmarks.hostile_modules import workload_line
from benchmarks.hostile_traces import Trace
from benchmarks.hostile_values import deep_text

Made = tuple[str, tuple[tuple[bytes, bytes], ...], int]
_TARGET = {"kind": "llvm", "mcpu": "core-avx2"}
_TEXT_TARGET = "llvm -keys=cpu -mcpu=core-avx2"
_RESULT = [[1e-3], 0, 1.0, 1_700_000_000]
_ARGS = [["TENSOR", "float32", [64, 64]]] * 3


def _packed(lines: Iterable[bytes], name: bytes = b"bomb.json.gz") -> Made:
    whole = [line + b"\n" for line in lines]
    return "gz", ((name, gzip.compress(b"".join(whole), mtime=0, compresslevel=6)),), len(whole)


def _json(whole: Any) -> bytes:
    return json.dumps(whole, separators=(",", ":")).encode()


def _ansor(key: Any, steps: Any, line: int, target: str = _TEXT_TARGET) -> bytes:
    result = [[1e-3 + line * 1e-7], 0, 1.0, 1_700_000_000 + line]
    return _json({"i": [[json.dumps(key), target], [[], steps]], "r": result, "v": "v0.6"})


def many_keys(rng: Random) -> Made:
    """Every line names another workload, with a key of half a megabyte."""
    count, length = rng.choice(((40, 500_000), (400, 100_000), (100, 1 << 18)))
    return _packed(_ansor([f"k{line}" + "x" * length, [1, 1]], [["CI", 0]], line) for line in range(count))


def many_environments(rng: Random) -> Made:
    """Every line has another target of many kilobytes."""
    count, length = rng.choice(((40, 500_000), (2_000, 20_000)))
    trace: list[Any] = [[["EnterPostproc", [], [], []]], []]

    def line(number: int) -> bytes:
        return _json([0, [trace, [1e-3], {**_TARGET, "note": f"{number}" + "x" * length}, _ARGS]])

    return _packed(map(line, range(count)))


def shared_environment(rng: Random) -> Made:
    """All lines share one target of 64 KB: each row of a table would hold it again."""
    target = {**_TARGET, "note": "x" * (1 << 16)}

    def line(number: int) -> bytes:
        return _json([0, [[[["CI", [], [number], []]], []], [1e-3], target, _ARGS]])

    return _packed(map(line, range(rng.choice((500, 3_000)))))


def many_plans(rng: Random) -> Made:
    """Every line is another design space of thousands of instructions."""
    count, length = rng.choice(((30, 3_000), (8, 9_900), (300, 300)))

    def line(number: int) -> bytes:
        steps: list[Any] = [
            ["GetSBlock", [], ["C", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
            ["Annotate", ["b0", number], ["k"], []],
        ]
        steps += [["Split", ["l1", None, 2], [1], [f"l{place}", f"m{place}"]] for place in range(4, length)]
        return _json([0, [[steps, []], [1e-3], _TARGET, _ARGS]])

    return _packed(map(line, range(count)))


def long_nest(rng: Random) -> Made:
    """One loop nest of thousands of loops, in which every step looks for its place."""
    length = rng.choice((2_000, 9_000))
    kind = rng.choice(("AddUnitLoop", "Split", "Reorder", "Fuse", "CacheRead", "CacheWrite"))

    def line(number: int) -> bytes:
        made = Trace(rng)
        made.add("GetSBlock", [], ["C", "main"], ["b0"])
        made.add("GetLoops", ["b0"], [], [f"l{place}" for place in range(1, 2_000)])
        made.add("Annotate", ["b0", number], ["k"], [])
        for place in range(length):
            loop, new = f"l{1 + place % 1_900}", f"l{3_000 + place}"
            if kind == "Reorder":
                made.add(kind, [f"l{1 + (place + other) % 1_900}" for other in range(20)], [], [])
            elif kind == "Fuse":
                made.add(kind, [loop, f"l{2 + place % 1_900}"], [1], [new])
            elif kind in ("CacheRead", "CacheWrite"):
                made.add(kind, ["b0", ["b0"]], [0, "global"], [f"b{3_000 + place}"])
            else:
                made.add(kind, [loop, None, 2], [1], [new, f"k{place}"])
        return _json([0, [made.done(), [1e-3], _TARGET, _ARGS]])

    return _packed(map(line, range(rng.choice((1, 4)))))


def many_locations(rng: Random) -> Made:
    """Lines that differ in sampled locations only, each of which compiles a long rest anew."""
    length = rng.choice((200, 2_000))
    steps: list[Any] = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SampleComputeLocation", ["b0"], [], ["v0"]],
        ["ComputeAt", ["b0", "v0", 1], [-1], []],
    ]
    steps += [["Split", ["l1", None, 2], [1], [f"l{place}", f"m{place}"]] for place in range(4, length)]

    def line(number: int) -> bytes:
        return _json([0, [[steps, [[2, number]]], [1e-3], _TARGET, _ARGS]])

    return _packed(map(line, range(rng.choice((50, 200)))))


def long_line(rng: Random) -> Made:
    """Lines about as long as lines may be."""
    length = rng.choice(((4 << 20) - 300, (4 << 20) + 10, (32 << 20) + 10, 1 << 20))
    return _packed(_ansor(["x" * length, [1, 1]], [["CI", 0]], line) for line in range(2))


def deep_line(rng: Random) -> Made:
    """Lines nested some hundred or hundred thousand levels."""
    levels = rng.choice((150, 253, 254, 255, 1_000, 1_024, 1_025, 100_000))
    made: Any = 1
    for _ in range(levels):
        made = [made]
    record = deep_text([0, [[[["Annotate", ["b0", made], ["k"], []]], []], [1e-3], _TARGET, _ARGS]])
    return _packed([record, deep_text({"i": [[made]], "r": _RESULT}), b"[" * levels])


def many_workloads(rng: Random) -> Made:
    """A file of many workloads, each a module of its own, and records that name them all."""
    count = rng.choice((20, 300))
    beside = b"".join(_json(workload_line(rng, place)) + b"\n" for place in range(count))
    trace: list[Any] = [[["GetSBlock", [], ["matmul", "main"], ["b0"]]], []]
    records = b"".join(_json([place, [trace, [1e-3], _TARGET, _ARGS]]) + b"\n" for place in range(count))
    files = ((b"database_tuning_record.json", records), (b"database_workload.json", beside))
    return "plain", files, count


def one_byte_lines(rng: Random) -> Made:
    """Hundreds of thousands of lines without anything on them."""
    return _packed([rng.choice((b"", b"1", b"{}", b"[]", b"#"))] * rng.choice((1_000, 20_000)))


def zeros(rng: Random) -> Made:
    """A few kilobytes that unpack to tens of megabytes without a line's end."""
    data = gzip.compress(b"\x00" * rng.choice((1 << 20, 60 << 20)), mtime=0)
    return "gz", ((b"bomb.json.gz", data * rng.choice((1, 3))),), 1


BOMBS: tuple[Callable[[Random], Made], ...] = (
    many_keys,
    many_environments,
    shared_environment,
    many_plans,
    long_nest,
    many_locations,
    long_line,
    deep_line,
    many_workloads,
    one_byte_lines,
    zeros,
)
