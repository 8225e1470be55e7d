"""A whole coordinator with replay devices in one child process, for `benchmarks.chaos` to kill.

The real `fleet.daemon.coordinator.Coordinator` over `fleet.links.local.LocalLinks`: journal, store with
intake, pools, late results and one spool a device, all on the disk under the fault points. Agents die and
freeze beyond their leases as the load's dice say. What is submitted, kept and acknowledged is written down
where it happens: around the methods that make it durable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.errors import SpoolFull
from agents.records import (
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Protocol,
    Record,
    Replay,
    Workload,
    WorkloadId,
)
from agents.spool import Spool
from benchmarks.chaos_history import HistoryLog
from benchmarks.chaos_watch import Watched, look
from benchmarks.store import make_records
from fleet.core.limits import Limits
from fleet.daemon.coordinator import Coordinator
from fleet.daemon.coordinator_settings import CoordinatorSettings
from fleet.daemon.journal import Journal
from fleet.daemon.notices import Notices
from fleet.daemon.workload_choice import WorkloadChoice
from fleet.errors import StoreFull
from fleet.interchange.export_store import export
from fleet.links.local import LocalLinks
from fleet.store.store import Store

#: Devices that replay the same records with different seeds.
DEVICES = ("one", "two", "three")
_RECORDED = DeviceId("bench")
_WORKLOADS = 3
_LIMITS = Limits(lease_secs=20, stall_secs=40, job_candidates=6, queued_jobs=2, quarantine_secs=60)
#: Seconds that the clock goes on from turn to turn; leases and back-offs go by it.
_TURN_SECS = 2.0
_JOURNAL_BYTES, _SEGMENT_BYTES = 4000, 60_000
#: Turns within which all that was handed over must be settled.
_SETTLE_TURNS = 200


def make_recorded(path: Path, count: int = 1200) -> None:
    """Write the file that the replay devices answer from."""
    with Store.open(path.parent / "recorded") as store:
        spec = DeviceSpec(
            device_id=_RECORDED,
            kind=DeviceKind.LOCAL,
            family=Family.CPU,
            target_json='{"kind":"llvm","num-cores":1}',
        )
        store.put_device(spec, None)
        store.put_workloads([_workload(number) for number in range(_WORKLOADS)])
        store.append([_of_workload(one, number) for number, one in enumerate(make_records(0, count))])
        export(store, path, "parquet")


def _workload(number: int) -> Workload:
    return Workload(
        workload_id=WorkloadId(f"{number:016x}"),
        name=f"GMM_{number}",
        operator="GMM",
        arg_shapes=((128, 128), (128, 128), (128, 128)),
        arg_dtypes=("float32",) * 3,
        flops=4194304.0,
        networks=(),
        module_json="{}",
    )


def _of_workload(record: Record, number: int) -> Record:
    candidate = Candidate(workload_id=_workload(number % _WORKLOADS).workload_id, trace=record.trace)
    return replace(record, workload_id=candidate.workload_id, candidate_id=candidate.candidate_id)


def run_fleet(
    *, log: HistoryLog, history: Path, disk: Path, recorded: Path, turns: int, rng: Any, to_the_end: bool
) -> None:
    """Look, then go on as a coordinator.

    Raises:
        StartRefused: The disk was full before anything could begin.

    Args:
        log: Where to write what happens.
        history: Its file.
        disk: Folder of store, spools and the daemon's own.
        recorded: From `make_recorded`.
        turns: How many to do; with 0 it only looks.
        rng: Decides which agents die and freeze.
        to_the_end: Hurt no agent, and afterwards wait for what runs.
    """
    _set_default(Journal.__init__, "compact_bytes", _JOURNAL_BYTES)
    _set_default(Spool.__init__, "segment_bytes", _SEGMENT_BYTES)
    with _starting():
        look(log, history, disk)
    if not turns:
        return
    Watched(log).install()
    clock = _Clock(history.with_name("clock"))
    links = LocalLinks(
        protocol=Protocol(),
        spool_root=disk / "spool",
        beat_secs=0.0,
        requests_per_poll=rng.choice((1, 3, 64)),
    )
    specs = {DeviceId(name): _spec(name, recorded, number) for number, name in enumerate(DEVICES)}
    settings = CoordinatorSettings(
        protocol=Protocol(),
        choice=WorkloadChoice(networks=("resnet-50",), count=_WORKLOADS),
        limits=_LIMITS,
        upkeep_secs=60.0,
    )
    with contextlib.ExitStack() as stack:
        with _starting():
            store = stack.enter_context(Store.open(disk / "store"))
            coordinator = Coordinator(
                disk / "fleet", store, links, specs, settings, Notices(None), clock=clock.read
            )
        hurt = _Hurt(links, rng)
        for _ in range(turns):
            clock.go_on(_TURN_SECS)
            coordinator.turn(0.0)
            if not to_the_end:
                hurt.somebody(coordinator.view())
        if to_the_end:
            hurt.thaw()
            coordinator.stop()
            for _ in range(_SETTLE_TURNS):
                clock.go_on(_TURN_SECS)
                coordinator.turn(0.0)
                if coordinator.is_quiet:
                    break
            else:
                raise RuntimeError(f"the fleet does not come to rest: {coordinator.view()}")
        links.close()
        coordinator.close()


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


def _spec(name: str, recorded: Path, seed: int) -> DeviceSpec:
    return DeviceSpec(
        device_id=DeviceId(name),
        kind=DeviceKind.REPLAY,
        family=Family.CPU,
        target_json='{"kind":"llvm","num-cores":1}',
        replay=Replay(records=str(recorded), device=_RECORDED, seed=seed),
    )


class _Clock:
    """A clock that goes on from life to life, faster than ours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ahead = float(path.read_text()) if path.exists() else 0.0

    def read(self) -> float:
        """Seconds."""
        return time.time() + self._ahead

    def go_on(self, secs: float) -> None:
        """Let time pass."""
        self._ahead += secs
        # In one step: a kill may come at any moment.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(self._ahead))
        fresh.replace(self._path)


class _Hurt:
    """Crashes, freezes and thaws agents."""

    def __init__(self, links: LocalLinks, rng: Any) -> None:
        self._links, self._rng = links, rng
        self._frozen: set[tuple[DeviceId, int]] = set()

    def somebody(self, view: Mapping[str, Any]) -> None:
        """Perhaps hurt an agent."""
        device_id = DeviceId(self._rng.choice(DEVICES))
        incarnation = view["devices"].get(device_id, {}).get("incarnation", 0)
        name = (device_id, incarnation)
        dice = self._rng.random()
        if dice < 0.02 and name not in self._frozen:
            is_done, is_blameless = self._rng.random() < 0.5, self._rng.random() < 0.5
            self._links.crash(*name, is_done=is_done, is_blameless=is_blameless)
        elif dice < 0.06 and name not in self._frozen:
            self._links.freeze(*name)
            self._frozen.add(name)
        elif dice < 0.10:
            self.thaw()

    def thaw(self) -> None:
        """Let all frozen agents go on that were not ended meanwhile."""
        for name in self._frozen:
            with contextlib.suppress(KeyError):
                self._links.thaw(*name)
        self._frozen.clear()


__all__ = ["DEVICES", "StartRefused", "make_recorded", "run_fleet"]
