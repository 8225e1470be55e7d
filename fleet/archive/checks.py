"""What each part of a store must be: rows of data files, the state file, files of workloads and devices.

`fleet.archive.verify` calls it, a file at a time and some rows at once: each row is whole, readable as a
record, and named by what it says; a state file has a result of each record and no other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import Outcome, content_hash, record_id_of
from fleet.errors import StoreError
from fleet.state.questions import StateReader
from fleet.state.rows import KeptResult, Result, TableFile, WaitingRows, results_of_rows, rows_of, unpack
from fleet.store.catalog import read_device, read_workloads, sum_fault
from fleet.store.delta.log import DataFile, file_sum
from fleet.store.delta.schema import FILE_SCHEMA, check_columns, read_batches
from fleet.store.reader import DEVICES

#: Results that are held as Python's objects at once.
_AT_ONCE = 65_536

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class Seen:
    """What the rows of all files said."""

    #: First eight bytes of each record id, a piece for some rows.
    ids: list[NDArray[np.uint64]] = field(default_factory=list)
    #: Records of each workload.
    workloads: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    #: A number of each result, by chance unlike, a piece for some rows.
    pieces: list[Numbers] = field(default_factory=list)
    #: When the last result and the last A/A pair were, by workload, device and environment.
    times: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)

    def add_results(self, results: Iterable[Result]) -> None:
        """Take in what a state file keeps of some rows."""
        numbers: list[int] = []
        for result in results:
            numbers.append(hash(result[:7]))
            last, noise = self.times.get(result[:3], (0.0, 0.0))
            is_noise = result.is_noise and result.outcome is not Outcome.LOST
            at = result.measured_at
            self.times[result[:3]] = max(last, at), max(noise, at) if is_noise else noise
        self.pieces.append(np.array(numbers, np.int64))

    def results(self) -> Numbers:
        """The numbers of all results so far, sorted."""
        return np.sort(np.concatenate(self.pieces or [np.empty(0, np.int64)]))

    def repeated(self) -> NDArray[np.uint64]:
        """The first eight bytes of ids that were there before, sorted."""
        ids = np.sort(np.concatenate(self.ids or [np.empty(0, np.uint64)]))
        again: NDArray[np.uint64] = ids[1:][ids[1:] == ids[:-1]]
        return again


def file_faults(
    table: Path,
    file: DataFile,
    known_sum: str | None,
    totals: Seen,
) -> Iterator[str]:
    """Read a data file from its first byte to its last.

    Args:
        table: Folder of the table.
        file: What the log says of it.
        known_sum: What the state file says of its bytes; None where that cannot be read.
        totals: Gets what its rows say.

    Yields:
        What is wrong with it; nothing where all is well.
    """
    path = table / file.path
    if Path(file.path).parent.name != f"device_id={file.device_id}":
        yield f"the log says that it is of device {file.device_id}"
    try:
        size = path.stat().st_size
        if size != file.bytes:
            yield f"it has {size} bytes, the log says {file.bytes}"
        if known_sum is not None and (sha256 := file_sum(path)) != known_sum:
            yield f"its SHA-256 is {sha256[:12]}..., expected {known_sum[:12]}...: bits have changed"
    except FileNotFoundError:
        yield "it is missing"
        return
    except OSError as error:
        yield f"it cannot be read: {error.strerror}"
        return
    before = totals.rows
    try:
        for batch in read_batches(path):
            yield from row_faults(file.device_id, pa.Table.from_batches([batch]), totals)
            totals.add_results(results_of_rows(file.device_id, batch))
    except (OSError, pa.ArrowException, StoreError, ValueError) as error:
        yield f"it cannot be decoded: {' '.join(str(error).split())}"
        return
    if totals.rows - before != file.rows:
        yield f"it has {totals.rows - before} rows, the log says {file.rows}"


def row_faults(device_id: str, rows: pa.Table, totals: Seen) -> Iterator[str]:
    """Check some rows of one device."""
    totals.rows += rows.num_rows
    totals.ids += [first_halves(chunk) for chunk in rows.column("record_id").chunks]
    for entry in pc.value_counts(rows.column("workload_id").combine_chunks()).to_pylist():
        totals.workloads[entry["values"]] += entry["counts"]
    try:
        check_columns(rows)
    except StoreError as error:
        yield str(error)
        return
    if wrong := _misnamed(device_id, rows):
        yield f"{wrong} of {rows.num_rows} rows have another id than what they say makes"


def first_halves(record_ids: pa.Array) -> NDArray[np.uint64]:
    """The first eight bytes of each id."""
    return np.array([_first_half(record_id) for record_id in record_ids.to_pylist()], np.uint64)


def _first_half(record_id: str | None) -> int:
    try:
        return int((record_id or "")[:16], 16)
    except ValueError:
        # It is no hash of ours, and reported as that.
        return hash(record_id) % (1 << 64)


def _misnamed(device_id: str, rows: pa.Table) -> int:
    """How many rows have another id, or are of a candidate of another id, than what they say makes."""
    wrong = 0
    names = ("record_id", "candidate_id", "workload_id", "dialect", "trace", "environment_id", "attempt")
    for record_id, candidate_id, workload_id, dialect, trace, environment_id, attempt in zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    ):
        # As `agents.records.Candidate` names itself.
        wrong += candidate_id != content_hash(workload_id, dialect, trace) or record_id != record_id_of(
            candidate_id, device_id, environment_id, attempt
        )
    return wrong


@dataclass(slots=True)
class StateSeen:
    """What a state file says, at one moment."""

    version: int | None = None
    #: By path; None where it cannot be read.
    files: dict[str, TableFile] | None = None
    #: A number of each result, as of `Seen`; None where they cannot be read.
    results: Numbers | None = None
    times: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    #: Ids of the records that wait.
    waiting: set[str] = field(default_factory=set)
    waiting_by_device: dict[str, int] = field(default_factory=dict)


def state_faults(path: Path, state: StateSeen, totals: Seen) -> Iterator[str]:
    """Read a state file as it is at one moment, beside the process that writes it.

    Args:
        path: The file.
        state: Gets what it says.
        totals: Gets what the rows that wait say.

    Yields:
        What is wrong with it.
    """
    if not path.exists():
        yield "it is missing"
        return
    try:
        with StateReader(path) as reader:
            is_whole = True
            for fault in reader.faults(is_thorough=True):
                is_whole = False
                yield fault
            state.version = reader.table_version()
            for piece in reader.waiting() if is_whole else ():
                yield from _waiting_faults(piece, state, totals)
            state.files = {file.path: file for file in reader.files()}
            state.times = {tally[:3]: (tally.measured_at, tally.noise_at) for tally in reader.tallies()}
            if wrong := reader.wrong_tallies():
                yield f"{wrong} sums over results are not what the results make"
            if is_whole:
                state.results = _numbers(reader.results())
                if damaged := reader.damaged_candidates():
                    yield f"the traces of {damaged} of its candidates are not what was written"
    except StoreError as error:
        yield str(error)
    except (TypeError, ValueError, AttributeError):
        yield "rows of it hold other types of values than were written"


def _waiting_faults(piece: WaitingRows, state: StateSeen, totals: Seen) -> Iterator[str]:
    where = f"waiting rows {piece.number}"
    try:
        rows = unpack(piece.body)
        devices = set(rows.column("device_id").to_pylist())
        ids = rows.column("record_id").to_pylist()
        if devices != set(piece.device_ids) or len(ids) != piece.rows:
            yield f"{where} are of other devices, or of another number, than it says"
        elif repeated := len(ids) - len(set(ids) - state.waiting):
            yield f"{where}: {repeated} records wait more than once"
        state.waiting.update(ids)
        for device_id in piece.device_ids:
            mine = rows_of(piece.body, device_id, FILE_SCHEMA.names)
            count = state.waiting_by_device.get(device_id, 0)
            state.waiting_by_device[device_id] = count + mine.num_rows
            for fault in row_faults(device_id, mine, totals):
                yield f"{where}: {fault}"
            totals.add_results(results_of_rows(device_id, mine))
    except (StoreError, ValueError, IndexError) as error:
        yield f"{where}: {error}"


def _numbers(results: Iterator[KeptResult]) -> Numbers:
    pieces = [np.empty(0, np.int64)]
    while some := list(islice(results, _AT_ONCE)):
        pieces.append(np.array([hash(result) for result in some], np.int64))
    return np.sort(np.concatenate(pieces))


def comparison_faults(state: StateSeen, totals: Seen) -> Iterator[str]:
    """Yield where results and records of a store differ, of which every record could be read."""
    if state.results is None:
        return
    rows = totals.results()
    if lacking := _absent(rows, state.results):
        yield f"{lacking} records have no result in it, or another one"
    if strange := _absent(state.results, rows):
        yield f"{strange} of its results have no record, or another one"
    if not lacking and not strange and state.times != totals.times:
        yield "when workloads were measured last is not what the records say"


def _absent(numbers: Numbers, among: Numbers) -> int:
    """How many numbers are not among others, which are sorted."""
    if not len(among):
        return len(numbers)
    places = np.minimum(np.searchsorted(among, numbers), len(among) - 1)
    return len(numbers) - int(np.count_nonzero(among[places] == numbers))


def catalog_faults(path: Path, folder: str) -> Iterator[str]:
    """Yield the faults of one file of the folder of workloads or of devices."""
    try:
        text = path.read_text()
        *lines, rest = text.split("\n")
        for line in lines:
            if what := sum_fault(line):
                yield what
        if rest and _begins_whole(rest):
            yield "its last line is whole but does not end as lines do"
        if folder == DEVICES:
            read_device(path)
        elif path.stem not in read_workloads(path.parent, [path.stem]):
            yield "it is of another workload than its name says"
    except (OSError, ValueError, StoreError) as error:
        yield str(error)


def _begins_whole(text: str) -> bool:
    """Whether a text begins with a whole value: a crash while it was written leaves none."""
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return True
