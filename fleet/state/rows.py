"""What stands in the rows of a state file: results, candidates, pieces that wait, letters, data files."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, Candidate, CandidateId, DeviceId, Outcome, Record, WorkloadId, has_flag
from fleet.errors import StoreError
from fleet.store.delta.schema import TABLE_SCHEMA

#: Numbers of the outcomes in the file; they never change their meaning.
OUTCOME_NUMBERS: Final = {
    Outcome.OK: 0,
    Outcome.BUILD_FAILED: 1,
    Outcome.BUILD_TIMEOUT: 2,
    Outcome.RUN_FAILED: 3,
    Outcome.RUN_TIMEOUT: 4,
    Outcome.WRONG_OUTPUT: 5,
    Outcome.REJECTED: 6,
    Outcome.LOST: 7,
}
OUTCOMES: Final = {number: outcome for outcome, number in OUTCOME_NUMBERS.items()}
OK, LOST = OUTCOME_NUMBERS[Outcome.OK], OUTCOME_NUMBERS[Outcome.LOST]
#: Fastest candidates of a workload that are at hand for each device: others evolve from them.
FASTEST: Final = 4
#: A dictionary of deflate is not longer.
_DICTIONARY_BYTES = 32 << 10


class Result(NamedTuple):
    """That a candidate was measured on a device once, and what came of it.

    The first five fields are what makes a measurement the same one (guarantee G2).
    """

    workload_id: WorkloadId
    device_id: DeviceId
    environment_id: str
    candidate_id: CandidateId
    attempt: int
    outcome: Outcome
    #: None where the outcome is not `ok`, or the number is not to be trusted.
    latency_secs: float | None
    measured_at: float
    #: Whether it is the second half of an A/A pair.
    is_noise: bool


class CandidateTraits(NamedTuple):
    """What is known of a candidate beside its trace."""

    dialect: str
    #: As it became known.
    origin: str
    #: Whether it is not to be planned: it kills what measures it.
    is_blocked: bool


def add_traits(
    traits: dict[CandidateId, CandidateTraits], candidate_id: CandidateId, trait: CandidateTraits
) -> None:
    """Note what is known of a candidate: what came first stays, but whoever blocks it does so for all."""
    earlier = traits.setdefault(candidate_id, trait)
    if trait.is_blocked and not earlier.is_blocked:
        traits[candidate_id] = earlier._replace(is_blocked=True)


#: The first seven fields of a result: what a state file has of each.
KeptResult = tuple[str, str, str, str, int, Outcome, float | None]


def result_of(record: Record) -> Result:
    """What a state file keeps of a record."""
    is_timed = record.outcome is Outcome.OK and bool(record.run_secs) and not record.is_suspect
    return Result(
        record.workload_id,
        record.device_id,
        record.environment_id,
        record.candidate_id,
        record.attempt,
        record.outcome,
        min(record.run_secs) if is_timed else None,
        record.measured_at,
        record.origin == NOISE and record.attempt % 2 == 0,
    )


class Tally(NamedTuple):
    """Sums over the results of a workload on a device in an environment."""

    workload_id: WorkloadId
    device_id: DeviceId
    environment_id: str
    #: All results; distinct candidates among those that were not lost; results with outcome `ok`.
    records: int
    measured: int
    ok: int
    #: Unix seconds of the last result, and of the last A/A pair (0 for never).
    measured_at: float
    noise_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRows:
    """Rows that are acknowledged and wait for the table."""

    #: Ascends in the order of arrival.
    number: int
    #: Small number: the rows of a lane go into the table together.
    lane: int
    device_ids: tuple[DeviceId, ...]
    rows: int
    #: Unix seconds of their arrival.
    since: float
    #: An Arrow stream: rows of some devices (`fleet.state.rows`).
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A delivery that was set aside for people to look at."""

    #: `late` or `refused`.
    kind: str
    #: The same delivery always has the same.
    name: str
    rows: int
    #: A JSON object a line.
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A file of the table."""

    #: As the table names it.
    path: str
    device_id: DeviceId
    rows: int
    #: Of its bytes, in hexadecimal digits.
    sha256: str

    @property
    def sum(self) -> int:
        """Over what a state file says of it."""
        return checksum(self.path, str(self.rows), self.sha256)


def checksum(*parts: str | bytes) -> int:
    """A sum over what a row holds: SQLite has none over the pages of its file."""
    total = 0
    for part in parts:
        # Text that has become bytes is damage, too.
        kind, data = (b"t", part.encode()) if isinstance(part, str) else (b"b", part)
        total = zlib.crc32(data, zlib.crc32(kind, total))
    return total


def pack_trace(trace: str, base: str | None) -> bytes:
    """Compress a trace: those of one workload differ in their decisions, so another one is the dictionary.

    A trace of 2,600 bytes takes some 170, and 820 without a `base`.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS, 8, 0, *_dictionary(base))
    return packer.compress(trace.encode()) + packer.flush()


def unpack_trace(packed: bytes, base: str | None) -> str:
    """The trace that `pack_trace` was given.

    Raises:
        ValueError: It is damaged, or the base is another one.
    """
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS, *_dictionary(base)).decompress(packed).decode()
    except zlib.error as error:
        raise ValueError(f"the trace cannot be unpacked: {error}") from error


def whole_candidates(rows: Iterable[tuple[Any, ...]], labels: Mapping[int, str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `candidate` whose traces can be read and make their ids.

    Args:
        rows: All columns of each, in the order of their numbers: the first of a workload unpacks the others.
        labels: Texts by number.
    """
    bases: dict[int, str] = {}
    for row in rows:
        number, family, workload, value, _, _, dialect, origin, packed, base = row
        try:
            trace = unpack_trace(packed, None if base is None else bases[base])
            candidate = Candidate(
                workload_id=WorkloadId(labels[workload]), dialect=dialect, origin=origin, trace=trace
            )
            is_whole = family in labels and candidate.candidate_id == value.hex()
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
        if is_whole:
            yield row
            if base is None:
                bases[number] = trace


def _dictionary(base: str | None) -> Iterable[bytes]:
    return (base.encode()[-_DICTIONARY_BYTES:],) if base else ()


# Rows of the records table as bytes, while they wait for the table: a piece holds rows of some devices.

#: LZ4 takes a tenth of the time of writing the columns uncompressed to most disks.
_COMPRESSION = "lz4"
_DEVICE = "device_id"


def pack(table: pa.Table) -> bytes:
    """Rows of `fleet.store.delta.schema.TABLE_SCHEMA` as a compressed Arrow stream: a fifth of the memory."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
    with pa.ipc.new_stream(sink, TABLE_SCHEMA, options=options) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue().to_pybytes()
    assert isinstance(data, bytes)
    return data


def unpack(packed: bytes, columns: Sequence[str] = tuple(TABLE_SCHEMA.names)) -> pa.Table:
    """The rows that `pack` was given, with some of their columns, in the order of the schema.

    Raises:
        StoreError: They are of another version, or no rows at all.
    """
    chosen = [number for number, name in enumerate(TABLE_SCHEMA.names) if name in columns]
    expected = pa.schema([TABLE_SCHEMA.field(number) for number in chosen])
    try:
        options = pa.ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
        table = pa.ipc.open_stream(packed, options=options).read_all()
    except (pa.ArrowException, IndexError) as error:
        raise StoreError(f"rows that were taken in cannot be read: {error}") from error
    if not table.schema.equals(expected):
        raise StoreError(
            f"rows that were taken in have the columns {table.schema.names}, this version expects"
            f" {expected.names}; use the version that wrote them"
        )
    return table


def rows_of(packed: bytes, device_id: str, columns: Sequence[str]) -> pa.Table:
    """The rows that a piece has of a device, with these columns of `FILE_SCHEMA`."""
    table = unpack(packed, [_DEVICE, *columns])
    return table.filter(pc.equal(table.column(_DEVICE), device_id)).select(list(columns))


def with_device(device_id: str, table: pa.Table) -> pa.Table:
    """Rows of `FILE_SCHEMA` as rows of `TABLE_SCHEMA`."""
    names = pa.repeat(pa.scalar(device_id, pa.string()), table.num_rows)
    return table.add_column(0, TABLE_SCHEMA.field(_DEVICE), names)


#: Columns that `results_of_rows` needs.
RESULT_COLUMNS = (
    *("workload_id", "environment_id", "candidate_id", "attempt", "outcome", "latency_secs", "measured_at"),
    *("origin", "quality"),
)


def results_of_rows(device_id: str, table: pa.Table | pa.RecordBatch) -> Iterator[Result]:
    """Yield what a state file keeps of rows of a device with `RESULT_COLUMNS`: as `result_of` does.

    Raises:
        StoreError, ValueError: They are no rows of records.
    """
    return _results(itertools.repeat(device_id), table)


def results_of_piece(table: pa.Table) -> Iterator[Result]:
    """Yield the same of rows of some devices: of a piece that is unpacked; errors as of `results_of_rows`."""
    return _results(table.column(_DEVICE).to_pylist(), table)


def _results(device_ids: Iterable[str], table: pa.Table | pa.RecordBatch) -> Iterator[Result]:
    for column in RESULT_COLUMNS:
        if column != "latency_secs" and table.column(column).null_count:
            raise StoreError(f"column {column} holds nulls")
    columns = [table.column(column).to_pylist() for column in RESULT_COLUMNS]
    rows = zip(*columns, strict=True)
    for device_id, row in zip(device_ids, rows, strict=False):
        workload, environment, candidate, attempt, outcome, secs, measured_at, origin, quality = row
        yield Result(
            WorkloadId(workload),
            DeviceId(device_id),
            environment,
            CandidateId(candidate),
            attempt,
            Outcome(outcome),
            None if _is_suspect(quality) else secs,
            measured_at,
            origin == NOISE and attempt % 2 == 0,
        )


@functools.lru_cache(maxsize=256)
def _is_suspect(quality: str) -> bool:
    return has_flag(quality, "suspect")
