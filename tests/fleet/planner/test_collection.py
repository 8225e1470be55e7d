"""Collections in rounds, with devices that answer at once; `test_untrusted_import.py` has a real one."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agents.records import Candidate, DeviceId, DeviceSpec, Family, Outcome, Record, Workload
from fleet.drivers.session import DeviceUnusableError
from fleet.planner.batch_plan import NOISE_EVERY_SECS
from fleet.planner.collect import Collection
from fleet.planner.device_history import known_candidates
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from tests.fake_fleet import FakeFleet, latency_secs
from tests.record_fixtures import make_spec, make_workload

ONE, TWO = DeviceId("one"), DeviceId("two")
SPECS = {device_id: make_spec(device_id) for device_id in (ONE, TWO)}
WORKLOADS = [make_workload(number, networks=(("net", 1 + 8 * number),)) for number in range(3)]
ROUNDS = CollectSettings(samples=24, minimum=12, exploration=0.5)


class Log:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []
        self.refusals: dict[str, dict[str, int]] = {}
        self.records: list[Record] = []

    def phase(self, name: str, total: int) -> None:
        self.phases.append((name, total))

    def proposed(self, workload: Workload, candidates: int) -> None:
        pass

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        self.refusals[workload.workload_id] = dict(reasons)

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        self.records += records


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.planner.batch_plan.BATCH_SIZE", 7)


def run(
    fleet: FakeFleet,
    store: Store,
    how: CollectSettings = ROUNDS,
    specs: dict[DeviceId, DeviceSpec] | None = None,
    workloads: list[Workload] | None = None,
) -> tuple[Collection, Log]:
    log = Log()
    fleet.use(store)
    store.put_workloads(WORKLOADS, own=True)
    collection = Collection(fleet, specs or SPECS, how, log)
    collection.run(WORKLOADS if workloads is None else workloads)
    return collection, log


def by_device(records: Sequence[Record]) -> dict[DeviceId, list[str]]:
    found: dict[DeviceId, list[str]] = {}
    for record in records:
        found.setdefault(record.device_id, []).append(record.candidate_id)
    return found


def test_random_candidates_come_first_and_the_rest_evolves_from_the_best(store: Store) -> None:
    fleet = FakeFleet(SPECS)
    collection, _ = run(fleet, store)
    records = list(store.records())
    measured = by_device(records)
    assert sorted(measured[ONE]) == sorted(measured[TWO])
    assert len(set(measured[ONE])) == len(measured[ONE]) == 24 * len(WORKLOADS)
    assert [(one.device_id, one.records) for one in collection.spent()] == [(ONE, 72), (TWO, 72)]
    shares = Counter(record.workload_id for record in records if record.device_id == ONE)
    assert shares[WORKLOADS[0].workload_id] < shares[WORKLOADS[2].workload_id]
    assert min(shares.values()) >= 12
    origins = Counter(record.origin for record in records if record.device_id == ONE)
    assert origins["random"] == pytest.approx(12 * 3 + 6 * 3, abs=2)
    assert origins["evolved"] == 24 * 3 - origins["random"]
    # Parents of the first generation: the four fastest random ones of each device.
    _, _, (workload, parents, *_) = next(call for call in fleet.calls if call[1] == "evolve")
    random = {r.trace for r in records if r.workload_id == workload.workload_id and r.origin == "random"}
    best = [sorted(random, key=lambda trace, name=name: latency_secs(name, trace)) for name in (ONE, TWO)]
    assert parents[:2] == list(dict.fromkeys([best[0][0], best[1][0]]))[:2]
    assert set(parents) == {*best[0][:4], *best[1][:4]}
    # Those of the second may be of the first.
    assert any("/" in parent for *_, call in fleet.calls if len(call) == 5 for parent in call[1])


def never_built(*_: object) -> dict[str, Any]:
    return {"outcome": Outcome.BUILD_FAILED}


@pytest.mark.parametrize(
    ("fleet", "measured"),
    [
        (FakeFleet(SPECS, children=0), 24 * 3),
        (FakeFleet(SPECS, never_built), 24 * 3),
        (FakeFleet(SPECS, never_built, space=5), 5 * 3),
    ],
    ids=["evolution finds too few", "no candidate works", "the space is used up"],
)
def test_random_candidates_stand_in_as_long_as_there_are_some(
    store: Store, fleet: FakeFleet, measured: int
) -> None:
    run(fleet, store)
    found = Counter((record.device_id, record.origin) for record in store.records())
    assert found == {(ONE, "random"): measured, (TWO, "random"): measured}


def lost_for(attempts: int, share: str = "0") -> Callable[[str, Candidate, int], dict[str, Any]]:
    def fate(device_id: str, candidate: Candidate, attempt: int) -> dict[str, Any]:
        is_lost = device_id == ONE and candidate.trace.endswith(share) and attempt < attempts
        return {"outcome": Outcome.LOST} if is_lost else {}

    return fate


RANDOM = CollectSettings(samples=12)


def test_a_lost_candidate_is_tried_once_more_and_one_lost_twice_waits_for_the_next_run(store: Store) -> None:
    collection, log = run(FakeFleet(SPECS, lost_for(3)), store, RANDOM)
    assert collection.lost() == {ONE: 6}
    assert ("again", 6) in log.phases
    lost = [record for record in log.records if record.outcome is Outcome.LOST]
    assert Counter(record.attempt for record in lost) == {0: 6, 1: 6}
    collection, later = run(FakeFleet(SPECS, lost_for(3)), store, RANDOM)
    assert collection.lost() == {}
    again = Counter((record.attempt, record.outcome) for record in later.records)
    assert again == {(2, Outcome.LOST): 6, (3, Outcome.OK): 6}
    _, last = run(FakeFleet(SPECS, lost_for(3)), store, RANDOM)
    assert last.records == []


def killed_by(*traces: str) -> Callable[[str, Candidate, int], dict[str, Any]]:
    """A fate that puts candidates whose traces end so under quarantine."""

    def fate(device_id: str, candidate: Candidate, attempt: int) -> dict[str, Any]:
        killed = {"outcome": Outcome.RUN_FAILED, "quality": '{"quarantined":true,"strikes":3}'}
        return killed if candidate.trace.endswith(traces) else {}

    return fate


def test_siblings_are_spared_what_kills_a_worker_three_times(store: Store) -> None:
    fleet = FakeFleet(SPECS, killed_by("3"))
    run(fleet, store, RANDOM, specs={ONE: SPECS[ONE]})
    killers = {r.candidate_id for r in store.records() if r.outcome is Outcome.RUN_FAILED}
    assert len(killers) == 3
    run(fleet, store, RANDOM)
    second = by_device(list(store.records(device_id=TWO)))[TWO]
    assert not killers & set(second)
    assert len(second) == 12 * 3
    pools = known_candidates(store, [ONE, TWO], 100, live=True)
    assert not killers & {one.candidate_id for pool in pools.values() for one in pool}


def test_a_quarantine_of_this_run_takes_effect_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = "random-0-0"
    monkeypatch.setattr("fleet.planner.batch_plan.BATCH_SIZE", 1)
    run(FakeFleet(SPECS, killed_by(killer)), store, RANDOM, workloads=WORKLOADS[:1])
    # Both devices keep two batches in flight, so the second may have had it in hand already.
    assert sum(record.trace == killer for record in store.records()) <= 2


def test_the_noise_is_measured_once_a_day_and_whenever_it_is_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FakeFleet(SPECS)
    how = dataclasses.replace(RANDOM, noise=10)
    collection, _ = run(fleet, store, how, workloads=[])
    assert collection.measure_noise(only_due=False) == [ONE, TWO], "without candidates there is none"
    collection, log = run(fleet, store, how)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_500.0)
    before = len(log.records)
    assert collection.measure_noise() == []
    noise = log.records[before:]
    assert Counter((record.device_id, record.attempt, record.origin) for record in noise) == {
        (device_id, attempt, "noise"): 10 for device_id in SPECS for attempt in (3, 4)
    }
    for only_due, more in ((True, 40), (False, 80)):
        assert collection.measure_noise(only_due=only_due) == []
        assert len(log.records) == before + more
    monkeypatch.setattr(time, "time", lambda: 1_700_001_000.0 + NOISE_EVERY_SECS)
    assert collection.measure_noise() == []
    assert len(log.records) == before + 120
    assert len({record.record_id for record in log.records}) == len(log.records)


def test_a_device_that_falls_out_costs_the_others_nothing(store: Store) -> None:
    fleet = FakeFleet(SPECS)
    fleet.lasts = {ONE: 2}
    collection, log = run(fleet, store)
    measured = by_device(list(store.records()))
    assert collection.fallen == {ONE: "device one: it broke"}
    assert len(set(measured[TWO])) == len(measured[TWO]) == 24 * 3
    assert ("evolve", 3) in log.phases
    # Of what it had in hand at the end nobody told the driver, but it is stored.
    assert 2 * 7 < len(measured[ONE]) < 4 * 7
    run(FakeFleet(SPECS), store)
    measured = by_device(list(store.records()))
    assert sorted(measured[ONE]) == sorted(measured[TWO])
    # The last one that falls out ends the collection.
    fleet.lasts = {ONE: 0, TWO: 0}
    with pytest.raises(DeviceUnusableError, match="it broke"):
        run(fleet, store, dataclasses.replace(ROUNDS, samples=40))


def test_candidates_that_kill_their_agent_again_and_again_are_told_and_left_out(store: Store) -> None:
    killer = Candidate(workload_id=WORKLOADS[0].workload_id, trace="random-0-0").candidate_id
    fleet = FakeFleet(SPECS)
    fleet.killers = {killer}
    collection, log = run(fleet, store, RANDOM)
    assert collection.lost() == {ONE: 1, TWO: 1}
    assert {phase for phase, _ in log.phases} == {"propose", "measure"}
    assert killer not in {record.candidate_id for record in store.records()}


def test_what_somebody_else_measured_meanwhile_counts(store: Store) -> None:
    """Its records come to whoever asked first; the store has them."""
    fleet = FakeFleet(SPECS)
    fleet.use(store)
    store.put_workloads(WORKLOADS, own=True)
    collection = Collection(fleet, SPECS, RANDOM, Log())
    pools = collection.propose(WORKLOADS)
    some = pools[Family.CPU][WORKLOADS[0].workload_id][:3]
    fleet.meanwhile = lambda: fleet.measure(ONE, some)
    collection.measure(pools)
    measured = by_device(list(store.records()))
    assert sorted(measured[ONE]) == sorted(measured[TWO])
    assert len(set(measured[ONE])) == len(measured[ONE]) == 36
    assert collection.lost() == {}


def test_after_its_minutes_nothing_new_is_begun(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("fleet.planner.collect.time", SimpleNamespace(monotonic=lambda: now))

    def fate(device_id: str, candidate: Candidate, attempt: int) -> dict[str, Any]:
        nonlocal now
        now += 1.0
        return {}

    _, log = run(FakeFleet(SPECS, fate), store, dataclasses.replace(RANDOM, minutes=0.5))
    assert "again" not in dict(log.phases), "what was never tried is not lost"
    # A device has two batches at a time, and those that are begun are waited for.
    assert 30 <= len(list(store.records())) <= 30 + 4 * 7
    _, later = run(FakeFleet(SPECS, fate), store, dataclasses.replace(RANDOM, minutes=0.0))
    assert later.records == []
    run(FakeFleet(SPECS), store, RANDOM)
    assert len(list(store.records())) == 2 * 36
