"""When the daily A/A run of a device is begun: a few at a time, and again where there was no room."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from agents.records import DeviceId
from fleet.planner.batch_plan import DeviceBatch
from fleet.planner.noise_runs import NoiseRuns
from tests.record_fixtures import make_spec

DEVICES = [DeviceId(name) for name in "abcdef"]
NOW = 1_800_000_000.0


class Parts:
    """Stands for coverage, thread, planner and store."""

    def __init__(self) -> None:
        self.counted = dict.fromkeys(DEVICES, 100)
        self.last = dict.fromkeys(DEVICES, 0.0)
        self.asked: list[Callable[[list[DeviceBatch]], None]] = []
        self.settled = 0

    def runs(self) -> NoiseRuns:
        coverage: Any = SimpleNamespace(records=self.counted.__getitem__, noise_at=self.last.__getitem__)
        thread: Any = SimpleNamespace(ask=lambda _, then: self.asked.append(then))
        planner: Any = SimpleNamespace(workloads_of=lambda _: {})
        store: Any = SimpleNamespace(settle=self._settle)
        specs = dict.fromkeys(DEVICES, make_spec())
        return NoiseRuns(coverage, thread, planner, store, specs, count=4, seed=0)

    def _settle(self) -> None:
        self.settled += 1


def begun(runs: NoiseRuns, now: float) -> list[str]:
    found = []
    for one in DEVICES:
        if runs.is_due(one, now, now):
            runs.begin(one, "e", now, now)
            found.append(one)
    return found


def test_a_fleet_that_is_due_all_at_once_is_planned_a_few_at_a_time() -> None:
    parts = Parts()
    parts.counted[DEVICES[1]] = 31  # too few to choose steady ones from
    runs = parts.runs()
    assert begun(runs, NOW) == ["a", "c", "d", "e"]
    assert parts.settled == 4, "the thread reads what is durable"
    assert begun(runs, NOW + 5) == []
    parts.asked[2]([])
    assert begun(runs, NOW + 10) == ["f"], "one that found nothing is not tried again at once"
    for then in parts.asked:
        then([])
    assert begun(runs, NOW + 1801) == ["a", "c", "d", "e"]


def test_a_run_by_a_clock_that_is_ahead_holds_for_a_day() -> None:
    parts = Parts()
    parts.last = dict.fromkeys(DEVICES, NOW)
    runs = parts.runs()
    parts.last[DEVICES[0]] = NOW + 365 * 86_400
    assert begun(runs, NOW) == []
    assert begun(runs, NOW + 86_399) == []
    assert begun(runs, NOW + 86_400) == ["a", "b", "c", "d"]
    # The next one, by the same clock.
    parts.last[DEVICES[0]] += 86_400
    parts.asked[0]([])
    assert not runs.is_due(DEVICES[0], NOW + 90_000, NOW + 90_000)
    assert not runs.is_due(DEVICES[0], NOW + 90_000 + 86_399, NOW + 90_000 + 86_399)
    assert runs.is_due(DEVICES[0], NOW + 90_000 + 86_400, NOW + 90_000 + 86_400)
