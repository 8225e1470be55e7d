"""Records, protocols, workloads and devices as JSON and back, exactly.

For the spool, for files that people exchange, and for messages between processes. What a value must be stands
in its declaration (`agents.values`); what a type cannot say is checked here.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agents.errors import AgentError
from agents.records import RECORD_SCHEMA, Descriptor, DeviceSpec, LeaseTag, Protocol, Record, Workload
from agents.values import Value

_Value = TypeVar("_Value")

#: Values and keys in one JSON text of a stranger at most, if nothing else is said.
MOST_VALUES = 1_000_000
#: One of them, in a text without escaped quotes. A text that does not end goes to the end.
_VALUE = re.compile(r'"[^"]*+"?|[\[{]|[^\s\[\]{}:,"]++')
#: Errors that a value raises which is not what its type says.
_FAULTS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


class SpooledRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A record and the lease that it was made under."""

    record: Record
    lease: LeaseTag | None = None


_SPOOLED = msgspec.json.Decoder(SpooledRecord)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def bounded_json(text: str, most: int = MOST_VALUES) -> Any:
    """Parse JSON of a stranger: values may take thirty times the room of their text.

    Raises:
        ValueError: It is no JSON, or has more than `most` values and keys.
        RecursionError: It is nested too deeply.
    """
    # Fast, but it counts what stands within texts too: a module is one value.
    if sum(map(text.count, ",[{")) > most:
        bare = text.replace("\\\\", "").replace('\\"', "")
        if next(islice(_VALUE.finditer(bare), most, None), None) is not None:
            raise ValueError(f"more than {most:,} values")
    return json.loads(text)


def encode_spooled(tagged: SpooledRecord) -> bytes:
    """Encode a record with its lease; `decode_spooled` gives an equal one back.

    Raises:
        AgentError: A number is none, or as of `readable`.
    """
    record = readable(tagged.record)
    _check_finite(record)
    try:
        return msgspec.json.encode(tagged if record is tagged.record else replace(tagged, record=record))
    except _FAULTS as fault:
        raise _error("record", fault) from None


def decode_spooled(body: bytes) -> SpooledRecord:
    """Decode a record with its lease.

    Raises:
        AgentError: Not one, or one of another layout.
    """
    try:
        tagged = _SPOOLED.decode(body)
    except _FAULTS as fault:
        raise _error("record", fault) from None
    _check(tagged.record)
    return tagged


def readable(record: Record) -> Record:
    """The record as it can be read back.

    Halves of characters in its error, whose text may have been cut anywhere, are written out.

    Raises:
        AgentError: It is of another layout, or its `quality` is no JSON object.
    """
    _check(record)
    if record.error.isascii():
        return record
    error = record.error.encode("utf-8", "backslashreplace").decode()
    return record if error == record.error else replace(record, error=error)


def _check(record: Record) -> None:
    """Refuse what the types of a record do not say."""
    check_schema(record.schema)
    try:
        _OBJECT.decode(record.quality)
    except _FAULTS as fault:
        raise AgentError(f"record: quality: expected the text of a JSON object: {fault}") from None


def _check_finite(record: Record) -> None:
    """Refuse numbers that are none: JSON has a null for them."""
    numbers = (record.build_secs, record.wait_secs, record.timing_secs, record.measured_at)
    if not all(map(isfinite, (*record.run_secs, *record.warmup_secs, *numbers))):
        raise AgentError("record: a number of seconds is not finite")


def record_to_json(record: Record) -> dict[str, Any]:
    """Turn a record into values that `json.dumps` takes; `record_from_json` gives an equal record back.

    Raises:
        AgentError: As of `readable`.
    """
    values: dict[str, Any] = msgspec.to_builtins(readable(record))
    return values


def record_from_json(value: Any) -> Record:
    """Rebuild a record from what `json.loads` gives.

    Raises:
        AgentError: Not a record, a key too many or too few, a value of the wrong type, or another layout.
    """
    if isinstance(value, dict):
        check_schema(value.get("schema"))
    _check_complete(Record, value, "record")
    record = value_from_json(Record, value, "record")
    _check_complete(Protocol, value["protocol"], "record: protocol")
    _check(record)
    return record


def protocol_from_json(value: Any) -> Protocol:
    """Rebuild a protocol from what `json.loads` gives.

    Raises:
        AgentError: Not a protocol: a key too many or too few, or a value out of bounds.
    """
    _check_complete(Protocol, value, "record: protocol")
    return value_from_json(Protocol, value, "record: protocol")


def check_schema(schema: object) -> None:
    """Refuse the layout of a record that another version wrote.

    Raises:
        AgentError: It is not `RECORD_SCHEMA`.
    """
    if type(schema) is not int or schema != RECORD_SCHEMA:
        raise AgentError(f"record: layout {schema!r}, this version reads {RECORD_SCHEMA} only")


def workload_from_json(value: Any) -> Workload:
    """Rebuild a workload from what `as_json_dict` gave, after JSON.

    Raises:
        AgentError: A key too many or too few, or a value of the wrong type.
    """
    workload = value_from_json(Workload, value, "workload")
    if len(workload.arg_shapes) != len(workload.arg_dtypes):
        raise AgentError(
            f"workload: {len(workload.arg_shapes)} arg_shapes, but {len(workload.arg_dtypes)} arg_dtypes"
        )
    return workload


def device_from_json(spec: Any, descriptor: Any) -> tuple[DeviceSpec, Descriptor | None]:
    """Rebuild what a device is from what `as_json_dict` gave, after JSON.

    The descriptor is None for a device that was never probed.

    Raises:
        AgentError: A key too many, a needed one missing, or a value of the wrong type.
    """
    claimed = value_from_json(DeviceSpec, spec, "device spec")
    probed = None if descriptor is None else value_from_json(Descriptor, descriptor, "descriptor")
    try:
        is_mapping = isinstance(bounded_json(claimed.target_json), dict)
    except (ValueError, RecursionError):
        is_mapping = False
    if not is_mapping:
        raise AgentError("device spec: target_json: expected the text of a JSON object")
    return claimed, probed


def value_from_json(kind: type[_Value], value: Any, what: str) -> _Value:
    """Rebuild any declared value from what `json.loads` gives.

    By way of a text again: no text holds numbers that are none, or halves of characters.

    Raises:
        AgentError: `what` is not one; the message has the path of the field.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except _FAULTS as fault:
        raise _error(what, fault) from None


def _check_complete(kind: type[msgspec.Struct], value: Any, what: str) -> None:
    """Refuse an object that leaves to a default what every writer says."""
    if isinstance(value, dict) and (missing := set(kind.__struct_encode_fields__) - value.keys()):
        raise AgentError(f"{what}: lacks {', '.join(sorted(missing))}")


def _error(what: str, fault: BaseException) -> AgentError:
    if isinstance(fault, UnicodeEncodeError):
        return AgentError(f"{what}: expected text, got half a character at place {fault.start} of a text")
    return AgentError(f"{what}: {fault}")
