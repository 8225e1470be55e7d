"""What stands in the rows of a state file: results, candidates, pieces that wait, letters, data files."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from agents.records import NOISE, CandidateId, DeviceId, Outcome, Record, WorkloadId

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the results of a workload on a device in an environment."""

    workload_id: WorkloadId
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
    #: An Arrow stream: rows of some devices (`fleet.state.packed_rows`).
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


def _dictionary(base: str | None) -> Iterable[bytes]:
    return (base.encode()[-_DICTIONARY_BYTES:],) if base else ()
