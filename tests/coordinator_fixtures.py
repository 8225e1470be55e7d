"""A coordinator over replay devices in this process, that can be killed at any write: for its tests."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import yaml
from msgspec import structs

from agents.records import DeviceId, DeviceSpec
from benchmarks.faulty_transport import FaultyTransport
from benchmarks.made_up import FixedDevices
from fleet.config.device_changes import DeviceFiles
from fleet.config.device_folder import DeviceFolder, FoundDevices, retire_file
from fleet.config.sections import WorkloadsSection
from fleet.core.events import Event
from fleet.core.words import Limits
from fleet.engine.context import CoordinatorSettings, DeviceSource, EngineContext, Launch, no_driver
from fleet.engine.coordinator import Coordinator
from fleet.engine.event_log import EventLog
from fleet.engine.fleet_clock import MOST_STEP_SECS, FleetClock
from fleet.engine.notices import Notices
from fleet.errors import FleetError, StoreFull
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.state.table import RecordsTable
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from fleet.store.trace_lookup import Answer, StoreThread
from fleet.transport.local import LocalTransport
from tests import transport_fixtures
from tests.record_fixtures import make_spec, make_workload, record_ids
from tests.transport_fixtures import PROTOCOL, replay_spec

WORKLOADS = [make_workload(number) for number in (1, 2, 3)]
#: Recorded candidates of each workload; of four, three are ok, and replay offers only those.
RECORDED = 32
OFFERED = 24
#: Candidates that a device can measure in all.
ALL = OFFERED * len(WORKLOADS)
ONE, TWO = DeviceId("one"), DeviceId("two")
CHOICE = WorkloadsSection(networks=("bert-tiny",), count=10, min_flops=0, max_flops=1e30)
#: Seconds after which an answer of the store is no longer waited for.
_ANSWER_SECS = 30.0


class Killed(BaseException):
    """Stands for a signal that ends the program."""


@cache
def _recorded() -> bytes:
    with TemporaryDirectory() as name:
        return transport_fixtures.recorded_file(Path(name), RECORDED, WORKLOADS).read_bytes()


def recorded_file(folder: Path) -> Path:
    """What the devices answer from: `RECORDED` candidates of each workload."""
    path = folder / "recorded.parquet"
    path.write_bytes(_recorded())
    return path


def write_replay_device(folder: Path, name: str, recorded: Path, **changes: Any) -> Path:
    """A device file: it answers from what was recorded of `dev-a` or of another device."""
    value = {"schema": 1, "device_id": name, "kind": "replay", "family": "cpu"}
    value |= {"records": str(recorded), "device": "dev-a", **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


class ReplayFiles:
    """A folder of replay devices, of which all or only some are asked for."""

    def __init__(self, folder: Path, only: tuple[DeviceId, ...] = ()) -> None:
        self._folder, self._only = DeviceFolder(folder), only
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
        if self._only:
            specs = {name: specs[name] for name in self._only}
        return DeviceFiles(specs=specs, faults=faults, selection=frozenset(self._only))


class Clock(FleetClock):
    """The clock of a host whose time passes when it is told to, and a little with each turn."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self._host_wall, self._host_steady = wall, 500.0
        super().__init__(lambda: self._host_wall, lambda: self._host_steady)

    def tick(self) -> float:
        self.pause(0.05)
        return super().tick()

    @property
    def now(self) -> float:
        return self()

    @now.setter
    def now(self, secs: float) -> None:
        self.skip(secs - self())

    def skip(self, secs: float) -> float:
        """Let time pass in which a coordinator would have listened."""
        until = self() + secs
        while (left := until - self()) > 1e-6:
            self.pause(min(MOST_STEP_SECS, left))
            super().tick()
        return self()

    def pause(self, secs: float) -> None:
        """Let time pass in which nobody listens."""
        self._host_wall += secs
        self._host_steady += secs

    def set(self, secs: float) -> None:
        """Set the wall clock, forward or back."""
        self._host_wall += secs

    def start_again(self) -> None:
        """Begin another life at what the wall clock shows."""
        super().__init__(self._wall, self._steady)


_poll = StoreThread.poll


def poll_answered(thread: StoreThread) -> list[Answer]:
    """`StoreThread.poll` once every question is answered: the clock must not run ahead of a slow disk.

    A test that needs a slow store withholds the answers, by a `StoreThread.poll` of its own around this.
    """
    until = time.monotonic() + _ANSWER_SECS
    while thread._answers.qsize() < thread._waiting and time.monotonic() < until:
        time.sleep(0.001)
    return _poll(thread)


@dataclass
class Fleet:
    """Folders that outlive coordinators, and the one that runs."""

    folder: Path
    specs: dict[DeviceId, DeviceSpec]
    clock: Clock = field(default_factory=Clock)
    limits: Limits = field(default_factory=lambda: Limits(job_candidates=8))
    settings: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    ranker: Any = None
    trainer: Any = None
    #: Makes what describes devices, for each life; None for devices that stay.
    source: Callable[[], DeviceSource] | None = None
    launch: Launch | None = None
    #: When rows go on to the table.
    lanes: LaneSettings | None = None

    @contextmanager
    def coordinator(self) -> Iterator[tuple[Coordinator, FaultyTransport]]:
        """One life of the coordinator and its agents; ends without any order, as after a kill."""
        told = CoordinatorSettings(protocol=PROTOCOL, choice=CHOICE, limits=self.limits, **self.settings)
        self.clock.start_again()
        notices = Notices(clock=self.clock, wall=self.clock.wall)
        source = self.source() if self.source is not None else FixedDevices(self.specs)
        with ExitStack() as stack:
            # Opening may be killed too; a lock that is held by nobody is what a kill leaves.
            store = stack.enter_context(Store.open(self.folder / "store", settings=self.lanes))
            transport = FaultyTransport(
                protocol=PROTOCOL, spool_root=self.folder / "spool", heartbeat_secs=0.05
            )
            stack.callback(transport.close, 1.0)
            log = mock.patch.object(notices, "log", lambda text, **_: self.lines.append(text))
            # Real time decides nothing: neither a search in the store nor how long a view takes, and records
            # are of the same day as all else.
            replay_time = SimpleNamespace(time=self.clock.wall)
            for patch in (
                log,
                mock.patch.object(StoreThread, "poll", poll_answered),
                mock.patch("fleet.engine.coordinator._VIEW_LEAST_WAIT", 0.0),
                mock.patch("agents.device.replay_answers.time", replay_time),
            ):
                stack.enter_context(patch)
            coordinator = Coordinator(
                EngineContext(
                    root=self.folder / "root",
                    store=store,
                    transport=transport,
                    settings=told,
                    notices=notices,
                    ranker=self.ranker,
                    trainer=self.trainer,
                    clock=self.clock,
                    source=source,
                    launch=self.launch or no_driver,
                )
            )
            stack.callback(coordinator.release)
            yield coordinator, transport

    @staticmethod
    def turn_until(coordinator: Coordinator, until: Callable[[Coordinator], bool], turns: int = 300) -> None:
        """Turn until something is so."""
        for _ in range(turns):
            coordinator.turn(0.0)
            if until(coordinator):
                return
        raise AssertionError(f"not within {turns} turns: {coordinator.view()}")

    def turn(self, coordinator: Coordinator, count: int, secs: float = 0.0) -> None:
        """Turn so often, each time after so many seconds."""
        for _ in range(count):
            self.clock.skip(secs)
            coordinator.turn(0.0)

    def run(self, until: Callable[[Coordinator], bool], turns: int = 300) -> dict[str, Any]:
        """Run to an orderly end; returns the last view."""
        with self.coordinator() as (coordinator, _):
            self.turn_until(coordinator, until, turns)
            coordinator.stop()
            for _ in range(turns):
                coordinator.turn(0.0)
                if coordinator.is_quiet:
                    break
            self.clock.now += 2.0
            coordinator.turn(0.0)
            view = coordinator.view()
            coordinator.close()
        return view

    def record_ids(self) -> list[str]:
        """Ids of all stored records, with repetitions."""
        return record_ids(Store.read(self.folder / "store"))

    def set_aside(self, kind: str) -> list[dict[str, Any]]:
        """Records that were set aside as `late` or `refused`, with what is said of them."""
        with StateReader(self.folder / "store" / STATE) as reader:
            letters = [letter for letter in reader.letters() if letter.kind == kind]
        return [json.loads(line) for letter in letters for line in letter.body.splitlines()]


def make_fleet(folder: Path, names: tuple[str, ...] = ("one", "two"), **changes: Any) -> Fleet:
    """A fleet of replay devices."""
    path = recorded_file(folder)
    specs = {DeviceId(name): replay_spec(path, name) for name in names}
    return Fleet(folder, specs, **changes)


def everything_measured(fleet: Fleet, count: int = ALL) -> Callable[[Coordinator], bool]:
    """Whether every device has every candidate that can be had, or so many of them."""

    def is_done(coordinator: Coordinator) -> bool:
        fleet.clock.now += 1.0
        devices = coordinator.view()["devices"]
        return all(one["records"] >= count for one in devices.values()) and coordinator.is_quiet

    return is_done


class Announcer:
    """Stands for a trainer that trains nothing and tells what it is given to tell."""

    view: Mapping[str, Any] = {}

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def poll(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def start(self, *_: Any) -> None: ...

    def stop(self, *_: Any) -> None: ...

    def records_stored(self, *_: Any) -> None: ...


@contextmanager
def without_room(
    kind: type[Any], name: str, left: list[float], concerns: Callable[..., bool] = lambda *_, **__: True
) -> Iterator[None]:
    """Let a step find the disk full as often as `left` says, which counts down: all calls or some."""
    step = getattr(kind, name)

    def refused(*arguments: Any, **options: Any) -> Any:
        if left[0] > 0 and concerns(*arguments, **options):
            left[0] -= 1
            raise StoreFull(f"no room in {kind.__name__}.{name}: No space left on device")
        return step(*arguments, **options)

    with mock.patch.object(kind, name, refused):
        yield


@contextmanager
def killed_at(number: int) -> Iterator[Counter[str]]:
    """Kill before or after the n-th durable step: of the records, the events, an acknowledgement.

    Yields:
        How often each step was reached.
    """
    reached: Counter[str] = Counter()

    def shim(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            for moment in ("before", "after"):
                if moment == "after":
                    answer = function(*arguments, **options)
                reached[f"{moment} {name}"] += 1
                if sum(reached.values()) == number:
                    raise Killed(f"{moment} {name}")
            return answer

        return step

    steps = [
        (Store, "take"),
        (Store, "flush"),
        (RecordsTable, "_confirm"),
        (EventLog, "_keep"),
        (EventLog, "compact"),
        (LocalTransport, "acknowledge"),
        (LocalTransport, "measure"),
        (LocalTransport, "start"),
    ]
    with ExitStack() as stack:
        for kind, name in steps:
            replaced = shim(f"{kind.__name__}.{name}", getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, replaced))
        yield reached
