"""Leases whose traces only the store has: while it cannot be read, or takes longer than a lease."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.lease import Lease
from agents.records import CandidateId
from fleet.core.events import JobState
from fleet.engine import lease_dispatcher
from fleet.engine.coordinator import Coordinator
from fleet.engine.lease_dispatcher import TRIES
from fleet.store.store import Store
from fleet.store.trace_lookup import Found, StoreThread, find_candidates
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import (
    ALL,
    ONE,
    TWO,
    Fleet,
    everything_measured,
    make_fleet,
    poll_answered,
)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One device has measured everything; of what its sibling is to measure, only the store has traces."""
    made = make_fleet(tmp_path)
    both, made.specs = made.specs, {ONE: made.specs[ONE]}
    made.run(everything_measured(made))
    shutil.rmtree(tmp_path / "root")
    made.specs = both
    made.lines.clear()
    return made


def searching(question: Callable[..., Found]) -> Any:
    return mock.patch.object(lease_dispatcher, "find_candidates", question)


def check(fleet: Fleet, view: dict[str, Any]) -> None:
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)) == view["store"]["records"] == 2 * ALL
    assert {one.origin for one in Store.read(fleet.folder / "store").records(device_id=TWO)} == {"paired"}
    assert view["jobs"]["cancelled"] == view["jobs"]["quarantined"] == 0
    assert {one["crashes"] for one in view["devices"].values()} == {0}
    assert not any("neither in the pools nor in the store" in line for line in fleet.lines)
    assert not any("ended by force" in line for line in fleet.lines)


@pytest.mark.parametrize("failures", [TRIES - 1, 3 * TRIES + 1])
def test_a_store_that_cannot_be_read_for_a_while_costs_no_candidate(fleet: Fleet, failures: int) -> None:
    asked = 0

    def find(*args: Any, **options: Any) -> Found:
        nonlocal asked
        asked += 1
        if asked <= failures:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return find_candidates(*args, **options)

    with searching(find):
        view = fleet.run(everything_measured(fleet))
    assert asked > failures
    check(fleet, view)
    assert sum("cannot be read" in line and "Too many open files" in line for line in fleet.lines) == 1


def test_a_file_that_cannot_be_read_keeps_nobody_from_the_others(fleet: Fleet) -> None:
    reader = Store.read(fleet.folder / "store")
    ids = sorted(one.candidate_id for one in reader.records(device_id=ONE))
    hidden, is_hidden = set[CandidateId](ids[::5]), [True]

    def find(reader: Any, wanted: Any, **options: Any) -> Found:
        found = find_candidates(reader, wanted=wanted, **options)
        if not (is_hidden[0] and hidden & set(wanted)):
            return found
        left = [one for one in found.candidates if one.candidate_id not in hidden]
        return Found(candidates=left, unread="part-7.parquet: Input/output error")

    def others_measured(coordinator: Coordinator) -> bool:
        fleet.clock.now += 1.0
        return coordinator.view()["devices"][TWO]["records"] >= ALL - len(hidden)

    with searching(find), fleet.coordinator() as (coordinator, _):
        for is_done in (others_measured, everything_measured(fleet)):
            fleet.turn_until(coordinator, is_done, 600)
            is_hidden[0] = False
        view = coordinator.view()
        coordinator.close()
    check(fleet, view)
    assert sum("cannot be read" in line and "part-7" in line for line in fleet.lines) == 1


@contextlib.contextmanager
def slow_store(is_slow: list[bool]) -> Iterator[None]:
    """A store that answers nothing while `is_slow` says so; inside of `Fleet.coordinator`."""
    with mock.patch.object(StoreThread, "poll", lambda thread: [] if is_slow[0] else poll_answered(thread)):
        yield


@pytest.mark.parametrize("slow_secs", [45, 320])
def test_a_search_that_takes_longer_than_a_lease_is_nobodys_fault(fleet: Fleet, slow_secs: int) -> None:
    is_slow = [True]
    with fleet.coordinator() as (coordinator, _), slow_store(is_slow):
        fleet.turn(coordinator, slow_secs, 1.0)
        shown = coordinator.view()["devices"][TWO]
        assert (shown["state"], shown["incarnation"], shown["failures"]) == ("leased", 1, 0)
        assert shown["budget"]["device_secs"] == 0.0
        is_slow[0] = False
        fleet.turn_until(coordinator, everything_measured(fleet))
        view = coordinator.view()
        coordinator.close()
    check(fleet, view)


def test_agents_that_die_while_their_lease_is_searched_for_blame_no_job(fleet: Fleet) -> None:
    is_slow = [True]
    with fleet.coordinator() as (coordinator, transport), slow_store(is_slow):
        state = coordinator._parts.state
        for _ in range(4):
            fleet.turn_until(coordinator, lambda _: bool(state.describe(TWO)["leases"]))
            incarnation = state.describe(TWO)["incarnation"]
            transport.crash(TWO, incarnation)
            fleet.turn_until(
                coordinator,
                lambda _, last=incarnation: (
                    fleet.clock.skip(1.0) > 0 and state.describe(TWO)["incarnation"] > last
                ),
            )
        assert state.job_counts()[JobState.QUARANTINED] == 0
        is_slow[0] = False
        fleet.turn_until(coordinator, everything_measured(fleet))
        assert coordinator.view()["jobs"]["quarantined"] == 0
        coordinator.close()


def test_a_batch_goes_out_with_time_enough_for_its_agent(fleet: Fleet) -> None:
    """Also where the coordinator itself was held up: the answer and the end of the lease come in one turn."""
    is_slow, left = [True], []
    real = LocalTransport.measure

    def measure(self: LocalTransport, lease: Lease, *rest: Any) -> None:
        left.append(lease.deadline_secs - fleet.clock.now)
        real(self, lease, *rest)

    with (
        mock.patch.object(LocalTransport, "measure", measure),
        fleet.coordinator() as (coordinator, _),
        slow_store(is_slow),
    ):
        for pause in (50.0, 61.0, 10_000.0):
            is_slow[0] = True
            fleet.turn(coordinator, 20)
            is_slow[0] = False
            fleet.clock.now += pause
            fleet.turn(coordinator, 3)
        view = coordinator.view()
        assert left
        assert min(left) >= fleet.limits.lease_secs / 2
        assert {one["crashes"] for one in view["devices"].values()} == {0}
        coordinator.close()
