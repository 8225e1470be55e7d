from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.records import Outcome, canonical_json
from fleet.interchange.logs.json_values import (
    MARK_TEXT,
    Rejected,
    attempt_of,
    canonical_text,
    database_result,
    parse_line,
    tuner_result,
)
from tests.table_fixtures import cells

FINITE: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
JSON = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**64 - 1) | st.floats(**FINITE),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@example([1e-5, 1.25e-4, 1e15, 1e16, 1.5e17, -1e-7, 5e-324, 1e-4, 0.00012, 123456789.125, "e1"])
@given(JSON)
def test_fast_text_is_the_canonical_one(value: Any) -> None:
    assert canonical_text(value) == canonical_json(value)


def reason_of(read: Callable[[Any], object], value: Any) -> str:
    with pytest.raises(Rejected) as caught:
        read(value)
    assert len(caught.value.detail) < 100
    return caught.value.reason


#: Results of a tuner that are no measurement, and why.
NO_MEASUREMENTS = """
[[0.0], 0, 0, 1]         | not measured
[[0.1, 0], 0, 0, 1]      | not measured
[[], 0, 0, 1]            | not measured
[[1e9], 0, 0, 1]         | the mark of a failure, but no error
[[0.1, 1e10], 0, 0, 1]   | the mark of a failure, but no error
[[-1.0], 0, 0, 1]        | a cost is negative
[[1e-10], 0, 1, 1]       | a cost is below a nanosecond
[[NaN], 0, 0, 1]         | a number is not finite
[[Infinity], 0, 0, 1]    | a number is not finite
[["1"], 0, 0, 1]         | a cost is not a number
[[true], 0, 0, 1]        | a cost is not a number
[0.1, 0, 0, 1]           | costs are not a list
[[0.1], 9, 0, 1]         | error_no is not known
[[0.1], -1, 0, 1]        | error_no is not known
[[0.1], "0", 0, 1]       | error_no is not a whole number
[[0.1], false, 0, 1]     | error_no is not a whole number
[[0.1], 0, "x", 1]       | all_cost is not a number
[[0.1], 0, -1, 1]        | all_cost is out of range
[[0.1], 0, 1e12, 1]      | all_cost is out of range
[[0.1], 0, 0, null]      | timestamp is not a number
[[0.1], 0, 0, 1e12]      | timestamp is out of range
[[0.1], 0, 0]            | result is not [costs, error_no, all_cost, timestamp]
null                     | result is not [costs, error_no, all_cost, timestamp]
"""


def test_what_is_no_measurement_is_rejected() -> None:
    for text, reason in cells(NO_MEASUREMENTS):
        assert reason_of(tuner_result, json.loads(text)) == reason
    assert reason_of(tuner_result, [[0.1] * 10_001, 0, 0, 1]) == "too many costs"
    for value in (None, [0.0], []):
        assert reason_of(database_result, value) == "not measured"


#: By error number.
OUTCOMES = dict.fromkeys((1, 2, 3), Outcome.BUILD_FAILED) | {
    4: Outcome.RUN_FAILED,
    5: Outcome.WRONG_OUTPUT,
    6: Outcome.BUILD_TIMEOUT,
    7: Outcome.RUN_TIMEOUT,
    8: Outcome.RUN_FAILED,
}


def test_failures_have_an_outcome_and_no_latency() -> None:
    for number, outcome in OUTCOMES.items():
        for cost in (1e9, 1e10, 0.5, 0.0):
            result = tuner_result([[cost], number, 10, 1_700_000_000.5])
            assert (result.outcome, result.run_secs, result.all_secs) == (outcome, (), 10.0)
            assert result.error.startswith(f"error_no {number}: ")
    # A database marks them by their seconds.
    assert database_result([0.5, 1]).run_secs == (0.5, 1.0)
    failed = database_result([1e10])
    assert (failed.outcome, failed.run_secs, failed.error) == (Outcome.RUN_FAILED, (), MARK_TEXT)


def test_crowded_and_deep_values_are_rejected_and_not_walked() -> None:
    """`test_import_logs.py` has other lines that are no JSON."""
    assert reason_of(parse_line, b"[" + b"{}," * 1_000_001 + b"1]") == "too many values"
    assert len(parse_line(b"[" + b"1," * 500_000 + b"1]")) == 500_001
    value = parse_line(b"[" * 900 + b"]" * 900)
    with pytest.raises(Rejected, match="nested too deeply"):
        canonical_text(value)


def test_huge_and_deep_values_are_shown_short() -> None:
    deep = parse_line(b"[" * 1000 + b"]" * 1000)
    for value in (deep, [[]] * 1_000_000, {"k" * 10**6: deep}, "x" * 10**6, 10**18):
        assert len(Rejected("", got=value).detail) <= 60


def test_attempts_tell_measurements_apart_and_grow_with_time() -> None:
    def attempt(cost: float, at: float, error: int = 0) -> int:
        return attempt_of(tuner_result([[cost], error, 1.0, at]))

    assert attempt(0.1, 100) == attempt(0.1, 100.0)
    apart = [(0.1, 100), (0.2, 100), (0.1, 100.5), (0.1, 101), (0.1, 100, 4)]
    assert len({attempt(*one) for one in apart}) == 5
    assert attempt(0.1, 100) < attempt(0.3, 101) < attempt(0.2, 2**33 - 1) < 2**53
