"""Events as JSON, for the journal: `{"event": "AgentDied", "at_secs": ...}` and back.

Called by `journal.py`. The fields are those of the classes in `events.py`; what stands in a journal of an
older version is read as long as its names are known, and a field that it lacks gets its default.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fleet.core.events import Event
from fleet.errors import FleetError

_NAME = "event"
#: Names on the disk that differ from those in the code: older journals stay readable.
_EVENTS_ON_DISK = {"AgentHeartbeat": "AgentBeat"}
_FIELDS_ON_DISK = {
    "fencing_token": "epoch",
    "crashed_token": "crashed_epoch",
    "counted_tokens": "counted_epochs",
}
_NAMES: dict[type[Any], str] = {
    kind: _EVENTS_ON_DISK.get(kind.__name__, kind.__name__) for kind in get_args(Event)
}
_CLASSES: dict[str, type[Any]] = {name: kind for kind, name in _NAMES.items()}
#: What fields meant that an older version did not write, where that is not their default.
_OLD: dict[str, dict[str, Any]] = {"CoordinatorStarted": {"rules": 1}}
_PLAIN = frozenset({str, int, float, bool, type(None)})
_Value = TypeVar("_Value")


class EventError(FleetError):
    """A journalled event is none that this version knows."""


def event_to_json(event: Event) -> dict[str, Any]:
    """Turn an event into JSON-ready values: `event` is the name of its class, then its fields."""
    values: dict[str, Any] = value_to_json(event)
    return {_NAME: _NAMES[type(event)]} | values


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read one event.

    Raises:
        EventError: The event is unknown, or a field is missing, unknown or of the wrong kind.
    """
    name = value.get(_NAME)
    kind = _CLASSES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise EventError(
            f"the journal holds an event {name!r}, expected one of {', '.join(sorted(_CLASSES))}; "
            "was it written by a newer version?"
        )
    told = {key: item for key, item in value.items() if key != _NAME}
    event: Event = value_from_json(kind, _OLD.get(kind.__name__, {}) | told)
    return event


def value_to_json(value: Any) -> Any:
    """Turn a dataclass of events and states, or what its fields hold, into JSON-ready values."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    return _writer(cast(Any, kind))(value)


def value_from_json(kind: type[_Value], value: Any) -> _Value:
    """Read one dataclass of events and states.

    Raises:
        EventError: A field is missing, unknown or of the wrong kind.
    """
    try:
        result: _Value = _reader(cast(Any, kind))(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EventError(
            f"{kind.__name__} in the journal cannot be read: {error}; got {value!r:.200}"
        ) from None
    return result


@cache
def _writer(kind: Any) -> Callable[[Any], Any]:
    """How values of a type become JSON-ready: built once a type, as thousands are written a second."""
    if is_dataclass(kind):
        names = tuple((_FIELDS_ON_DISK.get(one.name, one.name), one.name) for one in fields(kind))
        return lambda value: {key: value_to_json(getattr(value, name)) for key, name in names}
    if kind is tuple or kind is list:
        return _list_to_json
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {str(key): value_to_json(item) for key, item in value.items()}
    raise TypeError(f"{kind.__name__} is no value of events and states")


def _list_to_json(value: Any) -> list[Any]:
    if set(map(type, value)) == {str}:  # ids, nearly always
        return list(value)
    return [value_to_json(item) for item in value]


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """How JSON values become values of a type: built once a type, as the journal reads many."""
    origin = get_origin(kind)
    if origin in (types.UnionType, Union):
        (inner,) = [one for one in get_args(kind) if one is not type(None)]
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin in (tuple, list):
        item = _reader(get_args(kind)[0])
        if getattr(get_args(kind)[0], "__supertype__", get_args(kind)[0]) is str:
            return lambda value: origin(value if _are_texts(value) else map(item, value))
        return lambda value: origin(item(one) for one in _checked(value, list))
    if origin is not None and issubclass(origin, Mapping):
        key, item = (_reader(one) for one in get_args(kind))
        return lambda value: {key(name): item(one) for name, one in _checked(value, dict).items()}
    kind = getattr(kind, "__supertype__", kind)
    if kind is Any:  # plain JSON values stay as they are
        return lambda value: value
    if is_dataclass(kind):
        return _record_reader(kind)
    if issubclass(kind, Enum):
        return cast(Callable[[Any], Any], kind)
    if kind is float:
        return lambda value: value if type(value) is float else float(_checked(value, int | float))
    return lambda value: value if type(value) is kind else _checked(value, kind)


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    names = {_FIELDS_ON_DISK.get(one.name, one.name): one.name for one in fields(kind)}
    readers = {key: _reader(hints[name]) for key, name in names.items()}
    needed = {
        _FIELDS_ON_DISK.get(one.name, one.name)
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }

    def read(value: Any) -> Any:
        if _checked(value, dict).keys() != readers.keys():
            missing, unknown = needed - value.keys(), value.keys() - readers.keys()
            if missing or unknown:
                raise ValueError(f"missing {sorted(missing)}, unknown {sorted(unknown)}")
        return kind(**{names[key]: readers[key](item) for key, item in value.items()})

    return read


def _are_texts(value: Any) -> bool:
    return all(type(item) is str for item in _checked(value, list))


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {getattr(kind, '__name__', kind)}, got {value!r:.100}")
    return value
