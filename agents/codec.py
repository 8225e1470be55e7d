"""A record as JSON and back, exactly: for the spool and for files that people exchange.

Also devices and workloads as `agents.records.as_json_dict` writes them, back into values.

Standard library only. Strict on the way in: what it accepts is a whole record of a known layout. The store
calls the protocol's part alone, so what a layout leaves unsaid is said here once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NewType, get_args, get_origin, get_type_hints

from agents.errors import AgentError
from agents.records import (
    RECORD_SCHEMA,
    STORED_PROTOCOL_KEYS,
    Descriptor,
    DeviceSpec,
    Outcome,
    Protocol,
    Record,
    Workload,
)

_TEXTS = (
    "device_id",
    "workload_id",
    "candidate_id",
    "dialect",
    "trace",
    "origin",
    "error",
    "environment",
    "environment_id",
    "model_version",
)
_FLOATS = ("build_secs", "wait_secs", "timing_secs", "measured_at")
_INTS = ("number", "attempt", "schema")
_SECONDS = ("run_secs", "warmup_secs")
_NAMES = frozenset(field.name for field in fields(Record))
_PROTOCOL_INTS = frozenset({"repeat", "extra_repeats", "max_number", "visits"})
_PROTOCOL_BOOLS = frozenset({"cache_flush"})
_MOST_FLOAT = sys.float_info.max
#: Keys of a protocol in JSON, each with its field.
_PROTOCOL_FIELDS = {
    STORED_PROTOCOL_KEYS.get(field.name, field.name): field.name for field in fields(Protocol)
}

#: Layout 1 was written when worker processes had no memory limit; the protocol of today needs a number.
NO_MEMORY_LIMIT_GIB = 1e6

#: What layout 1 does not say because nothing else could be done then.
_SINCE_LAYOUT_2: dict[str, float] = {
    "extra_repeats": 0,
    "target_interval": 0.0,
    "reject_interval": 0.0,
    "warmup_ms": 0.0,
    "cache_flush": False,
    "early_stop_ratio": 0.0,
    "check_share": 0.0,
    "memory_limit_gib": NO_MEMORY_LIMIT_GIB,
}
#: What is not written where it has this value: it came later, and older records must stay what they were.
_LEFT_OUT: dict[str, float] = {"visits": 1}
_QUALITY_OF_LAYOUT_1 = "{}"


def record_to_json(record: Record) -> dict[str, Any]:
    """Turn a record into values that `json.dumps` takes; `record_from_json` gives an equal record back.

    A record of layout 1 is written in layout 1.

    Raises:
        AgentError: Its layout cannot say what the record says, or `quality` is no JSON object.
    """
    _check_layout("record", record.schema)
    _check_quality(record.quality)
    value: dict[str, Any] = {name: getattr(record, name) for name in _NAMES}
    value["outcome"] = record.outcome.value
    value["run_secs"] = list(record.run_secs)
    value["warmup_secs"] = list(record.warmup_secs)
    value["protocol"] = protocol_to_json(record.protocol, record.schema)
    if record.schema == 1 and value.pop("quality") != _QUALITY_OF_LAYOUT_1:
        raise AgentError(f"record: layout 1 has no quality, got {record.quality!r}; give it layout 2")
    return value


def record_from_json(value: Any) -> Record:
    """Rebuild a record from what `json.loads` gives.

    A record of layout 1 keeps its layout; its quality is empty and its protocol the one used then.

    Raises:
        AgentError: Not a record, a key too many or too few, a value of the wrong type, or a layout of a
            newer version.
    """
    if not isinstance(value, dict):
        raise AgentError(f"record: expected a JSON object, got {type(value).__name__}")
    schema: Any = value.get("schema")
    _check_layout("record", schema)
    _check_names("record", value, _NAMES - {"quality"} if schema == 1 else _NAMES)
    outcome = _typed("record", value, "outcome", str)
    if outcome not in set(Outcome):
        raise AgentError(f"record: outcome {outcome!r} is not known; expected one of {', '.join(Outcome)}")
    kept: dict[str, Any] = {name: _typed("record", value, name, str) for name in _TEXTS}
    kept |= {name: _number("record", value, name) for name in _FLOATS}
    kept |= {name: _typed("record", value, name, int) for name in _INTS}
    kept |= {name: _seconds(value, name) for name in _SECONDS}
    kept["quality"] = _QUALITY_OF_LAYOUT_1 if schema == 1 else _typed("record", value, "quality", str)
    _check_quality(kept["quality"])
    kept |= {"outcome": Outcome(outcome), "protocol": protocol_from_json(value["protocol"], schema)}
    return Record(**kept)


def protocol_to_json(protocol: Protocol, schema: int = RECORD_SCHEMA) -> dict[str, Any]:
    """Turn a protocol into values that `json.dumps` takes.

    Args:
        protocol: The protocol of a record.
        schema: Layout of that record.

    Raises:
        AgentError: Layout 1 cannot say this protocol, or the layout is not known.
    """
    _check_layout("protocol", schema)
    value = protocol_by_key(protocol)
    for name, then in _LEFT_OUT.items():
        if value[name] == then:
            del value[name]
    if schema == 1:
        for name, then in (_SINCE_LAYOUT_2 | _LEFT_OUT).items():
            if value.pop(name, then) != then:
                raise AgentError(
                    f"record: protocol: layout 1 means {name} {then}, got {getattr(protocol, name)};"
                    " give the record layout 2"
                )
    return value


def protocol_by_key(protocol: Protocol) -> dict[str, Any]:
    """Give every field of a protocol under its key on the disk."""
    return {key: getattr(protocol, name) for key, name in _PROTOCOL_FIELDS.items()}


def protocol_from_json(value: Any, schema: int = RECORD_SCHEMA) -> Protocol:
    """Rebuild a protocol from what `json.loads` gives.

    Args:
        value: The protocol as a record holds it.
        schema: Layout of that record. What layout 1 does not say is what was done then: no extra repeats,
            no early stop, no checks, no cache flush, no memory limit (`NO_MEMORY_LIMIT_GIB`).

    Raises:
        AgentError: Not a protocol of this layout, or the layout is of a newer version.
    """
    where = "record: protocol"
    _check_layout(where, schema)
    if not isinstance(value, dict):
        raise AgentError(f"{where}: expected a JSON object, got {type(value).__name__}")
    # Layout 1 has none of them at all.
    left_out = _LEFT_OUT.keys() - (value.keys() if schema > 1 else set())
    later = _SINCE_LAYOUT_2.keys() if schema == 1 else set()
    _check_names(where, value, _PROTOCOL_FIELDS.keys() - later - left_out)
    kept: dict[str, Any] = {**_SINCE_LAYOUT_2, **_LEFT_OUT}
    for key in value:
        name = _PROTOCOL_FIELDS[key]
        if name in _PROTOCOL_BOOLS:
            kept[name] = _flag(where, value, key)
        else:
            kept[name] = (
                _typed(where, value, key, int) if name in _PROTOCOL_INTS else _number(where, value, key)
            )
    try:
        return Protocol(**kept)
    except ValueError as error:
        raise AgentError(f"record: {error}") from error


def workload_from_json(value: Any) -> Workload:
    """Rebuild a workload from what `as_json_dict` gave, after JSON.

    Raises:
        AgentError: A key too many or too few, or a value of the wrong type.
    """
    workload = _value(Workload, value, "workload")
    assert isinstance(workload, Workload)
    if len(workload.arg_shapes) != len(workload.arg_dtypes):
        raise AgentError(
            f"workload: {len(workload.arg_shapes)} arg_shapes, but {len(workload.arg_dtypes)} arg_dtypes"
        )
    return workload


def device_from_json(spec: Any, descriptor: Any) -> tuple[DeviceSpec, Descriptor | None]:
    """Rebuild what a device is from what `as_json_dict` gave, after JSON.

    Args:
        spec: The spec.
        descriptor: The descriptor; None for a device that was never probed.

    Raises:
        AgentError: A key too many, a needed one missing, or a value of the wrong type.
    """
    made = _value(DeviceSpec, spec, "device spec")
    seen = None if descriptor is None else _value(Descriptor, descriptor, "descriptor")
    assert isinstance(made, DeviceSpec)
    assert seen is None or isinstance(seen, Descriptor)
    try:
        is_mapping = isinstance(json.loads(made.target_json), dict)
    except (ValueError, RecursionError):
        is_mapping = False
    if not is_mapping:
        raise AgentError("device spec: target_json: expected the text of a JSON object")
    return made, seen


def _value(kind: Any, value: Any, where: str) -> Any:
    """Rebuild a value of a type that `agents.records` uses in its dataclasses."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    if get_origin(kind) is UnionType:
        choices = get_args(kind)
        assert choices[1:] == (NoneType,)
        return None if value is None else _value(choices[0], value, where)
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, where)
    if kind is float and type(value) in (int, float) and abs(value) <= _MOST_FLOAT:
        return float(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and type(value) is str and value in set(kind):
        return kind(value)
    if kind in (str, int, bool) and type(value) is kind:
        return value
    raise AgentError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {type(value).__name__}")


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise AgentError(f"{where}: expected a JSON object, got {type(value).__name__}")
    hints = get_type_hints(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := sorted(needed - value.keys()):
        raise AgentError(f"{where}: lacks {', '.join(missing)}")
    if unknown := sorted(str(name) for name in value.keys() - hints.keys()):
        raise AgentError(f"{where}: unknown keys {', '.join(unknown)}; upgrade tensor-fleet")
    return kind(**{name: _value(hints[name], one, f"{where}: {name}") for name, one in value.items()})


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise AgentError(f"{where}: expected a list, got {type(value).__name__}")
    if kinds[-1] is ...:
        return tuple(_value(kinds[0], one, where) for one in value)
    if len(value) != len(kinds):
        raise AgentError(f"{where}: expected {len(kinds)} values, got {len(value)}")
    return tuple(_value(kind, one, where) for kind, one in zip(kinds, value, strict=True))


def _check_layout(where: str, schema: Any) -> None:
    if type(schema) is not int or not 1 <= schema <= RECORD_SCHEMA:
        raise AgentError(
            f"{where}: layout {schema!r} is not known, this version reads 1 to {RECORD_SCHEMA};"
            " upgrade tensor-fleet"
        )


def _check_quality(text: str) -> None:
    """Refuse what `Record.is_suspect` and readers of other languages could not read."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise AgentError(f"record: quality: expected the text of a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise AgentError(
            f"record: quality: expected the text of a JSON object, got that of {type(found).__name__}"
        )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_names(where: str, value: Mapping[str, Any], names: Set[str]) -> None:
    if value.keys() != names:
        missing = ", ".join(sorted(names - value.keys())) or "none"
        unknown = ", ".join(sorted(str(name) for name in value.keys() - names)) or "none"
        raise AgentError(f"{where}: keys do not fit: missing {missing}; unknown {unknown}")


def _typed(where: str, value: Mapping[str, Any], name: str, kind: type) -> Any:
    found = value[name]
    # `True` is an int to Python, but never a count.
    if not isinstance(found, kind) or isinstance(found, bool):
        raise AgentError(f"{where}: {name}: expected {kind.__name__}, got {type(found).__name__}")
    return found


def _flag(where: str, value: Mapping[str, Any], name: str) -> bool:
    found = value[name]
    if not isinstance(found, bool):
        raise AgentError(f"{where}: {name}: expected true or false, got {type(found).__name__}")
    return found


def _number(where: str, value: Mapping[str, Any], name: str) -> float:
    found = value[name]
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        raise AgentError(f"{where}: {name}: expected a number, got {type(found).__name__}")
    return found


def _seconds(value: Mapping[str, Any], name: str) -> tuple[float, ...]:
    found = value[name]
    if not isinstance(found, list):
        raise AgentError(f"record: {name}: expected a list of numbers, got {type(found).__name__}")
    for one in found:
        if not isinstance(one, (int, float)) or isinstance(one, bool):
            raise AgentError(f"record: {name}: expected numbers, got {type(one).__name__}")
    return tuple(found)


__all__ = [
    "NO_MEMORY_LIMIT_GIB",
    "device_from_json",
    "protocol_by_key",
    "protocol_from_json",
    "protocol_to_json",
    "record_from_json",
    "record_to_json",
    "workload_from_json",
]
