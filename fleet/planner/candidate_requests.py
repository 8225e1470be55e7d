"""The way to agents for new candidates: who asks alike is answered by one agent, and nothing comes twice.

`fleet.planner.job_planner` asks for devices with room; the drivers of requests bring complete questions.
Devices whose programs are made alike answer alike, so a thousand that begin together would draw the same a
thousand times: one agent draws for all of them. With a question go the candidates that are not to be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from agents.device.messages import ProposeRequest
from agents.records import (
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Family,
    Workload,
    WorkloadId,
    canonical_json,
    is_live,
)
from fleet.coverage.candidates import REPLAY_SUFFIX, Space
from fleet.planner.planner_context import PlannerContext

#: Candidates that an agent is told not to draw, some 150 KB on the way to another process. In a space that
#: has many more few draws meet an older one.
MOST_EXCLUDED = 4096

_Key = tuple[str, WorkloadId, int, tuple[str, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRequest:
    """Candidates of one workload for one device."""

    device_id: DeviceId
    request_id: str
    workload: Workload
    count: int
    #: Traces to evolve from; empty for random ones.
    parents: tuple[str, ...] = ()
    #: Imported traces to derive from: nothing is drawn then.
    foreign: tuple[str, ...] = ()
    #: A head ranks them and takes the first.
    is_ranked: bool = False
    #: The device has nothing else to do, so its agent answers at once.
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Excluded:
    """Candidates that an agent is told not to draw."""

    #: The latest that are known.
    ids: frozenset[CandidateId]
    #: How many are known.
    known_count: int

    @property
    def is_all(self) -> bool:
        """Whether these are all that are known."""
        return len(self.ids) == self.known_count

    def without(self, drawn: Iterable[Candidate]) -> dict[CandidateId, Candidate]:
        """What of an answer is not among these."""
        return {
            candidate.candidate_id: candidate for candidate in drawn if candidate.candidate_id not in self.ids
        }

    def is_end(self, drawn: Sequence[Candidate]) -> bool:
        """Whether random draws show that there are no other candidates."""
        return not self.without(drawn) if self.is_all else not drawn


@dataclass(frozen=True, slots=True)
class SharedQuestion:
    """What one agent was asked for, and the requests that its answer is for: that of its own device first."""

    key: _Key
    count: int
    excluded: Excluded
    requests: list[CandidateRequest]

    def serves(self, request: CandidateRequest) -> bool:
        """Whether a request of the same key can wait for the answer."""
        # An idle device must not wait until another device is done with its batches.
        return request.count <= self.count and (self.requests[0].is_idle or not request.is_idle)


class CandidateRequests:
    """Requests that have no answer yet."""

    def __init__(self, context: PlannerContext) -> None:
        self._coverage, self._spaces = context.coverage, context.spaces
        self._families = context.coverage.families
        self._candidates, self._seed, self.propose = self._coverage.candidates, context.seed, context.propose
        #: Requests that no agent was asked for.
        self._open: dict[_Key, list[CandidateRequest]] = {}
        #: The last question of each key that has no answer, and all of them by the id of their first request.
        self._latest: dict[_Key, SharedQuestion] = {}
        self._asked: dict[str, SharedQuestion] = {}

    def add(self, request: CandidateRequest) -> None:
        """Note a request; the answer to what another device was asked a moment ago may do for it."""
        key = self._key(request)
        question = self._latest.get(key)
        if question is not None and question.serves(request):
            question.requests.append(request)
        else:
            self._open.setdefault(key, []).append(request)

    def send(self) -> None:
        """Ask agents for what was added."""
        # Many that ask at once, each for a head of its own, exclude the same.
        exclusions: dict[Space, Excluded] = {}
        for key, requests in self._open.items():
            chosen = max(requests, key=lambda request: (request.is_idle, request.count))
            space = self._families[chosen.device_id], chosen.workload.workload_id
            if space not in exclusions:
                latest = frozenset(self._candidates.latest(space, MOST_EXCLUDED))
                exclusions[space] = Excluded(latest, self._candidates.count(space))
            count, others = max(request.count for request in requests), [*requests]
            others.remove(chosen)
            question = SharedQuestion(key, count, exclusions[space], [chosen, *others])
            self._latest[key] = self._asked[chosen.request_id] = question
            self.propose(chosen.device_id, self._message(question))
        self._open.clear()

    def answered(self, request_id: str) -> SharedQuestion | None:
        """The question that an answer is for; None where nobody waits for it."""
        question = self._asked.pop(request_id, None)
        if question is not None and self._latest.get(question.key) is question:
            del self._latest[question.key]
        return question

    def unanswered(self, request_ids: Iterable[str], is_open: Callable[[CandidateRequest], bool]) -> None:
        """Ask others in place of an agent that will not answer, for those requests that are open."""
        for question in list(map(self.answered, request_ids)):
            for request in question.requests if question is not None else ():
                if is_open(request):
                    self.add(request)
        self.send()

    def fresh(
        self, request: CandidateRequest, excluded: Excluded, drawn: Mapping[CandidateId, Candidate]
    ) -> dict[CandidateId, Candidate]:
        """What of an answer is new to a device; what another device has drawn meanwhile is as good as new.

        Args:
            request: Of the device.
            excluded: What the agent was told.
            drawn: What it was not told (`Excluded.without`).
        """
        fresh = dict(islice(drawn.items(), request.count))
        if fresh and not excluded.is_all:
            workload_id = request.workload.workload_id
            for candidate_id in self._coverage.measured_among(request.device_id, workload_id, fresh):
                del fresh[candidate_id]
        return fresh

    def _message(self, question: SharedQuestion) -> ProposeRequest:
        first = question.requests[0]
        return ProposeRequest(
            request_id=first.request_id,
            workload=first.workload,
            count=question.count,
            # Draws of a seed are the same each time: another one for what comes on top.
            seed=(self._seed + question.excluded.known_count) % 2**31,
            parents=first.parents,
            exclude=question.excluded.ids,
            foreign=first.foreign,
        )

    def _key(self, request: CandidateRequest) -> _Key:
        device_id, workload_id = request.device_id, request.workload.workload_id
        space = self._spaces.get(device_id, f"/{device_id}")
        known_count = self._candidates.count((self._families[device_id], workload_id))
        # Each head chooses among draws of its own: it leaves out what others have chosen meanwhile. Imported
        # candidates are taken once.
        own = request.request_id if request.is_ranked or request.foreign else ""
        return space, workload_id, known_count, request.parents, own


def sharing_names(specs: Mapping[DeviceId, DeviceSpec], live: Collection[Family]) -> dict[DeviceId, str]:
    """Names under which devices share candidates: equal for those that measure what one of them has drawn.

    Devices of a family share. But where some are live, replay devices keep to themselves: what they answer
    from may be of others, and must not run.

    Args:
        specs: All devices, those that only the store knows included.
        live: Families of which the fleet has live devices.
    """
    return {
        device_id: str(spec.family)
        if is_live(spec) or spec.family not in live
        else f"{spec.family}{REPLAY_SUFFIX}"
        for device_id, spec in specs.items()
    }


def space_of(spec: DeviceSpec) -> str:
    """Equal for devices that draw alike: the same kind and target, the same records that are replayed."""
    replay = spec.replay
    source = [] if replay is None else [replay.records, replay.device, replay.failures]
    return canonical_json([spec.kind, spec.family, spec.target_json, *source])
