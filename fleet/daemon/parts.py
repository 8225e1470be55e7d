"""The parts of a coordinator, put together once; each does one thing and most know few of the others.

Made by `fleet.daemon.coordinator`; `fleet.daemon.receiving` and `fleet.daemon.doing` share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agents.messages import ProposeRequest
from agents.records import Candidate, CandidateId, Descriptor, DeviceId, DeviceSpec, Protocol, Workload
from fleet.core import events as ev
from fleet.core.arrivals import Tallies
from fleet.core.events import Job
from fleet.core.state import FleetState
from fleet.daemon.chronicle import Chronicle
from fleet.daemon.coordinator_settings import CoordinatorSettings
from fleet.daemon.coverage import Coverage
from fleet.daemon.disk_watch import DiskWatch
from fleet.daemon.doubts import Doubts
from fleet.daemon.feeding import Feeder
from fleet.daemon.granting import Granting
from fleet.daemon.guide import Guide
from fleet.daemon.intake import Intake
from fleet.daemon.listing import Listing
from fleet.daemon.noise_runs import NoiseRuns
from fleet.daemon.notices import Notices, Steadiness
from fleet.daemon.plan_view import turn_of
from fleet.daemon.pools import Pools
from fleet.daemon.refused import Refused
from fleet.daemon.sharing import space_of
from fleet.daemon.storing import Storing
from fleet.daemon.traces import StoreThread, find_candidates
from fleet.daemon.trainer import Trainer
from fleet.links.links import Links
from fleet.store.store import Store


@dataclass(slots=True)
class Agents:
    """The agents that are up."""

    #: Which of its lives each is in.
    up: dict[DeviceId, int] = field(default_factory=dict)
    #: What they saw of their devices and is not in the store yet.
    descriptors: dict[DeviceId, Descriptor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that a coordinator consists of."""

    settings: CoordinatorSettings
    specs: Mapping[DeviceId, DeviceSpec]
    #: Siblings that only the store knows included.
    families: Mapping[DeviceId, str]
    links: Links
    agents: Agents
    chronicle: Chronicle
    store: Store
    intake: Intake
    pools: Pools
    coverage: Coverage
    thread: StoreThread
    feeder: Feeder
    listing: Listing
    storing: Storing
    granting: Granting
    noise: NoiseRuns
    disk: DiskWatch
    steadiness: Steadiness
    notices: Notices
    trainer: Trainer | None
    #: Gives Unix seconds.
    clock: Callable[[], float]

    @property
    def state(self) -> FleetState:
        """Of the chronicle, which alone changes it."""
        return self.chronicle.state

    def agent_gone(self, device_id: DeviceId, incarnation: int) -> None:
        """Let go of an agent that has ended or was given up: it will answer nothing any more."""
        if self.agents.up.get(device_id) == incarnation:
            del self.agents.up[device_id]
            self.listing.agent_gone(device_id)
            self.feeder.agent_gone(device_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Candidates that wait for the opinion of a head, as they come back from the thread."""

    device_id: DeviceId
    request_id: str
    candidates: tuple[Candidate, ...]


def _ranked(guide: Guide | None, workload: Workload, drawn: Drawn) -> tuple[list[Candidate], str]:
    """The candidates in the order of the device's head, and its version; as drawn where there is no head."""
    found = guide.rank(workload, drawn.device_id, drawn.candidates) if guide is not None else None
    if found is None:
        return list(drawn.candidates), ""
    return found.first(drawn.candidates, len(drawn.candidates)), found.model.version


class _Outlet:
    """What the feeder asks for goes to the agents, to the thread that reads the store, and to the state."""

    def __init__(
        self,
        links: Links,
        agents: Agents,
        thread: StoreThread,
        chronicle: Chronicle,
        families: Mapping[DeviceId, str],
        guide: Guide | None,
        clock: Callable[[], float],
    ) -> None:
        self._links, self._agents, self._thread = links, agents, thread
        self._chronicle, self._families, self._clock = chronicle, families, clock
        self._guide = guide

    def propose(self, device_id: DeviceId, request: ProposeRequest) -> None:
        """See `fleet.daemon.feeding.Outlet`."""
        self._links.propose(device_id, self._agents.up[device_id], request)

    def search(self, device_id: DeviceId, request_id: str, candidate_ids: Sequence[CandidateId]) -> None:
        """See `fleet.daemon.feeding.Outlet`."""
        family = self._families[device_id]
        siblings = [one for one, other in self._families.items() if other == family]
        question = partial(find_candidates, device_ids=siblings, wanted=list(candidate_ids))
        self._thread.ask((device_id, request_id), question)

    def rank(
        self, device_id: DeviceId, request_id: str, workload: Workload, candidates: Sequence[Candidate]
    ) -> None:
        """See `fleet.daemon.feeding.Outlet`."""
        question = Drawn(device_id=device_id, request_id=request_id, candidates=tuple(candidates))
        self._thread.do(question, partial(_ranked, self._guide, workload, question))

    def submit(self, job: Job) -> None:
        """See `fleet.daemon.feeding.Outlet`."""
        self._chronicle.tell(ev.JobSubmitted(at_secs=self._clock(), job=job))


def _protocols(specs: Mapping[DeviceId, DeviceSpec], common: Protocol) -> dict[DeviceId, Protocol]:
    """How each device is timed; equal ones are one object, which goes over the wire once a message."""
    known: dict[Protocol, Protocol] = {}
    found = ((one, spec.protocol(common)) for one, spec in specs.items())
    return {one: known.setdefault(protocol, protocol) for one, protocol in found}


def assemble(
    root: Path,
    store: Store,
    links: Links,
    specs: Mapping[DeviceId, DeviceSpec],
    settings: CoordinatorSettings,
    notices: Notices,
    *,
    trainer: Trainer | None = None,
    guide: Guide | None = None,
    doubts: Doubts | None = None,
    clock: Callable[[], float] = time.time,
) -> Parts:
    """Put a coordinator together; see `fleet.daemon.coordinator.Coordinator`."""
    chronicle = Chronicle(root / "journal", settings.limits)
    pools = Pools(root / "pools")
    for note in (*store.repairs, *chronicle.notes, *pools.notes):
        notices.alarm("", note)
    families = {one: str(entry.spec.family) for one, entry in store.devices().items()}
    families |= {one: str(spec.family) for one, spec in specs.items()}
    protocols = _protocols(specs, settings.protocol)
    spaces = {one: space_of(spec) for one, spec in specs.items()}
    agents, tallies = Agents(), Tallies()
    thread, intake = StoreThread(store.path), Intake(store)
    coverage = Coverage(families, ())
    outlet = _Outlet(links, agents, thread, chronicle, families, guide, clock)
    feeder = Feeder(
        coverage,
        pools,
        families,
        spaces,
        outlet,
        seed=settings.seed,
        token=os.urandom(4).hex(),
        exploration=settings.exploration,
        turns={one: turn_of(spec) for one, spec in specs.items()},
        is_open=lambda one: not chronicle.state.describe(one)["closed"],
        doubt=doubts.of if doubts is not None else None,
    )
    refused = Refused(root / "refused")
    storing = Storing(intake, store, coverage, pools, tallies, families, root / "late", refused)
    kept = root / "workloads.json"
    return Parts(
        settings=settings,
        specs=dict(specs),
        families=families,
        links=links,
        agents=agents,
        chronicle=chronicle,
        store=store,
        intake=intake,
        pools=pools,
        coverage=coverage,
        thread=thread,
        feeder=feeder,
        listing=Listing(settings.choice, kept, store, coverage, pools, feeder, links, specs),
        storing=storing,
        granting=Granting(
            coverage, pools, feeder, storing, intake, tallies, links, thread, families, protocols, notices.say
        ),
        noise=NoiseRuns(
            coverage, thread, pools, feeder, intake, protocols, count=settings.noise, seed=settings.seed
        ),
        disk=DiskWatch(root, chronicle, notices, clock),
        steadiness=Steadiness(),
        notices=notices,
        trainer=trainer,
        clock=clock,
    )


__all__ = ["Agents", "Parts", "assemble"]
