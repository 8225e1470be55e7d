"""Each program of a network takes the way in which it is fastest there."""

from __future__ import annotations

from agents.networks.schedule_choice import Way, fastest_ways, ways


def test_the_fastest_schedule_is_tried_with_its_weights_in_both_orders() -> None:
    assert ways(["a", "b"], True) == [Way("a", True), Way("a", False), Way("b", True)]
    assert ways(["a", "b"], False) == [Way("a", False), Way("b", False)]
    assert ways([], True) == []
    assert len(ways([str(number) for number in range(16)], True)) == 8


def test_another_way_is_taken_if_it_is_faster_beyond_luck() -> None:
    secs = [
        {"product": 1.0, "image": 1.0, "sum": 1.0, "sort": 1.0},
        {"product": 0.99, "image": 0.7, "sum": 1.2},
        {"product": 1.5, "image": 0.8, "sum": 1.1, "sort": 0.5},
    ]
    assert fastest_ways(secs) == {"product": 0, "image": 1, "sum": 0, "sort": 2}
