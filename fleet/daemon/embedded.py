"""The engine inside of a command: the same coordinator and agents, for one request, without API and training.

Called by the verbs that measure where no daemon runs on their store. The request's driver is a thread of this
process; when it is done, all ends.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from fleet.core.request_words import Request, RequestId, RequestKind
from fleet.daemon.daemon import UpOptions, come_to_rest, engine, stop_signals, take_turn
from fleet.drivers.channel import DriverChannel
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

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
    request = Request(
        request_id=RequestId(f"{kind.value}-{uuid.uuid4().hex[:8]}"),
        kind=kind,
        arguments={**arguments, "embedded": True},
    )
    drivers: list[_Thread[_Result]] = []

    def launch(asked: Request) -> _Thread[_Result] | None:
        if asked.request_id != request.request_id:
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
        answer, shown = coordinator.desk.submit(request), coordinator.desk.get(request.request_id)
        while not stopped and not (answer.done() and answer.exception()):
            shown = coordinator.desk.get(request.request_id)
            if shown is not None and shown["ended_at"] is not None:
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
        raise FleetError(f"{kind.value}: {(shown and shown['reason']) or 'it did not come to its end'}")
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
