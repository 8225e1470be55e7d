"""A coordinator over replay devices: scenarios of files and wants, and what is stored then."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from agents.device.messages import Message, Results
from agents.records import DeviceId, Record
from agents.spool.disk_spool import Spool
from fleet.archive.backup import back_up, restore
from fleet.core.words import Limits, Request, RequestId, RequestKind
from fleet.engine.event_log import EventLog
from fleet.engine.roster import Roster, RosterError
from fleet.errors import StoreFull
from fleet.state import table
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import WORKLOADS, ReplayFiles, make_fleet, write_replay_device
from tests.disk_fixtures import failing
from tests.record_fixtures import make_record
from tests.scenario_fixtures import fields_of, is_so, place_in, play, read_scenarios
from tests.state_fixtures import choose_first_workloads, forget_candidates
from tests.transport_fixtures import PROTOCOL

SCENARIOS = read_scenarios(Path(__file__).with_name("coordinator_scenarios.txt"))


#: A candidate that every device can measure.
BAD = make_record(1, workload=WORKLOADS[0].workload_id).candidate_id


def poisoned() -> Any:
    """That candidate comes with seconds that are no numbers."""
    real = LocalTransport.poll

    def spoil(record: Record) -> Record:
        return replace(record, run_secs=(math.nan,)) if record.candidate_id == BAD else record

    def poll(transport: LocalTransport, timeout_secs: float) -> list[Message]:
        return [
            replace(one, records=tuple(map(spoil, one.records))) if isinstance(one, Results) else one
            for one in real(transport, timeout_secs)
        ]

    return mock.patch.object(LocalTransport, "poll", poll)


#: What may be in the way.
TROUBLES = {
    "full-table": lambda: mock.patch.object(table, "write_deltalake", failing()),
    "full-log": lambda: mock.patch.object(EventLog, "_keep", side_effect=StoreFull("no room")),
    "poison": poisoned,
}


class Scenario:
    """Device files, and the lives of a coordinator that follows them."""

    def __init__(self, folder: Path) -> None:
        self.fleet = make_fleet(folder)
        self.hardware = folder / "hardware"
        self.hardware.mkdir()
        self.fleet.source = lambda: ReplayFiles(self.hardware, self.chosen)
        #: Devices that are asked for; none names all.
        self.chosen: tuple[DeviceId, ...] = ()
        self.life = ExitStack()
        self.view: dict[str, Any] = {}
        self.answer: Any = None
        #: What the transport does not do, by the method.
        self.withheld: dict[str, Any] = {}
        self.calls: dict[str, mock.Mock] = {}

    def do(self, line: str) -> None:
        for action in line.split("; "):
            self.act(*action.partition(" ")[::2])

    def act(self, word: str, rest: str) -> None:
        names, _, fields = rest.partition(" | ")
        match word, names.split():
            case "device", [name]:
                write_replay_device(
                    self.hardware, name, self.fleet.folder / "recorded.parquet", **fields_of(fields)
                )
            case "text", [name, *_]:
                (self.hardware / name).write_text(rest.partition(" ")[2].replace("\\n", "\n"))
            case "move", [name, to]:
                (self.hardware / name).rename(self.hardware / to)
            case "choose", several:
                self.chosen = tuple(map(DeviceId, several))
            case "join", ["refused:", *_]:
                refusal = RosterError(rest.partition(": ")[2])
                self.withheld["put"] = mock.patch.object(Roster, "put", side_effect=refusal)
                self.withheld["put"].start()
            case "limits", _:
                self.fleet.limits = Limits(**fields_of(rest))
            case "workloads", [count]:
                choose_first_workloads(self.fleet.folder / "store", int(count))
            case "lanes", _:
                self.fleet.lanes = LaneSettings(**fields_of(rest))
            case "trouble", [trouble]:
                self.withheld[trouble] = TROUBLES[trouble]()
                self.withheld[trouble].start()
            case "restore", _:
                store, backup = self.fleet.folder / "store", self.fleet.folder / "backup"
                back_up(store, backup)
                shutil.rmtree(store)
                restore(backup, store)
            case "forget", _:
                forget_candidates(self.fleet.folder / "store")
            case "start", _:
                self.coordinator, self.transport = self.life.enter_context(self.fleet.coordinator())
            case "kill", _:
                self.life.close()
            case "end", _:
                self.coordinator.stop()
                self.until("quiet = true")
                self.fleet.turn(self.coordinator, 1, 2.0)
                self.view = self.coordinator.view()
                self.coordinator.close()
                self.life.close()
            case "turns", [count, secs]:
                self.fleet.turn(self.coordinator, int(count), float(secs))
            case "until", _:
                self.until(rest)
            case "within", [secs, _, *_]:
                self.until(rest.partition(" until ")[2], float(secs))
            case "without", [method]:
                self.withheld[method] = mock.patch.object(LocalTransport, method)
                self.calls[method] = self.withheld[method].start()
            case "with", [method]:
                self.withheld.pop(method).stop()
            case "freeze", [name, incarnation]:
                self.transport.freeze(DeviceId(name), int(incarnation))
            case "request", [name, kind]:
                asked = Request(
                    request_id=RequestId(name), kind=RequestKind(kind), arguments=fields_of(fields)
                )
                self.answer = self.coordinator.desk.submit(asked)

    def until(self, text: str, secs: float = 500.0) -> None:
        """Turn until something is so, for so many seconds of the coordinator's clock."""
        self.view = {}
        ends_at = self.fleet.clock() + secs
        while not is_so(text, self.value):
            assert self.fleet.clock() < ends_at, (text, self.coordinator.view())
            self.coordinator.turn(0.0)
            self.fleet.clock.skip(0.5)

    def value(self, path: str) -> Any:
        view = self.view or self.coordinator.view()
        name, _, rest = path.partition(".")
        word, *more = name.split()
        device = DeviceId(more[0]) if more else None
        store = Store.read(self.fleet.folder / "store")
        match word:
            case "quiet":
                return self.coordinator.is_quiet
            case "jobs" | "store" | "clock" | "coordinator":
                return place_in(view, path)
            case "alarms":
                return place_in({one["device_id"]: one["text"] for one in view["alarms"]}, rest)
            case "alarm_count":
                return len(view["alarms"])
            case "answer":
                if not self.answer.done():
                    return None
                return self.answer.exception() or place_in(self.answer.result(), rest)
            case "request":
                return place_in(self.coordinator.desk.get(more[0]), rest)
            case "calls":
                return self.calls[more[0]].call_count
            case "kills":
                stopped = self.calls["stop"].call_args_list
                return [f"{call.args[0]} {call.args[1]}" for call in stopped if call.kwargs["kill"]]
            case "files":
                return sorted(path.name for path in self.hardware.glob("*.yaml"))
            case "ids":
                ids = self.fleet.record_ids()
                assert len(set(ids)) == len(ids)
                return len(ids)
            case "workloads":
                return len({one.workload_id for one in store.records()})
            case "origins":
                return sorted({one.origin for one in store.records(device_id=device)})
            case "environments":
                return len({one.environment_id for one in store.records(device_id=device)})
            case "repeat":
                return store.devices()[device].spec.protocol(PROTOCOL).repeat
            case "late" | "refused":
                return place_in(self.fleet.set_aside(word), rest) if rest else len(self.fleet.set_aside(word))
            case "spooled":
                with Spool(self.fleet.folder / "spool" / more[0]) as spool:
                    return len(spool.pending())
            case "said":
                return "\n".join(self.fleet.lines)
            case "waiting":
                with StateReader(self.fleet.folder / "store" / STATE) as reader:
                    return reader._ids("SELECT id FROM candidate WHERE is_waiting")
        return place_in(view.get("devices", {}), path)


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path)
    yield made
    made.life.close()
    for patch in made.withheld.values():
        patch.stop()


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, scenario: Scenario) -> None:
    play(SCENARIOS[title], scenario.do, scenario.value)
