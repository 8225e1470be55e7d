"""Whose workloads and candidates are: kept apart in the store, and only ours come to live devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from agents.records import (
    IMPORTED,
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Record,
    Replay,
    Workload,
    WorkloadId,
    claimed_id,
    imported_id,
    is_imported,
)
from fleet.coverage.coverage import Coverage
from fleet.models.versions import load_snapshot
from fleet.planner.candidate_requests import sharing_names
from fleet.planner.collect import Collection
from fleet.planner.device_history import known_candidates
from fleet.planner.imported_candidates import LIVE_DIALECT, ImportedCandidates, claims, imported_traces
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.fake_fleet import FakeFleet
from tests.fleet.planner.test_collection import Log
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload

OURS = make_workload(1, networks=(("bert-tiny", 2),))
FORGED = replace(OURS, module_json='{"nodes":[0]}', operator="forged", networks=(("theirs", 1),))
BOARD, LAB, AGAIN = DeviceId("board"), DeviceId("lab"), DeviceId("again")
THEIRS = imported_id(int(OURS.workload_id, 16), "module")


def replayed(name: str) -> DeviceSpec:
    return make_spec(name, kind=DeviceKind.REPLAY, replay=Replay(records="x.parquet", device=BOARD))


SPECS = {BOARD: make_spec(BOARD), LAB: replayed(LAB), AGAIN: replayed(AGAIN)}


def record(
    device: DeviceId, trace: str, *, workload: str = OURS.workload_id, origin: str = "random", **more: Any
) -> Record:
    candidate = Candidate(
        workload_id=WorkloadId(workload), trace=trace, dialect=more.get("dialect", LIVE_DIALECT)
    )
    changes = {"candidate_id": candidate.candidate_id, "trace": trace, "origin": origin, **more}
    return make_record(1, device=device, workload=workload, **changes)


def id_of(trace: str) -> str:
    return Candidate(workload_id=OURS.workload_id, trace=trace).candidate_id


def fill(store: Store, *records: Record) -> None:
    for spec in SPECS.values():
        store.put_device(spec, make_descriptor())
    for one in records:
        store.append([one])


def test_an_imported_id_is_no_structural_hash_and_keeps_what_the_log_states() -> None:
    assert claimed_id(THEIRS) == OURS.workload_id
    assert is_imported(THEIRS)
    assert not is_imported(OURS.workload_id)
    assert claimed_id(OURS.workload_id) is None
    # Two modules under one stated hash are two workloads.
    assert imported_id(int(OURS.workload_id, 16), "another") != THEIRS
    for odd in ("imported-", "imported-xyz", f"{THEIRS}0", THEIRS.upper()):
        assert claimed_id(odd) is None


@pytest.mark.parametrize("is_first", [True, False], ids=["claimed first", "ours first"])
def test_a_module_of_ours_is_kept_whatever_claims_its_id(store: Store, is_first: bool) -> None:
    for own in (False, True) if is_first else (True, False):
        store.put_workloads([OURS if own else FORGED], own=own)
    [kept] = store.own_workloads().values()
    assert replace(kept, networks=OURS.networks) == OURS
    assert store.workloads() == {OURS.workload_id: kept}
    store.put_workloads([replace(OURS, networks=(("bert-tiny", 2), ("more", 1)))], own=True)
    [grown] = store.own_workloads().values()
    assert ("more", 1) in grown.networks
    store.put_workloads([replace(OURS, workload_id=THEIRS)], own=True)
    assert list(store.own_workloads().values()) == [grown], "no import can be marked as ours"


def test_features_of_a_poisoned_workload_are_made_anew(tmp_path: Path) -> None:
    plain = gmm_workload()
    forged = replace(plain, arg_shapes=((1, 1), (1, 1), (1, 1)), flops=1.0, operator="forged")
    records = [record_of(one, "dev-a", 1e-3) for one in gmm_candidates(plain, 4)]
    with Store.open(tmp_path) as store:
        store.put_workloads([forged])
        store.put_device(*cpu_device("dev-a"))
        store.append(records)
        store.flush()
        poisoned = load_snapshot(store).dataset.features
        store.put_workloads([plain], own=True)
        mended = load_snapshot(store).dataset.features
    with Store.open(tmp_path / "clean") as store:
        store.put_workloads([plain], own=True)
        store.put_device(*cpu_device("dev-a"))
        store.append(records)
        store.flush()
        clean = load_snapshot(store).dataset.features
    assert not np.array_equal(poisoned.workload_vectors, clean.workload_vectors)
    np.testing.assert_array_equal(mended.workload_vectors, clean.workload_vectors)


def test_records_say_which_candidates_came_with_a_log(store: Store) -> None:
    store.put_workloads([FORGED, replace(OURS, workload_id=THEIRS)])
    fill(
        store,
        record(BOARD, "mine"),
        record(LAB, "ansor", origin=IMPORTED, dialect="ansor"),
        record(LAB, "theirs", workload=THEIRS, origin=IMPORTED),
        record(AGAIN, "replayed"),
        record(BOARD, "given", origin=IMPORTED),
    )
    # What a live device may be given, and what was given before.
    live = known_candidates(store, list(SPECS), 9, live=True)
    assert [one.trace for one in live[OURS.workload_id]] == ["mine"]
    old = known_candidates(store, list(SPECS), 9, live=False)
    assert len(old[OURS.workload_id]) == 4
    found = claims(store, Family.CPU, [OURS.workload_id])
    assert claims(store, Family.GPU, [OURS.workload_id]) == {}
    assert claims(store, Family.CPU, []) == {}
    traces = imported_traces(store, Family.CPU, found[OURS.workload_id])
    assert sorted(traces.values()) == ["theirs"]


def fleet_of(*devices: DeviceId, listed: tuple[Workload, ...] = ()) -> FakeFleet:
    fleet = FakeFleet({one: SPECS[one] for one in devices})
    fleet.listed = list(listed)
    return fleet


def collection(store: Store, fleet: FakeFleet, *devices: DeviceId) -> Collection:
    fleet.use(store)
    how = CollectSettings(samples=6, minimum=6)
    return Collection(fleet, {one: SPECS[one] for one in devices}, how, Log())


def test_live_devices_take_nothing_from_replay_devices_beside_them(store: Store) -> None:
    fleet = fleet_of(AGAIN, BOARD, listed=(OURS,))
    fill(store, record(AGAIN, "replayed"), record(BOARD, "mine"))
    made = collection(store, fleet, AGAIN, BOARD)
    assert made.network_workloads(["bert-tiny"]) == [OURS]
    [pool] = made.propose([OURS]).values()
    traces = [one.trace for one in pool[OURS.workload_id]]
    assert traces[0] == "mine"
    assert "replayed" not in traces
    asked = {device for device, method, _ in fleet.calls if method in ("propose", "network_workloads")}
    assert asked == {BOARD}


def test_a_live_device_is_given_modules_of_ours_only(store: Store) -> None:
    fleet = fleet_of(BOARD, AGAIN, listed=(OURS,))
    unknown = make_workload(7, networks=(("a torch model", 1),))
    fill(store)
    store.put_workloads([FORGED, unknown])
    store.put_workloads([replace(OURS, networks=(("bert-tiny", 2),))])
    made = collection(store, fleet, BOARD)
    given = made.stored_workloads([OURS.workload_id, unknown.workload_id])
    assert [one.module_json for one in given.values()] == [OURS.module_json]
    replays = collection(store, fleet, AGAIN)
    assert len(replays.stored_workloads(store.workloads())) == 2


def test_a_matrix_never_names_what_came_with_a_log(store: Store) -> None:
    names = sharing_names(SPECS, {Family.CPU})
    assert names == {BOARD: "cpu", AGAIN: "cpu-replay", LAB: "cpu-replay"}
    assert set(sharing_names(SPECS, set()).values()) == {"cpu"}
    other = DeviceId("board-2")
    store.put_workloads([FORGED])
    fill(store)
    store.put_workloads([replace(OURS, workload_id=THEIRS)])
    coverage = Coverage(store.state, {**names, other: "cpu"}, [OURS.workload_id], live={"cpu"})
    theirs = record(LAB, "theirs", workload=THEIRS, origin=IMPORTED)
    coverage.add(store.take([record(BOARD, "mine"), record(AGAIN, "replayed"), theirs]))
    store.settle()
    imports = ImportedCandidates({"cpu": Family.CPU})
    imports.add(imports.search(coverage.workload_ids, [LAB])(store))
    for one in (BOARD, other):
        coverage.set_environment(one, "e" * 32)
    assert coverage.gaps(other, OURS.workload_id, 9) == [id_of("mine")]
    assert coverage.best(other, OURS.workload_id, 4) == [[id_of("mine")]]
    # It waits to be derived, and comes once.
    assert imports.count("cpu", OURS.workload_id) == 1
    assert len(imports.take("cpu", OURS.workload_id, 9)) == 1
    assert (imports.count("cpu", OURS.workload_id), imports.take("cpu", OURS.workload_id, 9)) == (0, [])
    assert imports.take("cpu-replay", OURS.workload_id, 9) == []
