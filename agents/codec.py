"""Records, protocols, workloads and devices as JSON and back, exactly.

For the spool, for files that people exchange, and for messages between processes. Standard library only.
Readers follow the types of the dataclasses and are strict: what they accept is a whole value of a known
layout. The store calls the protocol's part alone, so what a layout leaves unsaid is said here once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from agents.errors import AgentError
from agents.records import (
    RECORD_SCHEMA,
    Descriptor,
    DeviceSpec,
    Protocol,
    Record,
    Workload,
)

#: Values and keys in one JSON text of a stranger at most, if nothing else is said.
MOST_VALUES = 1_000_000
#: One of them, in a text without escaped quotes. A text that does not end goes to the end.
_VALUE = re.compile(r'"[^"]*+"?|[\[{]|[^\s\[\]{}:,"]++')
#: Fields of a protocol by their key in JSON.
_PROTOCOL_FIELDS = {one.metadata.get("key", one.name): one.name for one in fields(Protocol)}
_RECORD_NAMES = frozenset(one.name for one in fields(Record))

_Read = Callable[[Any], Any]


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


def record_to_json(record: Record) -> dict[str, Any]:
    """Turn a record into values that `json.dumps` takes; `record_from_json` gives an equal record back.

    Raises:
        AgentError: It is of another layout, or `quality` is no JSON object.
    """
    check_schema(record.schema)
    _check_quality(record.quality)
    value: dict[str, Any] = {name: getattr(record, name) for name in _RECORD_NAMES}
    value["outcome"] = record.outcome.value
    value["run_secs"] = list(record.run_secs)
    value["warmup_secs"] = list(record.warmup_secs)
    value["protocol"] = protocol_to_json(record.protocol)
    return value


def record_from_json(value: Any) -> Record:
    """Rebuild a record from what `json.loads` gives.

    Raises:
        AgentError: Not a record, a key too many or too few, a value of the wrong type, or another layout.
    """
    if not isinstance(value, dict):
        raise AgentError(f"record: expected a JSON object, got {type(value).__name__}")
    check_schema(value.get("schema"))
    _check_names("record", value, _RECORD_NAMES)
    readers = _field_readers(Record, "record")
    values = {name: readers[name](item) for name, item in value.items() if name != "protocol"}
    _check_quality(values["quality"])
    return Record(protocol=protocol_from_json(value["protocol"]), **values)


def protocol_to_json(protocol: Protocol) -> dict[str, Any]:
    """Turn a protocol into values that `json.dumps` takes."""
    return {key: getattr(protocol, name) for key, name in _PROTOCOL_FIELDS.items()}


def protocol_from_json(value: Any) -> Protocol:
    """Rebuild a protocol from what `json.loads` gives.

    Raises:
        AgentError: Not a protocol: a key too many or too few, or a value out of bounds.
    """
    where = "record: protocol"
    if not isinstance(value, dict):
        raise AgentError(f"{where}: expected a JSON object, got {type(value).__name__}")
    _check_names(where, value, _PROTOCOL_FIELDS.keys())
    readers = _field_readers(Protocol, where)
    values = {_PROTOCOL_FIELDS[key]: readers[_PROTOCOL_FIELDS[key]](item) for key, item in value.items()}
    try:
        return Protocol(**values)
    except ValueError as error:
        raise AgentError(f"record: {error}") from error


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
    workload = _reader(Workload, "workload")(value)
    assert isinstance(workload, Workload)
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
    made = _reader(DeviceSpec, "device spec")(spec)
    seen = None if descriptor is None else _reader(Descriptor, "descriptor")(descriptor)
    assert isinstance(made, DeviceSpec)
    assert seen is None or isinstance(seen, Descriptor)
    try:
        is_mapping = isinstance(bounded_json(made.target_json), dict)
    except (ValueError, RecursionError):
        is_mapping = False
    if not is_mapping:
        raise AgentError("device spec: target_json: expected the text of a JSON object")
    return made, seen


@cache
def _reader(kind: Any, where: str) -> _Read:
    """How JSON becomes a value of a type: built once for each type and place, as thousands are read."""
    kind = getattr(kind, "__supertype__", kind)
    if get_origin(kind) is UnionType:
        read = _reader(get_args(kind)[0], where)
        return lambda value: None if value is None else read(value)
    if get_origin(kind) is tuple:
        return _tuple_reader(get_args(kind), where)
    if is_dataclass(kind):
        return _dataclass_reader(kind, where)
    if kind is float:
        return _float_reader(where)
    if issubclass(kind, StrEnum):
        return _word_reader({one.value: one for one in kind}, where)

    # The tail of a record's error may be cut within a character.
    if kind is str and not where.startswith("record"):
        return _text_reader(where)

    def plain(value: Any) -> Any:
        # `True` is an int to Python, but never a count.
        if type(value) is not kind:
            raise _mismatch(where, kind, value)
        return value

    return plain


@cache
def _field_readers(kind: Any, where: str) -> dict[str, _Read]:
    return {name: _reader(hint, f"{where}: {name}") for name, hint in get_type_hints(kind).items()}


def _text_reader(where: str) -> _Read:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise _mismatch(where, str, value)
        try:
            if not value.isascii():
                value.encode()
        except UnicodeEncodeError as error:
            # No reader of JSON but Python's takes it: a store with one such text could not be read any more.
            raise AgentError(f"{where}: expected text, got half a character at place {error.start}") from None
        return value

    return read


def _float_reader(where: str) -> _Read:
    def read(value: Any) -> float:
        if type(value) is float and math.isfinite(value):
            return value
        try:
            if type(value) is int:
                return float(value)
        except OverflowError:
            pass
        raise _mismatch(where, float, value)

    return read


def _word_reader(words: Mapping[str, StrEnum], where: str) -> _Read:
    def read(value: Any) -> StrEnum:
        if type(value) is not str or value not in words:
            raise AgentError(f"{where}: {value!r:.60} is not known; expected one of {', '.join(words)}")
        return words[value]

    return read


def _tuple_reader(kinds: tuple[Any, ...], where: str) -> _Read:
    reads = [_reader(kind, where) for kind in kinds if kind is not ...]

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise AgentError(f"{where}: expected a list, got {type(value).__name__}")
        if kinds[-1] is ...:
            return tuple(map(reads[0], value))
        if len(value) != len(kinds):
            raise AgentError(f"{where}: expected {len(kinds)} values, got {len(value)}")
        return tuple(one(item) for one, item in zip(reads, value, strict=True))

    return read


def _dataclass_reader(kind: Any, where: str) -> _Read:
    readers = _field_readers(kind, where)
    needed = {one.name for one in fields(kind) if one.default is MISSING}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise AgentError(f"{where}: expected a JSON object, got {type(value).__name__}")
        if missing := sorted(needed - value.keys()):
            raise AgentError(f"{where}: lacks {', '.join(missing)}")
        if unknown := sorted(str(name) for name in value.keys() - readers.keys()):
            raise AgentError(f"{where}: unknown keys {', '.join(unknown)}; upgrade tensor-fleet")
        return kind(**{name: readers[name](one) for name, one in value.items()})

    return read


def _mismatch(where: str, kind: type, value: Any) -> AgentError:
    names = {bool: "true or false", float: "a finite number", int: "a whole number", str: "text"}
    return AgentError(f"{where}: expected {names[kind]}, got {type(value).__name__}")


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
