"""`fleet train` beside a running daemon: the daemon trains, and this follows it.

Called by `fleet.cli.training`. It loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.api.client import DaemonClient, find_daemon
from fleet.cli.output import print_json
from fleet.cli.requests import finish, run_request
from fleet.errors import FleetError
from fleet.store.lock import HOLDER

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig


def training_daemon(settings: FleetConfig, models: Path) -> DaemonClient | None:
    """The daemon of this host that writes a store and trains into a folder of models, if there is one.

    Raises:
        FleetError: One is there but does not answer.
    """
    daemon = find_daemon(Path(settings.daemon.root))
    if daemon is None or _writer(Path(settings.store.path)) != daemon.pid:
        return None
    view = daemon.get("/v1/status") or {}
    trained = view.get("training", {}).get("models")
    return daemon if trained == str(models.absolute()) else None


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


def _writer(store: Path) -> int | None:
    """Process that writes a store, as it says itself."""
    try:
        return int((store / HOLDER).read_text())
    except (OSError, ValueError):
        return None


__all__ = ["request_trainings", "training_daemon"]
