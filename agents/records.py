"""The words every part of the project shares: device, workload, candidate, protocol, record.

Standard library only. All types are frozen values that may cross a process, a Ray call or a file;
none of them knows how it was made or where it is kept. See `docs/words.md` for one line on each word.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, NewType

#: Version of the record layout. 1: first published layout. 2: `quality`, and more fields of the protocol.
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

#: Keys on the disk that differ from the names of the protocol's fields: records, device specs and settings of
#: every version hold them.
STORED_PROTOCOL_KEYS = {"build_timeout_secs": "build_timeout_sec", "run_timeout_secs": "run_timeout_sec"}

DeviceId = NewType("DeviceId", str)
WorkloadId = NewType("WorkloadId", str)
CandidateId = NewType("CandidateId", str)

#: Order of Ansor's eight hardware parameters (`HardwareParams` of its record format v0.6).
ANSOR_HARDWARE_PARAMS = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)


class DeviceKind(StrEnum):
    """How a device is reached."""

    LOCAL = "local"
    CUDA = "cuda"
    RPC = "rpc"
    REPLAY = "replay"


class Family(StrEnum):
    """Devices that may share a backbone: published work finds no transfer across families."""

    CPU = "cpu"
    GPU = "gpu"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How candidates are timed, and when one is given up. Zero switches an optional rule off."""

    #: Timed repeats that every program gets; each gives one number of seconds.
    repeat: int = 5
    #: Repeats added at most, while the interval of the latency is wider than `target_interval`.
    extra_repeats: int = 5
    #: Width of the latency's 90 % interval, over the latency, at which repeats end.
    target_interval: float = 0.02
    #: A latency with a wider interval than this after all repeats is `rejected`.
    reject_interval: float = 0.5
    #: A repeat runs the program often enough to last at least this long.
    min_repeat_ms: float = 10.0
    #: Most runs in one repeat (bounds the time of a very short program).
    max_number: int = 20_000
    #: The program runs at least this long before its repeats (GPUs raise their clock only under load).
    warmup_ms: float = 0.0
    #: Pause before the repeats, for devices that heat up.
    cooldown_ms: float = 0.0
    #: Moments at which a program on a CPU of this host is timed at most, seconds apart
    #: (`agents.sandbox.retimed_programs`); twice as many where it is among the fastest of its workload.
    visits: int = 8
    #: Empty the CPU's caches of the arguments before every run; a repeat is then one run.
    cache_flush: bool = False
    #: A program this many times slower than the best of its workload gets one short repeat only.
    early_stop_ratio: float = 2.5
    #: Share of the candidates whose output is compared with that of the unscheduled program.
    check_share: float = 0.1
    build_timeout_secs: float = 15.0
    run_timeout_secs: float = 5.0
    #: Memory of a worker process above which its candidate is ended.
    memory_limit_gib: float = 4.0

    def __post_init__(self) -> None:
        for name in ("repeat", "max_number", "visits"):
            if getattr(self, name) < 1:
                raise ValueError(f"protocol: {name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "extra_repeats",
            "target_interval",
            "reject_interval",
            "min_repeat_ms",
            "warmup_ms",
            "cooldown_ms",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"protocol: {name} must not be negative, got {getattr(self, name)}")
        if self.early_stop_ratio and self.early_stop_ratio <= 1:
            raise ValueError(
                f"protocol: early_stop_ratio must be 0 (never) or above 1, got {self.early_stop_ratio}"
            )
        if not 0 <= self.check_share <= 1:
            raise ValueError(f"protocol: check_share must be between 0 and 1, got {self.check_share}")
        for name in ("build_timeout_secs", "run_timeout_secs", "memory_limit_gib"):
            if getattr(self, name) <= 0:
                raise ValueError(f"protocol: {name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a device of kind `replay` answers from (`docs/replay.md`)."""

    #: Path of the records: a store, or a Parquet file that was exported from one.
    records: str
    #: The device whose records are answered.
    device: DeviceId
    #: Of every draw.
    seed: int = 0
    #: Draw among the recorded measurements and their repeats, instead of the record that counts.
    noise: bool = False
    #: Offer candidates that failed, and let a candidate fail or be lost as often as it did.
    failures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """What the YAML of one device claims."""

    #: Name of the device; also the file name of its YAML.
    device_id: DeviceId
    kind: DeviceKind
    family: Family
    #: TVM target as a JSON dictionary, canonical text (a plain `str` keeps the value hashable).
    target_json: str
    #: Threads a measured program may use.
    threads: int = 1
    #: Logical CPUs that timing is pinned to; its length is at least `threads`.
    cores: tuple[int, ...] = (0,)
    #: Index of the device among those of its kind (CUDA ordinal); 0 for a CPU.
    index: int = 0
    #: Address (`host:port`) of the TVM RPC tracker, and the key of the device there; empty unless `rpc`.
    tracker: str = ""
    key: str = ""
    #: Changes to the fleet's protocol for this device: (key on the disk, value), sorted by key.
    protocol_changes: tuple[tuple[str, float], ...] = ()
    #: What it answers from; None unless `replay`.
    replay: Replay | None = None
    #: Free text for people.
    note: str = ""

    @property
    def target(self) -> dict[str, Any]:
        """The TVM target as a fresh dictionary."""
        value = json.loads(self.target_json)
        assert isinstance(value, dict)
        return value

    def protocol(self, common: Protocol) -> Protocol:
        """The fleet's protocol with this device's changes."""
        names = {key: name for name, key in STORED_PROTOCOL_KEYS.items()}
        values = {names.get(key, key): value for key, value in self.protocol_changes}
        changes: dict[str, Any] = {name: type(getattr(common, name))(value) for name, value in values.items()}
        return replace(common, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What the probe saw on the host of one device. Sizes in bytes, clocks in MHz; 0 means unknown."""

    host: str
    arch: str
    cpu_model: str
    physical_cores: int
    logical_cores: int
    #: Logical CPUs this process may use.
    usable_cores: tuple[int, ...]
    isa_flags: tuple[str, ...]
    #: Widest vector register the CPU offers, in bytes.
    vector_bytes: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line_bytes: int
    memory_bytes: int
    clock_min_mhz: float
    clock_max_mhz: float
    clock_now_mhz: float
    #: Frequency governor; empty where the host hides it (virtual machines).
    governor: str
    #: True where two logical CPUs share a core.
    smt: bool
    kernel: str
    #: Versions of what makes and runs the programs: tvm, llvm, python, driver...
    versions: tuple[tuple[str, str], ...]
    #: Ansor's eight hardware parameters, in the order of `ANSOR_HARDWARE_PARAMS`.
    ansor_params: tuple[int, ...]
    #: One mapping a CUDA device, as sorted (name, value) pairs; empty where there is none.
    cuda_devices: tuple[tuple[tuple[str, str], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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
        total = 0
        for shape, dtype in zip(self.arg_shapes, self.arg_dtypes, strict=True):
            size = 1
            for extent in shape:
                size *= extent
            total += size * width.get(dtype, 1)
        return total


class FastPickle:
    """A frozen dataclass that pickles fast: thousands of a second go from process to process."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return _rebuilt, (kind, _getter(kind)(self))


class _Identified(FastPickle):
    """What a coordinator sees ten thousand of a second: its id is hashed once."""

    __slots__ = ("_id",)
    _id: str

    def _identify(self, *parts: str) -> str:
        found = content_hash(*parts)
        object.__setattr__(self, "_id", found)
        return found


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _getter(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = _names(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


@cache
def _setters(kind: Any) -> tuple[Callable[[Any, Any], None], ...]:
    return tuple(getattr(kind, name).__set__ for name in _names(kind))


def _rebuilt(kind: Any, values: Sequence[Any]) -> Any:
    """Undo `__reduce__`; the dataclasses' own way looks all fields up again for each object."""
    made = object.__new__(kind)
    for set_field, value in zip(_setters(kind), values, strict=True):
        set_field(made, value)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(_Identified):
    """A workload and one schedule of it; free of any device, so it lines up across devices."""

    workload_id: WorkloadId
    #: The schedule trace as canonical JSON (`[instructions, decisions]` for MetaSchedule).
    trace: str
    dialect: str = "meta_schedule"
    #: Why it was chosen: `random`, `evolved`, `paired`, `derived` (from an import), `model`, `remeasure`,
    #: `confirm`, `noise` (A/A run), `canary`.
    origin: str = "random"

    @property
    def candidate_id(self) -> CandidateId:
        """Hash of workload, dialect and trace; `origin` is no part of it."""
        try:
            return CandidateId(self._id)
        except AttributeError:
            return CandidateId(self._identify(self.workload_id, self.dialect, self.trace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Identified):
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
    #: How far the number can be trusted (canonical JSON; see `docs/measuring.md` for its keys).
    quality: str = "{}"
    schema: int = RECORD_SCHEMA

    @property
    def record_id(self) -> str:
        """The same for every delivery of the same measurement: (candidate, device, environment, attempt)."""
        try:
            return self._id
        except AttributeError:
            return self._identify(self.candidate_id, self.device_id, self.environment_id, str(self.attempt))

    @property
    def is_suspect(self) -> bool:
        """Whether the device was drifting while this was measured (`agents.programs.quality`)."""
        return self._quality_says("suspect")

    @property
    def is_stopped_early(self) -> bool:
        """Whether it got one repeat only, being surely several times slower than the best."""
        return self._quality_says("stopped_early")

    @property
    def is_quarantined(self) -> bool:
        """Whether the candidate killed its worker process every time that it was tried."""
        return self._quality_says("quarantined")

    def _quality_says(self, key: str) -> bool:
        # Most say nothing of it, and reading JSON costs ten times more than seeing that. A name that is
        # nowhere in the text cannot be a key, unless it is written with escapes.
        if key not in self.quality and "\\" not in self.quality:
            return False
        return bool(json.loads(self.quality).get(key, False))

    @property
    def latency_secs(self) -> float:
        """The fastest repeat: what disturbs a program only ever slows it (decision 6).

        Raises:
            ValueError: The outcome is not `ok`, so there is no latency.
        """
        if self.outcome is not Outcome.OK or not self.run_secs:
            raise ValueError(f"record {self.record_id} has no latency: its outcome is {self.outcome}")
        return min(self.run_secs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """One head of one model version: what agents and clients ask the registry for."""

    #: Name of the version, such as `v000012`.
    version: str
    device_id: DeviceId
    #: SHA-256 of the version's manifest, which holds that of its tensors: so it covers the whole version.
    sha256: str


def median(values: Sequence[float]) -> float:
    """Median of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def as_json_dict(value: Any) -> dict[str, Any]:
    """Turn one of this module's dataclasses into JSON-ready values (tuples become lists, enums text)."""
    result = json.loads(json.dumps(asdict(value)))
    assert isinstance(result, dict)
    return result


__all__ = [
    "ANSOR_HARDWARE_PARAMS",
    "CONFIRM",
    "NOISE",
    "RECORD_SCHEMA",
    "REMEASURE",
    "REPEATS",
    "STORED_PROTOCOL_KEYS",
    "Candidate",
    "CandidateId",
    "Descriptor",
    "DeviceId",
    "DeviceKind",
    "DeviceSpec",
    "Family",
    "FastPickle",
    "ModelRef",
    "Outcome",
    "Protocol",
    "Record",
    "Replay",
    "Workload",
    "WorkloadId",
    "as_json_dict",
    "canonical_json",
    "content_hash",
    "median",
]
