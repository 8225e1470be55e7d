"""The words every part of the project shares: device, workload, candidate, protocol, record.

All types are frozen values that may cross a process, a Ray call or a file; none of them knows how it was made
or where it is kept. See `docs/words.md` for one line on each word.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NewType

import msgspec

# What others import from here, too.
from agents.devices import ANSOR_HARDWARE_PARAMS as ANSOR_HARDWARE_PARAMS
from agents.devices import Descriptor as Descriptor
from agents.devices import DeviceId as DeviceId
from agents.devices import DeviceKind as DeviceKind
from agents.devices import DeviceSpec as DeviceSpec
from agents.devices import Family as Family
from agents.devices import Replay as Replay
from agents.protocol import Protocol as Protocol
from agents.values import Identified, Value

#: Version of the record layout: the only one that is read.
RECORD_SCHEMA = 2

#: Origin of a candidate of an A/A run: the same list, measured twice back to back.
NOISE = "noise"
#: Origin of one that is measured again because its record was suspect, or to see how far it repeats.
REMEASURE = "remeasure"
#: Origin of one that led its batch and is measured again at once. Such pairs are chosen for being fast and
#: are close in time: they say nothing of how far numbers repeat.
CONFIRM = "confirm"
#: Origins of measurements that are not the first of their candidate.
REPEATS = frozenset({NOISE, REMEASURE, CONFIRM})

WorkloadId = NewType("WorkloadId", str)
CandidateId = NewType("CandidateId", str)


class Outcome(StrEnum):
    """How the measurement of one candidate ended. Everything but `ok` is data too, not an error."""

    OK = "ok"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    RUN_FAILED = "run_failed"
    RUN_TIMEOUT = "run_timeout"
    WRONG_OUTPUT = "wrong_output"
    REJECTED = "rejected"
    LOST = "lost"


def canonical_json(value: Any) -> str:
    """Serialise `value` so that equal values give equal text (sorted keys, no spaces, no NaN)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(*parts: str) -> str:
    """Hash text parts to 32 hexadecimal digits; parts are length-prefixed, so they cannot run together."""
    pieces: list[bytes] = []
    for part in parts:
        raw = part.encode()
        pieces += (len(raw).to_bytes(8, "little"), raw)
    # All at once: an update for each piece takes three times as long.
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:32]


class Workload(Value, frozen=True, kw_only=True):
    """One tensor program to schedule."""

    #: TVM's structural hash of the module, 16 hexadecimal digits.
    workload_id: WorkloadId
    #: Short name for people: operator and shape.
    name: str
    #: Kind of operator (`C2D`, `GMM`, ... of TVM's operator suite, or `relax` for an extracted one).
    operator: str
    #: Shapes of the arguments, outputs last.
    arg_shapes: tuple[tuple[int, ...], ...]
    arg_dtypes: tuple[str, ...]
    #: Floating-point operations of one run, as TVM estimates them.
    flops: float
    #: How often each network runs this workload: (network, count), sorted by network.
    networks: tuple[tuple[str, int], ...]
    #: The unscheduled module as TVM's JSON.
    module_json: str

    @property
    def weight(self) -> int:
        """Occurrences over all networks, at least 1."""
        return max(1, sum(count for _, count in self.networks))

    @property
    def bytes_moved(self) -> int:
        """Bytes of all arguments: the least memory traffic of one run."""
        width = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
        arguments = zip(self.arg_shapes, self.arg_dtypes, strict=True)
        return sum(math.prod(shape) * width.get(dtype, 1) for shape, dtype in arguments)


class Candidate(Identified, frozen=True, kw_only=True):
    """A workload and one schedule of it; free of any device, so it lines up across devices."""

    workload_id: WorkloadId
    #: The schedule trace as canonical JSON (`[instructions, decisions]` for MetaSchedule).
    trace: str
    dialect: str = "meta_schedule"
    #: Why it was chosen: `random`, `evolved`, `paired`, `derived` (from an import), `model`, `remeasure`,
    #: `confirm`, `noise` (A/A run), `canary`.
    origin: str = "random"

    @cached_property
    def candidate_id(self) -> CandidateId:
        """Hash of workload, dialect and trace; `origin` is no part of it."""
        return CandidateId(content_hash(self.workload_id, self.dialect, self.trace))


def has_flag(quality: str, key: str) -> bool:
    """Whether the text of a `Record.quality` has a flag, such as `suspect`."""
    # Most say nothing of it, and reading JSON costs ten times more than seeing that. A name that is nowhere
    # in the text cannot be a key, unless it is written with escapes.
    if key not in quality and "\\" not in quality:
        return False
    return bool(json.loads(quality).get(key, False))


def record_id_of(candidate_id: str, device_id: str, environment_id: str, attempt: int) -> str:
    """What `Record.record_id` is of a record with these, where there is no record yet."""
    return content_hash(candidate_id, device_id, environment_id, str(attempt))


class Record(Identified, frozen=True, kw_only=True):
    """One candidate on one device, once. Immutable; a failed candidate is a record too."""

    device_id: DeviceId
    workload_id: WorkloadId
    candidate_id: CandidateId
    dialect: str
    trace: str
    origin: str
    outcome: Outcome
    #: Seconds of one run, one value a repeat. Empty unless the program ran.
    run_secs: tuple[float, ...]
    #: Seconds of the untimed runs before the repeats (first run included), one value a run.
    warmup_secs: tuple[float, ...]
    #: Runs inside one repeat.
    number: int
    build_secs: float
    #: Seconds spent waiting for the host's timing lock.
    wait_secs: float
    #: Wall seconds under the timing lock.
    timing_secs: float
    #: Tail of the error text; empty when the outcome is `ok`.
    error: str
    protocol: Protocol
    #: What the host looked like (canonical JSON): affinity, load, clocks, governor, versions.
    environment: str
    #: Hash of the lasting part of the environment: versions, CPU, target, pinning, protocol.
    environment_id: str
    #: 0 for the first measurement of a candidate in an environment, counted up by re-measurement.
    attempt: int
    #: Unix seconds at the end of the measurement.
    measured_at: float
    #: Model that proposed the candidate; empty for random and paired ones.
    model_version: str = ""
    #: How far the number can be trusted (canonical JSON; see `docs/record.md` for its keys).
    quality: str = "{}"
    schema: int = RECORD_SCHEMA

    @cached_property
    def record_id(self) -> str:
        """The same for every delivery of the same measurement: (candidate, device, environment, attempt)."""
        return record_id_of(self.candidate_id, self.device_id, self.environment_id, self.attempt)

    @property
    def is_suspect(self) -> bool:
        """Whether the device was drifting while this was measured (`agents.programs.quality`)."""
        return has_flag(self.quality, "suspect")

    @property
    def is_stopped_early(self) -> bool:
        """Whether it got one repeat only, being surely several times slower than the best."""
        return has_flag(self.quality, "stopped_early")

    @property
    def is_quarantined(self) -> bool:
        """Whether the candidate killed its worker process every time that it was tried."""
        return has_flag(self.quality, "quarantined")

    @property
    def latency_secs(self) -> float:
        """The fastest repeat: what disturbs a program only ever slows it (decision 6).

        Raises:
            ValueError: The outcome is not `ok`, so there is no latency.
        """
        if self.outcome is not Outcome.OK or not self.run_secs:
            raise ValueError(f"record {self.record_id} has no latency: its outcome is {self.outcome}")
        return min(self.run_secs)


class ModelRef(Value, frozen=True, kw_only=True):
    """One head of one model version: what agents and clients ask the registry for."""

    #: Name of the version, such as `v000012`.
    version: str
    device_id: DeviceId
    #: SHA-256 of the version's manifest, which holds that of its tensors: so it covers the whole version.
    sha256: str


def as_json_dict(value: Any) -> dict[str, Any]:
    """Turn a value into JSON-ready ones (tuples become lists, enums text)."""
    result = json.loads(json.dumps(msgspec.to_builtins(value)))
    assert isinstance(result, dict)
    return result


# Whose a workload or candidate is: ours (trusted), or brought in by an import (untrusted).
#
# Standard library only. A workload that came with a log has an id in a namespace of its own, which no
# structural hash of TVM can equal: `imported-CLAIMED-CONTENT`. CLAIMED is the hash that its file states;
# nobody has computed it. CONTENT is a hash of the module itself, so that two strangers who state the same
# hash for two modules do not share a workload.

#: `Record.origin` of everything that came from a log.
IMPORTED: Final = "imported"
#: Origin of candidates that were made again in our own design space from an imported one's decisions.
DERIVED: Final = "derived"

_ID = re.compile(r"imported-([0-9a-f]{16})-[0-9a-f]{16}")


def imported_id(claimed: int, module_json: str) -> WorkloadId:
    """Id of a workload that a log brings, of the structural hash (64 bits) that the log states for it."""
    return WorkloadId(f"{IMPORTED}-{claimed:016x}-{content_hash(module_json)[:16]}")


def claimed_id(workload_id: str) -> WorkloadId | None:
    """The id that an imported workload would have if its stated hash were true; None for any other id."""
    match = _ID.fullmatch(workload_id)
    return WorkloadId(match[1]) if match is not None else None


def is_imported(workload_id: str) -> bool:
    """Whether a workload came with a log, by its id."""
    return workload_id.startswith(f"{IMPORTED}-")


def is_live(spec: DeviceSpec) -> bool:
    """Whether programs run on a device; a replay device answers from records, which anybody may bring."""
    return spec.kind is not DeviceKind.REPLAY


# The coordinator's right to a device, as it travels with a batch and comes back with its records.
#
# `disk_spool.py` keeps the tag beside each record, so that records of a lease whose agent or coordinator
# died can still be told from those of a lease that expired. Who grants leases is not known here.


class LeaseTag(Value, frozen=True, kw_only=True):
    """Under which lease a record was made."""

    job_id: str
    #: Number of the lease among those of the device; it only grows. Results of an older one are fenced off.
    fencing_token: int


class Lease(Value, frozen=True, kw_only=True):
    """The right to measure one job on one device until a deadline."""

    device_id: DeviceId
    job_id: str
    fencing_token: int
    #: By the coordinator's own count of time, which nobody else has; the agent does not judge it.
    deadline_secs: float

    @property
    def tag(self) -> LeaseTag:
        """What its results carry."""
        return LeaseTag(job_id=self.job_id, fencing_token=self.fencing_token)
