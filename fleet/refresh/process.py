"""`fleet.refresh.process REQUEST.json`: a training, a look at fresh records, or a start of meta-learning.

A training takes memory, libraries and a core for minutes, and may be killed: none of it belongs into the
coordinator. The process prints one line of JSON, or ends with code 1 and the clearest line last on standard
error. Killed at any moment, the same request goes on.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from agents.errors import AgentError
from fleet.errors import FleetError, TooFewRecordsError
from fleet.refresh.request import read_request
from transfer.errors import TransferError


def main(arguments: Sequence[str]) -> int:
    """Do what a request file asks for and return the exit code."""
    [path] = arguments
    try:
        request = read_request(Path(path))
        if request.kind == "watch":
            from fleet.refresh.freshness_look import run_watch

            answer = run_watch(request)
        else:
            from fleet.refresh.run import run_refresh, run_start

            answer = run_start(request) if request.kind == "start" else run_refresh(request)
    except TooFewRecordsError as error:
        answer = {"wants_records": str(error)}
    except (FleetError, AgentError, TransferError, OSError, MemoryError) as error:
        traceback.print_exc()
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1
    print(json.dumps(answer, allow_nan=False), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
