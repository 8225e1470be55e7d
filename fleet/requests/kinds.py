"""The kinds of requests by name, and what a request must be before the state hears of it.

A further kind is a module like `fleet.requests.retire` and one line here.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fleet.core.events import Event, RequestCancelled, RequestSubmitted
from fleet.core.state import FleetState
from fleet.core.words import Request, RequestId, RequestKind
from fleet.errors import FleetError
from fleet.requests.collect import Collect
from fleet.requests.evaluate import Evaluate
from fleet.requests.fingerprint import FingerprintDevices
from fleet.requests.import_logs import ImportLogs
from fleet.requests.onboard import Onboard
from fleet.requests.request_kind import (
    KnownFleet,
    RequestArguments,
    RequestConflict,
    RequestRefused,
    RequestUnknown,
    listed,
    read_struct,
)
from fleet.requests.retire import Retire
from fleet.requests.train import Train
from fleet.requests.tune import Tune

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


KINDS: Final[Mapping[RequestKind, type[RequestArguments]]] = {
    kind.kind: kind
    for kind in (Collect, Evaluate, FingerprintDevices, ImportLogs, Onboard, Retire, Train, Tune)
}

#: Longest body that holds a request.
MOST_BYTES = 64 << 10


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends."""

    #: `$` alone would let a line end follow.
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?!\n)$")]
    kind: RequestKind
    arguments: dict[str, Any]
    minutes: Annotated[float, Meta(gt=0, le=60.0 * 24 * 365)] | None = None


def read_arguments(kind: RequestKind, values: Mapping[str, Any]) -> RequestArguments:
    """Read the arguments of a request of any kind.

    Raises:
        RequestRefused: One is missing, unknown or out of its bounds; the message names it.
    """
    return KINDS[kind].read(values)


def perform(work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
    """Do what a request asks for, as its driver.

    Returns:
        What came of it, JSON-ready.

    Raises:
        FleetError, AgentError, TransferError: It cannot be done; what was measured is stored.
    """
    return read_arguments(work.kind, work.arguments).perform(work, session, display)


def parse_request(body: bytes) -> Request:
    """Read a request from JSON: `id`, `kind`, `arguments`, and `minutes` or null.

    Raises:
        RequestRefused: It is none.
    """
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"a request is one JSON object; got {body[:60]!r}: {error}") from None
    read = read_struct(RequestBody, value)
    return Request(
        request_id=RequestId(read.id), kind=read.kind, arguments=read.arguments, minutes=read.minutes
    )


def check_request(request: Request, fleet: KnownFleet, open_requests: Iterable[Request]) -> Request:
    """Check a new request against the fleet, and against those that have not ended.

    Returns:
        The same with its arguments as the state wants them.

    Raises:
        RequestRefused: It names what is not there, or asks for what this fleet does not do.
        RequestConflict: Another one asks for the same.
    """
    arguments = read_arguments(request.kind, request.arguments)
    _check_paths(arguments, fleet.folders)
    checked = replace(request, arguments=arguments.check(fleet))
    for other in open_requests:
        if other.kind is not request.kind:
            continue
        if does := arguments.conflict(other, fleet):
            raise RequestConflict(
                f"{other.kind}: request {other.request_id} {does} already; follow it (fleet requests follow "
                f"{other.request_id}) or cancel it"
            )
    return checked


def _check_paths(arguments: RequestArguments, folders: tuple[Path, ...] | None) -> None:
    """Refuse what lies outside of the folders; links count as what they lead to.

    Raises:
        RequestRefused: It names the path, the folders, and the setting.
    """
    if folders is None:
        return
    allowed = [folder.resolve() for folder in folders]
    for path in arguments.host_paths:
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
            raise RequestRefused(
                f"{arguments.kind}: the path {str(path)!r:.200} cannot be looked at: {error}"
            ) from None
        if not any(real.is_relative_to(folder) for folder in allowed):
            raise RequestRefused(
                f"{arguments.kind}: {str(real)!r:.200} is outside of the folders of this daemon "
                f"({listed(map(str, allowed))}): add its folder to daemon.folders and start `fleet up` again"
            )


# Where other threads leave requests for the coordinator, and see what became of them.
#
# `fleet.api.requests` calls `submit`, `cancel`, `get` and `listed` from its own thread; all else is for the
# coordinator's. Neither touches what the other one owns: orders go through a queue, and what is shown are
# copies that nobody changes. An answer is given once the event behind it is durable.

#: Orders that may wait for the next turn of the coordinator.
_MOST_WAITING = 256

#: A request as its clients see it (`fleet.core.requests.RequestEntry.describe`). Nobody changes one.
Shown = Mapping[str, Any]


class DeskFull(FleetError):  # noqa: N818 - a state of the desk, named so
    """More orders wait for the coordinator than may."""


@dataclass(frozen=True, slots=True)
class _Order:
    """One thing that a client wants of the coordinator; without a request it cancels the one of this id."""

    request_id: RequestId
    request: Request | None
    answer: Future[Shown] = field(default_factory=Future)


class RequestDesk:
    """Orders on their way in, and pictures of all requests on their way out."""

    def __init__(self) -> None:
        self._orders: queue.Queue[_Order] = queue.Queue(_MOST_WAITING)
        self._requests: dict[str, Shown] = {}
        #: Answers that wait until what they answer is durable.
        self._waiting: dict[RequestId, list[Future[Shown]]] = {}

    # ---- for any thread ----

    def submit(self, request: Request) -> Future[Shown]:
        """Leave a request; the answer comes once it is durable, or is a `RequestRefused`.

        Raises:
            DeskFull: Too many wait already.
        """
        return self._leave(_Order(request.request_id, request))

    def cancel(self, request_id: str) -> Future[Shown]:
        """Cancel a request; the answer is what it is then, which may be another end that came first.

        Raises:
            DeskFull: Too many wait already.
        """
        return self._leave(_Order(RequestId(request_id), None))

    def get(self, request_id: str) -> Shown | None:
        """One request as of the last turn."""
        return self._requests.get(request_id)

    def listed(self) -> list[Shown]:
        """All that are kept, in the order of their coming."""
        return list(self._requests.values())

    def _leave(self, order: _Order) -> Future[Shown]:
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            text = f"{_MOST_WAITING} orders wait for the coordinator already; try again in a moment"
            raise DeskFull(text) from None
        return order.answer

    # ---- for the coordinator's thread ----

    def open(self, state: FleetState) -> None:
        """Show what there is at the start."""
        self._requests = {
            request_id: request
            for request_id in state.request_ids()
            if (request := state.request(request_id))
        }

    def show(self, state: FleetState, request_id: RequestId) -> None:
        """Show what a request is now, and answer those who wait for that; it is durable."""
        request = state.request(request_id)
        if request is not None and request_id in self._requests:
            self._requests[request_id] = request  # it has made progress: no other one comes or goes
        else:
            requests = self._requests if request is None else {**self._requests, request_id: request}
            self._requests = {
                open_id: requests[open_id] for open_id in state.request_ids() if open_id in requests
            }
        for answer in self._waiting.pop(request_id, ()):
            if request is not None:
                _give(answer, request)
            else:
                # Whoever asked may have given up meanwhile.
                with suppress(InvalidStateError):
                    answer.set_exception(RequestUnknown(f"request {request_id} ended, and is not kept"))

    def serve(
        self, state: FleetState, fleet: Callable[[], KnownFleet], emit: Callable[[Event], None]
    ) -> None:
        """Turn queued orders into events: emit those that follow, or answer at once where none does.

        The events so far of `state` are durable; those that are emitted are applied after this. `fleet` is
        asked only where there are orders.
        """
        new_requests: dict[RequestId, Request] = {}
        for _ in range(self._orders.qsize()):
            order = self._orders.get_nowait()
            try:
                event = self._event_of(order, state, fleet(), new_requests)
            except RequestRefused as error:
                with suppress(InvalidStateError):
                    order.answer.set_exception(error)
                continue
            request = state.request(order.request_id)
            if event is None and request is not None:
                _give(order.answer, request)
                continue
            self._waiting.setdefault(order.request_id, []).append(order.answer)
            if event is not None:
                emit(event)

    @staticmethod
    def _event_of(
        order: _Order,
        state: FleetState,
        fleet: KnownFleet,
        new_requests: dict[RequestId, Request],
    ) -> Event | None:
        """The event that an order makes; None where all has happened already."""
        request, same = state.request(order.request_id), new_requests.get(order.request_id)
        if order.request is None:
            if request is None and same is None:
                text = f"no request {order.request_id!r:.80}; `fleet requests list` shows those there are"
                raise RequestUnknown(text)
            if request is not None and request["ended_at"] is not None:
                return None
            return RequestCancelled(request_id=order.request_id, reason="cancelled by a user")
        if request is not None or same is not None:
            before = _contents(same) if same is not None else dict(request or {})
            checked = check_request(order.request, fleet, ())
            if any(before[name] != value for name, value in _contents(checked).items()):
                raise RequestConflict(
                    f"id: there is a request {order.request_id} with other contents; choose another id"
                )
            return None
        others = [*state.open_requests(), *new_requests.values()]
        new_requests[order.request_id] = checked = check_request(order.request, fleet, others)
        return RequestSubmitted(request=checked)


def _contents(request: Request) -> dict[str, Any]:
    """What two requests of one id must have alike, under the names of what is shown."""
    return {
        "kind": request.kind.value,
        "arguments": dict(request.arguments),
        "minutes": request.minutes,
    }


def _give(answer: Future[Shown], request: Shown) -> None:
    # Whoever asked may have given up meanwhile.
    with suppress(InvalidStateError):
        answer.set_result(request)
