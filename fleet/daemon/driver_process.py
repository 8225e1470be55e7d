"""`python -m fleet.daemon.driver_process REQUEST.json FD`: the driver of one request in a process of its own.

Started by `launch.py`. What it measured is stored, so the same request begun again goes on.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agents.errors import AgentError
from fleet.drivers.session import DriverChannel, EngineSession
from fleet.errors import FleetError, is_full


def main(arguments: Sequence[str]) -> int:
    """Do what a request file asks for and return the exit code."""
    if len(arguments) != 2:
        print("usage: python -m fleet.daemon.driver_process REQUEST.json FD", file=sys.stderr)
        return 2
    path, end = Path(arguments[0]), int(arguments[1])
    from fleet.daemon.driver_display import DriverDisplay
    from fleet.requests.kinds import perform
    from fleet.requests.work import Work

    work = Work.model_validate(json.loads(path.read_text()) | {"folder": path.parent})
    channel = DriverChannel(socket.socket(fileno=end))
    session = EngineSession(channel, Path(work.settings.store.path))
    display = DriverDisplay(session)
    say_end(session, lambda: perform(work, session, display))
    session.join()
    return 0


def say_end(session: EngineSession, work: Callable[[], dict[str, Any]]) -> None:
    """Do the work, and tell the coordinator what came of it."""
    from transfer.errors import TransferError

    try:
        result = work()
    except (FleetError, AgentError, TransferError, OSError, MemoryError) as error:
        if is_full(error):
            session.no_room(str(error))
        else:
            session.end({}, str(error) or type(error).__name__)
    else:
        session.end(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
