"""The shell around the state: hears the agents, makes what arrives durable, tells the state, obeys it.

`fleet.daemon.daemon` runs it, one turn after the other. Every turn has the same order, and a kill may come
after any step of it: records into the store; events applied and kept, all with one wait for the disk;
only then acknowledgements and instructions. So what a kill cuts off comes again from the agents' spools, is
known to the store by its ids, and is accounted for once.

It decides nothing that `state.py`, `scheduling.py` or `batch_plan.py` decide, and waits for nothing but the
disk: agents propose, a thread searches in the store, a process trains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agents.records import NOISE, DeviceId
from fleet.core import events as ev
from fleet.core.events import DeviceState, JobState, RequestProgressed, RequestSubmitted
from fleet.core.words import RequestKind, RequestState
from fleet.engine.context import Composition, EngineContext, assemble
from fleet.engine.device_updates import DeviceUpdates
from fleet.engine.disk_watch import RETRY_SECS
from fleet.engine.effects import EffectRunner
from fleet.engine.fleet_clock import LEAST_SET_SECS
from fleet.engine.fleet_view import Rates, health_of, make_view
from fleet.engine.ingest import Ingest
from fleet.engine.request_drivers import RequestDrivers
from fleet.errors import StoreError, StoreFull
from fleet.histogram import Histogram
from fleet.requests.first_heads import first_head_requests
from fleet.requests.request_kind import KnownFleet

# What a coordinator does seldom, a little at a time: device files, upkeep of the store, A/A runs.
#
# It is called at the end of each turn.

#: Least seconds between two rounds of what is due seldom.
_CHORES_SECS = 5.0
#: Between two looks at the device files: a change is believed at the second look that sees it.
_LOOK_SECS = 1.5
#: Device files are written for so long in one turn: each waits for the disk.
_DEVICES_SECS = 0.01
#: Pause after a step of the store's upkeep, and the same over the time that the step took.
_STEP_SECS, _STEP_LEAST_WAIT = 0.5, 10.0
#: States of jobs that are still to be measured; one under quarantine may never be.
_OPEN = frozenset({JobState.QUEUED, JobState.LEASED})


class Chores:
    """Knows what is due."""

    def __init__(self, parts: Composition, updates: DeviceUpdates, ingest: Ingest) -> None:
        self._parts, self._updates, self._ingest = parts, updates, ingest
        self._upkeep_at = parts.clock() + parts.settings.upkeep_secs
        self._upkeep: Iterator[object] | None = None
        self._upkeep_began = 0.0
        self._chores_at = self._devices_at = 0.0
        #: Families that nobody was asked for yet; once in a life is enough.
        self._headless = set(parts.settings.first_heads)

    def do(self, now: float, *, is_stopping: bool) -> None:
        """Do what is due."""
        parts = self._parts
        try:
            self._put_devices()
            if now >= self._upkeep_at and not parts.disk.is_full:
                self._do_upkeep(now)
            if now >= self._devices_at and not is_stopping and not parts.disk.is_full:
                self._devices_at = now + _LOOK_SECS
                self._updates.look()
            if now >= self._chores_at and not parts.disk.is_full:
                self._chores_at = now + _CHORES_SECS
                self._do_round(now, is_over=is_stopping or parts.settings.once)
        except StoreFull as error:
            parts.disk.full(error)

    def _put_devices(self) -> None:
        """Store what agents saw of their devices."""
        parts, began = self._parts, time.perf_counter()
        while parts.descriptors and time.perf_counter() - began < _DEVICES_SECS:
            device_id = next(iter(parts.descriptors))
            parts.store.put_device(parts.roster.all_specs[device_id], parts.descriptors[device_id])
            del parts.descriptors[device_id]

    def _do_round(self, now: float, *, is_over: bool) -> None:
        parts = self._parts
        parts.event_log.compact()
        self._ingest.end_silent()
        if parts.trainer is not None:
            self._tell_epochs(parts.trainer.view)
        if self._headless and not is_over:
            self._ask_for_first_heads()
        wall = parts.clock.wall()
        for device_id, incarnation in parts.up.items():
            if device_id not in parts.roster.specs:
                continue  # it left, and its agent is told to end
            parts.discovery.agent_up(parts.roster.specs[device_id], incarnation)
            if is_over or not parts.noise.is_due(device_id, now, wall):
                continue
            if self._has_noise_jobs(device_id):
                parts.noise.postpone(device_id, now)
            else:
                environment_id = parts.state.describe(device_id)["environment_id"]
                parts.noise.begin(device_id, environment_id, now, wall)

    def _has_noise_jobs(self, device_id: DeviceId) -> bool:
        """Whether an A/A run of a device waits, for its policy or a request: another would be the same."""
        state = self._parts.state
        return any(
            job.device_id == device_id and job.origin == NOISE and state.job_state(job.job_id) in _OPEN
            for job in self._parts.planner.queues.jobs()
        )

    def _tell_epochs(self, trainer: Mapping[str, Any]) -> None:
        """Tell the requests of the running training which epoch it is in, if that is another than before."""
        state, epochs = self._parts.state, trainer.get("epochs") or {}
        for request in state.open_requests() if epochs else ():
            if request.kind is not RequestKind.TRAINING or request.family != trainer["family"]:
                continue
            progress = state.request(request.request_id)
            if progress is None or progress["state"] != RequestState.RUNNING:
                continue
            fresh = {name: epochs[name] for name in ("done", "of", "left_secs", "finding")}
            if (fresh["done"], fresh["of"]) != (progress["done"], progress["of"]):
                self._parts.event_log.append(RequestProgressed(request_id=request.request_id, **fresh))

    def _ask_for_first_heads(self) -> None:
        """Have a device onboard itself where no device of its family has a head."""
        parts = self._parts
        live = parts.roster.live_names
        specs = {
            device_id: spec for device_id, spec in parts.roster.specs.items() if spec.family.value in live
        }
        requests = first_head_requests(
            specs,
            {device_id: parts.state.describe(device_id) for device_id in specs},
            parts.state.open_requests(),
            self._headless,
            parts.settings.limits.arrival_samples,
        )
        for family, request in requests.items():
            self._headless.discard(family)
            if parts.state.request(request.request_id) is None:
                parts.event_log.append(RequestSubmitted(request=request))

    def _do_upkeep(self, now: float) -> None:
        """Do a step of the store's upkeep, or begin a round: all at once it takes seconds."""
        parts, began = self._parts, time.perf_counter()
        self._upkeep_at = now + parts.settings.upkeep_secs
        if self._upkeep is None:
            self._upkeep_began, self._upkeep = now, parts.store.upkeep_steps()
        try:
            is_over = next(self._upkeep, None) is None
        except StoreFull:
            self._upkeep = None  # begun anew when it is due again
            raise
        if is_over:
            self._upkeep = None
            self._upkeep_at = max(now, self._upkeep_began + parts.settings.upkeep_secs)
        else:
            wait = max(_STEP_SECS, _STEP_LEAST_WAIT * (time.perf_counter() - began))
            self._upkeep_at = now + wait


#: Least seconds between two views.
_VIEW_SECS = 0.5
#: Pause after a picture, over the time that it took.
_VIEW_LEAST_WAIT = 10.0
#: States in which a device has not shown yet whether it works.
_BEGUN = frozenset({DeviceState.UNKNOWN, DeviceState.PROBING})


class Coordinator:
    """Knows the fleet, and runs it turn by turn.

    Raises:
        FleetError: The events cannot be replayed, or the disk is full or failed.

    Attributes:
        desk: Where other threads leave requests.
    """

    def __init__(self, context: EngineContext) -> None:
        self._parts = assemble(context)
        self.desk = self._parts.desk
        self._drivers = RequestDrivers(self._parts)
        self._ingest = Ingest(self._parts, self._drivers)
        self._effects = EffectRunner(self._parts, self._drivers)
        self._updates = DeviceUpdates(self._parts)
        self._chores = Chores(self._parts, self._updates, self._ingest)
        self._rates, self._turns = Rates(), Histogram()
        self._started_at = self._parts.clock.wall()
        self._view_at = 0.0
        self._is_stopping = False
        self._view: dict[str, Any] = {}
        try:
            self._begin()
        except BaseException:
            self.release()
            raise

    def turn(self, timeout_secs: float) -> None:
        """Do one turn: hear, store, tell, keep, do.

        Args:
            timeout_secs: Longest wait for a message.

        Raises:
            FleetError: The disk failed, or an event is impossible: start again, nothing is lost.
        """
        parts = self._parts
        parts.clock.tick()
        if parts.event_log.is_behind:
            # The state is ahead of the disk: nothing may follow from it before it is durable.
            time.sleep(min(timeout_secs, RETRY_SECS))
            self._flush()
        else:
            self._ingest.listen(timeout_secs)
            with self._turns.timed():
                self._work()
        if parts.clock() >= self._view_at:
            self._look()

    def _work(self) -> None:
        """All of a turn but the wait for messages."""
        parts = self._parts
        self._ingest.hear()
        for answer in parts.thread.poll():
            if answer.error:
                parts.notices.log(f"reading the store failed: {answer.error}", kind="reading", style="red")
            answer.then(answer.value)
        if parts.trainer is not None:
            parts.event_log.append(*parts.trainer.poll())
        # After what the trainer tells: a training that has just ended cannot be stopped any more.
        parts.desk.serve(parts.state, self._known_fleet, parts.event_log.append)
        if not self._is_stopping:
            self._drivers.serve()
        self._tell_wall()
        parts.event_log.append(ev.Tick())
        self._flush()
        self._chores.do(parts.clock(), is_stopping=self._is_stopping)

    def stop(self) -> None:
        """Grant nothing from here on; what runs may end while `turn` goes on."""
        if not self._is_stopping:
            self._is_stopping = True
            self._parts.event_log.append(ev.CoordinatorStopping())
            self._flush()
            # A batch may take a minute: what is finished of it is stored, the rest waits for the next start.
            for device_id, incarnation in self._parts.up.items():
                self._parts.transport.conclude(device_id, incarnation)

    @property
    def is_quiet(self) -> bool:
        """Whether no lease is out and nothing waits to be stored."""
        leased = self._parts.state.job_counts()[ev.JobState.LEASED]
        return self._ingest.is_idle and not self._parts.event_log.has_news and not leased

    @property
    def serves_requests(self) -> bool:
        """Whether the driver of a request is at work, who wants answers soon."""
        return self._drivers.is_busy

    @property
    def is_drained(self) -> bool:
        """With `once`: whether all that was planned is done, on every device that works."""
        parts = self._parts
        status_by_device = {device_id: parts.state.describe(device_id) for device_id in parts.roster.specs}
        ready = {
            device_id for device_id, status in status_by_device.items() if status["state"] == DeviceState.IDLE
        }
        return (
            self.is_quiet
            and parts.planner.is_idle
            and parts.thread.is_idle
            and not parts.discovery.is_waiting
            and ready <= self._effects.fed
            and not any(status["state"] in _BEGUN for status in status_by_device.values())
            and not any(
                status_by_device[device_id]["queued"] and not status_by_device[device_id]["closed"]
                for device_id in ready
            )
        )

    def close(self) -> None:
        """Hand everything on to the table; nothing may be called after it, but the store stays open."""
        parts = self._parts
        self._drivers.close()
        parts.thread.close()
        self._flush()
        try:
            parts.store.flush()
        except StoreError as error:
            parts.notices.log(f"rows wait for the table until the next start: {error}")
        try:
            parts.event_log.compact(now=True)
        except StoreFull as error:
            parts.notices.log(f"the state file stays as long as it is: {error}")

    def release(self) -> None:
        """Let go of the files as a kill does, so that another coordinator may have them."""
        self._parts.store.abandon()

    def view(self) -> dict[str, Any]:
        """The picture of about a second ago (`fleet.engine.fleet_view`), for any thread to read."""
        return self._view

    def _begin(self) -> None:
        """Tell the state what there is now; what was kept of before is in it already."""
        parts = self._parts
        append, state, specs = parts.event_log.append, parts.state, parts.roster.specs
        self._updates.begin()
        sums = parts.store.state.device_sums()
        records = {device_id: count for device_id, (count, _, _) in sums.items() if device_id in specs}
        append(ev.CoordinatorStarted(records=records, limits=parts.settings.limits))
        for device_id in specs:
            append(self._updates.added(device_id))
        for job in state.jobs():
            parts.planner.queues.opened(job)
        self._flush()
        for job in list(parts.planner.queues.jobs()):
            if state.job_state(job.job_id) is None:  # of a command that has ended
                parts.planner.queues.closed(job.job_id)
        parts.desk.open(parts.state)
        parts.planner.heads.update(
            device_id for device_id in state.device_ids() if state.describe(device_id)["champion"]
        )
        self._look()

    def _known_fleet(self) -> KnownFleet:
        parts = self._parts
        families = {str(device_id): str(spec.family) for device_id, spec in parts.roster.all_specs.items()}
        return KnownFleet(
            families=families,
            trains=parts.trainer is not None,
            devices=frozenset(parts.roster.specs),
            folders=parts.settings.folders,
        )

    def _tell_wall(self) -> None:
        """Tell the state of a wall clock that is not where it was: windows and budgets go by it."""
        parts = self._parts
        ahead = parts.clock.wall_ahead_secs
        if abs(ahead - parts.state.wall_ahead_secs) >= LEAST_SET_SECS:
            parts.event_log.append(ev.ClockSet(wall_secs=parts.clock() + ahead))

    def _flush(self) -> None:
        """Make what was told durable, then do what follows from it, until nothing follows any more."""
        parts = self._parts
        if not self._is_stopping:
            self._effects.feed()  # what devices measure may be known just now
        while parts.event_log.has_news:
            try:
                events, instructions = parts.event_log.commit()
            except StoreFull as error:
                parts.disk.full(error)
                return
            for event in events:
                self._effects.note(event)
            for instruction in instructions:
                self._effects.do(instruction)
            if not self._is_stopping:
                self._effects.feed()
        acknowledge, self._ingest.acknowledge = self._ingest.acknowledge, []
        for device_id, incarnation, record_ids in acknowledge:
            parts.transport.acknowledge(device_id, incarnation, record_ids)

    def _look(self) -> None:
        """Draw the picture that others are shown."""
        parts, now, began = self._parts, self._parts.clock(), time.perf_counter()
        health = health_of(parts, self._ingest, self._turns)
        started_at, is_stopping = self._started_at, self._is_stopping
        self._view = make_view(parts, self._rates, health, started_at=started_at, is_stopping=is_stopping)
        parts.notices.summarize(self._view)
        # A picture of thousands of devices takes its time: never more than a little of all.
        self._view_at = now + max(_VIEW_SECS, _VIEW_LEAST_WAIT * (time.perf_counter() - began))
