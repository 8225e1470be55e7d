"""An agent's spool and a coordinator's store that hand over, each a child of its own to be killed.

Messages and acknowledgements are lost or repeated as the loads' dice say.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from agents.codec import record_from_json, record_to_json
from agents.spool.disk_spool import Spool
from benchmarks.chaos_history import Event
from benchmarks.chaos_life import LANES, Load, ids_of, stored_in
from benchmarks.patience import patience
from fleet.store.store import Store

_RECONNECT_SECS = 30.0


def agent_load(arguments: dict[str, Any]) -> None:
    """Measure what a coordinator asks for and keep it until it is acknowledged; `socket` is its address."""
    load = Load(arguments)
    with (
        Spool(load.disk / "spool") as spool,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server,
    ):
        load.log.add(Event(kind="look", places={"spool": ids_of(spool.pending())}))
        server.bind("\0" + arguments["socket"])
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                _talk(load, spool, connection)


def _talk(load: Load, spool: Spool, connection: socket.socket) -> None:
    for request in _lines(connection):
        if "acknowledged" in request:
            load.log.add(Event(kind="released", records=tuple(request["acknowledged"])))
            spool.acknowledge(request["acknowledged"])
        elif "batch" in request:
            records = load.measured(request["batch"])
            spool.put(records)
            load.log.add(Event(kind="acknowledged", by="spool", records=ids_of(records)))
            # A message that is lost or comes twice: what was lost is asked for as pending later.
            for _ in range(load.rng.choice((0, 1, 1, 1, 2))):
                _send(connection, {"records": [record_to_json(one) for one in records]})
            _send(connection, {"end": True})
        else:
            _send(connection, {"records": [record_to_json(one) for one in spool.pending()]})
            _send(connection, {"end": True})


def coordinator_load(arguments: dict[str, Any]) -> None:
    """Fetch batches from the agent, keep them, acknowledge them; acknowledgements get lost or come twice."""
    load = Load(arguments)
    waiting = list(load.batches)
    with Store.open(load.disk / "store", settings=LANES) as store:
        load.log.add(Event(kind="look", places={"store": stored_in(store)}))
        while True:
            with contextlib.suppress(OSError), _connected(arguments["socket"]) as connection:
                answers = _lines(connection)
                _fetch(load, store, connection, answers, {"pending": True})
                while waiting:
                    _fetch(load, store, connection, answers, {"batch": waiting[0]})
                    waiting.pop(0)
                    if load.rng.random() < 0.1:
                        store.upkeep(retention_hours=0)
                break
    load.finish()


def _fetch(
    load: Load, store: Store, connection: socket.socket, answers: Iterator[Any], request: dict[str, Any]
) -> None:
    _send(connection, request)
    for answer in answers:
        if "end" in answer:
            return
        records = [record_from_json(value) for value in answer["records"]]
        store.append(records)
        load.log.add(Event(kind="acknowledged", by="store", records=ids_of(records)))
        for _ in range(load.rng.choice((0, 1, 1, 2))):
            _send(connection, {"acknowledged": list(ids_of(records))})
    raise ConnectionError("the agent is gone")


def _connected(name: str) -> socket.socket:
    deadline = time.monotonic() + patience(_RECONNECT_SECS)
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect("\0" + name)
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError("no agent answers") from None
            time.sleep(0.01)
        else:
            return connection


def _lines(connection: socket.socket) -> Iterator[Any]:
    with connection.makefile("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _send(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")
