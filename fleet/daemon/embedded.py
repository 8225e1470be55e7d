"""Who does what a request asks for: the daemon of the store if one runs, else an engine in the command.

Such an engine has the same coordinator and agents, for one request, without API and training. The request's
driver is a thread of this process; when it is done, all ends.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from fleet.core.words import Request, RequestId, RequestKind
from fleet.daemon.engine_options import NOBODY_TO_DETACH_TO, EngineOptions, daemon_of, trains_into
from fleet.drivers.session import DriverChannel, EngineSession
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.api.client import DaemonClient
    from fleet.config.settings import FleetConfig
    from fleet.daemon.daemon import UpOptions
    from fleet.requests.request_kind import RequestArguments
    from fleet.requests.work import Work

_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Thread(Generic[_Result]):
    """A driver in a thread; implements `fleet.engine.request_drivers.Driver`."""

    channel: DriverChannel
    #: The driver's result, in a list of one; empty until it has one.
    results: list[_Result] = field(default_factory=list)
    error: BaseException | None = None

    def stop(self) -> None:
        """It sees that the coordinator is gone."""
        self.channel.close()

    def is_over(self, timeout_secs: float = 0.0) -> bool:
        """It is waited for by nobody."""
        return True

    def failure(self) -> str:
        """How it ended."""
        return str(self.error or "it said nothing")


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
    request = request.read(request.values())  # a struct that was made in Python has not been looked at
    settings = options.read(request.setting_changes())
    if request.needs_engine and request.device_ids:
        settings = settings.with_devices(*request.device_ids)
    daemon = _daemon_for(request, settings, options)
    if daemon is not None or request.needs_engine:  # what is done alone looks at its files itself, and once
        request.check_files(settings)
    if daemon is not None:
        ended = options.follow(daemon, request.kind.value, request.values(), options)
        return None if options.is_detached else dict(ended["result"])
    if options.is_detached:
        raise FleetError(NOBODY_TO_DETACH_TO)
    if request.needs_engine:
        return _run_here(request, settings, options)
    from fleet.planner.progress import TerminalDisplay

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
        option = "--address" if options.address is not None else "--set"
        raise FleetError(
            f"a daemon runs on this store, process {daemon.pid}, and its own settings hold: leave out "
            f"{option}"
        )
    return daemon


def _run_here(request: RequestArguments, settings: FleetConfig, options: EngineOptions) -> dict[str, Any]:
    from fleet.daemon.daemon import SPOOL, UpOptions
    from fleet.daemon.replay_files import REPLAY
    from fleet.planner.progress import TerminalDisplay
    from fleet.store.store import records_or_nothing

    work = _work(request, settings, options)
    request.check_work(work)
    store = Path(settings.store.path)
    beside = (Path(settings.daemon.root), store.parent / SPOOL, store.parent / REPLAY)
    with records_or_nothing(store, *beside):
        if not request.device_ids:
            from fleet.daemon.device_choice import DeviceChoice

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
            partial(request.perform, work, display=display),
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


def run_embedded(
    settings: FleetConfig,
    kind: RequestKind,
    arguments: Mapping[str, Any],
    options: UpOptions,
    console: Console,
    work: Callable[[EngineSession], _Result],
) -> _Result:
    """Run an engine for one request.

    Args:
        settings: Devices, protocol, store, daemon.
        kind: Of the request.
        arguments: Of the request, which the state keeps.
        options: Models, and the cluster to join.
        console: Where warnings go.
        work: Drives; called in a thread of its own.

    Returns:
        What `work` gave.

    Raises:
        FleetError: The engine cannot run, or what `work` raised.
    """
    from fleet.daemon.daemon import come_to_rest, engine, stop_signals, take_turn

    request = Request(
        request_id=RequestId(f"{kind.value}-{uuid.uuid4().hex[:8]}"),
        kind=kind,
        arguments={**arguments, "embedded": True},
    )
    drivers: list[_Thread[_Result]] = []

    def launch(launched: Request) -> _Thread[_Result] | None:
        if launched.request_id != request.request_id:
            return None  # it waits for the next daemon
        ours, theirs = socket.socketpair()
        driver: _Thread[_Result] = _Thread(DriverChannel(ours))
        drivers.append(driver)
        session = EngineSession(DriverChannel(theirs), Path(settings.store.path))
        arguments = (driver, session, work)
        threading.Thread(target=_drive, args=arguments, name="driver", daemon=True).start()
        return driver

    engines = engine(settings, options, console, launch=launch)
    with stop_signals() as stopped, engines as (coordinator, _, _notices):
        answer, status = coordinator.desk.submit(request), coordinator.desk.get(request.request_id)
        while not stopped and not (answer.done() and answer.exception()):
            status = coordinator.desk.get(request.request_id)
            if status is not None and status["ended_at"] is not None:
                break
            take_turn(coordinator)
        if stopped:
            coordinator.desk.cancel(request.request_id)
            take_turn(coordinator)
        come_to_rest(coordinator, settings.daemon.stop_secs)
    if stopped:
        os.kill(os.getpid(), stopped[0])  # for the handler of the command line
    if not answer.done():
        # The coordinator never came to it, or its disk never took it: nobody answers any more.
        raise FleetError(
            f"{kind.value}: the engine ended before it had taken the request, or its disk did not take it; "
            "look at the free space of daemon.root and run the same command again"
        )
    if error := answer.exception(0):
        raise error
    driver = drivers[-1] if drivers else None
    if driver is not None and driver.error is not None:
        raise driver.error
    if driver is None or not driver.results:
        raise FleetError(f"{kind.value}: {(status and status['reason']) or 'it did not come to its end'}")
    return driver.results[0]


def _drive(
    driver: _Thread[_Result], session: EngineSession, work: Callable[[EngineSession], _Result]
) -> None:
    try:
        driver.results.append(work(session))
    except BaseException as error:
        driver.error = error
        session.end({}, str(error) or type(error).__name__)
    else:
        session.end(_plain(driver.results[0]))


def _plain(result: Any) -> dict[str, Any]:
    """What of a result the state can keep."""
    try:
        value = json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
