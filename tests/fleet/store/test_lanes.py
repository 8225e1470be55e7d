"""When rows that wait go on to the table, and which together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.records import DeviceId
from fleet.store.lanes import Lanes, LaneSettings

A, B, C = map(DeviceId, "abc")


def lanes(**settings: int | float) -> Lanes:
    return Lanes(LaneSettings(**{"devices": 2, "rows_per_device": 10, "wait_secs": 60.0, **settings}))


def test_a_lane_is_due_when_its_oldest_row_has_waited_so_long() -> None:
    some = lanes()
    some.add(1, [C], 1, 10, 100.0)
    some.add(0, [A], 1, 10, 130.0)
    some.add(1, [C], 1, 10, 150.0)
    assert (some.due(159.0), some.due(160.0), some.due(190.0)) == ([], [1], [0, 1])
    assert (some.waiting_secs(160.0), some.waiting()) == (60.0, [0, 1])
    some.drop([1])
    assert some.waiting_secs(160.0) == 30.0
    some.add(1, [C], 1, 10, 170.0)
    assert some.due(189.0) == []
    some.drop(some.waiting())
    assert (some.rows, some.waiting(), some.waiting_secs(1e9), some.due(1e9)) == (0, [], 0.0, [])


def test_the_fullest_goes_on_where_too_much_waits() -> None:
    for bound in ({"most_rows": 6}, {"most_bytes": 600}):
        some = lanes(rows_per_device=1000, **bound)
        some.add(0, [A], 3, 200, 0.0)
        some.add(1, [C], 3, 400, 0.0)
        assert (some.is_full, some.due(0.0)) == (False, [])
        some.add(0, [A], 1, 1, 0.0)
        assert (some.is_full, some.due(0.0)) == (True, [1])
        some.drop([1])
        assert (some.is_full, some.due(0.0)) == (False, [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), max_size=30))
def test_the_rows_are_those_that_were_added_and_did_not_go(steps: list[tuple[int, int, bool]]) -> None:
    some, expected = lanes(most_rows=50), dict[int, int]()
    for lane, rows, goes_on in steps:
        some.add(lane, [A], rows, rows, 0.0)
        expected[lane] = expected.get(lane, 0) + rows
        if goes_on:
            due = some.due(0.0)
            assert set(due) <= set(expected)
            assert due or some.rows <= 50
            some.drop(due)
            for number in due:
                del expected[number]
        assert (some.rows, some.waiting()) == (sum(expected.values()), sorted(expected))
