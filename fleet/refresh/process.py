"""`python -m fleet.refresh.process REQUEST.json`: one refresh in a process of its own.

Started by `fleet.refresh.refresher`. A training takes memory, libraries and a core for minutes, and may be
killed: none of it belongs into the coordinator. This process ends in order on SIGTERM, and prints one line of
JSON. Errors go to standard error, the clearest line last. Killed at any moment, the same request goes on.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

#: Exit codes: done; failed, or not begun for want of records, with the reason on standard error; stopped by
#: SIGTERM, to go on later.
DONE, FAILED, TOO_FEW, STOPPED = 0, 1, 3, 143
#: Seconds after which the end is asked for again: a library may swallow any exception, as some do that try an
#: import.
_AGAIN_SECS = 1.0


class Stopped(BaseException):  # no error: somebody asked for it
    """SIGTERM arrived: what is kept is kept, the rest is for the next process."""


def main(arguments: Sequence[str]) -> int:
    """Do what a request file asks for and return the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGALRM, _stop)
    if len(arguments) != 1:
        print("usage: python -m fleet.refresh.process REQUEST.json", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        return _answer(path)
    except Stopped:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _not_to_blame(path.parent)
        print("stopped; the same request goes on from what is kept", file=sys.stderr)
        return STOPPED


def _answer(path: Path) -> int:
    from agents.errors import AgentError
    from fleet.errors import FleetError, TooFewRecordsError
    from fleet.refresh.request import request_from_json
    from transfer.errors import TransferError

    try:
        request = request_from_json(path.read_text())
        if request.kind == "watch":
            from fleet.refresh.freshness_look import run_watch

            answer = run_watch(request)
        elif request.kind == "standings":
            from fleet.refresh.device_scores import run_device_scores

            answer = run_device_scores(request)
        else:
            from fleet.refresh.run import run_refresh

            answer = run_refresh(request)
    except TooFewRecordsError as error:
        print(error, file=sys.stderr)
        return TOO_FEW
    except (FleetError, AgentError, TransferError, OSError, MemoryError) as error:
        traceback.print_exc()
        print(str(error) or type(error).__name__, file=sys.stderr)
        return FAILED
    print(json.dumps(answer, allow_nan=False), flush=True)
    return DONE


def _not_to_blame(folder: Path) -> None:
    """Somebody asked for the end, so it is no sign of anything wrong with the request."""
    from fleet.refresh.request import TRIED, count_tried

    if (folder / TRIED).exists():
        with suppress(OSError):
            count_tried(folder, -1)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second signal ends the process at once, should anything hang.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECS)
    raise Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
