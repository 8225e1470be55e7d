"""The network side of TVM's RPC tracker and servers, spoken here with the standard library alone.

Called by `rpc_session.py`. The protocol is that of `tvm.rpc.tracker`: a magic number, then JSON messages with
their length in front. TVM's own client of it waits without end for an answer and takes seconds to import;
every wait here has a deadline (of `time.monotonic`), and whatever an address that is no tracker may send ends
in the one error of this module.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

#: Magic numbers and message codes of `tvm.rpc.base`.
SESSION_MAGIC, KEY_MISMATCH, TRACKER_MAGIC = 0xFF271, 0xFF271 + 2, 0x2F271
SUCCESS, REQUEST, SUMMARY = 0, 4, 6
#: Time for a tracker to answer what costs it nothing.
ANSWER_SECS = 5.0

_MOST_BYTES = 1 << 20
#: Servers of one key that are asked whether they take connections, and the time for each.
_MOST_KNOCKS, _KNOCK_SECS = 4, 2.0
#: Keys of other boards that a message names at most.
_MOST_KEYS = 8
#: What an address that is no tracker may cause while its messages are read.
_GARBLED = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)


class NotYetError(Exception):
    """There is no session for now; one sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What a tracker says about one key."""

    servers: frozenset[tuple[str, int]]
    #: Servers that nobody uses.
    free: int


def host_and_port(address: str) -> tuple[str, int]:
    """Split the address of a tracker.

    Raises:
        ValueError: It is not `host:port`.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and port.isascii() and 0 < int(port[:6]) < 1 << 16):
        raise ValueError(f"{address!r} is no address such as 127.0.0.1:9190")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Tracker:
    """One connection to a tracker at `host:port`, which has until the deadline for its greeting.

    Raises:
        NotYetError: No tracker answers there; any method may raise it as well.
    """

    def __init__(self, address: str, deadline: float) -> None:
        self._name = address
        try:
            self._socket = socket.create_connection(host_and_port(address), seconds_left(deadline))
        except (OSError, ValueError) as error:
            raise self._fault(error) from error
        try:
            self._socket.sendall(struct.pack("<i", TRACKER_MAGIC))
            if _receive(self._socket, 4, deadline) != struct.pack("<i", TRACKER_MAGIC):
                raise ValueError("what listens there is no RPC tracker")
        except _GARBLED as error:
            self._socket.close()
            raise self._fault(error) from error

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def keys(self, deadline: float) -> dict[str, Listed]:
        """Ask which servers are registered under which key."""
        try:
            self._send([SUMMARY])
            summary = self._answer(deadline)
            servers_by_key: dict[str, set[tuple[str, int]]] = {}
            for entry in summary["server_info"]:
                host, port = entry["addr"]
                servers_by_key.setdefault(entry["key"].partition(":")[2], set()).add((str(host), int(port)))
            queues = summary["queue_info"]
            return {
                key: Listed(frozenset(servers), int(queues.get(key, {}).get("free", 0)))
                for key, servers in sorted(servers_by_key.items())
            }
        except _GARBLED as error:
            raise self._fault(error) from error

    def request(self, key: str) -> None:
        """Stand in the queue for a server of `key`; `turn` says when it is there."""
        try:
            self._send([REQUEST, key, "", 1])
        except OSError as error:
            raise self._fault(error) from error

    def turn(self, wait_secs: float) -> tuple[str, int, str] | None:
        """Host, port and one-time key of the server that came free; None while there is none."""
        try:
            if not select.select([self._socket], [], [], wait_secs)[0]:
                return None
            host, port, match_key = self._answer(time.monotonic() + ANSWER_SECS)
            return str(host), int(port), str(match_key)
        except _GARBLED as error:
            raise self._fault(error) from error

    def _send(self, message: list[Any]) -> None:
        text = json.dumps(message).encode()
        self._socket.sendall(struct.pack("<i", len(text)) + text)

    def _answer(self, deadline: float) -> Any:
        (size,) = struct.unpack("<i", _receive(self._socket, 4, deadline))
        if not 0 < size <= _MOST_BYTES:
            raise ValueError(f"its answer has {size} bytes")
        code, value = json.loads(_receive(self._socket, size, deadline))
        if code != SUCCESS:
            raise ValueError(f"it refused with code {code}")
        return value

    def _fault(self, error: Exception) -> NotYetError:
        return NotYetError(
            f"no RPC tracker answers at {self._name} ({error}): start `python -m tvm.exec.rpc_tracker` there "
            "or correct tracker in the device file"
        )


def reachable(tracker: str) -> str:
    """Give the address of a tracker in numbers, one where it takes connections; unchanged if none does."""
    try:
        with socket.create_connection(host_and_port(tracker), ANSWER_SECS) as connection:
            host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return tracker
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listing(tracker: str) -> dict[str, Listed]:
    """Ask a tracker once which keys are served; takes at most `ANSWER_SECS`.

    Raises:
        NotYetError: No tracker answers there.
    """
    deadline = time.monotonic() + ANSWER_SECS
    with Tracker(tracker, deadline) as connection:
        return connection.keys(deadline)


def nobody(tracker: str, key: str, listed: dict[str, Listed]) -> str:
    """Say that no server has the key, which keys there are, and what to do."""
    return (
        f"nobody serves the key {key!r} at the RPC tracker {tracker} ({words(listed)}): run `python -m "
        f"agents.device.rpc_server --tracker {tracker} --key {key}` on the device, or correct key in the "
        "device file"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What answers for the key of an RPC device.

    Attributes:
        servers: Addresses that the tracker lists, `host:port`.
        free: How many of them are not in use.
        answering: Those of them that took a connection from this host; one in use takes none.
    """

    servers: tuple[str, ...]
    free: int
    answering: tuple[str, ...]


def ask_board(tracker: str, key: str) -> Board:
    """Ask a tracker for the servers of a key, and each of the first few whether it takes connections.

    Takes at most `ANSWER_SECS` for the tracker and `_KNOCK_SECS` for each server; no session is opened.

    Raises:
        NotYetError: No tracker answers, no server has the key, or none that is free can be reached.
    """
    listed = _listed(tracker, key)
    servers, free = sorted(listed.servers), listed.free
    answering = [server for server in servers[:_MOST_KNOCKS] if knock(server, _KNOCK_SECS)] if free else []
    names = tuple(f"{host}:{port}" for host, port in servers)
    if free and not answering:
        raise NotYetError(
            f"the RPC tracker {tracker} lists {', '.join(names[:_MOST_KNOCKS])} for the key {key!r}, and "
            "nothing takes connections from this host there: check the address that the server gives and the "
            "firewall, or restart the server"
        )
    return Board(servers=names, free=free, answering=tuple(f"{host}:{port}" for host, port in answering))


def words(listed: dict[str, Listed]) -> str:
    """Say which keys a tracker lists, and how many servers of each are free."""
    counts = [f"{key} {each.free} of {len(each.servers)} free" for key, each in listed.items()]
    if not counts:
        return "it lists no server"
    more = f" and {len(counts) - _MOST_KEYS} more keys" if len(counts) > _MOST_KEYS else ""
    return f"it lists {', '.join(counts[:_MOST_KEYS])}{more}"


def knock(server: tuple[str, int], wait_secs: float) -> bool:
    """Whether an RPC server takes connections; it refuses this one because of its key."""
    deadline = time.monotonic() + wait_secs
    name = b"client:knock"
    try:
        with socket.create_connection(server, wait_secs) as connection:
            connection.sendall(struct.pack("<ii", SESSION_MAGIC, len(name)) + name)
            return _receive(connection, 4, deadline) == struct.pack("<i", KEY_MISMATCH)
    except OSError:
        return False


def seconds_left(deadline: float) -> float:
    """Seconds until `deadline`; never so few that a socket would take them for none."""
    return max(0.01, deadline - time.monotonic())


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count:
        connection.settimeout(seconds_left(deadline))
        # The tracker sends length and text apart, the text only once the length was acknowledged: 40 ms else.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("it closed the connection")
        received += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return received


def served(tracker: str, key: str) -> str:
    """Say what keeps the device with a key at a tracker from being used; takes at most some seconds.

    Returns:
        One sentence, or nothing where a server with the key is registered (free or not).
    """
    try:
        _listed(tracker, key)
    except NotYetError as error:
        return str(error)
    return ""


def _listed(tracker: str, key: str) -> Listed:
    """Ask a tracker for the servers of a key.

    Raises:
        NotYetError: No tracker answers there, or no server has the key.
    """
    listed = listing(tracker)
    if key not in listed:
        raise NotYetError(nobody(tracker, key, listed))
    return listed[key]
