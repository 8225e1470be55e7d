"""Every event survives the journal; what is none is refused with its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agents.values import Value
from fleet.core import events as ev
from fleet.core.event_json import EventError, event_from_json, event_to_json
from fleet.core.request_words import Request, RequestKind
from tests.fleet_world import job

KINDS = get_args(ev.Event)
#: Values of fields that hypothesis would not find by their types' names alone.
WORDS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
st.register_type_strategy(
    Request,
    st.builds(
        Request,
        request_id=WORDS,
        kind=st.sampled_from(RequestKind),
        arguments=st.dictionaries(WORDS, JSON, max_size=3),
        minutes=st.none() | st.floats(0, 1e6),
    ),
)
st.register_type_strategy(
    ev.RequestEnded,
    st.builds(
        ev.RequestEnded,
        at_secs=st.floats(),
        request_id=WORDS,
        result=st.dictionaries(WORDS, JSON, max_size=3),
        reason=WORDS,
    ),
)


def built(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a declaration with all of its fields: hypothesis takes a factory of defaults for a value."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: field_of(hints[name]) for name in kind.__struct_fields__})


def field_of(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is not Mapping:
        return st.from_type(hint)
    key, value = get_args(hint)
    return st.dictionaries(st.from_type(key), JSON if value is Any else st.from_type(value), max_size=3)


for value_kind in (ev.DevicePolicy, ev.Job, *set(KINDS) - {ev.RequestEnded}):
    st.register_type_strategy(value_kind, built)


def event_strategy() -> st.SearchStrategy[Any]:
    return st.one_of([st.from_type(kind) for kind in KINDS])


@settings(max_examples=300, deadline=None)
@given(event=event_strategy())
def test_an_event_is_read_as_it_was_written(event: Any) -> None:
    if any(value != value for value in vars_of(event)):
        return  # a time that is no number equals nothing, not even itself
    text = json.dumps(event_to_json(event))
    assert event_from_json(json.loads(text)) == event


def vars_of(value: Any) -> list[Any]:
    """All plain values inside of an event."""
    if isinstance(value, Value):
        return [inner for name in value.__struct_fields__ for inner in vars_of(getattr(value, name))]
    if isinstance(value, tuple):
        return [inner for one in value for inner in vars_of(one)]
    return [value]


def test_missing_optional_fields_get_their_defaults() -> None:
    event = event_from_json({"event": "DeviceAdded", "at_secs": 1, "device_id": "a", "family": "cpu"})
    assert event == ev.DeviceAdded(at_secs=1.0, device_id="a", family="cpu", policy=ev.DevicePolicy())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"event": "DeviceExploded"}, "DeviceExploded"),
        ({"event": ["Tick"]}, "Expected `str`, got `list` - at `$.event`"),
        ({"at_secs": "soon"}, "Expected `float`, got `str` - at `$.at_secs`"),
        ({"at_secs": True}, "Expected `float`, got `bool` - at `$.at_secs`"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"job": None}, "Expected `object`, got `null` - at `$.job`"),
        ({"job": {"job_id": "j"}}, "missing required field `device_id` - at `$.job`"),
    ],
)
def test_what_is_no_event_is_refused(change: dict[str, Any], why: str) -> None:
    value = event_to_json(ev.JobSubmitted(at_secs=1.0, job=job("j", "a"))) | change
    with pytest.raises(EventError) as caught:
        event_from_json(value)
    assert why in str(caught.value)


def test_a_beat_of_a_strange_kind_is_refused() -> None:
    value = {"event": "AgentHeartbeat", "at_secs": 1, "device_id": "a", "incarnation": 1, "busy": "sleeping"}
    with pytest.raises(EventError, match="sleeping"):
        event_from_json(value)
