from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agents.codec import (
    SpooledRecord,
    bounded_json,
    decode_spooled,
    device_from_json,
    encode_spooled,
    record_from_json,
    record_to_json,
    workload_from_json,
)
from agents.errors import AgentError
from agents.records import Protocol, Record, as_json_dict
from tests.record_fixtures import (
    ANY_JSON,
    RECORD_TEXT,
    any_records,
    make_descriptor,
    make_record,
    make_spec,
    make_workload,
)
from tests.table_fixtures import rows


@given(any_records())
def test_round_trip_is_exact(record: Record) -> None:
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_halves_of_characters_in_an_error_are_written_out() -> None:
    half, written = (make_record(4, error=f"tail {text} of a stream") for text in ("\udcff", "\\udcff"))
    assert record_from_json(json.loads(json.dumps(record_to_json(half)))) == written
    assert decode_spooled(encode_spooled(SpooledRecord(record=half))).record == written


@pytest.mark.parametrize("name", ["name", "module_json", "arg_dtypes", "networks"])
def test_halves_of_characters_in_a_workload_are_refused(name: str) -> None:
    half, whole = (
        as_json_dict(make_workload(1))
        | {name: {"arg_dtypes": [text] * 3, "networks": [[text, 1]]}.get(name, text)}
        for text in ("half \ud800", "whole \U0001f600 \xe9")
    )
    with pytest.raises(AgentError, match="workload: expected text, got half a character"):
        workload_from_json(half)
    assert as_json_dict(workload_from_json(whole)) == whole


def test_halves_of_characters_in_what_a_device_is_are_refused() -> None:
    spec, seen = as_json_dict(make_spec()), as_json_dict(make_descriptor())
    for broken in ({**spec, "note": "\ud800"}, spec):
        with pytest.raises(AgentError, match="expected text, got half a character at place 0"):
            device_from_json(broken, {**seen, "host": "\ud800"})
    assert device_from_json(spec, seen) == (make_spec(), make_descriptor())


def test_a_record_as_it_is_written_loads() -> None:
    record = record_from_json(json.loads(RECORD_TEXT))
    assert record.protocol == Protocol(
        repeat=3,
        extra_repeats=7,
        target_interval=0.03,
        reject_interval=0.4,
        warmup_ms=80.0,
        visits=2,
        cache_flush=True,
        early_stop_ratio=4.0,
        check_share=0.25,
        memory_limit_gib=2.5,
    )
    assert (record.is_suspect, record.is_quarantined, record.schema) == (True, False, 2)
    assert json.dumps(record_to_json(record), sort_keys=True, separators=(",", ":")) == RECORD_TEXT


def test_a_record_that_could_not_be_read_again_is_not_written() -> None:
    for changes, words in (
        ({"schema": 3}, "layout 3, this version reads 2 only"),
        ({"quality": ""}, "quality: expected the text of a JSON object"),
    ):
        with pytest.raises(AgentError, match=words):
            record_to_json(replace(make_record(1), **changes))


@pytest.mark.parametrize("schema", [0, 1, 3, "2", None, True, 2.5])
def test_another_layout_is_refused_with_one_line(schema: Any) -> None:
    value = record_to_json(make_record(1)) | {"schema": schema}
    with pytest.raises(AgentError, match=f"layout {schema!r}, this version reads 2 only"):
        record_from_json(value)


@pytest.mark.parametrize("name", sorted(record_to_json(make_record(1)).keys() - {"schema"}))
def test_each_key_is_needed_and_no_other(name: str) -> None:
    value = record_to_json(make_record(1))
    kept = value.pop(name)
    with pytest.raises(AgentError, match=name):
        record_from_json(value)
    with pytest.raises(AgentError, match="unknown field `colour`"):
        record_from_json(value | {name: kept, "colour": "red"})


#: A value that no record has in this place, and what is said of it.
NO_VALUES = """
    run_secs: "0.1"         -> run_secs
    run_secs: [true]        -> run_secs
    run_secs: ["1"]         -> run_secs
    number: 1.5             -> number
    number: true            -> number
    build_secs: "1"         -> build_secs
    trace: 5                -> trace
    outcome: "fine"         -> outcome
    outcome: null           -> outcome
    quality: {}             -> quality
    quality: null           -> quality
    quality: ""             -> quality: expected the text of a JSON object
    quality: "x"            -> quality: expected the text of a JSON object
    quality: "[]"           -> quality: expected the text of a JSON object
    quality: "null"         -> quality: expected the text of a JSON object
    quality: "3"            -> quality: expected the text of a JSON object
    quality: "\\"{}\\""      -> quality: expected the text of a JSON object
    quality: "{"            -> quality: expected the text of a JSON object
    quality: "{}{}"         -> quality: expected the text of a JSON object
    quality: "{\\"interval\\":NaN}" -> quality: expected the text of a JSON object
    quality: "{\\"a\\":-Infinity}" -> quality: expected the text of a JSON object
    protocol: []            -> protocol
    protocol: {"repeat": 3} -> protocol
    protocol.repeat: 0      -> repeat must be at least 1
    protocol.early_stop_ratio: 1.0   -> early_stop_ratio must be 0
    protocol.extra_repeats: 1.5      -> Expected `int`, got `float` .*extra_repeats
    protocol.extra_repeats: true     -> Expected `int`, got `bool` .*extra_repeats
    protocol.cache_flush: 0          -> Expected `bool`, got `int` .*cache_flush
    protocol.check_share: "0.1"      -> Expected `float`, got `str` .*check_share
    protocol.check_share: false      -> Expected `float`, got `bool` .*check_share
    protocol.memory_limit_gib: null  -> Expected `float`, got `null` .*memory_limit_gib
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [*rows(NO_VALUES), (f'quality: "{"[" * 100_000}"', "quality: expected the text of a JSON object")],
    ids=lambda text: text[:30],
)
def test_a_value_that_no_record_has_is_refused(line: str, words: str) -> None:
    value = record_to_json(make_record(1))
    name, _, wrong = line.partition(": ")
    *inside, key = name.split(".")
    (value[inside[0]] if inside else value)[key] = json.loads(wrong)
    with pytest.raises(AgentError, match=words):
        record_from_json(value)


@given(ANY_JSON)
def test_any_other_json_is_refused_with_one_error(value: Any) -> None:
    with pytest.raises(AgentError):
        record_from_json(value)


def test_json_of_a_stranger_is_bounded_by_its_values_and_not_by_what_stands_in_texts() -> None:
    text = '\\"[' + "[],{}" * 1000 + '"\\'
    assert bounded_json(json.dumps({text: [text, 1]}), 1000) == {text: [text, 1]}
    for many in ("[" + "[]," * 1000 + "[]]", json.dumps([text, *range(1000)])):
        with pytest.raises(ValueError, match="more than 1,000 values"):
            bounded_json(many, 1000)
    assert len(bounded_json(json.dumps([0] * 998), 1000)) == 998
