"""Events and states as JSON-ready values and back, as their declarations say.

The event log and its snapshots hold them: `{"event": "AgentDied", "at_secs": ...}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from fleet.core.events import Event
from fleet.errors import FleetError

_Value = TypeVar("_Value")
_CLASSES: dict[Any, Any] = {kind.__struct_config__.tag: kind for kind in get_args(Event)}


class EventError(FleetError):
    """An event or state of the log is none that this version writes."""


def event_to_json(event: Event) -> dict[str, Any]:
    """Turn an event into JSON-ready values: `event` is the name of its class, then its fields."""
    values: dict[str, Any] = value_to_json(event)
    return values


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read one event.

    Raises:
        EventError: The event is unknown, or a field is missing, unknown or of the wrong kind.
    """
    # By the tag: a conversion to the union of all would be planned anew at each call.
    name = value.get("event")
    kind: Any = _CLASSES.get(name, Event) if isinstance(name, str) else Event
    event: Event = _read(kind, "an event", value)
    return event


def value_to_json(value: Any) -> Any:
    """Turn a value of events and states into JSON-ready values."""
    return msgspec.to_builtins(value, enc_hook=_mapping)


def value_from_json(kind: type[_Value], value: Any) -> _Value:
    """Read one value of events and states.

    Raises:
        EventError: A field is missing, unknown or of the wrong kind.
    """
    return _read(kind, kind.__name__, value)


def _read(kind: type[_Value], what: str, value: Any) -> _Value:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise EventError(f"{what} in the event log cannot be read: {error}; got {value!r:.200}") from None


def _mapping(value: Any) -> dict[Any, Any]:
    """A mapping that is no dict, as JSON knows it."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no value of events and states")
