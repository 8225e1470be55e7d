"""Devices behind TVM's RPC tracker: a candidate's exclusive session on one of them.

`child.py` times through `RpcLink` and need not know of trackers, keys that match, or sockets. On the device
runs `rpc_server.py` (or TVM's own server).

**No security**: neither tracker nor server asks who is there, nothing is encrypted, and whoever reaches a
server can run any code on it. Use them on loopback or in a network that you trust, never in an open one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.host.rpc_tracker import (
    ANSWER_SECS,
    Listed,
    NotYetError,
    Tracker,
    knock,
    listing,
    nobody,
    seconds_left,
    words,
)
from agents.programs.link import LinkLostError

#: Time for a server to open a session: it starts a process for it.
_OPEN_SECS = 10.0
_POLL_SECS = 1.0
#: Functions that `agents.device.rpc_server` offers beside TVM's own: the board's descriptor, and its
#: environment at this moment for (cores as a JSON list, ordinal of the CUDA device or -1); both as JSON.
DESCRIPTOR_FUNCTION, ENVIRONMENT_FUNCTION = "tensor_fleet.descriptor", "tensor_fleet.environment"
#: Of their answers, at most.
_MOST_CHARACTERS = 1 << 18
#: TVM's `kSpecifyThreadShareAllCore`: the threads may run on any of the cores named, as on a local device.
_SHARE_CORES = -3


class RpcSession:
    """Exclusive use of one RPC server: a process there that ends with it.

    Made by `RpcLink`. Arguments live in that process, so they are made anew in every session.
    """

    def __init__(self, link: RpcLink, remote: Any, server: tuple[str, int], sockets: frozenset[str]) -> None:
        self._link, self._remote, self._server, self._sockets = link, remote, server, sockets
        self._files = 0
        self.device = remote.device(link.device, link.index)

    def load(self, module: Any) -> Any:
        """See `Session.load`: object code goes over as a tar, the device links it.

        Raises:
            Exception: Whatever TVM raises, as where the device has no C compiler.
        """
        self._files += 1
        name = f"candidate-{self._files}.tar"
        with tempfile.TemporaryDirectory(prefix="tensor-fleet-") as folder:
            path = Path(folder, name)
            module.export_library(str(path))
            self._remote.upload(bytearray(path.read_bytes()), name)
        loaded = self._remote.load_module(name)
        for left_over in (name, f"{name}.so"):
            self._remote.remove(left_over)
        return loaded

    def host_facts(self, function: str, *arguments: str | int) -> dict[str, Any]:
        """What our own server says of its host: `DESCRIPTOR_FUNCTION` or `ENVIRONMENT_FUNCTION`.

        Empty where another one serves, or it says nothing sound.
        """
        try:
            text = str(self._call(function, *arguments))
            facts = json.loads(text) if len(text) <= _MOST_CHARACTERS else {}
        except Exception:  # TVM raises its own kinds for a function that is not there
            return {}
        return facts if isinstance(facts, dict) else {}

    def alive(self) -> bool:
        """See `Session.alive`; True also where the program broke this session but the server serves on."""
        if self._answers():
            return True
        listed = None
        deadline = time.monotonic() + ANSWER_SECS
        # The tracker may hear of a death a moment later than we do: a server counts as alive when it speaks.
        while time.monotonic() < deadline:
            try:
                listed = listing(self._link.tracker).get(self._link.key)
            except NotYetError:
                return False
            if listed is None or self._server not in listed.servers:
                return False
            if knock(self._server, _POLL_SECS):
                return True
        # The server answers nothing while it serves somebody else.
        return listed is not None and listed.free == 0

    def close(self) -> None:
        """Give the server back, whoever still holds arguments or modules of this session."""
        with contextlib.suppress(Exception):
            self._call("CloseRPCConnection")
        self._cut()

    def _answers(self) -> bool:
        with contextlib.suppress(Exception):
            self._call("runtime.NumThreads")
            return True
        return False

    def _call(self, function: str, *arguments: str | int) -> Any:
        """Call a function of the server, which answers in time or loses its session."""
        with _limited(ANSWER_SECS, self._cut):
            return self._remote.get_function(function)(*arguments)

    def _cut(self) -> None:
        _shut_down(self._sockets)


@dataclass(frozen=True, slots=True)
class RpcLink:
    """One device behind an RPC tracker, or several equal ones behind one key."""

    #: Address of the RPC tracker, `host:port`.
    tracker: str
    #: Key of the device there.
    key: str
    #: TVM's name of the kind of device (`cpu`, `cuda`), and its ordinal there among those of its kind.
    device: str = "cpu"
    index: int = 0
    #: Threads that a program gets.
    threads: int = 1
    #: Logical CPUs of the server that they may use; TVM silently ignores numbers that it lacks.
    cores: Sequence[int] = (0,)
    #: How long `connect` waits for a server to come back or to come free.
    wait_secs: float = 60.0
    #: Time after which the server ends a session, whatever it does: what frees a device whose client was
    #: killed in the middle of a run.
    session_secs: float = 120.0

    @contextlib.contextmanager
    def connect(self) -> Iterator[RpcSession]:
        """See `Link.connect`: queue at the tracker, open a session, apply threads and cores.

        Raises:
            LinkLostError: No session within `wait_secs` (and the seconds that opening one may take), or the
                server cannot give the threads.
        """
        session = self._session(time.monotonic() + self.wait_secs)
        try:
            yield session
        finally:
            session.close()

    def _session(self, deadline: float) -> RpcSession:
        refusal = ""
        while True:
            try:
                host, port, match_key = self._turn(deadline)
                try:
                    return self._open(host, port, match_key)
                except NotYetError as error:
                    refusal = f"{error}; "
                    raise
            except NotYetError as error:
                if time.monotonic() >= deadline:
                    last = "" if refusal == f"{error}; " else str(error)
                    what = f"{refusal}{last}".removesuffix("; ")
                    raise LinkLostError(f"waited {self.wait_secs:.0f} s for an RPC device: {what}") from error
            time.sleep(min(_POLL_SECS, seconds_left(deadline)))

    def _turn(self, deadline: float) -> tuple[str, int, str]:
        self._servers()
        with Tracker(self.tracker, time.monotonic() + ANSWER_SECS) as queue:
            queue.request(self.key)
            # Looking up from time to time tells a long queue from a server that is gone.
            while (turn := queue.turn(min(_POLL_SECS, seconds_left(deadline)))) is None:
                listed = self._servers()
                if time.monotonic() >= deadline:
                    raise NotYetError(
                        f"every server with the key {self.key!r} is in use at the RPC tracker {self.tracker} "
                        f"({words(listed)}): wait for the other user, or restart a server that hangs"
                    )
        return turn

    def _servers(self) -> dict[str, Listed]:
        """What the tracker lists, with a server of the key among it."""
        listed = listing(self.tracker)
        if self.key not in listed:
            raise NotYetError(nobody(self.tracker, self.key, listed))
        return listed

    def _open(self, host: str, port: int, match_key: str) -> RpcSession:
        from tvm import rpc

        before = frozenset(_sockets())
        expired = threading.Event()

        def opened() -> frozenset[str]:
            return frozenset(name for name in _sockets(port) if name not in before)

        def cut() -> None:
            expired.set()
            _shut_down(opened())

        try:
            with _limited(_OPEN_SECS, cut):
                remote = rpc.connect(host, port, match_key, self.session_secs)
                threads = self._configure(remote)
            if expired.is_set():
                raise TimeoutError
        except Exception as error:
            silent = f"it did not answer within {_OPEN_SECS:.0f} s"
            why = silent if expired.is_set() else str(error).strip().rpartition("\n")[2]
            cut()
            raise NotYetError(
                f"the server {host}:{port} with the key {self.key!r} opened no session ({why}): restart it"
            ) from error
        session = RpcSession(self, remote, (host, port), opened())
        if threads != self.threads:
            session.close()
            raise LinkLostError(
                f"the server {host}:{port} with the key {self.key!r} gives a program {threads} threads, the "
                f"device file asks for {self.threads}: correct threads and cores there, or start the server "
                "without TVM_NUM_THREADS"
            )
        return session

    def _configure(self, remote: Any) -> int:
        """Apply threads and cores to the session's process; returns the threads that it now has."""
        # An array cannot cross the wire, but one that was made over there can be named.
        cores = remote.get_function("ffi.Array")(*map(str, self.cores))
        configure = remote.get_function("runtime.config_threadpool")
        configure(_SHARE_CORES, self.threads, cores, self.threads)
        return int(remote.get_function("runtime.NumThreads")())


@contextlib.contextmanager
def _limited(seconds: float, cut: Callable[[], None]) -> Iterator[None]:
    """Call `cut` from another thread when the block takes longer; TVM's client itself knows no time-out."""
    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _sockets(port: int | None = None) -> dict[str, int]:
    """Descriptors of this process's sockets by the kernel's name.

    Args:
        port: Only those that are connected to this port, or to nothing yet.
    """
    handles = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:") and (port is None or _peer_port(int(entry.name)) in (None, port)):
                handles[name] = int(entry.name)
    return handles


def _peer_port(descriptor: int) -> int | None:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        try:
            peer = copy.getpeername()
        except OSError:
            return None
        return peer[1] if copy.family in (socket.AF_INET, socket.AF_INET6) else -1


def _shut_down(names: frozenset[str]) -> None:
    """End connections that belong to TVM's C++: whatever waits on them fails at once."""
    for name, descriptor in _sockets().items():
        if name in names:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
