"""What a state file must be: whole, with a result of each record and no other, and the sums of these.

`fleet.archive.verify` calls it, and compares what it gives with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.records import Outcome
from fleet.archive.record_checks import Seen, row_faults
from fleet.errors import StoreError
from fleet.state.packed_rows import results_of_piece, rows_of, unpack
from fleet.state.questions import StateReader
from fleet.state.rows import KeptResult, Result, TableFile, WaitingRows
from fleet.store.delta.schema import FILE_SCHEMA

#: Results that are held as Python's objects at once.
_AT_ONCE = 65_536

Numbers = NDArray[np.int64]


class Outcomes:
    """What rows say that a state file keeps: a number of each, by chance unlike, and when the last ones were.

    Attributes:
        times: As of `fleet.state.questions.Questions.times`.
    """

    def __init__(self) -> None:
        self._pieces: list[Numbers] = []
        self.times: dict[tuple[str, str, str], tuple[float, float]] = {}

    def add(self, results: Iterable[Result]) -> None:
        """Take in what rows say."""
        numbers: list[int] = []
        for result in results:
            numbers.append(hash(result[:7]))
            last, noise = self.times.get(result[:3], (0.0, 0.0))
            is_noise = result.is_noise and result.outcome is not Outcome.LOST
            at = result.measured_at
            self.times[result[:3]] = max(last, at), max(noise, at) if is_noise else noise
        self._pieces.append(np.array(numbers, np.int64))

    def numbers(self) -> Numbers:
        """The numbers of all rows so far, sorted."""
        return np.sort(np.concatenate(self._pieces)) if self._pieces else np.empty(0, np.int64)


@dataclass(slots=True)
class StateSeen:
    """What a state file says, at one moment."""

    version: int | None = None
    #: By path; None where it cannot be read.
    files: dict[str, TableFile] | None = None
    #: A number of each result, as of `Outcomes`; None where they cannot be read.
    results: Numbers | None = None
    times: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    #: Ids of the records that wait.
    waiting: set[str] = field(default_factory=set)
    waiting_by_device: dict[str, int] = field(default_factory=dict)


def state_faults(path: Path, state: StateSeen, totals: Seen, outcomes: Outcomes) -> Iterator[str]:
    """Read a state file as it is at one moment, beside the process that writes it.

    Args:
        path: The file.
        state: Gets what it says.
        totals: Gets what the rows that wait say.
        outcomes: Likewise.

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
                yield from _waiting_faults(piece, state, totals, outcomes)
            state.files = {file.path: file for file in reader.files()}
            state.times = reader.times()
            if wrong := reader.wrong_tallies():
                yield f"{wrong} sums over results are not what the results make"
            if is_whole:
                state.results = _numbers(reader.results())
    except StoreError as error:
        yield str(error)
    except (TypeError, ValueError, AttributeError):
        yield "rows of it hold other types of values than were written"


def _waiting_faults(piece: WaitingRows, state: StateSeen, totals: Seen, outcomes: Outcomes) -> Iterator[str]:
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
        outcomes.add(results_of_piece(rows))
    except (StoreError, ValueError, IndexError) as error:
        yield f"{where}: {error}"


def _numbers(results: Iterator[KeptResult]) -> Numbers:
    pieces = [np.empty(0, np.int64)]
    while some := list(islice(results, _AT_ONCE)):
        pieces.append(np.array([hash(result) for result in some], np.int64))
    return np.sort(np.concatenate(pieces))


def comparison_faults(state: StateSeen, outcomes: Outcomes) -> Iterator[str]:
    """Yield where results and records of a store differ, of which every record could be read."""
    if state.results is None:
        return
    rows = outcomes.numbers()
    if lacking := _absent(rows, state.results):
        yield f"{lacking} records have no result in it, or another one"
    if strange := _absent(state.results, rows):
        yield f"{strange} of its results have no record, or another one"
    if not lacking and not strange and state.times != outcomes.times:
        yield "when workloads were measured last is not what the records say"


def _absent(numbers: Numbers, among: Numbers) -> int:
    """How many numbers are not among others, which are sorted."""
    if not len(among):
        return len(numbers)
    places = np.minimum(np.searchsorted(among, numbers), len(among) - 1)
    return len(numbers) - int(np.count_nonzero(among[places] == numbers))
