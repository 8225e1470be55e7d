"""A whole coordinator with replay devices and trainings in one child process, for `benchmarks.chaos` to kill.

The real `fleet.engine.coordinator.Coordinator` over `fleet.transport.local.LocalTransport`, with the real
refresher and registry: store and its state file, model versions and one spool a device, all on the disk under
the fault points. What is submitted, kept, acknowledged and published is written down where it happens: around
the methods that make it durable. `chaos_trouble` hurts agents, trainings and the clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.errors import SpoolFull
from agents.records import Protocol
from benchmarks.chaos_children import Forks
from benchmarks.chaos_life import RECORDED, WORKLOADS, Load
from benchmarks.chaos_models import KEEP, fork_trainings, watch_registry
from benchmarks.chaos_trouble import Host, Trouble
from benchmarks.chaos_watch import Watched, look
from benchmarks.fleet_up import patience
from benchmarks.made_up import replay_specs
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
from fleet.planner.workload_discovery import WorkloadChoice
from fleet.refresh.refresher import Refresher, RefreshSettings
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from fleet.transport.local import LocalTransport

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


def run_fleet(load: Load, forks: Forks, arguments: dict[str, Any]) -> None:
    """Look, then go on as a coordinator.

    Args:
        load: Its history, disk, dice, and as many batches as there shall be turns; with 0 it only looks.
        forks: Forks trainings.
        arguments: `recorded` (from `benchmarks.chaos_life`), `plan` (of the trainings too), `is_guilty`
            and `often` (`chaos_trouble.Trouble`), `to_the_end` (hurt nobody, and wait for what runs).

    Raises:
        StartRefused: The disk was full before anything could begin.
        FleetError: The disk failed.
    """
    history = load.root / "history.jsonl"
    _set_default(EventLog.__init__, "compact_bytes", _EVENT_BYTES)
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
    transport: LocalTransport
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
    transport = LocalTransport(
        protocol=Protocol(),
        spool_root=disk / "spool",
        heartbeat_secs=0.0,
        requests_per_poll=requests_per_poll,
    )
    settings = CoordinatorSettings(
        protocol=Protocol(),
        choice=WorkloadChoice(networks=("resnet-50",), count=WORKLOADS),
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
            specs=specs,
            settings=settings,
            notices=Notices(None),
            trainer=refresher,
            ranker=CandidateRanker(RegistryReader(models)),
            uncertainty=Uncertainty(RegistryReader(models)),
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


def _set_default(constructor: Any, name: str, value: int) -> None:
    """Give an argument of a constructor another default."""
    defaults = constructor.__kwdefaults__
    assert defaults is not None
    assert name in defaults
    defaults[name] = value
