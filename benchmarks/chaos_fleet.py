"""A whole coordinator with replay devices and trainings in one child process, for `benchmarks.chaos` to kill.

The real `fleet.engine.coordinator.Coordinator` over a `benchmarks.faulty_transport.FaultyTransport`, with the
real refresher and registry: store and its state file, model versions and one spool a device, all on the disk
under the fault points. What is submitted, kept, acknowledged and published is written down where it happens:
around the methods that make it durable. `Trouble` is what happens to it beside kills: agents die and freeze,
the clock is set forwards and back, the training is killed or stands still, a person takes a champion back.
`Host` is the host that the coordinator believes to be on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from agents.errors import SpoolError, SpoolFull
from agents.records import DeviceId, Protocol
from benchmarks.chaos_children import DISK_FAILED, REFUSED, Forks
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_load import (
    RECORDED,
    WORKLOADS,
    Load,
    make_recorded,
    set_defaults,
    spool_load,
    state_load,
)
from benchmarks.chaos_models import KEEP, fork_trainings, models_load, trainer_load, watch_registry
from benchmarks.chaos_watch import Watched, look, look_at_fleet, observer_load
from benchmarks.faulty_transport import FaultyTransport
from benchmarks.fleet_up import patience, wait_until
from benchmarks.made_up import FixedDevices, replay_specs
from fleet.config.sections import WorkloadsSection
from fleet.core.words import Limits
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.event_log import EventLog
from fleet.engine.fleet_clock import FleetClock
from fleet.engine.notices import Notices
from fleet.errors import StoreError, StoreFull
from fleet.json_types import JsonDict
from fleet.models.registry import Registry
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker, uncertainty
from fleet.refresh.refresher import Refresher, RefreshSettings
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store

#: Devices that replay the same records with different seeds.
DEVICES = ("one", "two", "three")
_LIMITS = Limits(
    lease_secs=20,
    stall_secs=40,
    job_candidates=6,
    queued_jobs=2,
    quarantine_secs=60,
    training_records=150,
    training_share=0.0,
    reason_records=20,
    training_pause_secs=20,
    training_retry_secs=10,
)
_REFRESH = RefreshSettings(epochs=1, nice=0, keep=KEEP, watch_records=100, watch_secs=20)
#: Rows go on to the table often enough to be hit.
_LANES = LaneSettings(devices=2, rows_per_device=20, wait_secs=1.0)
#: Seconds that the clock goes on from turn to turn; leases and back-offs go by it.
_TURN_SECS = 1.9
#: Seconds of ours from turn to turn while a training runs: else it would see little of the fleet.
_PACE_SECS = 0.01
_EVENT_BYTES = 4000
#: Seconds of ours within which all that was handed over must be settled, and no training runs any more.
_SETTLE_SECS = 60.0

#: Seconds by which a clock is set, forwards or back: by hand, by a time server, by a dead battery.
_CLOCK_STEPS = (120.0, 3700.0, 86_400.0, 30 * 86_400.0)
#: Seconds that pass while the process is stopped by a signal, however short that is here: beyond any lease.
_PAUSE_SECS = (30.0, 90.0, 5000.0)
#: Turns that a stopped training stands still.
_STILL_TURNS = 30


def fleet_load(arguments: JsonDict) -> None:
    """Look, then go on as a coordinator, for as many turns as there are batches; with 0 only look.

    Args:
        arguments: Those of `chaos_load.Load` (the plan is of the trainings too), `recorded` (from
            `make_recorded`), `is_guilty` and `often` (`Trouble`), `to_the_end` (hurt nobody, and wait for
            what runs).
    """
    forks = Forks(multiprocessing.get_context("fork"))  # before anything of this process begins a thread
    load = Load(arguments)
    set_defaults(EventLog.__init__, compact_bytes=_EVENT_BYTES)
    has_begun = False
    try:
        look(load.log, load.disk)
        if load.batches:
            Watched(load.log).install()
            watch_registry(load.log)
            fork_trainings(forks, load, arguments["plan"])
            with _opened(load, Host(load), Path(arguments["recorded"])) as fleet:
                has_begun = True
                _go_on(load, fleet, arguments)
    except (StoreError, SpoolError) as error:
        # It says so in one line and ends; the same command goes on.
        print(f"the disk failed: {error}", file=sys.stderr)
        if not has_begun and isinstance(error, StoreFull | SpoolFull):
            os._exit(REFUSED)
        if arguments["plan"]["fault"] not in DISK_FAULTS:
            raise
        os._exit(DISK_FAILED)
    load.finish()


def _go_on(load: Load, fleet: Fleet, arguments: JsonDict) -> None:
    trouble = Trouble(load, fleet, arguments["is_guilty"], arguments["often"])
    for _ in load.batches:
        fleet.turn()
        if not arguments["to_the_end"]:
            trouble.hurt_somebody()
    if arguments["to_the_end"]:
        fleet.settle()


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A coordinator with its transport and its refresher."""

    coordinator: Coordinator
    transport: FaultyTransport
    refresher: Refresher
    host: Host

    def turn(self) -> None:
        """Do one turn."""
        self.host.go_on(_TURN_SECS)
        self.coordinator.turn(0.0)
        if self.refresher.view["state"] != "idle":
            time.sleep(_PACE_SECS)

    def settle(self) -> None:
        """Turn until nothing is under way, and end in order.

        Raises:
            LateError: Something goes on for ever.
        """
        self.coordinator.stop()
        wait_until(
            lambda: self.coordinator.is_quiet and self.refresher.view["state"] == "idle",
            "the fleet to come to rest",
            patience(_SETTLE_SECS),
            meanwhile=self.turn,
            pause_secs=0.0,
        )
        self.transport.close()
        self.coordinator.close()


@contextlib.contextmanager
def _opened(load: Load, host: Host, recorded: Path) -> Iterator[Fleet]:
    disk, models = load.disk, load.disk / "models"
    clock = FleetClock(wall=lambda: host.wall, steady=lambda: host.steady)
    transport = FaultyTransport(
        protocol=Protocol(),
        spool_root=disk / "spool",
        heartbeat_secs=0.0,
        requests_per_poll=load.rng.choice((1, 3, 64)),
    )
    settings = CoordinatorSettings(
        protocol=Protocol(),
        choice=WorkloadsSection(networks=("resnet-50",), count=WORKLOADS, min_flops=0, max_flops=1e30),
        limits=_LIMITS,
        upkeep_secs=60.0,
    )
    refresher = Refresher(Registry(models), disk / "store", disk / "fleet" / "refresh", _REFRESH, clock)
    with Store.open(disk / "store", settings=_LANES) as store:
        context = EngineContext(
            root=disk / "fleet",
            store=store,
            transport=transport,
            source=FixedDevices(replay_specs(DEVICES, recorded, RECORDED)),
            settings=settings,
            notices=Notices(None),
            trainer=refresher,
            ranker=CandidateRanker(RegistryReader(models)),
            uncertainty=partial(uncertainty, RegistryReader(models)),
            clock=clock,
        )
        yield Fleet(coordinator=Coordinator(context), transport=transport, refresher=refresher, host=host)


class Host:
    """The clocks of a host. They go on from life to life, and faster than ours.

    Args:
        load: Its history is told of pauses and of clock steps, its dice say how long a pause takes.

    Attributes:
        wall: Unix seconds.
        steady: Seconds since the host began.
    """

    def __init__(self, load: Load) -> None:
        self._path, self._log, self._rng = load.root / "clock", load.log, load.rng
        self.wall = float(self._path.read_text()) if self._path.exists() else time.time()
        self.steady = 1000.0
        signal.signal(signal.SIGCONT, self._woken)

    def go_on(self, secs: float) -> None:
        """Let time pass."""
        self.wall += secs
        self.steady += secs
        # In one step: a kill may come at any moment.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(self.wall))
        fresh.replace(self._path)

    def set_clock(self) -> None:
        """Set the time of day."""
        secs = self._rng.choice(_CLOCK_STEPS) * self._rng.choice((-1, 1))
        self.wall += secs
        self._log.add("trouble", by="clock step")

    def _woken(self, _number: int, _frame: FrameType | None) -> None:
        secs = self._rng.choice(_PAUSE_SECS)
        self.wall += secs
        self.steady += secs
        self._log.add("trouble", by="pause")


class Trouble:
    """Hurts somebody now and then.

    Args:
        load: Its history gets what is no kill, its dice decide.
        fleet: Whom it hurts.
        is_guilty: Whether agents die of what they do; else only of what is done to them.
        often: Times as often as usual.
    """

    def __init__(self, load: Load, fleet: Fleet, is_guilty: bool, often: float) -> None:
        self._load, self._fleet, self._is_guilty, self._often = load, fleet, is_guilty, often
        self._registry = Registry(load.disk / "models")
        self._frozen: set[tuple[DeviceId, int]] = set()
        #: Turns until the training goes on that stands still.
        self._still_turns = 0
        if is_guilty:
            load.log.add("guilty")

    def hurt_somebody(self) -> None:
        """Perhaps hurt somebody; to be called between two turns."""
        self._still_turns -= 1
        if not self._still_turns:
            self._signal_training(signal.SIGCONT)
        devices, rng = self._fleet.coordinator.view()["devices"], self._load.rng
        device_id = DeviceId(rng.choice(sorted(devices)))
        agent = (device_id, devices[device_id]["incarnation"])
        chances: dict[Callable[[], object], float] = {
            lambda: self._crash(*agent): 0.02,
            lambda: self._freeze(*agent): 0.04,
            self._thaw: 0.04,
            self._fleet.host.set_clock: 0.02,
            self._stop_training: 0.02,
            lambda: self._signal_training(signal.SIGKILL): 0.01,
            lambda: self._take_back(device_id): 0.01,
            lambda: None: max(0.0, 1 / self._often - 0.16),
        }
        rng.choices(list(chances), list(chances.values()))[0]()

    def _crash(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            is_blameless = not self._is_guilty or self._load.rng.random() < 0.5
            is_done = self._load.rng.random() < 0.5
            self._fleet.transport.crash(device_id, incarnation, is_done=is_done, is_blameless=is_blameless)

    def _freeze(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            self._fleet.transport.freeze(device_id, incarnation)
            self._frozen.add((device_id, incarnation))

    def _thaw(self) -> None:
        for agent in self._frozen:
            with contextlib.suppress(KeyError):
                self._fleet.transport.thaw(*agent)
        self._frozen.clear()

    def _stop_training(self) -> None:
        if self._still_turns <= 0 and self._signal_training(signal.SIGSTOP):
            self._still_turns = _STILL_TURNS
            self._load.log.add("trouble", by="pause")

    def _take_back(self, device_id: DeviceId) -> None:
        self._signal_training(signal.SIGCONT)  # it may hold the registry's lock
        champion = self._registry.champions().get(device_id)
        if champion is not None and set(champion.before) & set(self._registry.versions()):
            # Whoever asks on a full disk hears so, and nothing has changed.
            with contextlib.suppress(OSError):
                self._registry.use(device_id, self._registry.before(device_id), reason="by hand")

    def _signal_training(self, number: int) -> bool:
        """Send a signal to the training; false if none runs."""
        child = self._fleet.refresher._child
        if child is None or child.poll() is not None:
            return False
        os.kill(child.pid, number)
        return True


def look_at_fleet_load(arguments: JsonDict) -> None:
    """Look at the folder of a `fleet up` that has ended."""
    load = Load(arguments)
    look_at_fleet(load.log, load.disk)


#: What a child can do: functions of its arguments.
LOADS: dict[str, Callable[[JsonDict], None]] = {
    "spool": spool_load,
    "state": state_load,
    "models": models_load,
    "observer": observer_load,
    # The file that the replay devices of `fleet_load` answer from.
    "recorded": lambda arguments: make_recorded(Path(arguments["recorded"])),
    "fleet": fleet_load,
    "trainer": trainer_load,
    "look_at_fleet": look_at_fleet_load,
}
