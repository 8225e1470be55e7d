"""`ray start` as a host of a fleet needs it: `python -P -m fleet.transport.ray_start --address=... ...`.

It asks for the token, what Ray starts is not timed at a lower priority, and a network that fails for a minute
ends nothing. A host with another Python or Ray than the cluster's gets one line about it instead of Ray's
traceback. All arguments go to `ray start` as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from agents.host.process_control import begin_process, import_environment
from fleet.transport.host_versions import join_refusal

#: For hosts with a network between them; names and values are Ray's (`ray_config_def.h`).
NODE_SETTINGS = {
    # The head gives up a host after five of these without an answer. A host whose Ray has ended refuses at
    # once, and is given up after 15 s.
    "RAY_health_check_timeout_ms": "30000",
    # A Ray node ends, and its agents with it, when it has not reached the head for so long.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}
#: What the user has set goes first.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    **NODE_SETTINGS,
}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment that Ray's processes on a host of a fleet need."""
    return {**_ENVIRONMENT, **variables}


def start(arguments: Sequence[str]) -> str | None:
    """Run `ray start` in this process.

    Returns:
        One line if the cluster refuses this host for its versions; None when Ray runs.

    Raises:
        SystemExit: Ray ends the process, for another fault or because `--block` is over.
    """
    from ray.scripts.scripts import cli

    try:
        cli.main(["start", *arguments], prog_name="ray")
    except SystemExit as ending:
        if ending.code:
            raise
    except RuntimeError as error:
        line = join_refusal(str(error), _address(arguments))
        if line is None:
            raise
        return line
    return None


def _address(arguments: Sequence[str]) -> str:
    """The address among the arguments, for the error."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--address":
            return value if equals else "".join(arguments[number + 1 : number + 2])
    return "?"


def main() -> None:
    """Entry of the module."""
    begin_process()
    # Ray reads them when it is imported.
    os.environ.update(environment(os.environ) | import_environment())
    if line := start(sys.argv[1:]):
        sys.exit(f"error: {line}")


if __name__ == "__main__":
    main()
