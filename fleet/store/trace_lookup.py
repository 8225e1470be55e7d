"""Find candidates and records in the store by their ids, in a thread of its own: it may take seconds.

`fleet.engine.coordinator` asks and collects; nothing here decides. Each search reads a fresh snapshot of the
store and never meets the writer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.records import Candidate, CandidateId, DeviceId, Record
from fleet.state.rows import rows_of
from fleet.store.delta.schema import RECORD_COLUMNS, batch_to_records
from fleet.store.reader import StoreReader
from fleet.store.store import Store

_ID = "candidate_id"
_TRACE_COLUMNS = ("workload_id", _ID, "dialect", "trace")
#: Goes on with an answer.
_Then = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one question to the store."""

    #: Goes on with the value, as it was given to `StoreThread.ask`.
    then: _Then
    #: The question's result; None where it failed.
    value: Any = None
    #: Why it failed; empty where it did not.
    error: str = ""


class StoreThread:
    """Asks the store in the background, one question after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = (
            queue.SimpleQueue()
        )
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being looked for."""
        return self._waiting == 0

    def ask(self, question: Callable[[StoreReader], Any], then: _Then) -> None:
        """Put a question; its answer comes by `poll`, with who goes on."""
        self.do(lambda: question(Store.read(self._path)), then)

    def do(self, work: Callable[[], Any], then: _Then) -> None:
        """Have something else done that takes a moment; its result comes likewise."""
        self._waiting += 1
        self._questions.put((work, then))

    def poll(self) -> list[Answer]:
        """The answers since the last call; never waits."""
        answers: list[Answer] = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        self._waiting -= len(answers)
        return answers

    def close(self, timeout_secs: float = 5.0) -> None:
        """Stop after the present question, or leave it behind: it only reads."""
        self._questions.put(None)
        self._thread.join(timeout_secs)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            work, then = question
            try:
                self._answers.put(Answer(then=then, value=work()))
            except Exception as error:  # a thread that ended would leave all later questions open
                self._answers.put(Answer(then=then, error=str(error) or type(error).__name__))


def find_candidates(
    reader: StoreReader,
    device_ids: Collection[DeviceId],
    candidate_ids: Collection[CandidateId],
) -> list[Candidate]:
    """Read some candidates back from the records of some devices.

    A file that cannot be read keeps nobody from what the others hold.

    Args:
        reader: The store.
        device_ids: Devices of one family.
        candidate_ids: Candidates to find.

    Returns:
        What was found, with the origin `paired`, in no order.

    Raises:
        FleetError: The store cannot be read.
    """
    unread = set(candidate_ids)
    candidates: list[Candidate] = []
    for device_id in device_ids:
        for rows in _matching(reader, device_id, _TRACE_COLUMNS, unread, is_search=True):
            for row in rows.to_pylist():
                if row["candidate_id"] in unread:
                    unread.discard(row.pop("candidate_id"))
                    candidates.append(Candidate(**row, origin="paired"))
    return candidates


def find_records(
    reader: StoreReader, device_id: DeviceId, candidate_ids: Collection[CandidateId]
) -> Iterator[Record]:
    """Yield all records of some candidates on one device.

    Raises:
        FleetError: The store cannot be read.
    """
    for rows in _matching(reader, device_id, RECORD_COLUMNS, candidate_ids):
        for batch in rows.to_batches():
            yield from batch_to_records(device_id, batch)


def _matching(
    reader: StoreReader,
    device_id: DeviceId,
    columns: Sequence[str],
    candidate_ids: Collection[CandidateId],
    *,
    is_search: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows that a device has of some candidates, a row group at a time.

    Only ids are read of every row, and all else of the row groups that hold one. A search goes through the
    newest files first, passes over those that cannot be read, and ends when no candidate is left: the caller
    takes away what it has.
    """
    for piece in reader.waiting():
        if device_id in piece.device_ids:
            rows = rows_of(piece.body, device_id, columns)
            yield rows.take(_places(rows.column(_ID), candidate_ids))
    paths = reader.data_files(device_id)
    passed_over = (OSError, pa.ArrowException) if is_search else ()
    for path in reversed(paths) if is_search else paths:
        if not candidate_ids:
            return
        with suppress(*passed_over), pq.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                ids = file.read_row_group(group, columns=[_ID], use_threads=False).column(0)
                places = _places(ids, candidate_ids)
                if len(places):
                    table = file.read_row_group(group, columns=list(columns), use_threads=False)
                    yield table.take(places)


def _places(ids: pa.ChunkedArray, candidate_ids: Collection[CandidateId]) -> pa.Array:
    return pc.indices_nonzero(pc.is_in(ids, pa.array(sorted(candidate_ids), pa.string())))
