"""The database that a search leaves: the fastest schedules ever known of a device, for TVM's `JSONDatabase`.

A second search adds to it and never loses a schedule that was better. What the folder held before stays
ahead, so that its lines keep their numbers: a kill between the two files leaves a database that is whole.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from agents.files import write_durably
from agents.programs.trace_rules import TraceRefusedError, read_trace
from agents.records import DeviceId, WorkloadId, canonical_json
from fleet.errors import FleetError
from fleet.interchange.export_parquet import RECORDS, WORKLOADS, write_database
from fleet.interchange.export_source import Source
from fleet.store.reader import StoreReader
from fleet.tuning.search import settled

#: Schedules that are kept of each workload: TVM applies the first, a search begins from the others.
_MOST_SCHEDULES = 16
#: Schedules within this factor of the fastest one alone may be faster than it in a network.
_NEAR_BEST = 1.3
_MEAN_SECS = attrgetter("mean_secs")


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule of a workload in a database."""

    #: Mean of its repeats, by which TVM chooses.
    mean_secs: float
    trace: str
    #: As it stands in the file, behind the number of its workload.
    line: str


@dataclass(slots=True)
class TunedDatabase:
    """Workloads in the order of their lines, and the schedules of each, the fastest first."""

    #: The line of each workload, by its id.
    lines: dict[WorkloadId, str] = field(default_factory=dict)
    schedules: dict[WorkloadId, list[Schedule]] = field(default_factory=dict)

    def add(self, other: TunedDatabase) -> None:
        """Take in what another database has; of each workload the fastest stay.

        TVM applies the schedule with the least mean. Of several timings of a schedule the settled one is
        kept: with all of them, luck would choose.
        """
        for workload_id, line in other.lines.items():
            self.lines.setdefault(workload_id, line)
            both = [*self.schedules.get(workload_id, []), *other.schedules.get(workload_id, [])]
            schedule_by_line = {schedule.line: schedule for schedule in both}
            timings: dict[str, list[Schedule]] = {}
            for schedule in sorted(schedule_by_line.values(), key=_MEAN_SECS):
                timings.setdefault(schedule.trace, []).append(schedule)
            best = sorted(map(settled, timings.values()), key=_MEAN_SECS)
            self.schedules[workload_id] = best[:_MOST_SCHEDULES]

    def traces(self) -> dict[WorkloadId, list[str]]:
        """The traces of each workload's schedules, the fastest first; far slower ones are left out."""
        return {
            workload_id: [
                schedule.trace
                for schedule in schedules
                if schedule.mean_secs <= _NEAR_BEST * schedules[0].mean_secs
            ]
            for workload_id, schedules in self.schedules.items()
            if schedules
        }

    def write(self, folder: Path) -> None:
        """Put both files in place, the one with the workloads first."""
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / WORKLOADS, "".join(f"{line}\n" for line in self.lines.values()).encode())
        rows = [
            f"[{place},{schedule.line}]\n"
            for place, workload_id in enumerate(self.lines)
            for schedule in self.schedules.get(workload_id, [])
        ]
        write_durably(folder / RECORDS, "".join(rows).encode())


def update_database(reader: StoreReader, device_id: DeviceId, folder: Path) -> TunedDatabase:
    """Bring the database of a device up to what the store knows.

    Raises:
        FleetError: The folder holds the database of another target, or one that cannot be read; nothing in
            the store would do.
    """
    source = Source(reader, device_id)
    if source.spec is None:
        raise FleetError(f"device {device_id}: the store does not say what its target is; tune it once more")
    target = canonical_json(source.spec.target)
    database = present_database(folder, target)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "database"
        if write_database(fresh, source):
            database.add(read_database(fresh, target))
    if not database.traces():
        raise FleetError(f"device {device_id}: no candidate of it ran, so there is no schedule to keep")
    database.write(folder)
    return database


def present_database(folder: Path, target: str) -> TunedDatabase:
    """What the folder of a search holds already; a search looks before it measures for hours.

    Raises:
        FleetError: As of `read_database`.
    """
    return read_database(folder, target) if (folder / RECORDS).exists() else TunedDatabase()


def read_database(folder: Path, target: str) -> TunedDatabase:
    """Read a database of TVM, which must be of a target in canonical JSON.

    Raises:
        FleetError: It cannot be read, is of another target, or a trace says what none may say.
    """
    database = TunedDatabase()
    try:
        for number, line in _lines(folder / WORKLOADS):
            name, _ = json.loads(line)
            workload_id = WorkloadId(f"{int(name):016x}")
            if workload_id in database.lines:
                raise ValueError(f"line {number} repeats a workload")
            database.lines[workload_id] = line
        ids = list(database.lines)
        for _, line in _lines(folder / RECORDS):
            place, [trace, run_secs, its_target, arguments] = json.loads(line)
            if canonical_json(its_target) != target:
                raise FleetError(
                    f"{folder} holds the database of another target, {canonical_json(its_target)}; this "
                    f"device is {target}: choose another folder with --out"
                )
            text = canonical_json(trace)
            read_trace(text)
            secs = list(map(float, run_secs))
            normalised = f"[{text},{json.dumps(secs)},{target},{canonical_json(arguments)}]"
            schedule = Schedule(statistics.fmean(secs), text, normalised)
            database.schedules.setdefault(ids[place], []).append(schedule)
    except (OSError, ValueError, IndexError, TypeError, RecursionError, TraceRefusedError) as error:
        raise FleetError(
            f"the database in {folder} cannot be read ({error}); move it away, or choose another folder "
            "with --out"
        ) from None
    for schedules in database.schedules.values():
        schedules.sort(key=_MEAN_SECS)
    return database


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as opened:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield number, line.rstrip("\n")
