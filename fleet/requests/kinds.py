"""The kinds of requests by name, and what a request must be before the state hears of it.

A further kind is a module like `fleet.requests.retire` and one line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fleet.core.request_words import Request, RequestId, RequestKind
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
