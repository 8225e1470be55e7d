"""Whole hostile files of every dialect, the same for the same dice.

`make_log` writes the files of one import: lines of `tests/hostile_corpus/seeds`, with steps of one put into
another, and with faults in values and bytes; plain or packed; a file of workloads beside or in front where it
is a database. `copy_find` writes what was found once, as it is. `@MARKER@` stands in a line for the folder
that code in it would make. Nothing here reads or imports what it makes.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import os
from dataclasses import dataclass
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_values import SEEDS, damaged, deep_text, line_of, number, with_fault

CORPUS = SEEDS.parent
#: Dialects of cases and their shares in per cent; `mixed` files hold lines of all three.
DIALECTS = {"ansor": 28, "autotvm": 28, "meta_schedule": 32, "mixed": 9, "bomb": 3}
MARKER = "@MARKER@"
#: File of a database that stands beside its log.
WORKLOADS = "database_workload.json"
#: Code knows how long the path is that it makes: slashes are put before it.
_MARKER_LENGTH = 120
#: Seconds since 1970 of the first line.
_START = 1_700_000_000
#: Names of logs; the last ones hold what a terminal or a text encoding would trip over.
_NAMES = (
    *(b"log.json", b"log.json", b"log.json", b"xgb.jsonl", b"tuning.log"),
    *(b"\x1b[2J.json", b"new\nline.json", b"\xff\xfe.json", b"-x.json"),
)


@dataclass(frozen=True)
class Made:
    """What was written.

    Attributes:
        kind: A dialect, or the kind of a folder.
        lines: Lines of a log before it was packed or damaged.
        attacks: Of them, or of network files: those that would run code.
    """

    kind: str
    lines: int = 0
    attacks: int = 0


def seeds(name: str) -> list[Any]:
    """Lines of a file of seeds: of a dialect, of `modules` or of `attacks`."""
    return [json.loads(line) for line in _seed_lines(name)]


@cache
def _seed_lines(name: str, *, with_markers: bool = True) -> list[str]:
    lines = (SEEDS / f"{name}.jsonl").read_text().splitlines()
    return [line for line in lines if with_markers or MARKER not in line]


def padded(marker: str) -> str:
    """A folder's path, as long as code of the corpus wants it.

    Raises:
        ValueError: It is longer.
    """
    if len(marker) > _MARKER_LENGTH:
        raise ValueError(f"{marker} has more than {_MARKER_LENGTH} characters")
    return marker.rjust(_MARKER_LENGTH, "/")


def attack_steps(kind: int, marker: str) -> list[Any]:
    """Instructions that run code where they are replayed.

    Args:
        kind: 0 to 4: index maps of three instructions, and foreign LLVM IR.
        marker: Folder that the code makes; empty where it ends the process with `hostile_live.EXIT_CODE`.
    """
    line = _seed_lines("attacks")[kind if marker else kind + 5]
    return list(json.loads(line.replace(MARKER, padded(marker))))


def make_log(rng: Random, folder: Path, marker: str) -> Made:
    """Write a log into a new folder, and the workloads of a database beside it or into it.

    Args:
        rng: Decides everything.
        folder: To make.
        marker: Folder that code in it would make.
    """
    folder.mkdir()
    dialect = rng.choices(list(DIALECTS), list(DIALECTS.values()))[0]
    if dialect == "bomb":
        data = rng.choice(sorted((SEEDS / "bombs").iterdir())).read_bytes()
        (folder / "bomb.json.gz").write_bytes(data)
        return Made(dialect, gzip.decompress(data).count(b"\n"))
    workloads: list[Any] = []
    if is_database := dialect == "meta_schedule":
        hashes = [rng.getrandbits(64) for _ in range(3)]  # some pretend to be the same program
        workloads = [_workload_line(rng, rng.choice(hashes)) for _ in range(rng.choice((1, 2, 6)))]
    source = LineSource(rng, dialect, rng.choice(("", "", "", "-gpu")), rng.random() < 0.5, len(workloads))
    wholes = [source.next() for _ in range(rng.choice((1, 10, 40, 60, 90)))]
    place = rng.choice(("beside", "beside", "front", "none"))
    if place == "beside" and workloads:
        (folder / WORKLOADS).write_bytes(b"\n".join(_raw_lines(rng, workloads)))
    lines = _raw_lines(rng, workloads + wholes if place == "front" else wholes)
    data = rng.choice((b"", b"", b"", b"\xef\xbb\xbf")) + b"\n".join(lines) + rng.choice((b"\n", b""))
    attacks = data.count(MARKER.encode())
    data = data.replace(MARKER.encode(), padded(marker).encode())
    name = b"database_tuning_record.json" if is_database else rng.choice(_NAMES)
    if is_packed := rng.random() < 0.5:
        data = gzip.compress(data, mtime=0, compresslevel=1)
        name += rng.choice((b".gz", b".gz", b".gz", b""))
    if rng.random() < (0.3 if is_packed else 0.1):
        data = damaged(rng, data)
    (folder / os.fsdecode(name)).write_bytes(data)
    return Made(dialect, len(lines), attacks)


@dataclass(frozen=True)
class LineSource:
    """What the lines of one file have in common: a file with lines of two families is refused as a whole."""

    rng: Random
    dialect: str
    #: End of the name of the seeds: those of CPUs, or `-gpu`.
    family: str = ""
    with_markers: bool = True
    #: Of a database: its workloads.
    workloads: int = 1

    def next(self) -> Any:
        """A line with a result of its own, now and then with steps of another one."""
        rng, dialect = self.rng, self.dialect
        if dialect == "mixed":
            dialect = rng.choice(("ansor", "autotvm", "meta_schedule", "workload"))
        if dialect == "workload":
            return _workload_line(rng, rng.getrandbits(64))
        lines = _seed_lines(dialect + self.family, with_markers=self.with_markers)
        whole = json.loads(rng.choice(lines))
        if rng.random() < 0.5:
            _splice(rng, dialect, whole, json.loads(rng.choice(lines)))
        costs: Any = [1e-4 * (1 + rng.random()) for _ in range(rng.choice((1, 3)))]
        holder: Any = whole
        key: Any = "r" if dialect == "ansor" else "result"
        if dialect == "meta_schedule":
            whole[0] = rng.randrange(max(1, self.workloads)) if rng.random() < 0.95 else number(rng)
            holder, key = whole[1], 1
        else:
            costs = [costs, 0, 1.5, _START + rng.randrange(1 << 20)]
        if rng.random() < 0.8:
            holder[key] = costs
        return whole


def _raw_lines(rng: Random, wholes: list[Any]) -> list[bytes]:
    """Lines of a file; how often values and bytes are faulty is drawn for the whole file."""
    faults = rng.choice((0.0, 0.1, 0.1, 0.5))
    lines: list[bytes] = []
    for whole in wholes:
        while rng.random() < faults:
            whole = with_fault(rng, whole)
        raw = line_of(rng, whole)
        lines.append(damaged(rng, raw) if rng.random() < faults / 8 else raw)
        if rng.random() < 0.05:
            lines.append(rng.choice((raw, b"", b"# comment", b" ")))
    return lines


def steps_of(dialect: str, whole: Any) -> list[Any]:
    """What a line of a dialect says of its schedule: instructions, steps or knobs."""
    places: dict[str, tuple[Any, ...]] = {
        "meta_schedule": (1, 0, 0),
        "ansor": ("i", 1, 1),
        "autotvm": ("config", "entity"),
    }
    steps: list[Any] = reduce(getitem, places[dialect], whole)
    return steps


def _splice(rng: Random, dialect: str, whole: Any, other: Any) -> None:
    """Put some steps of another line into a line, once or so often that each has much to walk over."""
    steps, more = steps_of(dialect, whole), steps_of(dialect, other)
    start = rng.randrange(len(more) + 1)
    some = more[start : start + rng.choice((1, 3, 12))] * rng.choice((1, 1, 1, 1, 3, 30))
    place = rng.randrange(len(steps) + 1)
    steps[place:place] = copy.deepcopy(some)
    if dialect == "meta_schedule":
        for decision in whole[1][0][1]:
            if type(decision[0]) is int and decision[0] >= place:
                decision[0] += len(some)


def packed(module_text: bytes) -> str:
    """A module as it stands in a workload line: base64 of its length and its text."""
    return base64.b64encode(len(module_text).to_bytes(8, "little") + module_text).decode()


def module(rng: Random) -> Any:
    """A module of any kind, now and then with faults: nodes then lead elsewhere, or in circles."""
    whole = json.loads(rng.choice(_seed_lines("modules")))
    while rng.random() < 0.3:
        whole = with_fault(rng, whole)
    return whole


def _workload_line(rng: Random, structural_hash: int) -> list[str]:
    """`[structural hash, module]`; a few are cut, or no base64."""
    encoded = packed(deep_text(module(rng)))
    if rng.random() < 0.05:
        encoded = rng.choice((encoded[: len(encoded) // 2], "!" + encoded, "AAAA" * 50))
    return [rng.choice((*[str(structural_hash)] * 60, str(2**64), "-1", "0" * 50, "\u00b2")), encoded]


def corpus_names() -> list[str]:
    """Names of all finds, sorted."""
    return sorted(path.name for path in CORPUS.iterdir() if path.name not in ("README.md", "seeds"))


def copy_find(name: str, folder: Path, marker: str) -> Made:
    """Write one find into a new folder, as `make_log` does."""
    folder.mkdir()
    lines = attacks = 0
    path = CORPUS / name
    for file in [path] if path.is_file() else path.iterdir():
        data = file.read_bytes().replace(MARKER.encode(), marker.encode())
        (folder / file.name).write_bytes(data)
        if file.name != WORKLOADS:
            lines, attacks = data.count(b"\n"), data.count(marker.encode())
    return Made("corpus", lines, attacks)
