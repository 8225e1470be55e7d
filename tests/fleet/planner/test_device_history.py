"""What a collection asks of the state file is what a reader of all records would work out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agents.records import Candidate, CandidateId, DeviceId, Family, Outcome, Record
from fleet.planner.batch_plan import plan_noise, remeasure_sample
from fleet.planner.device_history import DeviceHistory
from fleet.planner.noise_runs import plan_run
from fleet.planner.selection import best_traces
from fleet.store.store import Store
from tests.fake_fleet import FakeFleet
from tests.record_fixtures import make_spec, make_workload, record_for

ONE, TWO, OTHER = DeviceId("one"), DeviceId("two"), DeviceId("of-gpu")
SPECS = {name: make_spec(name) for name in (ONE, TWO)}
FLEET = FakeFleet({**SPECS, OTHER: make_spec(OTHER, family=Family.GPU)})
WORKLOADS = [make_workload(number).workload_id for number in range(3)]
CANDIDATES = {
    workload_id: [
        Candidate(workload_id=workload_id, trace=f"[{number}]", origin=origin)
        for number, origin in enumerate(["random", "evolved", "model", "random"] * 6)
    ]
    for workload_id in WORKLOADS
}


def measured(device_id: DeviceId, draws: random.Random) -> Iterator[Record]:
    """Records of most candidates: failures, losses, repeats, an old environment, quarantines."""
    for candidate in (one for group in CANDIDATES.values() for one in group):
        attempts = draws.choices((0, 1, 2, 3), (1, 6, 2, 1))[0]
        environment_id = draws.choices((FLEET.environment_id(device_id), "old"), (5, 1))[0]
        for attempt in range(attempts):
            outcome = draws.choices((Outcome.OK, Outcome.RUN_FAILED, Outcome.LOST), (6, 1, 2))[0]
            flag = draws.choices(("", "suspect", "stopped_early"), (6, 1, 1))[0]
            is_killer = outcome is Outcome.RUN_FAILED and draws.random() < 0.5
            yield record_for(
                candidate,
                device_id=device_id,
                origin=draws.choice(("noise", "remeasure", "confirm")) if attempt else candidate.origin,
                outcome=outcome,
                run_secs=(draws.uniform(1e-3, 2e-3),) if outcome is Outcome.OK else (),
                quality='{"quarantined":true}' if is_killer else f'{{"{flag}":true}}' if flag else "{}",
                environment_id=environment_id,
                attempt=attempt,
                measured_at=draws.uniform(1e9, 2e9),
            )


@pytest.fixture(params=[True, False], ids=["drawn", "imported"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The candidates are known to the family, or only the table has their traces."""
    draws = random.Random(7)
    with Store.open(tmp_path) as made:
        FLEET.use(made)
        for group in CANDIDATES.values() if request.param else ():
            FLEET.learn(group, [])
        for device_id in FLEET.specs:
            records = list(measured(device_id, draws))
            if request.param:
                FLEET.learn([], records if device_id in SPECS else [])
            made.append(records)
        yield made


@pytest.fixture
def history(store: Store) -> DeviceHistory:
    return DeviceHistory(FLEET, SPECS)


def records_of(store: Store, *device_ids: DeviceId) -> list[Record]:
    return [record for device_id in device_ids for record in store.records(device_id=device_id)]


def present(store: Store, device_id: DeviceId) -> list[Record]:
    now = FLEET.environment_id(device_id)
    return [record for record in records_of(store, device_id) if record.environment_id == now]


def ids(records: Iterable[Record | Candidate]) -> list[CandidateId]:
    return list(dict.fromkeys(record.candidate_id for record in records))


def test_parents_repeats_and_noise_are_chosen_as_from_all_records(
    store: Store, history: DeviceHistory
) -> None:
    for device_id in SPECS:
        records = present(store, device_id)
        best = best_traces(records, WORKLOADS, 4)
        with history.of_family(Family.CPU) as family:
            now = FLEET.environment_id(device_id)
            for workload_id in WORKLOADS:
                assert family.best_traces(workload_id, device_id, now) == best[workload_id]
        some = WORKLOADS[:2]
        expected = remeasure_sample([one for one in records if one.workload_id in some], count=4, seed=1)
        assert remeasure_sample(history.readings(device_id, some), count=4, seed=1) == expected
        with history.of_family(Family.CPU) as family:
            assert ids(family.candidates(some, expected)) == list(expected)
        jobs = plan_run(
            Store.read(store.path),
            spec=SPECS[device_id],
            environment_id=FLEET.environment_id(device_id),
            workload_ids=WORKLOADS,
            count=3,
            seed=2,
        )
        assert jobs
        assert jobs == plan_noise(records, WORKLOADS, count=3, seed=2)
        halves = [one.measured_at for one in records if one.origin == "noise" and one.attempt % 2 == 0]
        whole = [one for one in records if one.measured_at in halves and one.outcome is not Outcome.LOST]
        assert history.noise_at(device_id) == max(one.measured_at for one in whole)
