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
from typing import Any

from fleet.core import events as ev
from fleet.core.events import DeviceState
from fleet.engine.chores import Chores
from fleet.engine.composition import assemble
from fleet.engine.context import EngineContext, FixedDevices
from fleet.engine.device_updates import DeviceUpdates
from fleet.engine.disk_watch import RETRY_SECS
from fleet.engine.effects import EffectRunner
from fleet.engine.fleet_clock import LEAST_SET_SECS
from fleet.engine.fleet_view import Rates, health_of, make_view
from fleet.engine.ingest import Ingest
from fleet.engine.request_drivers import RequestDrivers
from fleet.errors import StoreError, StoreFull
from fleet.histogram import Histogram
from fleet.requests.request_kind import KnownFleet

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
        self._updates = DeviceUpdates(self._parts, context.source or FixedDevices(context.specs))
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
        for event in parts.trainer.poll() if parts.trainer is not None else ():
            parts.event_log.append(event)
        # After what the trainer tells: a training that has just ended cannot be stopped any more.
        parts.desk.serve(parts.state, self._known_fleet, parts.event_log.append, parts.clock())
        if not self._is_stopping:
            self._drivers.serve()
        self._tell_wall()
        parts.event_log.append(ev.Tick(at_secs=parts.clock()))
        self._flush()
        self._chores.do(parts.clock(), is_stopping=self._is_stopping)

    def stop(self) -> None:
        """Grant nothing from here on; what runs may end while `turn` goes on."""
        if not self._is_stopping:
            self._is_stopping = True
            self._parts.event_log.append(ev.CoordinatorStopping(at_secs=self._parts.clock()))
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
        now, append, state, specs = parts.clock(), parts.event_log.append, parts.state, parts.roster.specs
        self._updates.begin()
        sums = parts.store.state.device_sums()
        records = {device_id: count for device_id, (count, _, _) in sums.items() if device_id in specs}
        append(ev.CoordinatorStarted(at_secs=now, records=records, limits=parts.settings.limits))
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
        families = {str(device_id): family for device_id, family in parts.roster.families.items()}
        return KnownFleet(
            families=families,
            trains=parts.trainer is not None,
            devices=frozenset(parts.roster.specs),
            folders=parts.settings.folders,
        )

    def _tell_wall(self) -> None:
        """Tell the state of a wall clock that is not where it was: windows and budgets go by it."""
        parts = self._parts
        now, ahead = parts.clock(), parts.clock.wall_ahead_secs
        if abs(ahead - parts.state.wall_ahead_secs) >= LEAST_SET_SECS:
            parts.event_log.append(ev.ClockSet(at_secs=now, wall_secs=now + ahead))

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
