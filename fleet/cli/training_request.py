"""`fleet train` beside a running daemon: the daemon trains, and this follows it.

Called by `fleet.cli.training`. It loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.api.client import DaemonClient
from fleet.cli.output import print_json
from fleet.cli.requests import finish, run_request
from fleet.errors import FleetError


def request_trainings(
    daemon: DaemonClient, devices: Sequence[str], *, is_detached: bool, as_json: bool
) -> None:
    """Ask a daemon for a training of every family that is meant, and follow one after the other.

    Args:
        daemon: Who trains.
        devices: Those whose families are meant; all where empty.
        is_detached: Follow none.
        as_json: Print one JSON list of the requests.

    Raises:
        FleetError: The daemon has no such device, refuses, or a training failed.
    """
    families = {one: str(found["family"]) for one, found in daemon.get("/v1/devices").items()}
    if unknown := [one for one in devices if one not in families]:
        listed = ", ".join(sorted(families)) or "none"
        raise FleetError(f"the daemon knows no device {unknown[0]!r}; it has: {listed}")
    ended: list[dict[str, Any]] = []
    for family in sorted({families[one] for one in devices or families}):
        named = sorted({one for one in devices if families[one] == family})
        arguments = {"devices": named} if named else {"family": family}
        ended.append(run_request(daemon, "training", arguments, is_detached=is_detached))
    if as_json:
        print_json(ended)
    for one in ended:
        finish(one, is_printed=not as_json)


__all__ = ["request_trainings"]
