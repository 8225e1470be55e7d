"""The coordinator over replay devices in this process: exactly once, whatever is killed, frozen or full."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.device.messages import Message, WorkloadsListed
from agents.device.replay import ReplayWorker
from agents.records import Candidate, Descriptor, DeviceId, ModelRef, Workload
from fleet.core.events import ModelPublished
from fleet.errors import FleetError
from fleet.planner.candidate_ranker import Ranking
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.conftest import TEMPORARY
from tests.coordinator_fixtures import (
    ALL,
    ONE,
    WORKLOADS,
    Announcer,
    Fleet,
    Killed,
    everything_measured,
    killed_at,
    make_fleet,
)
from tests.walk_fixtures import ROOT, calls_between_files, strays


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def check_books(fleet: Fleet, view: dict[str, object]) -> None:
    """Every record once, everything that was measured counted once, every job accounted for."""
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids))
    devices = view["devices"]
    assert isinstance(devices, dict)
    assert len(ids) == sum(one["records"] for one in devices.values())
    jobs = view["jobs"]
    assert isinstance(jobs, dict)
    assert jobs["leased"] == 0
    assert jobs["quarantined"] == 0


def test_the_walk_of_a_record_is_the_one_on_the_architecture_page(fleet: Fleet) -> None:
    with calls_between_files() as calls:
        fleet.run(lambda coordinator: coordinator.view()["store"]["records"] > 0)
    assert Store.read(fleet.folder / "store").snapshot.rows > 0, "the table has it"
    page = (ROOT / "docs/architecture.md").read_text().split("\nA record, from")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| `([\w/]+)/(\w+\.py)`(?: or `(\w+\.py)`)? \|", page, re.M)
    assert len(rows) == 10
    # Without Ray and a processor of its own, a device answers from recorded measurements.
    assert strays([f"{folder}/{other or name}" for folder, name, other in rows], calls) == []


def test_the_fleet_measures_no_networks_that_only_a_request_asked_for(fleet: Fleet) -> None:
    ask = LocalTransport.poll
    # The driver that asked is gone, and what the fleet itself measures is not listed yet.
    theirs: list[Message] = [
        WorkloadsListed(device_id=one, incarnation=1, networks=("theirs",), workloads=tuple(WORKLOADS[:1]))
        for one in fleet.specs
    ]

    def poll(transport: LocalTransport, timeout_secs: float) -> list[Message]:
        several = [*theirs, *ask(transport, timeout_secs)]
        theirs.clear()
        return several

    with mock.patch.object(LocalTransport, "poll", poll):
        check_books(fleet, fleet.run(everything_measured(fleet)))
    assert {one.workload_id for one in Store.read(fleet.folder / "store").records()} == {
        one.workload_id for one in WORKLOADS
    }


def test_what_canaries_measured_of_a_device_is_stored_with_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[DeviceId, int] = {}

    def measured(worker: ReplayWorker, environment_id: str) -> Descriptor:
        device_id = worker.spec.device_id
        told[device_id] = told.get(device_id, -1) + 1
        found = (("flops_per_sec", 1e9),) if told[device_id] else ()
        return replace(worker.descriptor, roofline=found)

    monkeypatch.setattr(ReplayWorker, "descriptor_in", measured)
    fleet.run(everything_measured(fleet))
    entries = Store.read(fleet.folder / "store").devices()
    assert set(entries) == set(fleet.specs)
    seen = [entry.descriptor for entry in entries.values()]
    assert [one.roofline for one in seen if one is not None] == [(("flops_per_sec", 1e9),)] * len(seen)


class LastFirst:
    """Stands for a registry's champions: ranks by id, which tells its choice from the order of drawing."""

    def rank(self, workload: Workload, device_id: str, candidates: Sequence[Candidate]) -> Ranking:
        order = sorted(range(len(candidates)), key=lambda place: candidates[place].candidate_id)
        ref = ModelRef(version="v000009", device_id=DeviceId(device_id), sha256="0" * 64)
        return Ranking(order=tuple(order), scores=(0.5,) * len(candidates), model=ref)


def test_a_head_chooses_among_drawn_candidates(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, ("one",), ranker=LastFirst())
    with fleet.coordinator() as (coordinator, _):
        coordinator.turn(0.0)
    fleet.trainer = Announcer(ModelPublished(at_secs=fleet.clock(), version="v000009", device_ids=(ONE,)))
    view = fleet.run(everything_measured(fleet), turns=2000)
    check_books(fleet, view)
    records = list(Store.read(fleet.folder / "store").records())
    chosen = [record for record in records if record.origin == "model"]
    assert chosen
    assert {record.model_version for record in chosen} == {"v000009"}
    others = {(record.origin, record.model_version) for record in records if record.origin != "model"}
    assert {version for _, version in others} == {""}, others


@given(number=st.integers(1, 150))
@settings(max_examples=15, deadline=None)
def test_a_kill_at_any_step_loses_nothing_and_counts_nothing_twice(number: int) -> None:
    with tempfile.TemporaryDirectory(dir=TEMPORARY) as folder:
        fleet = make_fleet(Path(folder))
        is_done = everything_measured(fleet)
        with killed_at(number) as reached, contextlib.suppress(Killed):
            fleet.run(is_done)
        assert sum(reached.values()) >= number or number > 100
        view = fleet.run(is_done)
        check_books(fleet, view)
        assert view["store"]["records"] == 2 * ALL
        assert not fleet.set_aside("late")
        counted = sum(sum(one["outcomes"].values()) for one in view["devices"].values())
        # A job whose records were stored before its lease was granted again counts none of them.
        assert counted <= 2 * ALL


def test_foreign_events_are_refused_in_one_sentence(fleet: Fleet) -> None:
    with Store.open(fleet.folder / "store") as store, store.state.turn() as turn:
        turn.add_events(b'[{"event": "SomethingElse", "at_secs": 1.0}]')
    with pytest.raises(FleetError, match=r"cannot be replayed.*SomethingElse"), fleet.coordinator():
        pass
