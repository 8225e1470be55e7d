"""What a coordinator is given, and what it needs of whoever trains, drives requests or describes devices.

`fleet.daemon.daemon` makes an `EngineContext`; its parts are put together here, in `Composition`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from typing import Protocol as TypingProtocol

from agents.files import make_folder
from agents.records import Descriptor, DeviceId, Protocol
from fleet.config.device_changes import DeviceFiles
from fleet.config.sections import WorkloadsSection
from fleet.core import events as ev
from fleet.core.arrivals import Tallies
from fleet.core.events import DevicePolicy, Event, TrainingReason
from fleet.core.scheduling import EXPLORATION
from fleet.core.state import FleetState
from fleet.core.words import Limits, Request
from fleet.coverage.coverage import Coverage
from fleet.drivers.session import DriverChannel
from fleet.engine.disk_watch import DiskWatch
from fleet.engine.event_log import EventLog
from fleet.engine.fleet_clock import FleetClock
from fleet.engine.notices import Notices, Steadiness
from fleet.engine.record_sink import DeadLetters, RecordSink
from fleet.engine.roster import Roster
from fleet.errors import FleetError, disk_errors
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.imported_candidates import ImportedCandidates
from fleet.planner.job_planner import JobPlanner
from fleet.planner.noise_runs import NoiseRuns
from fleet.planner.planner_context import PlannerContext, UncertaintyOf, no_uncertainty
from fleet.planner.workload_discovery import WorkloadDiscovery, WorkloadModules
from fleet.requests.kinds import RequestDesk
from fleet.store.store import Store
from fleet.store.trace_lookup import StoreThread
from fleet.transport.transport import AgentTransport


class Trainer(TypingProtocol):
    """Trains in the background (`fleet.refresh.refresher.Refresher`); nothing here waits."""

    @property
    def view(self) -> Mapping[str, Any]:
        """What is going on, JSON-ready."""

    def start(self, family: str, reasons: Sequence[TrainingReason]) -> None:
        """Begin a training."""

    def stop(self, family: str) -> None:
        """End the training of a family for good; nothing of it comes out of `poll` any more."""

    def records_stored(self, device_id: DeviceId, family: str, count: int) -> None:
        """Note new records."""

    def poll(self) -> list[Event]:
        """What happened since the last call."""


class Driver(TypingProtocol):
    """The driver of a request at work (`fleet.daemon.launch.DriverProcess`)."""

    @property
    def channel(self) -> DriverChannel:
        """To it."""

    def stop(self) -> None:
        """End it, and let go of it; nothing is waited for."""

    def is_over(self, timeout_secs: float = 0.0) -> bool:
        """Whether it has ended; waits for that."""

    def failure(self) -> str:
        """How it ended, if it did so without a word; once it is over."""


#: Starts the driver of a request; None for a request that is none of this coordinator's business.
Launch = Callable[[Request], Driver | None]


def no_driver(request: Request) -> Driver:
    """Stands in where no requests but those for trainings are done."""
    raise FleetError(f"no {request.kind} is done here")


class DeviceSource(TypingProtocol):
    """Where devices are described (`fleet.daemon.device_choice.DeviceChoice`)."""

    @property
    def files(self) -> DeviceFiles:
        """What was found last."""

    def look(self) -> DeviceFiles | None:
        """Look again, cheaply; None where nothing changed."""

    def retire(self, device_id: DeviceId) -> None:
        """Take the description of a device away; `look` finds that soon.

        Raises:
            FleetError: There is none, or the disk failed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """How to time, what to measure, when each device may be used: plain values, made of the configuration."""

    #: The fleet's protocol, which a device may change for itself.
    protocol: Protocol
    choice: WorkloadsSection
    #: When devices may be used that are not named among the policies.
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    policies: Mapping[DeviceId, DevicePolicy] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    #: Candidates of the daily A/A run of a device; 0 for none.
    noise: int = 0
    #: Share of the candidates that close no gap that is random.
    exploration: float = EXPLORATION
    seed: int = 0
    #: Families whose first head is one of the model that comes with the program.
    first_heads: frozenset[str] = frozenset()
    #: Plan for every device once, and no more.
    once: bool = False
    #: Least seconds between two rounds of upkeep of the store.
    upkeep_secs: float = 3600.0
    #: Folders in which requests may read and write; None for any.
    folders: tuple[Path, ...] | None = None

    def policy_of(self, device_id: DeviceId) -> DevicePolicy:
        """When a device may be used."""
        return self.policies.get(device_id, self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """All that a coordinator is given."""

    #: Folder for chosen workloads and what drivers print; made if missing.
    root: Path
    #: The open store; nobody else writes to it meanwhile. The coordinator does not close it.
    store: Store
    #: The way to the agents; not closed either.
    transport: AgentTransport
    #: Where devices that are there, come, change and leave are described.
    source: DeviceSource
    settings: CoordinatorSettings
    #: Told what people should know.
    notices: Notices
    #: Trains when the state asks for it; without one, trainings end at once and make nothing.
    trainer: Trainer | None = None
    #: Lets the champions choose among drawn candidates; without one, those drawn first are taken.
    ranker: CandidateRanker | None = None
    #: Knows how unsure the champions are of workloads; without it, none is preferred for that.
    uncertainty: UncertaintyOf = no_uncertainty
    #: The time; each turn moves it on.
    clock: FleetClock = field(default_factory=FleetClock)
    #: Starts the drivers of requests; the default fails each request that needs one.
    launch: Launch = no_driver


# The parts of a coordinator, put together once; each does one thing and most know few of the others.
#
# Made by `fleet.engine.coordinator`; `fleet.engine.ingest` and `fleet.engine.effects` share it.


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
    event_log = EventLog(store.state, settings.limits, context.clock)
    stored = {device_id: entry.spec for device_id, entry in store.devices().items()}
    roster = Roster(stored, context.source.files.specs, settings.protocol)
    coverage = Coverage(store.state, roster.sharing, (), live=roster.live_names)
    for note in store.repairs:
        context.notices.alarm("", note, "storage")
    tallies, up, thread = Tallies(), dict[DeviceId, int](), StoreThread(store.path)
    planning = _planner_context(context, roster, event_log, coverage, up, thread)
    planner = JobPlanner(planning)
    record_sink = RecordSink(store, coverage, tallies, DeadLetters(store.state))
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
        spaces=roster.spaces,
        propose=lambda device_id, request: context.transport.propose(device_id, up[device_id], request),
        submit=lambda job: event_log.append(ev.JobSubmitted(job=job)),
        log=context.notices.log,
        thread=thread,
        ranker=context.ranker,
        seed=settings.seed,
        token=os.urandom(4).hex(),
        exploration=settings.exploration,
        turns=roster.turns,
        is_open=lambda device_id: not event_log.state.describe(device_id)["closed"],
        uncertainty=context.uncertainty,
        imports=ImportedCandidates(roster.live_names),
    )
