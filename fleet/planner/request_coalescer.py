"""Requests for candidates that several devices have alike: the agent of one of them is asked for all.

Only `fleet.planner.job_planner` calls it. Equal requests are answered alike by devices whose programs are
made alike, so a thousand devices that begin together would draw the same a thousand times. It knows no agent
and no candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from agents.device.messages import ProposeRequest
from agents.records import DeviceId, DeviceSpec, Family, Workload, WorkloadId, canonical_json
from agents.trust import is_live
from fleet.coverage.family_candidates import REPLAY_SUFFIX
from fleet.planner.dedup_filter import Excluded

_Key = tuple[str, WorkloadId, int, tuple[str, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRequest:
    """Candidates of one workload for one device."""

    device_id: DeviceId
    request_id: str
    workload: Workload
    count: int
    #: Candidates not to draw.
    excluded: Excluded
    #: Traces to evolve from; empty for random ones.
    parents: tuple[str, ...]
    #: Imported traces to derive from: nothing is drawn then.
    foreign: tuple[str, ...] = ()
    #: A head ranks them and takes the first.
    is_ranked: bool
    #: The device has nothing else to do, so its agent answers at once.
    is_idle: bool

    def message(self, count: int, seed: int) -> ProposeRequest:
        """What the agent is asked for this request, and for others like it."""
        return ProposeRequest(
            request_id=self.request_id,
            workload=self.workload,
            count=count,
            # Draws of a seed are the same each time: another one for what comes on top.
            seed=(seed + self.excluded.known_count) % 2**31,
            parents=self.parents,
            exclude=self.excluded.ids,
            foreign=self.foreign,
        )


class RequestCoalescer:
    """Requests that have no answer yet.

    Args:
        spaces: What each device draws from (`space_of`); devices that are not named share with none.
    """

    def __init__(self, spaces: Mapping[DeviceId, str]) -> None:
        self._spaces = spaces
        #: Requests that no agent was asked for.
        self._open: dict[_Key, list[CandidateRequest]] = {}
        #: The request that an agent was asked for, and for how many candidates.
        self._outstanding: dict[_Key, tuple[CandidateRequest, int]] = {}
        #: By id of what was asked: the requests that wait for the answer, that of the agent itself first.
        self._waiting: dict[str, list[CandidateRequest]] = {}

    def add(self, request: CandidateRequest) -> None:
        """Note a request; the answer to what another device was asked a moment ago may do for it."""
        key = self._key(request)
        outstanding, count = self._outstanding.get(key, (None, 0))
        # An idle device must not wait until another device is done with its batches.
        if (
            outstanding is not None
            and request.count <= count
            and (outstanding.is_idle or not request.is_idle)
        ):
            self._waiting[outstanding.request_id].append(request)
        else:
            self._open.setdefault(key, []).append(request)

    def due(self, seed: int) -> list[tuple[DeviceId, ProposeRequest]]:
        """What agents are to be asked now; the seed is that of the draws."""
        messages: list[tuple[DeviceId, ProposeRequest]] = []
        for key, requests in self._open.items():
            chosen = max(requests, key=lambda request: (request.is_idle, request.count))
            count = max(request.count for request in requests)
            self._outstanding[key] = chosen, count
            self._waiting[chosen.request_id] = [
                chosen,
                *(request for request in requests if request is not chosen),
            ]
            messages.append((chosen.device_id, chosen.message(count, seed)))
        self._open.clear()
        return messages

    def answered(self, request_id: str) -> list[CandidateRequest]:
        """The requests that an answer is for, that of the agent itself first."""
        requests = self._waiting.pop(request_id, [])
        if requests:
            key = self._key(requests[0])
            if key in self._outstanding and self._outstanding[key][0] is requests[0]:
                del self._outstanding[key]
        return requests

    def unanswered(self, request_ids: Iterable[str], is_open: Callable[[CandidateRequest], bool]) -> None:
        """Let others be asked in place of an agent that will not answer, for those requests that are open."""
        for request in [request for request_id in request_ids for request in self.answered(request_id)]:
            if is_open(request):
                self.add(request)

    def _key(self, request: CandidateRequest) -> _Key:
        space = self._spaces.get(request.device_id, f"/{request.device_id}")
        # Each head chooses among draws of its own: it leaves out what others have chosen meanwhile. Imported
        # candidates are taken once.
        own = request.request_id if request.is_ranked or request.foreign else ""
        return space, request.workload.workload_id, request.excluded.known_count, request.parents, own


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
