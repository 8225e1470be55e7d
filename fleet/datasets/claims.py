"""What a published dataset may claim, beyond what every row of a store must be.

Whoever learns from a store, shows it or exports it takes for granted that numbers have the size and texts the
form that agents and imports write. One row or device of a stranger with others would end all of that. Called
by `fleet.datasets.dataset_files`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from agents.codec import MOST_VALUES
from agents.device.replay_file import Recorded
from agents.records import DeviceId, Outcome, Workload, as_json_dict
from fleet.errors import StoreError
from fleet.interchange.logs.json_values import FAILURE_MARK_SECS, LEAST_SECS, MAX_TIMESTAMP, object_in
from transfer.language.primitives import MAX_TEXT
from transfer.model.manifest import Declared

#: Whole numbers beyond this are none of a host or program; every reader of JSON keeps those below.
_MOST_NUMBER: Final = 2**53
#: Bytes of all arguments of a workload, and FLOPs of one run, from which on they are none.
_MOST_MOVED: Final = 2**63
_MOST_FLOPS: Final = 1e30
#: A name is part of the ids of its devices wherever it is opened.
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_Count = Annotated[int, Field(ge=0, lt=_MOST_NUMBER)]
_WORKLOAD_ID: Final = re.compile(r"[0-9a-f]{16}")


class CardNoise(Declared):
    """The last A/A run of a device, as a card has it."""

    median_change: float


class CardDevice(Declared):
    """What a card says of a device."""

    records: _Count
    outcomes: dict[str, _Count]
    suspect_share: float | None
    noise: CardNoise | None
    processor: str | None


class Card(Declared):
    """What programs read of a data card (`fleet.datasets.data_card` writes it)."""

    name: Annotated[str, Field(pattern=f"^(?:{NAME.pattern})$")]
    license: str
    records: _Count
    candidates: _Count
    workloads: _Count
    devices: dict[str, CardDevice]
    operators: dict[str, Any]
    networks: dict[str, Any]
    faults: list[str]


def check_head(devices: Mapping[DeviceId, Recorded], workloads: Iterable[Workload]) -> None:
    """Refuse what features of a device or workload cannot be made of.

    Raises:
        StoreError: A number is out of range.
    """
    for name, recorded in devices.items():
        descriptor = {} if recorded.descriptor is None else as_json_dict(recorded.descriptor)
        if _has_large([as_json_dict(recorded.spec), descriptor]):
            raise StoreError(f"device {name}: a number of its description is out of range")
    for workload in workloads:
        if not _WORKLOAD_ID.fullmatch(workload.workload_id):
            raise StoreError(
                f"workload {workload.workload_id}: expected 16 hexadecimal digits as agents name it"
            )
        # A shorter text has fewer values than characters.
        if len(workload.module_json) > MOST_VALUES and not _is_object(workload.module_json):
            raise StoreError(
                f"workload {workload.workload_id}: expected a module that is a JSON object of at most "
                f"{MOST_VALUES:,} values"
            )
        named = [workload.arg_shapes, workload.networks]
        if _has_large(named) or any(extent < 0 for shape in workload.arg_shapes for extent in shape):
            raise StoreError(f"workload {workload.workload_id}: a number of its description is out of range")
        if workload.bytes_moved >= _MOST_MOVED or not 0 <= workload.flops < _MOST_FLOPS:
            raise StoreError(f"workload {workload.workload_id}: its size or its FLOPs are out of range")


def check_rows(rows: pa.Table) -> None:
    """Refuse rows that `check_columns` lets pass and no agent or import has written.

    Raises:
        StoreError: The first thing that is wrong.
    """
    is_ok = pc.equal(rows.column("outcome"), Outcome.OK.value)
    if pc.any(pc.and_(is_ok, pc.is_null(rows.column("latency_secs")))).as_py():
        raise StoreError("a row is ok and has no run_secs")
    timed = pc.min_max(pc.list_flatten(rows.filter(is_ok).column("run_secs"))).as_py()
    if timed["min"] is not None and not LEAST_SECS <= timed["min"] <= timed["max"] < FAILURE_MARK_SECS:
        raise StoreError(f"column run_secs holds {timed['min']} to {timed['max']}, which nothing takes")
    if rows.num_rows and pc.max(rows.column("measured_at")).as_py() >= MAX_TIMESTAMP:
        raise StoreError("column measured_at holds a time that is out of range")
    longest = pc.max(pc.binary_length(rows.column("trace"))).as_py() or 0
    if longest > MAX_TEXT:
        raise StoreError(f"a trace has {longest:,} bytes, at most {MAX_TEXT:,} are read")
    attempts = pc.min_max(rows.column("attempt")).as_py()
    if rows.num_rows and not 0 <= attempts["min"] <= attempts["max"] < _MOST_NUMBER:
        raise StoreError("column attempt holds a number that is out of range")
    for name, is_good in (("environment", _is_object), ("quality", _is_quality)):
        for text in pc.unique(rows.column(name)).to_pylist():
            if not is_good(text):
                raise StoreError(
                    f"column {name} holds {text[:60]!r}, expected a JSON object as agents write it"
                )


def _has_large(value: Any) -> bool:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, int) and abs(value) >= _MOST_NUMBER:
            return True
    return False


def _is_object(text: str) -> bool:
    return object_in(text) is not None


def _is_quality(text: str) -> bool:
    """Whether its numbers are numbers: readings of canaries are drawn, and an interval is compared."""
    value = object_in(text)
    if value is None:
        return False
    canary = value.get("canary", {})
    return isinstance(canary, dict) and all(map(_is_number, [*canary.values(), value.get("interval", 0)]))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST_NUMBER
