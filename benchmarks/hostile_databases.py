"""Hostile MetaSchedule databases: lines of workloads and of tuning records.

Called by `benchmarks.hostile_files`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from benchmarks.hostile_modules import workload_line
from benchmarks.hostile_traces import trace
from benchmarks.hostile_tuners import size
from benchmarks.hostile_values import number, target_object, target_text, text, value

_DTYPES = ("float32", "float16", "int8")


def run_secs(rng: Random) -> Any:
    """Seconds of a record: a list, null, or the mark of a failure."""
    if rng.random() < 0.15:
        return rng.choice((None, [1e10], [], [number(rng)], value(rng, 1)))
    return [1e-4 * (1 + rng.random()) for _ in range(rng.choice((1, 3)))]


def arguments(rng: Random) -> list[Any]:
    """Descriptions of a program's arguments."""
    made: list[Any] = []
    for _ in range(rng.choice((3, 3, 3, 1, 12))):
        shape = [size(rng) for _ in range(rng.choice((1, 2, 2, 4, 4, 40)))]
        made.append(["TENSOR", rng.choice(_DTYPES) if rng.random() < 0.95 else text(rng)[:300], shape])
    return made


def record_line(rng: Random, family: str, workloads: int, marker: str) -> list[Any]:
    """One tuning record of one of some workloads.

    Args:
        rng: What is drawn from.
        family: `cpu` or `gpu`.
        workloads: Workloads of the database.
        marker: Folder that code in the trace would make; empty for none.
    """
    index = rng.randrange(max(1, workloads)) if rng.random() < 0.95 else number(rng)
    if rng.random() < 0.85:
        target: Any = target_object(rng, family)
    else:
        target = target_text(rng, family)
    made = trace(rng, marker)
    return [index, [made, run_secs(rng), target, arguments(rng)]]


def workload_lines(rng: Random, count: int) -> list[Any]:
    """Workload lines; some pretend to be the same program."""
    hashes = [rng.getrandbits(64) for _ in range(max(1, count // 2))]
    lines: list[Any] = []
    for _ in range(count):
        structural_hash = rng.choice(hashes)
        line: Any = workload_line(rng, structural_hash)
        if rng.random() < 0.05:
            line[0] = rng.choice((text(rng)[:200], str(2**64), "-1", "0" * 50, "\u00b2"))
        lines.append(line)
    return lines
