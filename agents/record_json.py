"""A record as JSON and back, exactly: for the spool and for files that people exchange.

Standard library only. Strict on the way in: what it accepts is a whole record of a known layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agents.errors import AgentError
from agents.records import (
    RECORD_SCHEMA,
    Outcome,
    Protocol,
    Record,
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
_PROTOCOL_INTS = ("repeat", "max_number")
_PROTOCOL_FLOATS = ("min_repeat_ms", "cooldown_ms", "build_timeout_sec", "run_timeout_sec")


def record_to_json(record: Record) -> dict[str, Any]:
    """Turn a record into values that `json.dumps` takes; `record_from_json` gives an equal record back."""
    value: dict[str, Any] = {name: getattr(record, name) for name in _NAMES}
    value["outcome"] = record.outcome.value
    value["run_secs"] = list(record.run_secs)
    value["warmup_secs"] = list(record.warmup_secs)
    protocol = record.protocol
    value["protocol"] = {name: getattr(protocol, name) for name in _PROTOCOL_INTS + _PROTOCOL_FLOATS}
    return value


def record_from_json(value: Any) -> Record:
    """Rebuild a record from what `json.loads` gives.

    Raises:
        AgentError: Not a record, a key too many or too few, a value of the wrong type, or a layout of a
            newer version.
    """
    if not isinstance(value, dict):
        raise AgentError(f"record: expected a JSON object, got {type(value).__name__}")
    schema = value.get("schema")
    if schema != RECORD_SCHEMA or isinstance(schema, bool):
        raise AgentError(
            f"record: layout {schema!r} is not known, this version reads {RECORD_SCHEMA};"
            " upgrade tensor-fleet"
        )
    _check_names("record", value, _NAMES)
    outcome = _typed("record", value, "outcome", str)
    if outcome not in set(Outcome):
        raise AgentError(f"record: outcome {outcome!r} is not known; expected one of {', '.join(Outcome)}")
    kept: dict[str, Any] = {name: _typed("record", value, name, str) for name in _TEXTS}
    kept |= {name: _number("record", value, name) for name in _FLOATS}
    kept |= {name: _typed("record", value, name, int) for name in _INTS}
    kept |= {name: _seconds(value, name) for name in _SECONDS}
    kept |= {"outcome": Outcome(outcome), "protocol": _protocol(value["protocol"])}
    return Record(**kept)


def _protocol(value: Any) -> Protocol:
    if not isinstance(value, dict):
        raise AgentError(f"record: protocol: expected a JSON object, got {type(value).__name__}")
    _check_names("record: protocol", value, frozenset(_PROTOCOL_INTS + _PROTOCOL_FLOATS))
    kept: dict[str, Any] = {name: _typed("record: protocol", value, name, int) for name in _PROTOCOL_INTS}
    kept |= {name: _number("record: protocol", value, name) for name in _PROTOCOL_FLOATS}
    try:
        return Protocol(**kept)
    except ValueError as error:
        raise AgentError(f"record: {error}") from error


def _check_names(where: str, value: Mapping[str, Any], names: frozenset[str]) -> None:
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


__all__ = ["record_from_json", "record_to_json"]
