"""Device files that come, change, leave and break under a coordinator over replay devices in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from agents.records import DeviceId, DeviceKind, DeviceSpec
from fleet.config.device_changes import DeviceFiles
from fleet.config.device_folder import DeviceFolder, FoundDevices, retire_file
from fleet.core.words import Request, RequestId, RequestKind
from fleet.engine.coordinator import Coordinator
from fleet.engine.roster import Roster, RosterError
from fleet.errors import FleetError
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import ALL, ONE, TWO, Fleet, make_fleet, write_replay_device
from tests.record_fixtures import make_spec
from tests.transport_fixtures import PROTOCOL

THREE = DeviceId("three")
#: A change is known within this.
KNOWN_SECS = 5.0


class ReplayFiles:
    """A folder of replay devices, all of which are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = DeviceFolder(folder)
        self.files = self.chosen(self._folder.read())

    def look(self) -> DeviceFiles | None:
        found = self._folder.look()
        if found is not None:
            self.files = self.chosen(found)
        return None if found is None else self.files

    def retire(self, device_id: DeviceId) -> None:
        path = self._folder.path / f"{device_id}.yaml"
        if not path.exists():
            raise FleetError(f"device {device_id} has no file")
        retire_file(self._folder.path, path)

    def chosen(self, found: FoundDevices) -> DeviceFiles:
        faults = {one: "; ".join(told) for one, told in found.faults.items()}
        # What is recorded there is known to be sound: `test_replaying.py` has what is not.
        target = make_spec().target_json
        specs = {name: structs.replace(spec, target_json=target) for name, spec in found.specs.items()}
        return DeviceFiles(specs=specs, faults=faults)


class Lab:
    """A fleet whose device files can be written."""

    def __init__(self, folder: Path) -> None:
        self.fleet = make_fleet(folder)
        self.folder = folder / "hardware"
        self.folder.mkdir()
        self.recorded = folder / "recorded.parquet"
        self.fleet.source = lambda: ReplayFiles(self.folder)
        self.write("one")

    def write(self, name: str, **changes: Any) -> None:
        write_replay_device(self.folder, name, self.recorded, **changes)

    def jobs_of_two(self) -> int:
        """How many jobs device two has after a life in which nothing was measured."""
        with self.running() as run, mock.patch.object(run.transport, "measure"):
            run.until(lambda: run.knows(TWO) and run.state(TWO)["queued"] > 0)
            return run.state(TWO)["queued"] + len(run.state(TWO)["leases"])

    @contextmanager
    def running(self) -> Iterator[Run]:
        with self.fleet.coordinator() as (coordinator, transport):
            yield Run(self.fleet, coordinator, transport)


class Run:
    """One life of the coordinator."""

    def __init__(self, fleet: Fleet, coordinator: Coordinator, transport: LocalTransport) -> None:
        self.fleet, self.coordinator, self.transport = fleet, coordinator, transport

    def state(self, name: DeviceId) -> dict[str, Any]:
        found: dict[str, Any] = self.coordinator.view()["devices"][name]
        return found

    def knows(self, name: DeviceId, *states: str) -> bool:
        devices = self.coordinator.view().get("devices", {})
        return name in devices and (not states or devices[name]["state"] in states)

    def works(self, name: DeviceId) -> bool:
        """Whether it is at work on a job."""
        return self.knows(name, "leased")

    def alarms(self) -> dict[str, str]:
        """What is wrong with devices, as people see it."""
        return {one["device_id"]: one["text"] for one in self.coordinator.view()["alarms"]}

    def until(self, is_so: Callable[[], bool], secs: float = 500.0) -> None:
        """Turn until something is so, for so many seconds of the coordinator's clock."""
        ends_at = self.fleet.clock() + secs
        while not is_so():
            assert self.fleet.clock() < ends_at, self.coordinator.view()
            self.coordinator.turn(0.0)
            self.fleet.clock.skip(0.5)

    def measured(self, *names: DeviceId, count: int = ALL) -> Callable[[], bool]:
        return lambda: all(self.knows(one) and self.state(one)["records"] >= count for one in names)

    def end(self) -> dict[str, Any]:
        self.coordinator.stop()
        self.until(lambda: self.coordinator.is_quiet)
        self.fleet.turn(self.coordinator, 1, 2.0)
        view = self.coordinator.view()
        self.coordinator.close()
        return view


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_device_that_comes_is_known_soon_and_lives_on_under_a_changed_file(lab: Lab) -> None:
    with lab.running() as run:
        run.until(run.measured(ONE))
        lab.write("two")
        run.until(lambda: run.knows(TWO), KNOWN_SECS)
        run.until(run.measured(ONE, TWO))
        before = run.state(TWO)["environment_id"]
        with mock.patch.object(run.transport, "start", wraps=run.transport.start) as started:
            lab.write("two", seed=7, protocol={"repeat": 5})
            run.until(lambda: run.state(TWO)["incarnation"] == 2, KNOWN_SECS)
        [(spec, incarnation)] = [call.args for call in started.call_args_list]
        assert (spec.device_id, spec.protocol(PROTOCOL).repeat, incarnation) == (TWO, 5, 2)
        run.until(run.measured(TWO, count=2 * ALL))
        assert run.state(TWO)["environment_id"] != before
        assert run.state(TWO)["failures"] == run.state(TWO)["crashes"] == 0
        assert run.state(ONE)["incarnation"] == 1, "the others are let alone"
        view = run.end()
    assert view["jobs"]["cancelled"] == view["jobs"]["quarantined"] == 0
    [said] = [line for line in lab.fleet.lines if "new environment" in line]
    assert f"{ALL} records of earlier ones" in said
    store = Store.read(lab.fleet.folder / "store")
    assert store.devices()[TWO].spec.protocol(PROTOCOL).repeat == 5
    records = list(store.records(device_id=TWO))
    assert len({one.environment_id for one in records}) == 2
    assert "paired" in {one.origin for one in records}, "it closes the gaps that its sibling left"
    assert len(set(lab.fleet.record_ids())) == len(lab.fleet.record_ids()) == 3 * ALL
    # A later start finds it in the journal and in the folder.
    with lab.running() as run:
        run.until(lambda: run.knows(TWO, "idle", "leased"))
        assert run.state(TWO)["incarnation"] == 3


def test_a_device_that_leaves_keeps_its_records_and_comes_back(lab: Lab) -> None:
    lab.write("two")
    with lab.running() as run:
        run.until(lambda: run.works(TWO))
        (lab.folder / "two.yaml").rename(lab.folder / "two.kept")
        run.until(lambda: run.knows(TWO, "retired"), KNOWN_SECS)
        assert run.state(TWO)["queued"] == 0
        run.until(run.measured(ONE))
        assert 0 < run.state(TWO)["records"] < ALL
        (lab.folder / "two.kept").rename(lab.folder / "two.yaml")
        with mock.patch.object(run.transport, "stop", wraps=run.transport.stop) as stop:
            run.until(lambda: run.knows(TWO, "probing", "idle", "leased"), KNOWN_SECS)
        # It may be at its last batch, and hold the spool.
        assert stop.call_args_list == [mock.call(TWO, 1, kill=True)]
        run.until(run.measured(ONE, TWO))
        view = run.end()
    assert len(set(lab.fleet.record_ids())) == len(lab.fleet.record_ids()) == 2 * ALL
    assert view["devices"]["two"]["failures"] == 0
    assert any("two: leaves the fleet" in line for line in lab.fleet.lines)


def test_a_request_retires_a_device_whatever_is_killed_meanwhile(lab: Lab) -> None:
    lab.write("two")
    asked = Request(request_id=RequestId("leave"), kind=RequestKind.RETIREMENT, arguments={"device": "two"})
    with lab.running() as run:
        run.until(lambda: run.works(TWO))
        answer = run.coordinator.desk.submit(asked)
        run.until(answer.done, KNOWN_SECS)
        assert answer.result()["state"] == "running"
    assert not (lab.folder / "two.yaml").exists()  # killed before anybody saw that
    with lab.running() as run:
        shown = run.coordinator.desk.get("leave")
        assert shown is not None
        assert (shown["state"], shown["result"]["device"]) == ("succeeded", "two")
        assert run.knows(TWO, "retired")
        again = run.coordinator.desk.submit(structs.replace(asked, request_id=RequestId("again")))
        run.until(again.done, KNOWN_SECS)
        assert "no device 'two' here" in str(again.exception())
        run.end()


def test_a_broken_file_is_an_alarm_until_it_is_mended_and_nothing_else(lab: Lab) -> None:
    lab.write("two")
    with lab.running() as run:
        run.until(lambda: run.knows(TWO, "idle", "leased"))
        text = (lab.folder / "two.yaml").read_text()
        (lab.folder / "two.yaml").write_text(text + "threds: 1\n")
        (lab.folder / "three.yaml").write_text("schema: 1\nkind: {\n")
        run.until(lambda: len(run.alarms()) == 2, KNOWN_SECS)
        told = run.alarms()
        line = len(text.splitlines()) + 1
        assert f"two.yaml: line {line}: threds: unknown key" in told[TWO]
        assert "three.yaml: line 3: bad YAML" in told[THREE]
        run.until(run.measured(ONE, TWO))
        assert run.state(TWO)["incarnation"] == run.state(ONE)["incarnation"] == 1
        assert not run.knows(THREE)
        assert [one["device_id"] for one in run.coordinator.view()["alarms"]] == list(told), "told once"
        (lab.folder / "two.yaml").write_text(text)
        lab.write("three")
        run.until(lambda: not run.alarms(), KNOWN_SECS)
        run.until(run.measured(ONE, TWO, THREE))
        run.end()


def test_a_file_that_is_broken_at_the_start_or_may_not_join_leaves_the_device_out_with_its_jobs(
    lab: Lab,
) -> None:
    lab.write("two")
    jobs = lab.jobs_of_two()
    (lab.folder / "two.yaml").write_text("schema: 2\n")
    with lab.running() as run:
        run.until(run.measured(ONE))
        assert (run.state(TWO)["state"], run.state(TWO)["queued"]) == ("absent", jobs)
        assert list(run.alarms()) == ["two"]
        # Mended, it may still not join: it waits as it did.
        why = "start again with all of them"
        with mock.patch.object(Roster, "put", side_effect=RosterError(why)) as put:
            lab.write("two")
            run.until(lambda: put.called, KNOWN_SECS)
        assert (run.state(TWO)["state"], run.state(TWO)["queued"]) == ("absent", jobs)
        run.until(lambda: why in run.alarms()[TWO], KNOWN_SECS)
        lab.write("two")
        run.until(lambda: run.knows(TWO, "probing", "idle", "leased"), KNOWN_SECS)
        run.until(run.measured(ONE, TWO))
        assert run.end()["jobs"]["cancelled"] == 0


def test_a_narrower_start_leaves_the_others_as_they_are(lab: Lab) -> None:
    lab.write("two")
    jobs = lab.jobs_of_two()

    class Narrow(ReplayFiles):
        def chosen(self, found: FoundDevices) -> DeviceFiles:
            every = super().chosen(found)
            return replace(every, specs={ONE: every.specs[ONE]}, selection=frozenset([ONE]))

    all_files, lab.fleet.source = lab.fleet.source, lambda: Narrow(lab.folder)
    with lab.running() as run:
        run.until(run.measured(ONE))
        lab.write("two", seed=4)
        lab.fleet.turn(run.coordinator, 10, 0.5)
        found = run.state(TWO)
        assert (found["state"], found["queued"]) == ("absent", jobs)
        assert "other devices were asked for" in found["reason"]
        run.end()
    lab.fleet.source = all_files
    with lab.running() as run:
        run.until(run.measured(ONE, TWO))
        assert run.end()["jobs"]["cancelled"] == 0


# ---- the roster ----


def live(name: str, **changes: Any) -> DeviceSpec:
    return make_spec(name, kind=DeviceKind.LOCAL, **changes)


def test_a_live_device_never_joins_what_replay_devices_share(tmp_path: Path) -> None:
    again = make_fleet(tmp_path).specs[ONE]
    roster = Roster({}, {ONE: again}, PROTOCOL)
    with pytest.raises(FleetError, match="one of its family cpu replay what anybody may have recorded"):
        roster.put(live("two"))
    assert set(roster.specs) == {ONE}
    both = Roster({}, {ONE: again, TWO: live("two")}, PROTOCOL)
    assert both.sharing[ONE] != both.sharing[TWO]
    both.retire(TWO)
    both.put(again)
    assert both.sharing[ONE] != both.sharing[TWO], "names never change back"
    # One that only the store knows gives way.
    late = Roster({ONE: again}, {}, PROTOCOL)
    assert late.put(live("two")) is True
    assert late.sharing[ONE] != late.sharing[TWO]
    assert set(late.live_names) == {"cpu"}
