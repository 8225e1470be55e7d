"""Find candidates and records in the store by their ids, in a thread of its own: it may take seconds.

`fleet.engine.coordinator` asks and collects; nothing here decides. Each search reads a fresh snapshot of the
store and never meets the writer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.records import Candidate, CandidateId, DeviceId, Record, WorkloadId
from fleet.store.delta.log import RECORDS
from fleet.store.delta.schema import RECORD_COLUMNS, batch_to_records, read_batches
from fleet.store.reader import StoreReader
from fleet.store.store import Store

_TRACE_COLUMNS = ("workload_id", "candidate_id", "dialect", "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one question to the store."""

    #: As it was given to `StoreThread.ask`.
    tag: Any
    #: The question's result; None where it failed.
    value: Any = None
    #: Why it failed; empty where it did not.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAsked:
    """The question for traces of imported candidates: they never mix with those that are measured."""

    device_id: DeviceId
    request_id: str


class StoreThread:
    """Asks the store in the background, one question after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._questions: queue.SimpleQueue[tuple[Any, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being looked for."""
        return self._waiting == 0

    def ask(self, tag: Any, question: Callable[[StoreReader], Any]) -> None:
        """Put a question; its answer comes by `poll`."""
        self.do(tag, lambda: question(Store.read(self._path)))

    def do(self, tag: Any, work: Callable[[], Any]) -> None:
        """Have something else done that takes a moment; its result comes by `poll`."""
        self._waiting += 1
        self._questions.put((tag, work))

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
            tag, work = question
            try:
                self._answers.put(Answer(tag=tag, value=work()))
            except Exception as error:  # a thread that ended would leave all later questions open
                self._answers.put(Answer(tag=tag, error=str(error) or type(error).__name__))


def find_candidates(
    reader: StoreReader,
    device_ids: Collection[DeviceId],
    candidate_ids: Collection[CandidateId],
) -> list[Candidate]:
    """Read some candidates back from the records of some devices.

    Only the ids are read of every record; traces are read of the row groups that hold one. A file that cannot
    be read keeps nobody from what the others hold.

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
    for device_id in device_ids if reader.waiting() else ():
        for rows in reader.waiting_rows(_TRACE_COLUMNS, device_id):
            for candidate in _of_rows(rows, unread):
                unread.discard(candidate.candidate_id)
                candidates.append(candidate)
    # Newest first: what is asked for was mostly measured lately.
    for data_file in reversed(reader.snapshot.files):
        if not unread:
            break
        if data_file.device_id not in device_ids:
            continue
        path = reader.path / RECORDS / data_file.path
        with suppress(OSError, pa.ArrowException), pq.ParquetFile(path) as file:
            for candidate in _in_file(file, unread):
                if candidate.candidate_id in unread:
                    unread.discard(candidate.candidate_id)
                    candidates.append(candidate)
    return candidates


def find_records(
    reader: StoreReader, device_id: DeviceId, candidate_ids: Collection[CandidateId]
) -> Iterator[Record]:
    """Yield all records of some candidates on one device.

    Only files with one of them are decoded, a piece at a time.

    Raises:
        FleetError: The store cannot be read.
    """
    names = pa.array(sorted(candidate_ids), pa.string())
    for rows in reader.waiting_rows(RECORD_COLUMNS, device_id):
        for batch in rows.filter(pc.is_in(rows.column("candidate_id"), names)).to_batches():
            yield from batch_to_records(device_id, batch)
    for path in reader.data_files(device_id):
        ids = pq.read_table(path, columns=["candidate_id"], partitioning=None, use_threads=False).column(0)
        if not pc.any(pc.is_in(ids, names)).as_py():
            continue
        for batch in read_batches(path, RECORD_COLUMNS):
            yield from batch_to_records(
                device_id, batch.filter(pc.is_in(batch.column("candidate_id"), names))
            )


def _in_file(file: pq.ParquetFile, candidate_ids: Collection[str]) -> Iterator[Candidate]:
    names = pa.array(sorted(candidate_ids), pa.string())
    for group in range(file.metadata.num_row_groups):
        ids = file.read_row_group(group, columns=["candidate_id"], use_threads=False).column(0)
        rows = pc.indices_nonzero(pc.is_in(ids, names))
        if not len(rows):
            continue
        yield from _candidates(
            file.read_row_group(group, columns=list(_TRACE_COLUMNS), use_threads=False).take(rows)
        )


def _of_rows(rows: pa.Table, candidate_ids: Collection[str]) -> Iterator[Candidate]:
    """Yield each candidate once that rows have of some."""
    ids = dict(zip(rows.column("candidate_id").to_pylist(), range(rows.num_rows), strict=True))
    places = pa.array([place for name, place in ids.items() if name in candidate_ids], pa.int64())
    return _candidates(rows.take(places))


def _candidates(rows: pa.Table) -> Iterator[Candidate]:
    for row in rows.select(["workload_id", "dialect", "trace"]).to_pylist():
        yield Candidate(
            workload_id=WorkloadId(row["workload_id"]),
            dialect=row["dialect"],
            trace=row["trace"],
            origin="paired",
        )
