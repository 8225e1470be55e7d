"""When rows that wait go on to the table, and which together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.records import DeviceId
from fleet.store.lanes import Lanes, LaneSettings

A, B, C = map(DeviceId, "abc")


def lanes(**settings: int | float) -> Lanes:
    return Lanes(LaneSettings(**{"devices": 2, "rows_per_device": 10, "wait_secs": 60.0, **settings}))


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


