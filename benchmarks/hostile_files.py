"""Whole hostile files of every dialect, the same for the same seed and number.

`make_case(seed, number)` gives the files of one import: a log, plain or packed, whole or damaged, and the
file of workloads beside it where it is a database. `corpus_case` gives one that was found once: they lie in
`tests/hostile_corpus`, whose README says where each comes from. Called by `benchmarks.hostile_child` and the
tests. Nothing here reads or imports what it makes.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_bombs import BOMBS
from benchmarks.hostile_traces import record_line, workload_lines
from benchmarks.hostile_tuners import ansor_line, autotvm_line
from benchmarks.hostile_values import damaged, line_of, with_fault

#: Dialects of cases and their shares in per cent; `mixed` files hold lines of all three.
DIALECTS = {"ansor": 28, "autotvm": 28, "meta_schedule": 32, "mixed": 9, "bomb": 3}
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
CORPUS = Path(__file__).resolve().parents[1] / "tests" / "hostile_corpus"
#: Stands in a file of the corpus for the file that code in it would make.
MARKER = b"@MARKER@"
_GZ = ("plain", "plain", "plain", "gz", "gz", "damaged gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The files of one import.

    Attributes:
        name: Tells it from others: its number, or its name in the corpus.
        dialect: One of `DIALECTS`, or `corpus`.
        form: `plain`, `gz` or `damaged gz`.
        files: Name and content of each file; the first one is the log.
        lines: Lines of the log before it was packed or damaged.
        markers: Lines that would run code if they were replayed.
    """

    name: str
    dialect: str
    form: str
    files: tuple[tuple[bytes, bytes], ...]
    lines: int
    markers: int = 0

    def write(self, folder: Path) -> None:
        """Put the files into a folder; their names may be no text."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files:
            (folder / os.fsdecode(name)).write_bytes(data)


def make_case(seed: int, number: int, marker_folder: str) -> Case:
    """Make one case.

    Args:
        seed: Of all cases.
        number: Of this case.
        marker_folder: Where code in it would make its files.
    """
    rng = Random(f"hostile/{seed}/{number}")
    dialect = rng.choices(list(DIALECTS), list(DIALECTS.values()))[0]
    if dialect == "bomb":
        made = rng.choice(BOMBS)(rng)
        return Case(name=str(number), dialect=dialect, form=made[0], files=made[1], lines=made[2])
    prefix = f"{marker_folder}/{seed}-{number}"
    if dialect == "meta_schedule":
        return _database(rng, number, prefix)
    family = rng.choice(("cpu", "cpu", "cpu", "gpu"))
    make = {"ansor": _ansor, "autotvm": _autotvm}.get(dialect, _any)
    return _log(rng, number, dialect, lambda line, marker: make(rng, family, line, marker), prefix)


def _ansor(rng: Random, family: str, line: int, marker: str) -> Any:
    return ansor_line(rng, family, line, marker)


def _autotvm(rng: Random, family: str, line: int, marker: str) -> Any:
    return autotvm_line(rng, family, line, marker)


def _any(rng: Random, family: str, line: int, marker: str) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return ansor_line(rng, family, line, marker)
    if kind == 1:
        return autotvm_line(rng, family, line, marker)
    if kind == 2:
        return record_line(rng, family if rng.random() < 0.98 else "gpu", 2, marker)
    return workload_lines(rng, 1)[0]


def _log(
    rng: Random, number: int, dialect: str, make: Callable[[int, str], Any], prefix: str, name: bytes = b""
) -> Case:
    """A log whose lines `make` gives; faults per line and per file are drawn here."""
    faults = rng.choice((0.0, 0.1, 0.1, 0.5))
    with_markers = rng.random() < 0.5
    lines: list[bytes] = []
    markers = 0
    for line in range(rng.choice((1, 10, 40, 60, 90))):
        marked = with_markers and rng.random() < 0.3
        whole = make(line, f"{prefix}-{line}" if marked else "")
        markers += marked
        while rng.random() < faults:
            whole = with_fault(rng, whole)
        raw = line_of(rng, whole)
        if rng.random() < faults / 8:
            raw = damaged(rng, raw)
        lines.append(raw)
        if rng.random() < 0.05:
            lines += rng.choice(([raw], [b""], [b"# comment"], [b" "]))
    data = rng.choice((b"", b"", b"", b"\xef\xbb\xbf")) + b"\n".join(lines) + rng.choice((b"\n", b""))
    form = rng.choice(_GZ)
    if form == "plain":
        if rng.random() < 0.1:
            data = damaged(rng, data)
    else:
        data = gzip.compress(data, mtime=0, compresslevel=1)
        if form == "damaged gz":
            data = damaged(rng, data)
    chosen = name or (_NAMES[0] if rng.random() < 0.8 else rng.choice(_NAMES))
    packed = chosen + b".gz" if form != "plain" and rng.random() < 0.8 else chosen
    return Case(
        name=str(number),
        dialect=dialect,
        form=form,
        files=((packed, data),),
        lines=len(lines),
        markers=markers,
    )


def _database(rng: Random, number: int, prefix: str) -> Case:
    """Tuning records, with a file of workloads beside them, in front of them, or without."""
    family = rng.choice(("cpu", "cpu", "cpu", "gpu"))
    place = rng.choice(("beside", "beside", "front", "none"))
    count = rng.choice((1, 2, 6)) if place != "none" else 0
    workloads = workload_lines(rng, count)
    in_front = list(workloads) if place == "front" else []

    def make(line: int, marker: str) -> Any:
        return in_front.pop(0) if in_front else record_line(rng, family, count, marker)

    made = _log(rng, number, "meta_schedule", make, prefix, b"database_tuning_record.json")
    files = made.files
    if place == "beside":
        files += ((b"database_workload.json", b"".join(line_of(rng, one) + b"\n" for one in workloads)),)
    return Case(
        name=made.name,
        dialect=made.dialect,
        form=made.form,
        files=files,
        lines=made.lines,
        markers=made.markers,
    )


def corpus_names() -> list[str]:
    """Names of all finds, sorted."""
    return sorted(one.name for one in CORPUS.iterdir() if one.name != "README.md")


def corpus_case(name: str, marker_folder: str) -> Case:
    """One find as a case; of a folder, the log is the file with tuning records."""
    path = CORPUS / name
    files = [path] if path.is_file() else sorted(path.iterdir(), key=lambda one: "workload" in one.name)
    content = tuple((one.name.encode(), _marked(one, name, marker_folder)) for one in files)
    return Case(
        name=name,
        dialect="corpus",
        form="gz" if files[0].suffix == ".gz" else "plain",
        files=content,
        lines=content[0][1].count(b"\n"),
        markers=content[0][1].count(marker_folder.encode()),
    )


def _marked(path: Path, name: str, marker_folder: str) -> bytes:
    return path.read_bytes().replace(MARKER, f"{marker_folder}/corpus-{name}".encode())
