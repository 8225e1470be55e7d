"""`python -m agents.device.rpc_server`: run on a device, it serves its CPU and GPUs to `rpc_session.py`.

TVM's own server (`python -m tvm.exec.rpc_server`) serves as well, but in TVM 0.27 the first program that
crashes ends it for good, and a session whose client was killed in the middle of a run keeps it busy until
the session's time is over. Needs TVM and this package on the device, and a C compiler to link programs.

**No security**: neither this server nor the tracker asks who is there, nothing is encrypted, and whoever
reaches the server can run any code on it; its sessions are not confined as worker processes are. Loopback is
the default; listen on another address only in a network that you trust.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import socket
import sys
from collections.abc import Sequence
from typing import Any

from agents.host.probe import environment, probe
from agents.host.process_control import die_with_parent, leave_out_torch
from agents.host.rpc_tracker import NotYetError, host_and_port, listing
from agents.programs.rpc_session import DESCRIPTOR_FUNCTION, ENVIRONMENT_FUNCTION
from agents.records import as_json_dict, canonical_json


def serve(tracker: str, key: str, *, host: str = "127.0.0.1", port: int = 0, shown_as: str = "") -> None:
    """Serve this host as an RPC device; returns only by an exception.

    TVM's own loop, but a session ends with its process or with its client, whichever goes first, and never
    takes the server along. The arguments are those of the command line (`main`).

    Raises:
        NotYetError: No tracker answers there.
        RuntimeError: The tracker went away and did not come back for a minute.
        OSError: The address cannot be listened on.
    """
    listing(tracker)  # now, in one line and before TVM's seconds: its loop would try again without a word
    from tvm.rpc import server

    place = host_and_port(tracker)
    server._serving = _serve_session
    with socket.create_server((host, port)) as listening:
        server._listen_loop(listening, listening.getsockname()[1], key, place, None, shown_as or None)


def _serve_session(connection: socket.socket, client: Any, options: dict[str, float], library: Any) -> None:
    """Stand in for `tvm.rpc.server._serving`, which raises when the session's process crashed."""
    from tvm.rpc import server
    from tvm.support import utils

    folder = utils.tempdir()
    process = multiprocessing.Process(target=_run_session, args=(os.getpid(), connection, library, folder))
    process.start()
    try:
        ends = select.poll()
        ends.register(process.sentinel, select.POLLIN)
        ends.register(connection, select.POLLRDHUP)
        ends.poll(options["timeout"] * 1000 if "timeout" in options else None)
    finally:
        process.kill()
        process.join()
        server.logger.info("session of %s ended, exit code %s", client, process.exitcode)
        folder.remove()
        connection.close()


def _run_session(server_pid: int, connection: socket.socket, library: Any, folder: Any) -> None:
    from tvm.rpc import server

    # The child inherits the server's sockets. Left behind, it would keep the port and its tracker entry.
    die_with_parent(server_pid)
    os.chdir(folder.path)
    # A session may have bound this process to some cores.
    _offer_host_facts(sorted(os.sched_getaffinity(server_pid)))
    server._serve_loop(connection, library, folder)


def _offer_host_facts(usable: Sequence[int]) -> None:
    """Let clients ask what this host is and how it does: no client can see that from elsewhere."""
    from tvm_ffi import register_global_func

    def descriptor() -> str:
        return canonical_json(as_json_dict(probe(usable=usable)))

    def moment(cores: str, gpu_index: int) -> str:
        # Cores of a client that this host lacks are those that TVM ignores too.
        local_cores = tuple(core for core in json.loads(cores) if core in usable)
        return canonical_json(environment(local_cores, gpu_index=None if gpu_index < 0 else gpu_index))

    register_global_func(DESCRIPTOR_FUNCTION, descriptor, override=True)
    register_global_func(ENVIRONMENT_FUNCTION, moment, override=True)


def main(arguments: Sequence[str]) -> None:
    """Read the command line of `python -m agents.device.rpc_server` and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m agents.device.rpc_server", description="Serve this host."
    )
    parser.add_argument("--tracker", required=True, help="address of the RPC tracker, host:port")
    parser.add_argument("--key", required=True, help="key to register with")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--shown-as", default="", help="host name that the tracker gives to clients")
    options = parser.parse_args(arguments)
    try:
        serve(options.tracker, options.key, host=options.host, port=options.port, shown_as=options.shown_as)
    except (NotYetError, RuntimeError, OSError) as error:
        sys.exit(f"cannot serve {options.key!r}: {error}")


if __name__ == "__main__":
    leave_out_torch()
    main(sys.argv[1:])
