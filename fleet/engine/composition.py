"""The parts of a coordinator, put together once; each does one thing and most know few of the others.

Made by `fleet.engine.coordinator`; `fleet.engine.ingest` and `fleet.engine.effects` share it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields

from agents.files import make_folder
from agents.records import Descriptor, DeviceId
from fleet.core import events as ev
from fleet.core.arrivals import Tallies
from fleet.core.state import FleetState
from fleet.coverage.coverage import Coverage
from fleet.durable import disk_errors
from fleet.engine.context import EngineContext
from fleet.engine.disk_watch import DiskWatch
from fleet.engine.event_log import EventLog
from fleet.engine.notices import Steadiness
from fleet.engine.record_sink import RecordSink
from fleet.engine.roster import Roster
from fleet.engine.set_aside import DeadLetters
from fleet.planner.imported_candidates import ImportedCandidates
from fleet.planner.job_planner import JobPlanner, PlannerContext
from fleet.planner.noise_runs import NoiseRuns
from fleet.planner.workload_discovery import WorkloadDiscovery, WorkloadModules
from fleet.requests.desk import RequestDesk
from fleet.store.trace_lookup import StoreThread


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition(EngineContext):
    """Everything that a coordinator consists of: what it was given, and what was made of that."""

    roster: Roster
    #: Incarnation of each agent that is up.
    up: dict[DeviceId, int]
    #: Descriptors of devices that are not in the store yet.
    descriptors: dict[DeviceId, Descriptor] = field(default_factory=dict)
    event_log: EventLog
    coverage: Coverage
    thread: StoreThread
    #: Counts by job.
    tallies: Tallies
    planner: JobPlanner
    modules: WorkloadModules
    imports: ImportedCandidates
    discovery: WorkloadDiscovery
    record_sink: RecordSink
    noise: NoiseRuns
    disk: DiskWatch
    steadiness: Steadiness
    desk: RequestDesk = field(default_factory=RequestDesk)

    @property
    def state(self) -> FleetState:
        """Of the event log, which alone changes it."""
        return self.event_log.state

    def agent_gone(self, device_id: DeviceId, incarnation: int) -> None:
        """Let go of an agent that has ended or was given up: it will answer nothing any more."""
        if self.up.get(device_id) == incarnation:
            del self.up[device_id]
            self.discovery.agent_gone(device_id)
            self.planner.agent_gone(device_id)


def assemble(context: EngineContext) -> Composition:
    """Put a coordinator together."""
    with disk_errors("making the folder of the daemon", context.root):
        make_folder(context.root)
    root, store, settings = context.root, context.store, context.settings
    event_log = EventLog(store.state, settings.limits)
    stored = {device_id: entry.spec for device_id, entry in store.devices().items()}
    roster = Roster(stored, context.specs, settings.protocol)
    coverage = Coverage(store.state, roster.sharing, (), live=roster.live_names)
    for note in store.repairs:
        context.notices.alarm("", note, "storage")
    tallies, up, thread = Tallies(), dict[DeviceId, int](), StoreThread(store.path)
    planning = _planner_context(context, roster, event_log, coverage, up, thread)
    planner = JobPlanner(planning)
    record_sink = RecordSink(store, coverage, tallies, roster.sharing, DeadLetters(store.state))
    return Composition(
        **{field.name: getattr(context, field.name) for field in fields(context)},
        roster=roster,
        imports=planning.imports,
        up=up,
        event_log=event_log,
        coverage=coverage,
        thread=thread,
        tallies=tallies,
        planner=planner,
        modules=WorkloadModules(store, roster.all_specs),
        discovery=WorkloadDiscovery(
            *(settings.choice, store, planning, planner, context.transport),
            {} if settings.limits.requests_only else roster.specs,
        ),
        record_sink=record_sink,
        noise=NoiseRuns(
            *(coverage, thread, planner, store, roster.all_specs),
            count=settings.noise,
            seed=settings.seed,
        ),
        disk=DiskWatch(root, event_log, context.notices, context.clock),
        steadiness=Steadiness(event_log.state.unsteady()),
    )


def _planner_context(
    context: EngineContext,
    roster: Roster,
    event_log: EventLog,
    coverage: Coverage,
    up: dict[DeviceId, int],
    thread: StoreThread,
) -> PlannerContext:
    """What the planner asks, and where its jobs go."""
    settings = context.settings
    return PlannerContext(
        coverage=coverage,
        specs=roster.all_specs,
        families=roster.sharing,
        spaces=roster.spaces,
        propose=lambda device_id, request: context.transport.propose(device_id, up[device_id], request),
        submit=lambda job: event_log.append(ev.JobSubmitted(at_secs=context.clock(), job=job)),
        log=context.notices.log,
        thread=thread,
        ranker=context.ranker,
        seed=settings.seed,
        token=os.urandom(4).hex(),
        exploration=settings.exploration,
        turns=roster.turns,
        is_open=lambda device_id: not event_log.state.describe(device_id)["closed"],
        uncertainty=context.uncertainty.of if context.uncertainty is not None else None,
        imports=ImportedCandidates(roster.live_names),
    )
