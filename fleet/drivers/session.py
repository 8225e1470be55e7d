"""The engine as the driver of a request sees it: agents that draw and measure, and a store to read.

A driver decides which candidates are measured; the coordinator leases, measures and stores
(`fleet.engine.request_drivers` answers). Every call may be open beside others; the answers come in any order.
Both talk through a socket, JSON values, one a line. Reading and writing have a thread each, so that neither
end ever waits for the other one's buffers. What comes is checked by who takes it, although both are ours.
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents.codec import record_from_json, workload_from_json
from agents.programs.derivation import Derivation
from agents.records import Candidate, CandidateId, DeviceId, Record, Workload, WorkloadId
from fleet.errors import FleetError
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.reader import StoreReader
from fleet.store.store import Store

_LOG = logging.getLogger(__name__)

#: Longest line: the workloads of some networks with their modules, or the records of a batch.
_MOST_BYTES = 256 << 20
_READ_BYTES = 1 << 18


class ChannelClosedError(Exception):
    """The other end is gone."""


class DriverChannel:
    """One end: a connected stream socket, which is closed here."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        #: Messages that came; None at the end of the channel.
        self._read: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_over = False
        threading.Thread(target=self._receive, name="channel in", daemon=True).start()
        self._writer = threading.Thread(target=self._transmit, name="channel out", daemon=True)
        self._writer.start()

    def send(self, value: dict[str, Any]) -> None:
        """Send a value; dropped where the other end is gone."""
        self._to_write.put(json.dumps(value, allow_nan=True).encode() + b"\n")

    def get(self, timeout_secs: float | None = None) -> dict[str, Any] | None:
        """Wait for the next value; None where none came in time.

        Raises:
            ChannelClosedError: No more comes.
        """
        if self._is_over:
            raise ChannelClosedError
        try:
            value = self._read.get(timeout=timeout_secs) if timeout_secs != 0 else self._read.get_nowait()
        except queue.Empty:
            return None
        if value is None:
            self._is_over = True
            raise ChannelClosedError
        return value

    def close(self) -> None:
        """Send what waits, then let go of the socket; the other end sees the end."""
        self._to_write.put(None)

    def join(self) -> None:
        """Wait until all that was sent before `close` has left."""
        self._writer.join()

    def _receive(self) -> None:
        pieces: list[bytes] = []
        size = 0
        try:
            while chunk := self._socket.recv(_READ_BYTES):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    self._read.put(_value(b"".join([*pieces, line])))
                    pieces, size = [], 0
                pieces.append(rest)
                size += len(rest)
                if size > _MOST_BYTES:
                    break
        except (OSError, ValueError):
            pass  # a broken line is the end of a process that was killed
        except Exception:
            _LOG.exception("a channel ends: what came cannot be read")
        finally:
            self._read.put(None)  # whoever reads must not wait for a thread that is gone

    def _transmit(self) -> None:
        try:
            while (data := self._to_write.get()) is not None:
                self._socket.sendall(data)
        except OSError:
            pass  # the other end is gone, as the reading thread says
        finally:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


def _value(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a message is a JSON object")
    return value


class DeviceUnusableError(FleetError):
    """A device does not measure just now; others may."""


class EngineSession:
    """One driver's way to the coordinator, whose store lies at `store`."""

    def __init__(self, channel: DriverChannel, store: Path) -> None:
        self._channel, self._path = channel, store
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Future[Any], Callable[[Any], Any]]] = {}
        self._is_over = False
        #: Why no answer comes any more, once the thread that hears them has ended.
        self._end_reason = "the coordinator is gone; the same command continues from what is stored"
        #: Reader of the store, and how many measurements were answered when it was opened.
        self._reader: StoreReader | None = None
        self._read_after = self._measured = 0
        #: A device, and the moment that parts its records (`StoreReader.parted`).
        self._part: dict[str, float] = {}
        threading.Thread(target=self._hear, name="engine", daemon=True).start()

    # ---- what agents do ----

    def ready(self, device_ids: Iterable[DeviceId]) -> list[str]:
        """Wait until devices can measure and the store knows what they are.

        Returns:
            The environment of the records that each of them makes now.

        Raises:
            DeviceUnusableError: One of them cannot.
        """
        return list(self.ask({"op": "ready", "devices": list(device_ids)}).result())

    def environment_id(self, device_id: DeviceId) -> str:
        """The environment of the records that a device makes now."""
        return self.ready([device_id])[0]

    def network_workloads(self, device_id: DeviceId, networks: Sequence[str]) -> list[Workload]:
        """List the workloads of networks, heaviest first; the store has them afterwards."""
        question = {"op": "workloads", "device": device_id, "networks": list(networks)}
        workloads: list[Workload] = self.ask(question, _workloads).result()
        return workloads

    def propose(
        self,
        device_id: DeviceId,
        workload: Workload,
        count: int,
        seed: int,
        exclude: Collection[CandidateId],
        parents: Sequence[str] = (),
    ) -> Future[list[Candidate]]:
        """Draw candidates: near the traces of good ones, or random ones where there are no parents."""
        how = {"count": count, "seed": seed, "exclude": list(exclude), "parents": list(parents)}
        return self._draw(device_id, workload, how, _candidates)

    def derive(self, device_id: DeviceId, workload: Workload, traces: Sequence[str]) -> Future[Derivation]:
        """Derive candidates of our own from imported traces."""
        how = {"count": len(traces), "seed": 0, "exclude": [], "foreign": list(traces)}

        def read(answer: Any) -> Derivation:
            return Derivation(tuple(_candidates(answer)), dict(answer["refused"]))

        return self._draw(device_id, workload, how, read)

    def measure(
        self,
        device_id: DeviceId,
        candidates: Sequence[Candidate],
        *,
        attempt: int = 0,
        model_version: str = "",
    ) -> Future[list[Record]]:
        """Measure candidates on a device; the answer comes when all of them are stored.

        Candidates that the store has of this attempt already give no record again. One whose job was put
        under quarantine gives none either.
        """
        question = {
            "op": "measure",
            "device": device_id,
            "attempt": attempt,
            "model_version": model_version,
            "candidates": list(map(pack_candidate, candidates)),
        }
        return self.ask(question, self._records)

    def wait(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        """Wait until at least one is over; returns those that are."""
        return list(wait(list(futures), return_when=FIRST_COMPLETED).done)

    # ---- what is known ----

    def store(self) -> StoreReader:
        """The store as it is now: all that was measured for this driver is in it."""
        measured = self._measured
        if self._reader is None or self._read_after != measured:
            self.ask({"op": "flush"}).result()
            reader = Store.read(self._path)
            self._reader = reader.parted(self._part)
            self._read_after = measured
        return self._reader

    def state(self) -> StateReader:
        """The state file as it is now: all that was measured for this driver is in it. To be closed again."""
        return StateReader(self._path / STATE)

    def part(self, device_id: DeviceId, since: float) -> None:
        """Have `store` show what a device measured before some Unix seconds as of another environment."""
        self._part, self._reader = {device_id: since}, None

    def parted_at(self, device_id: DeviceId) -> float | None:
        """The moment that `part` was given for a device; None for most."""
        return self._part.get(device_id)

    # ---- what is told ----

    def progress(
        self,
        done: int,
        of: int,
        finding: str,
        left_secs: float | None = None,
        *,
        is_measuring: bool = True,
    ) -> None:
        """Say how far the request has come, and whether it still needs its devices."""
        amounts = {"done": done, "of": of, "left_secs": left_secs, "finding": finding}
        self._channel.send({"op": "progress", **amounts, "is_measuring": is_measuring})

    def say(self, text: str) -> None:
        """Say something to whoever reads along."""
        self._channel.send({"op": "say", "text": text})

    def published(self, version: str, device_ids: Sequence[DeviceId]) -> None:
        """Say that a model version serves devices from now on."""
        self._channel.send({"op": "published", "version": version, "devices": list(device_ids)})

    def end(self, result: dict[str, Any], reason: str = "") -> None:
        """End the request: with what came of it, or with why it failed."""
        self._channel.send({"op": "end", "result": result, "reason": reason})
        self._channel.close()

    def no_room(self, text: str) -> None:
        """Say that a full disk is in the way: the same request is begun again once there is room."""
        self._channel.send({"op": "no_room", "text": text})
        self._channel.close()

    def join(self) -> None:
        """Wait until all that was told has left; after `end` or `no_room`."""
        self._channel.join()

    def ask(
        self, question: dict[str, Any], read: Callable[[Any], Any] = lambda answer: answer
    ) -> Future[Any]:
        """Ask the coordinator: an `op` with its arguments; `read` makes the value of the answer."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # so that its answer always finds it open
        with self._lock:
            if self._is_over:
                future.set_exception(FleetError(self._end_reason))
                return future
            self._open[number] = future, read
        self._channel.send({**question, "id": number})
        return future

    def _draw(
        self, device_id: DeviceId, workload: Workload, how: dict[str, Any], read: Callable[[Any], Any]
    ) -> Future[Any]:
        question = {"op": "draw", "device": device_id, "workload": workload.workload_id}
        return self.ask(question | how, read)

    def _records(self, answer: Any) -> list[Record]:
        self._measured += 1
        return [record_from_json(line) for line in answer]

    def _hear(self) -> None:
        """Give answers to those who wait for them, until the coordinator is gone."""
        try:
            while True:
                if (message := self._channel.get()) is not None:
                    self._answer(message)
        except ChannelClosedError:
            pass
        except Exception as error:
            self._end_reason = f"the coordinator's answer cannot be understood: {error!r:.200}"
        finally:
            with self._lock:
                self._is_over, unanswered = True, list(self._open.values())
                self._open.clear()
            for future, _ in unanswered:
                future.set_exception(FleetError(self._end_reason))

    def _answer(self, message: dict[str, Any]) -> None:
        """Give one answer to who waits for it.

        Raises:
            KeyError: It answers nothing that was asked.
        """
        with self._lock:
            future, read = self._open.pop(message["id"])
        if "unusable" in message:
            future.set_exception(DeviceUnusableError(message["unusable"]))
        elif "error" in message:
            future.set_exception(FleetError(message["error"]))
        else:
            try:
                future.set_result(read(message["value"]))
            except Exception as error:
                future.set_exception(error)


def _workloads(answer: Any) -> list[Workload]:
    return [workload_from_json(line) for line in answer]


def _candidates(answer: Any) -> list[Candidate]:
    return list(map(unpack_candidate, answer["candidates"]))


def pack_candidate(candidate: Candidate) -> list[str]:
    """A candidate as it goes through the channel."""
    return [candidate.workload_id, candidate.dialect, candidate.origin, candidate.trace]


def unpack_candidate(value: Any) -> Candidate:
    """Make what `pack_candidate` gave.

    Raises:
        TypeError, ValueError: It is none.
    """
    workload_id, dialect, origin, trace = value
    return Candidate(workload_id=WorkloadId(workload_id), dialect=dialect, origin=origin, trace=trace)
