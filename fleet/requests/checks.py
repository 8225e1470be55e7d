"""What a request must be before the state hears of it: its shape, its arguments, the others that run.

`fleet.api.requests` has a body parsed, `fleet.requests.desk` has it checked against the fleet. What passes
both is one that the engine can begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fleet.core.request_words import Request, RequestId, RequestKind
from fleet.errors import FleetError
from fleet.requests.arguments import (
    Arguments,
    ArgumentsError,
    ImportArguments,
    devices_of,
    paths_of,
    read_arguments,
)

#: Longest body that holds a request.
MOST_BYTES = 64 << 10
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELDS = {"id", "kind", "arguments", "minutes"}
_MOST_MINUTES = 60.0 * 24 * 365


class RequestRefused(FleetError):  # noqa: N818 - what became of the request, named so
    """A request that is none, or that the fleet cannot do; the message says what to change."""


class RequestConflict(RequestRefused):
    """Another request stands in the way: one with the same id, or one that asks for the same."""


class RequestUnknown(RequestRefused):
    """There is no request of this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFleet:
    """What requests may be about."""

    #: Family of each device, those that only the store knows included.
    families: Mapping[str, str]
    #: Whether this coordinator trains.
    trains: bool
    #: Devices that it looks after.
    devices: frozenset[str] = frozenset()
    #: Folders in which requests may read and write; None for any, where who asks runs the coordinator.
    folders: tuple[Path, ...] | None = None


def parse_request(body: bytes) -> Request:
    """Read a request from JSON: `id`, `kind`, `arguments`, and `minutes` or null.

    Raises:
        RequestRefused: It is none.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"a request is one JSON object; got {body[:60]!r}: {error}") from None
    if not isinstance(value, dict):
        raise RequestRefused(f"a request is one JSON object with {_listed(_FIELDS)}; got {body[:60]!r}")
    if unknown := value.keys() - _FIELDS:
        raise RequestRefused(f"a request has the fields {_listed(_FIELDS)}; got {_listed(unknown)} as well")
    request_id, kind, arguments = (value.get(name) for name in ("id", "kind", "arguments"))
    if not isinstance(request_id, str) or not _ID.fullmatch(request_id):
        raise RequestRefused(
            f"id: expected 1 to 64 letters, digits, dots, dashes or underscores, got {request_id!r:.80}"
        )
    if not isinstance(kind, str) or kind not in set(RequestKind):
        raise RequestRefused(f"kind: expected one of {_listed(RequestKind)}, got {kind!r:.80}")
    if not isinstance(arguments, dict):
        raise RequestRefused(f"arguments: expected a JSON object, got {arguments!r:.80}")
    return Request(
        request_id=RequestId(request_id),
        kind=RequestKind(kind),
        arguments=arguments,
        minutes=_minutes(value.get("minutes")),
    )


def check_request(request: Request, fleet: KnownFleet, open_requests: Iterable[Request]) -> Request:
    """Check a new request against the fleet, and against those that have not ended.

    Returns:
        The same with its arguments as the state wants them.

    Raises:
        RequestRefused: It names what is not there, or asks for what this fleet does not do.
        RequestConflict: Another one asks for the same.
    """
    if request.kind is not RequestKind.TRAINING:
        return _checked(request, fleet, open_requests)
    if not fleet.trains:
        raise RequestRefused("training: this daemon trains no models; start it with daemon.refresh on")
    checked = replace(request, arguments=_training(request.arguments, fleet.families))
    for other in open_requests:
        if other.kind is RequestKind.TRAINING and other.family == checked.family:
            raise _conflict(other, f"asks for family {other.family}")
    return checked


def _checked(request: Request, fleet: KnownFleet, open_requests: Iterable[Request]) -> Request:
    """Check a request of another kind: its devices are here, and no other asks the same of them."""
    kind = request.kind
    try:
        arguments = read_arguments(kind, request.arguments)
    except ArgumentsError as error:
        raise RequestRefused(str(error)) from None
    _check_paths(kind, arguments, fleet.folders)
    if isinstance(arguments, ImportArguments):
        # No other one reads logs of the same device. Its files are looked at by its driver.
        for other in open_requests:
            if other.kind is kind and other.arguments["device"] == arguments.device:
                raise _conflict(other, f"reads logs of {arguments.device}")
        return replace(request, arguments=arguments.model_dump(exclude_unset=True))
    named = devices_of(arguments)
    # The store may have records of devices that left.
    here = frozenset(fleet.families) if kind is RequestKind.EVALUATION else fleet.devices
    if unknown := [one for one in named if one not in here]:
        raise RequestRefused(f"{kind}: no device {unknown[0]!r:.80} here; there are: {_listed(here)}")
    mine = set(named) or here
    for other in open_requests:
        if other.kind is not kind or other.is_background:
            continue
        several, alone = other.arguments.get("devices", ()), other.arguments.get("device")
        theirs = {*several, *([alone] if alone else [])} or here
        if shared := mine & theirs:
            raise _conflict(other, f"works on {_listed(shared)}")
    values = arguments.model_dump(exclude_unset=True)
    if kind is RequestKind.COLLECTION:
        values["devices"] = sorted(mine)
    return replace(request, arguments=values)


def _check_paths(kind: RequestKind, arguments: Arguments, folders: tuple[Path, ...] | None) -> None:
    """Refuse what lies outside of the folders; links count as what they lead to.

    Raises:
        RequestRefused: It names the path, the folders, and the setting.
    """
    if folders is None:
        return
    allowed = [folder.resolve() for folder in folders]
    for path in paths_of(arguments):
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
            raise RequestRefused(
                f"{kind}: the path {str(path)!r:.200} cannot be looked at: {error}"
            ) from None
        if not any(real.is_relative_to(folder) for folder in allowed):
            raise RequestRefused(
                f"{kind}: {str(real)!r:.200} is outside of the folders of this daemon "
                f"({_listed(map(str, allowed))}): add its folder to daemon.folders and start `fleet up` again"
            )


def _conflict(other: Request, does: str) -> RequestConflict:
    return RequestConflict(
        f"{other.kind}: request {other.request_id} {does} already; follow it (fleet requests follow "
        f"{other.request_id}) or cancel it"
    )


def _training(arguments: Mapping[str, Any], families: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a training: the family, and the devices where those were named."""
    if set(arguments) == {"family"}:
        family = arguments["family"]
        if not isinstance(family, str) or family not in families.values():
            known = _listed(set(families.values()))
            raise RequestRefused(f"training: no device of family {family!r:.80}; there are: {known}")
        return {"family": family}
    devices = arguments.get("devices")
    if set(arguments) != {"devices"} or not isinstance(devices, list) or not devices:
        raise RequestRefused(
            f"training: expected family, or devices as a list that is not empty; got {dict(arguments)!r:.80}"
        )
    if unknown := [one for one in devices if not isinstance(one, str) or one not in families]:
        raise RequestRefused(f"training: no device {unknown[0]!r:.80}; there are: {_listed(families)}")
    found = {families[one] for one in devices}
    if len(found) > 1:
        raise RequestRefused(
            f"training: a request is for one family, but these devices are of {_listed(found)}; "
            "send one for each"
        )
    return {"family": found.pop(), "devices": sorted(set(devices))}


def _minutes(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_MINUTES:
        raise RequestRefused(
            f"minutes: expected a number above 0 and up to {_MOST_MINUTES:,.0f}, or null for no limit; "
            f"got {value!r:.80}"
        )
    return float(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
