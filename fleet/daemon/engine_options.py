"""Which store, models and settings a request is for, and the daemon of that store.

`fleet/__init__.py` and the command line load it before anything heavy; `fleet.daemon.embedded` goes by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.api.client import DaemonClient, find_daemon
from fleet.errors import FleetError

if TYPE_CHECKING:
    from rich.console import Console

    from fleet.config.settings import FleetConfig

#: Sends a request to a daemon and returns it as it is at its end, or as it was accepted.
Follow = Callable[[DaemonClient, str, Mapping[str, Any], "EngineOptions"], Mapping[str, Any]]

NOBODY_TO_DETACH_TO = "--detach leaves it to a daemon, but none runs on this store; `fleet up` starts one"


def follow_quietly(
    daemon: DaemonClient, kind: str, arguments: Mapping[str, Any], options: EngineOptions
) -> Mapping[str, Any]:
    """Wait for a request without a word.

    Raises:
        FleetError: The daemon refuses it, is gone, or the request failed.
    """
    request_id = f"{kind}-{uuid.uuid4().hex[:8]}"
    request = {"id": request_id, "kind": kind, "arguments": dict(arguments), "minutes": options.minutes}
    ended: Mapping[str, Any] = daemon.submit(request)
    if options.is_detached:
        return ended
    *_, ended = daemon.follow(request_id)
    if ended["state"] in ("failed", "cancelled"):
        raise FleetError(f"request {request_id} {ended['state']}: {ended['reason']}")
    return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which store, models and settings the work is for, and which engine does it."""

    #: Folder of the store; None for that of the settings (`store.path`).
    store: Path | str | None = None
    #: Folder of the model versions.
    models: Path = Path("runs/models")
    #: Settings file; None for `configs/fleet.yaml`, or the built-in settings where that is absent.
    config: Path | None = None
    #: Settings on top of the file, by dotted key, such as `{"protocol.repeat": 3}`.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Head of a Ray cluster to join, as `host:port`.
    address: str | None = None
    #: Nothing new begins after so many minutes.
    minutes: float | None = None
    #: Leave the work to the daemon of the store and return at once.
    is_detached: bool = False
    #: Where progress is printed; nowhere if None.
    console: Console | None = None
    follow: Follow = follow_quietly

    def printed_to(self) -> Console:
        """Where progress is printed: a quiet console if none is named."""
        from fleet.terminal_text import TerminalConsole

        return self.console or TerminalConsole(quiet=True)

    def read(self, flags: Mapping[str, Any] | None = None) -> FleetConfig:
        """Read the settings.

        Args:
            flags: More settings by dotted key, which win; None where one was not given.

        Raises:
            FleetError: A file, a key or a value is wrong; every fault is named.
        """
        from fleet.config.settings import load_fleet

        flag_values = {"store.path": None if self.store is None else str(self.store), **(flags or {})}
        changes = {key: value for key, value in flag_values.items() if value is not None}
        return load_fleet(self.config, {**self.settings, **changes}).config


def connect(url: str, token: str) -> DaemonClient:
    """Give a client of a running daemon, on this host or through a tunnel.

    Args:
        url: Such as `http://127.0.0.1:8640`.
        token: What the daemon's file `api.token` holds.

    Raises:
        FleetError: Nobody answers there, or refuses the token.
    """
    client = DaemonClient(url.rstrip("/"), token, 0)
    if client.get("/v1/status") is None:
        raise FleetError(
            f"no daemon answers at {url}; `fleet up` starts one, and its api.json names the address"
        )
    return client


def daemon_of(settings: FleetConfig, models: Path | None = None) -> DaemonClient | None:
    """The daemon of this host that writes a store, if there is one.

    Args:
        settings: With the store.
        models: The folder of models that it must use; None where that does not matter.

    Raises:
        FleetError: One is there but does not answer, or it uses other models.
    """
    daemon = find_daemon(Path(settings.daemon.root))
    if daemon is None or _writer(Path(settings.store.path)) != daemon.pid:
        return None
    if models is not None:
        view = daemon.get("/v1/status") or {}
        theirs = view.get("training", {}).get("models")
        if theirs is not None and theirs != str(models.absolute()):
            raise FleetError(f"the daemon of {settings.store.path} uses the models {theirs}: give --models")
    return daemon


def trains_into(daemon: DaemonClient, models: Path) -> bool:
    """Whether a daemon trains into a folder of models."""
    view = daemon.get("/v1/status") or {}
    return bool(view.get("training", {}).get("models") == str(models.absolute()))


def _writer(store: Path) -> int | None:
    """Process that writes a store, as it says itself."""
    from fleet.store.reader import HOLDER

    try:
        return int((store / HOLDER).read_text())
    except (OSError, ValueError):
        return None
