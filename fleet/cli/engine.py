"""How a verb has the engine do something: the daemon of its store where one runs, else an engine of its own.

Called by `fleet.cli.jobs`, `training` and `tuning`. Loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.api.client import DaemonClient, find_daemon
from fleet.cli.requests import finish, run_request
from fleet.core.request_words import RequestKind
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

AddressOption = Annotated[
    str | None, typer.Option("--address", help="Join the Ray cluster with this head, as host:port.")
]
DetachOption = Annotated[bool, typer.Option("--detach", help="Leave it to the daemon, and do not follow it.")]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.1, help="Begin nothing new after so many minutes.")
]

NOBODY_TO_DETACH_TO = "--detach leaves it to a daemon, but none runs on this store; `fleet up` starts one"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What every verb that measures is told of the engine."""

    #: Folder of the model versions.
    models: Path
    address: str | None = None
    is_detached: bool = False
    minutes: float | None = None
    #: Settings were given on the command line, which a daemon would not know of.
    has_changes: bool = False
    #: Only JSON goes to standard output.
    as_json: bool = False


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


def do_request(
    settings: FleetConfig,
    kind: RequestKind,
    arguments: Mapping[str, Any],
    options: EngineOptions,
) -> dict[str, Any] | None:
    """Have the engine do what a request asks for.

    Args:
        settings: Devices, protocol, store; of the daemon its own hold, where one runs.
        kind: Of the request.
        arguments: Of the request; those that are None are left out.
        options: Of the engine.

    Returns:
        What came of it; None where it is left to the daemon.

    Raises:
        FleetError: It cannot be done.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    daemon = daemon_of(settings, options.models)
    if daemon is not None:
        if options.address is not None or options.has_changes:
            given_too = "--address" if options.address is not None else "--set"
            raise FleetError(
                f"a daemon runs on this store, process {daemon.pid}, and its own settings hold: leave out "
                f"{given_too}"
            )
        ended = run_request(
            daemon, kind.value, given, is_detached=options.is_detached, minutes=options.minutes
        )
        if options.is_detached:
            return None
        finish(ended, is_printed=False)
        result: dict[str, Any] = ended["result"]
        return result
    if options.is_detached:
        raise FleetError(NOBODY_TO_DETACH_TO)
    return _embedded(settings, kind, given, options)


def _embedded(
    settings: FleetConfig, kind: RequestKind, arguments: dict[str, Any], options: EngineOptions
) -> dict[str, Any]:
    from fleet.collection.progress import TerminalDisplay
    from fleet.daemon.daemon import UpOptions
    from fleet.daemon.embedded import run_embedded
    from fleet.drivers.work import Work, perform
    from fleet.terminal_console import TerminalConsole

    if "devices" not in arguments and "device" not in arguments:
        from fleet.collection.device_choice import DeviceChoice

        choice = DeviceChoice(settings, is_cluster=options.address is not None)
        choice.warn()
        arguments = {**arguments, "devices": sorted(choice.files.specs)}
    console = TerminalConsole(stderr=options.as_json)
    display = TerminalDisplay(console)
    work = Work(
        kind=kind,
        arguments=arguments,
        minutes=options.minutes,
        settings=settings,
        models=options.models,
    )
    return run_embedded(
        settings,
        kind,
        arguments,
        UpOptions(models=options.models, address=options.address),
        console,
        lambda session: perform(work, session, display),
    )


def _writer(store: Path) -> int | None:
    """Process that writes a store, as it says itself."""
    from fleet.store.lock import HOLDER

    try:
        return int((store / HOLDER).read_text())
    except (OSError, ValueError):
        return None


__all__ = [
    "NOBODY_TO_DETACH_TO",
    "AddressOption",
    "DetachOption",
    "EngineOptions",
    "MinutesOption",
    "daemon_of",
    "do_request",
]
