"""Whole hostile files of every dialect, the same for the same seed and number.

`make_case(seed, number)` gives the files of one import: lines of `tests/hostile_corpus/seeds`, with steps of
one put into another, and with faults in values and bytes; plain or packed; a file of workloads beside or in
front where it is a database. `corpus_case` gives what was found once, as it is. `@MARKER@` stands in a line
for the folder that code in it would make. Nothing here reads or imports what it makes.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_values import SEEDS, damaged, deep_text, line_of, number, text, with_fault

CORPUS = SEEDS.parent
#: Dialects of cases and their shares in per cent; `mixed` files hold lines of all three.
DIALECTS = {"ansor": 28, "autotvm": 28, "meta_schedule": 32, "mixed": 9, "bomb": 3}
_LOGS = ("ansor", "autotvm", "meta_schedule")
MARKER = "@MARKER@"
#: Code knows how long the path is that it makes: slashes are put before it.
_MARKER_LENGTH = 120
#: Seconds since 1970 of the first line.
_START = 1_700_000_000
#: Names of logs; the last ones hold what a terminal or a text encoding would trip over.
_NAMES = (
    b"log.json",
    b"xgb.jsonl",
    b"tuning.log",
    b"\x1b[2J.json",
    b"new\nline.json",
    b"\xff\xfe.json",
    b"-x.json",
)
_GPU_KINDS = ("cuda", "rocm", "opencl", "vulkan", "metal")
_FORMS = ("plain", "plain", "plain", "gz", "gz", "damaged gz")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The files of one import.

    Attributes:
        name: Tells it from others: its number, or its name in the corpus.
        dialect: One of `DIALECTS`, or `corpus`.
        form: `plain`, `gz` or `damaged gz`.
        files: Name and content of each file; the first one is the log.
        lines: Lines of the log before it was packed or damaged.
        markers: Lines that would run code if they were replayed.
        make: Writes a folder in place of the files.
        marker: Folder that a trace in such a folder would make where it is replayed.
    """

    name: str
    dialect: str
    form: str
    files: tuple[tuple[bytes, bytes], ...]
    lines: int
    markers: int = 0
    make: Callable[[Path], None] | None = None
    marker: str = ""

    def write(self, folder: Path) -> None:
        """Make the folder, or put the files into it; their names may be no text."""
        if self.make is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.make(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files:
            (folder / os.fsdecode(name)).write_bytes(data)


def seeds(dialect: str) -> list[Any]:
    """Lines of a dialect, of `modules` or of `attacks`."""
    return [json.loads(line) for line in _seed_lines(dialect)]


@cache
def _seed_lines(dialect: str, family: str = "", *, with_markers: bool = True) -> list[str]:
    """Lines of one family of devices, or all: a file of both is refused as a whole."""
    lines = (SEEDS / f"{dialect}.jsonl").read_text().splitlines()
    return [
        line
        for line in lines
        if (with_markers or MARKER not in line)
        and (not family or family == _family(dialect, json.loads(line)))
    ]


def _family(dialect: str, whole: Any) -> str:
    """Family of the devices that a line says it was measured on."""
    if dialect == "meta_schedule":
        target = whole[1][2]
    else:
        target = whole["i"][0][1] if dialect == "ansor" else whole["input"][0]
    return "gpu" if any(kind in str(target) for kind in _GPU_KINDS) else "cpu"


def with_marker(whole: str, marker: str) -> str:
    """A text of code that makes the folder `marker`.

    Raises:
        ValueError: The path is longer than code of the corpus can hold.
    """
    if len(marker) > _MARKER_LENGTH:
        raise ValueError(f"{marker} has more than {_MARKER_LENGTH} characters")
    return whole.replace(MARKER, marker.rjust(_MARKER_LENGTH, "/"))


def attack_steps(kind: int, marker: str) -> list[Any]:
    """Instructions that run code where they are replayed.

    Args:
        kind: 0 to 4: index maps of three instructions, and foreign LLVM IR.
        marker: Folder that the code makes; empty where it ends the process with `hostile_live.EXIT_CODE`.
    """
    line = _seed_lines("attacks")[kind if marker else kind + 5]
    return list(json.loads(with_marker(line, marker)))


def make_case(seed: int, case: int, marker_folder: str) -> Case:
    """Make one case.

    Args:
        seed: Of all cases.
        case: Number of this one.
        marker_folder: Where code in it would make its folders.
    """
    rng = Random(f"hostile/{seed}/{case}")
    dialect = rng.choices(list(DIALECTS), list(DIALECTS.values()))[0]
    if dialect == "bomb":
        path = rng.choice(sorted((SEEDS / "bombs").iterdir()))
        data = path.read_bytes()
        count = gzip.decompress(data).count(b"\n")
        return Case(name=str(case), dialect=dialect, form="gz", files=((b"bomb.json.gz", data),), lines=count)
    place, workloads = "none", []
    if dialect == "meta_schedule":
        place = rng.choice(("beside", "beside", "front", "none"))
        hashes = [rng.getrandbits(64) for _ in range(3)]  # some pretend to be the same program
        workloads = [_workload_line(rng, rng.choice(hashes)) for _ in range(rng.choice((1, 2, 6)))]
    lines = Lines(
        rng=rng,
        dialect=dialect,
        family=rng.choice(("cpu", "cpu", "cpu", "gpu")),
        with_markers=rng.random() < 0.5,
        workloads=len(workloads),
    )
    made = _log(lines, workloads if place == "front" else [], f"{marker_folder}/{seed}-{case}")
    if place == "beside":
        beside = b"".join(line_of(rng, one) + b"\n" for one in workloads)
        made = replace(made, files=(*made.files, (b"database_workload.json", beside)))
    return replace(made, name=str(case))


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What the lines of one file have in common."""

    rng: Random
    dialect: str
    family: str = "cpu"
    with_markers: bool = True
    #: Of a database: its workloads.
    workloads: int = 1

    def next(self, place: int) -> Any:
        """A line with a result of its own, now and then with steps of another one."""
        rng, dialect = self.rng, self.dialect
        if dialect == "mixed":
            dialect = rng.choice((*_LOGS, "workload"))
        if dialect == "workload":
            return _workload_line(rng, rng.getrandbits(64))
        known = _seed_lines(dialect, self.family, with_markers=self.with_markers)
        whole = json.loads(rng.choice(known))
        if rng.random() < 0.5:
            _splice(rng, dialect, whole, json.loads(rng.choice(known)))
        costs = [1e-4 * (1 + rng.random()) for _ in range(rng.choice((1, 3)))]
        if dialect == "meta_schedule":
            if rng.random() < 0.8:
                whole[1][1] = costs
            whole[0] = rng.randrange(max(1, self.workloads)) if rng.random() < 0.95 else number(rng)
        elif rng.random() < 0.8:
            whole["r" if dialect == "ansor" else "result"] = [costs, 0, 1.5, _START + place]
        return whole


def _log(made: Lines, first: list[Any], prefix: str) -> Case:
    """A log; how often lines and bytes are faulty is drawn for the whole file."""
    rng, dialect = made.rng, made.dialect
    faults = rng.choice((0.0, 0.1, 0.1, 0.5))
    lines: list[bytes] = []
    markers = 0
    for place in range(rng.choice((1, 10, 40, 60, 90))):
        whole = first[place] if place < len(first) else made.next(place)
        while rng.random() < faults:
            whole = with_fault(rng, whole)
        raw = line_of(rng, whole)
        markers += MARKER.encode() in raw
        raw = with_marker(raw.decode(errors="surrogateescape"), f"{prefix}-{place}").encode(
            errors="surrogateescape"
        )
        if rng.random() < faults / 8:
            raw = damaged(rng, raw)
        lines.append(raw)
        if rng.random() < 0.05:
            lines += rng.choice(([raw], [b""], [b"# comment"], [b" "]))
    data = rng.choice((b"", b"", b"", b"\xef\xbb\xbf")) + b"\n".join(lines) + rng.choice((b"\n", b""))
    form = rng.choice(_FORMS)
    if form == "plain":
        if rng.random() < 0.1:
            data = damaged(rng, data)
    else:
        data = gzip.compress(data, mtime=0, compresslevel=1)
        if form == "damaged gz":
            data = damaged(rng, data)
    name = b"database_tuning_record.json" if dialect == "meta_schedule" else _NAMES[0]
    if dialect != "meta_schedule" and rng.random() < 0.2:
        name = rng.choice(_NAMES)
    if form != "plain" and rng.random() < 0.8:
        name += b".gz"
    return Case(name="", dialect=dialect, form=form, files=((name, data),), lines=len(lines), markers=markers)


def steps_of(dialect: str, whole: Any) -> list[Any]:
    """What a line of a dialect says of its schedule: instructions, steps or knobs."""
    steps: list[Any]
    if dialect == "meta_schedule":
        steps = whole[1][0][0]
    else:
        steps = whole["i"][1][1] if dialect == "ansor" else whole["config"]["entity"]
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
    made = json.loads(rng.choice(_seed_lines("modules")))
    while rng.random() < 0.3:
        made = with_fault(rng, made)
    return made


def _workload_line(rng: Random, structural_hash: int) -> list[str]:
    """`[structural hash, module]`; a few are cut, or no base64."""
    encoded = packed(deep_text(module(rng)))
    shown = str(structural_hash)
    if rng.random() < 0.05:
        encoded = rng.choice((encoded[: len(encoded) // 2], "!" + encoded, "", "AAAA" * 50))
    if rng.random() < 0.05:
        shown = rng.choice((text(rng)[:200], str(2**64), "-1", "0" * 50, "\u00b2"))
    return [shown, encoded]


def corpus_names() -> list[str]:
    """Names of all finds, sorted."""
    return sorted(one.name for one in CORPUS.iterdir() if one.name not in ("README.md", "seeds"))


def corpus_case(name: str, marker_folder: str) -> Case:
    """One find as a case; of a folder, the log is the file with tuning records."""
    path = CORPUS / name
    files = [path] if path.is_file() else sorted(path.iterdir(), key=lambda one: "workload" in one.name)
    marker = f"{marker_folder}/corpus-{name}".encode()
    content = tuple((one.name.encode(), one.read_bytes().replace(MARKER.encode(), marker)) for one in files)
    return Case(
        name=name,
        dialect="corpus",
        form="gz" if files[0].suffix == ".gz" else "plain",
        files=content,
        lines=content[0][1].count(b"\n"),
        markers=content[0][1].count(marker),
    )
