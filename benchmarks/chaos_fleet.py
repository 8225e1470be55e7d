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
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from agents.errors import SpoolFull
from agents.records import DeviceId, Protocol
from benchmarks.chaos_children import STILL, Forks, wake_training
from benchmarks.chaos_life import RECORDED, WORKLOADS, Load, set_defaults
from benchmarks.chaos_models import KEEP, fork_trainings, watch_registry
from benchmarks.chaos_watch import Watched, look
from benchmarks.faulty_transport import FaultyTransport
from benchmarks.fleet_up import patience
from benchmarks.made_up import FixedDevices, replay_specs
from fleet.config.sections import WorkloadsSection
from fleet.core.words import Limits
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.event_log import EventLog
from fleet.engine.fleet_clock import FleetClock
from fleet.engine.notices import Notices
from fleet.errors import StoreFull
from fleet.models.registry import Registry
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker, Uncertainty
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


def run_fleet(load: Load, forks: Forks, arguments: dict[str, Any]) -> None:
    """Look, then go on as a coordinator.

    Args:
        load: Its history, disk, dice, and as many batches as there shall be turns; with 0 it only looks.
        forks: Forks trainings.
        arguments: `recorded` (from `benchmarks.chaos_life`), `plan` (of the trainings too), `is_guilty`
            and `often` (`Trouble`), `to_the_end` (hurt nobody, and wait for what runs).

    Raises:
        StartRefused: The disk was full before anything could begin.
        FleetError: The disk failed.
    """
    history = load.root / "history.jsonl"
    set_defaults(EventLog.__init__, compact_bytes=_EVENT_BYTES)
    with _starting():
        look(load.log, history, load.disk)
    if not load.batches:
        return
    Watched(load.log).install()
    watch_registry(load.log)
    fork_trainings(forks, load.root, arguments["plan"], load.log, load.rng)
    host = Host(load)
    with contextlib.ExitStack() as stack:
        with _starting():
            fleet = stack.enter_context(_opened(load, host, Path(arguments["recorded"])))
        trouble = Trouble(
            load, fleet.transport, host, fleet.refresher, arguments["is_guilty"], arguments["often"]
        )
        for _ in load.batches:
            fleet.turn()
            if not arguments["to_the_end"]:
                trouble.somebody(fleet.coordinator.view())
        if arguments["to_the_end"]:
            fleet.settle()


@dataclass(frozen=True, kw_only=True)
class _Fleet:
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
            RuntimeError: Something goes on for ever.
        """
        ends_at = time.monotonic() + patience(_SETTLE_SECS)
        self.coordinator.stop()
        while not self.coordinator.is_quiet or self.refresher.view["state"] != "idle":
            if time.monotonic() > ends_at:
                raise RuntimeError(f"the fleet does not come to rest: {self.coordinator.view()}")
            self.turn()
        self.transport.close()
        self.coordinator.close()


@contextlib.contextmanager
def _opened(load: Load, host: Host, recorded: Path) -> Iterator[_Fleet]:
    disk, models = load.disk, load.disk / "models"
    clock = FleetClock(wall=lambda: host.wall, steady=lambda: host.steady)
    requests_per_poll = load.rng.choice((1, 3, 64))
    transport = FaultyTransport(
        protocol=Protocol(),
        spool_root=disk / "spool",
        heartbeat_secs=0.0,
        requests_per_poll=requests_per_poll,
    )
    settings = CoordinatorSettings(
        protocol=Protocol(),
        choice=WorkloadsSection(networks=("resnet-50",), count=WORKLOADS, min_flops=0, max_flops=1e30),
        limits=_LIMITS,
        upkeep_secs=60.0,
    )
    specs = replay_specs(DEVICES, recorded, RECORDED)
    refresher = Refresher(Registry(models), disk / "store", disk / "fleet" / "refresh", _REFRESH, clock)
    with Store.open(disk / "store", settings=_LANES) as store:
        context = EngineContext(
            root=disk / "fleet",
            store=store,
            transport=transport,
            source=FixedDevices(specs),
            settings=settings,
            notices=Notices(None),
            trainer=refresher,
            ranker=CandidateRanker(RegistryReader(models)),
            uncertainty=Uncertainty(RegistryReader(models)).of,
            clock=clock,
        )
        coordinator = Coordinator(context)
        yield _Fleet(coordinator=coordinator, transport=transport, refresher=refresher, host=host)


class StartRefused(Exception):  # noqa: N818  # no error: a start on a full disk is to be refused
    """There was no room to start; the same command goes on once there is."""


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except (StoreFull, SpoolFull) as error:
        raise StartRefused from error


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


@dataclass(eq=False)
class Trouble:
    """Hurts somebody now and then.

    Attributes:
        load: Whose history is told of what is no kill, and whose dice decide.
        transport: To the agents.
        host: Whose clock is set.
        refresher: Whose training is killed and stopped.
        is_guilty: Whether agents die of what they do; else only of what is done to them.
        often: Times as often as usual.
    """

    load: Load
    transport: FaultyTransport
    host: Host
    refresher: Refresher
    is_guilty: bool
    often: float
    _frozen: set[tuple[DeviceId, int]] = field(default_factory=set)
    _still_turns: int = 0

    def __post_init__(self) -> None:
        self._rng, self._registry = self.load.rng, Registry(self.load.disk / "models")
        #: Remembers which training was stopped.
        self._still = self.load.root / STILL
        wake_training(self._still)  # of the life before
        if self.is_guilty:
            self.load.log.add("guilty")

    def somebody(self, view: Mapping[str, Any]) -> None:
        """Perhaps hurt somebody; to be called between two turns."""
        self._still_turns -= 1
        if not self._still_turns:
            wake_training(self._still)
        device_id = DeviceId(self._rng.choice(sorted(view["devices"])))
        name = (device_id, view["devices"][device_id]["incarnation"])
        chances: list[tuple[float, Callable[[], None]]] = [
            (0.02, lambda: self._crash(*name)),
            (0.04, lambda: self._freeze(*name)),
            (0.04, self._thaw),
            (0.02, self.host.set_clock),
            (0.02, self._stop_training),
            (0.01, self._kill_training),
            (0.01, lambda: self._take_back(device_id)),
        ]
        dice = self._rng.random() / self.often
        for chance, happens in chances:
            dice -= chance
            if dice < 0:
                happens()
                return

    def _crash(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            is_blameless = not self.is_guilty or self._rng.random() < 0.5
            is_done = self._rng.random() < 0.5
            self.transport.crash(device_id, incarnation, is_done=is_done, is_blameless=is_blameless)

    def _freeze(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            self.transport.freeze(device_id, incarnation)
            self._frozen.add((device_id, incarnation))

    def _thaw(self) -> None:
        for name in self._frozen:
            with contextlib.suppress(KeyError):
                self.transport.thaw(*name)
        self._frozen.clear()

    def _stop_training(self) -> None:
        pid = self._training_pid()
        if pid is not None and not self._still.exists():
            self._still.write_text(str(pid))
            os.kill(pid, signal.SIGSTOP)
            self._still_turns = _STILL_TURNS
            self.load.log.add("trouble", by="pause")

    def _kill_training(self) -> None:
        if (pid := self._training_pid()) is not None:
            os.kill(pid, signal.SIGKILL)

    def _take_back(self, device_id: DeviceId) -> None:
        wake_training(self._still)  # it may hold the registry's lock
        champion = self._registry.champions().get(device_id)
        if champion is not None and set(champion.before) & set(self._registry.versions()):
            with contextlib.suppress(
                OSError
            ):  # whoever asked on a full disk is told so, and nothing has changed
                self._registry.use(device_id, self._registry.before(device_id), reason="by hand")

    def _training_pid(self) -> int | None:
        child = self.refresher._child
        return None if child is None or child.has_ended else child.pid
