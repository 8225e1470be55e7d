"""Who does what a request asks for: the daemon of the store if one runs, else an engine in this process.

`fleet/__init__.py` loads it at the first use, and the verbs of the command line call it.
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
    from fleet.requests.request_kind import RequestArguments
    from fleet.requests.work import Work

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
    asked = {"id": request_id, "kind": kind, "arguments": dict(arguments), "minutes": options.minutes}
    ended: Mapping[str, Any] = daemon.submit(asked)
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
        from fleet.terminal_console import TerminalConsole

        return self.console or TerminalConsole(quiet=True)

    def read(self, flags: Mapping[str, Any] | None = None) -> FleetConfig:
        """Read the settings.

        Args:
            flags: More settings by dotted key, which win; None where one was not given.

        Raises:
            FleetError: A file, a key or a value is wrong; every fault is named.
        """
        from fleet.config.settings import load_fleet

        given = {"store.path": None if self.store is None else str(self.store), **(flags or {})}
        known = {key: value for key, value in given.items() if value is not None}
        return load_fleet(self.config, {**self.settings, **known}).config


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


def run(request: RequestArguments, options: EngineOptions | None = None) -> dict[str, Any] | None:
    """Have a request done: a collection, an onboarding, a search, an import, an evaluation.

    Where a daemon runs on the store, it does the work; else an engine runs inside of this process.

    Args:
        request: Such as `fleet.Onboard(device="board-7", samples=64)`.
        options: Store, models, settings, engine; the usual ones if None.

    Returns:
        What came of it, as the request's class says; None where the daemon was left alone with it.

    Raises:
        FleetError: It cannot be done; what was measured is stored.
        AgentError: A network cannot be used.
        TransferError: There is too little to learn from.
    """
    options = options or EngineOptions()
    settings = options.read(request.setting_changes())
    if request.needs_engine and request.device_ids:
        settings = settings.with_devices(*request.device_ids)
    request.check_files(settings)
    daemon = _daemon_for(request, settings, options)
    if daemon is not None:
        ended = options.follow(daemon, request.kind.value, request.values(), options)
        return None if options.is_detached else dict(ended["result"])
    if options.is_detached:
        raise FleetError(NOBODY_TO_DETACH_TO)
    if request.needs_engine:
        return _run_embedded(request, settings, options)
    from fleet.collection.progress import TerminalDisplay

    return request.perform_alone(_work(request, settings, options), TerminalDisplay(options.printed_to()))


def _daemon_for(
    request: RequestArguments, settings: FleetConfig, options: EngineOptions
) -> DaemonClient | None:
    """The daemon that is to do a request; None where it is done here.

    Raises:
        FleetError: One runs on the store, and what the options say holds for an engine here only.
    """
    if request.is_reader:
        daemon = None if options.settings else daemon_of(settings)
        is_other = daemon is not None and request.needs_models and not trains_into(daemon, options.models)
        return None if is_other else daemon
    daemon = daemon_of(settings, options.models if request.needs_models else None)
    if daemon is not None and (options.address is not None or options.settings):
        given = "--address" if options.address is not None else "--set"
        raise FleetError(
            f"a daemon runs on this store, process {daemon.pid}, and its own settings hold: leave out {given}"
        )
    return daemon


def trains_into(daemon: DaemonClient, models: Path) -> bool:
    """Whether a daemon trains into a folder of models."""
    view = daemon.get("/v1/status") or {}
    return bool(view.get("training", {}).get("models") == str(models.absolute()))


def _run_embedded(request: RequestArguments, settings: FleetConfig, options: EngineOptions) -> dict[str, Any]:
    from fleet.collection.progress import TerminalDisplay
    from fleet.collection.replay_files import REPLAY
    from fleet.daemon.daemon import SPOOL, UpOptions
    from fleet.daemon.embedded import run_embedded
    from fleet.store.new_store import records_or_nothing

    work = _work(request, settings, options)
    request.check_work(work)
    store = Path(settings.store.path)
    beside = (Path(settings.daemon.root), store.parent / SPOOL, store.parent / REPLAY)
    with records_or_nothing(store, *beside):
        if not request.device_ids:
            from fleet.collection.device_choice import DeviceChoice

            choice = DeviceChoice(settings, is_cluster=options.address is not None)
            choice.warn()
            request = request.read({**request.values(), "devices": sorted(choice.files.specs)})
        console = options.printed_to()
        display = TerminalDisplay(console)
        return run_embedded(
            settings,
            request.kind,
            request.values(),
            UpOptions(models=options.models, address=options.address),
            console,
            lambda session: request.perform(work, session, display),
        )


def _work(request: RequestArguments, settings: FleetConfig, options: EngineOptions) -> Work:
    from fleet.requests.work import Work

    return Work(
        kind=request.kind,
        arguments=request.values(),
        minutes=options.minutes,
        settings=settings,
        models=options.models,
    )


def _writer(store: Path) -> int | None:
    """Process that writes a store, as it says itself."""
    from fleet.store.lock import HOLDER

    try:
        return int((store / HOLDER).read_text())
    except (OSError, ValueError):
        return None
