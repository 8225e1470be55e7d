"""Verbs about requests to a running daemon: `fleet requests list`, `show`, `follow` and `cancel`.

Registered by `fleet.cli.app`. `run_request` is what other verbs send theirs with. Loads nothing heavy.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.api.client import DaemonClient, find_daemon
from fleet.cli.options import Settings
from fleet.cli.output import Interrupted, JsonOption, print_json, short_moment
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.terminal_text import print_rows, print_text

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from fleet.daemon.engine_options import EngineOptions

_RequestId = Annotated[str, typer.Argument(metavar="ID", help="Id of a request (fleet requests list).")]


def list_requests(settings: Settings, as_json: JsonOption = False) -> None:
    """List the open requests and the latest ended ones.

    Example: fleet requests list
    """
    requests: list[JsonDict] = running_daemon(settings).get("/v1/requests") or []
    if as_json:
        print_json(requests)
    elif not requests:
        print_text("no requests; `fleet train` makes one")
    else:
        rows = [
            (
                request["id"],
                request["kind"],
                request["state"],
                short_moment(request["submitted_at"]),
                _so_far(request),
            )
            for request in requests
        ]
        columns = ("request", "kind", "state", "submitted", "so far")
        # An id is copied from here, so it stays on one line.
        print_rows(columns, rows, narrow=columns)


def show(
    request_id: _RequestId,
    settings: Settings,
    as_json: JsonOption = False,
) -> None:
    """Show the arguments, state and result of a request.

    Example: fleet requests show train-3f9c
    """
    listed: list[JsonDict] = running_daemon(settings).get("/v1/requests") or []
    request = next((entry for entry in listed if entry["id"] == request_id), None)
    if request is None:
        raise FleetError(f"no request {request_id!r}; `fleet requests list` shows the known ones")
    if as_json:
        print_json(request)
        return
    moments = {"submitted_at", "started_at", "ended_at"}
    rows = [
        (name, short_moment(value) if name in moments else value)
        for name, value in request.items()
        if value not in (None, "", {})
    ]
    print_rows(("request", request_id), rows)


def follow(
    request_id: _RequestId,
    settings: Settings,
    as_json: JsonOption = False,
) -> None:
    """Follow a request until it has ended; exit code 0 if it succeeded.

    Ctrl-C asks whether to leave the request to the daemon or to cancel it.

    Example: fleet requests follow train-3f9c
    """
    request = follow_request(running_daemon(settings), request_id)
    if as_json:
        print_json(request)
    finish(request, is_printed=not as_json)


def cancel(
    request_id: _RequestId,
    settings: Settings,
    as_json: JsonOption = False,
) -> None:
    """Cancel a request, and stop the work that is done for it alone. An ended request stays as it is.

    Example: fleet requests cancel train-3f9c
    """
    request = running_daemon(settings).cancel(request_id)
    if as_json:
        print_json(request)
    else:
        print_text(f"request {request_id} is {request['state']}")


def run_request(
    daemon: DaemonClient,
    kind: str,
    arguments: Json,
    *,
    is_detached: bool,
    minutes: float | None = None,
) -> JsonDict:
    """Send a request to a daemon and follow it until it has ended, unless it is detached.

    Returns:
        The request as it is at its end, or as it was accepted.

    Raises:
        FleetError: The daemon is of another version, will not have it, or is gone.
    """
    check_version(daemon)
    request_id = f"{kind}-{uuid.uuid4().hex[:8]}"
    accepted = daemon.submit(
        {"id": request_id, "kind": kind, "arguments": dict(arguments), "minutes": minutes}
    )
    _print_note(f"request {request_id} is accepted; `fleet requests follow {request_id}` shows its progress")
    return accepted if is_detached else follow_request(daemon, request_id)


def follow_aloud(daemon: DaemonClient, kind: str, arguments: Json, options: EngineOptions) -> JsonDict:
    """Follow a request on standard error, for `fleet.daemon.embedded`.

    Raises:
        FleetError: The daemon will not have it, is gone, or the request failed.
    """
    ended = run_request(daemon, kind, arguments, is_detached=options.is_detached, minutes=options.minutes)
    if not options.is_detached:
        finish(ended, is_printed=False)
    return ended


def check_version(daemon: DaemonClient) -> None:
    """Refuse to send requests to a daemon that may understand them otherwise.

    Raises:
        FleetError: It is of another version.
    """
    from importlib.metadata import version

    view = daemon.get("/v1/status") or {}
    theirs, ours = view.get("coordinator", {}).get("version", "unknown"), version("tensor-fleet")
    if theirs != ours:
        raise FleetError(
            f"the daemon at {daemon.url} is version {theirs}, this command is {ours}; stop it and start it "
            "again with this version"
        )


def follow_request(daemon: DaemonClient, request_id: str) -> JsonDict:
    """Print a line on standard error whenever a request has changed, until it has ended; return it then.

    Raises:
        FleetError: There is no request of this id, or the daemon is gone.
        Interrupted: The user pressed Ctrl-C, and has chosen what becomes of the request.
    """
    last: JsonDict = {}
    try:
        for last in daemon.follow(request_id):
            _print_note(f"{last['state']}{': ' if (so_far := _so_far(last)) else ''}{so_far}")
    except Interrupted:
        _interrupted(daemon, request_id)
        raise
    return last


def finish(request: Json, *, is_printed: bool = True) -> None:
    """Print the result of a request, unless that was done.

    Raises:
        FleetError: It failed or was cancelled.
    """
    if is_printed and request["result"]:
        print_rows(("request", request["id"]), request["result"].items())
    if request["state"] in ("failed", "cancelled"):
        raise FleetError(f"request {request['id']} {request['state']}: {request['reason']}")


def _interrupted(daemon: DaemonClient, request_id: str) -> None:
    """Ask what becomes of a request after Ctrl-C; without a terminal it continues."""
    answer = ""
    if sys.stdin.isatty():
        _print_note("leave it to the daemon (Enter), or cancel it (c)?")
        answer = sys.stdin.readline().strip().lower()
    if answer.startswith("c"):
        _print_note(f"request {request_id} is {daemon.cancel(request_id)['state']}")
    else:
        _print_note(
            f"request {request_id} continues; `fleet requests follow {request_id}` shows its progress"
        )


def running_daemon(settings: FleetConfig) -> DaemonClient:
    """The daemon on the folder of the settings.

    Raises:
        FleetError: None runs there.
    """
    root = Path(settings.daemon.root)
    daemon = find_daemon(root)
    if daemon is None:
        raise FleetError(f"no daemon runs on {root}; `fleet up` starts one")
    return daemon


def _so_far(request: Json) -> str:
    """The progress of a request, or its outcome."""
    time_left = f", about {request['left_secs']:.0f} s left" if request["left_secs"] else ""
    return str(request["reason"] or f"{request['finding']}{time_left}")


def _print_note(text: str) -> None:
    print_text(text, error=True)
