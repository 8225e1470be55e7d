from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import AgentError
from agents.record_json import record_from_json, record_to_json
from agents.records import Record
from tests.record_fixtures import any_records, make_record

#: One record in each published layout; every later version must read it. Never change a line, only add.
LAYOUT_1 = (
    '{"attempt":2,"build_secs":0.25,"candidate_id":"c0ffee","device_id":"dev-a","dialect":"meta_schedule",'
    '"environment":"{}","environment_id":"e1","error":"","measured_at":1700000000.5,"model_version":"m7",'
    '"number":3,"origin":"paired","outcome":"ok","protocol":{"build_timeout_sec":15.0,"cooldown_ms":0.0,'
    '"max_number":20000,"min_repeat_ms":10.0,"repeat":3,"run_timeout_sec":5.0},"run_secs":[0.001,0.002],'
    '"schema":1,"timing_secs":0.5,"trace":"[[],[]]","wait_secs":0.0,"warmup_secs":[],"workload_id":"a1"}'
)


@given(any_records())
def test_round_trip_is_exact(record: Record) -> None:
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_halves_of_characters_in_an_error_survive() -> None:
    record = make_record(4, error="tail \udcff of a stream")
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_the_first_published_layout_still_loads() -> None:
    record = record_from_json(json.loads(LAYOUT_1))
    assert (record.attempt, record.model_version, record.run_secs) == (2, "m7", (0.001, 0.002))
    assert record.record_id == "b0bc1a8a25a0074f0da7b22c1a7ea776"


@pytest.mark.parametrize("schema", [0, 2, "1", None, True, 1.5])
def test_an_unknown_layout_is_refused(schema: Any) -> None:
    value = record_to_json(make_record(1)) | {"schema": schema}
    with pytest.raises(AgentError, match="upgrade tensor-fleet"):
        record_from_json(value)


@pytest.mark.parametrize("name", sorted(record_to_json(make_record(1)).keys() - {"schema"}))
def test_each_key_is_needed(name: str) -> None:
    value = record_to_json(make_record(1))
    del value[name]
    with pytest.raises(AgentError, match=name):
        record_from_json(value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("run_secs", "0.1"),
        ("run_secs", [True]),
        ("run_secs", ["1"]),
        ("number", 1.5),
        ("number", True),
        ("build_secs", "1"),
        ("trace", 5),
        ("outcome", "fine"),
        ("outcome", None),
        ("protocol", []),
        ("protocol", {"repeat": 3}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(AgentError, match=name):
        record_from_json(record_to_json(make_record(1)) | {name: wrong})


def test_a_protocol_that_breaks_its_own_rules_is_refused() -> None:
    value = record_to_json(make_record(1))
    value["protocol"]["repeat"] = 0
    with pytest.raises(AgentError, match="repeat must be at least 1"):
        record_from_json(value)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(AgentError, match="unknown colour"):
        record_from_json(record_to_json(make_record(1)) | {"colour": "red"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_other_json_is_refused_with_one_error(value: Any) -> None:
    with pytest.raises(AgentError):
        record_from_json(value)
