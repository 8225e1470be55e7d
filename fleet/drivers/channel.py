"""One end of a socket between the coordinator and the driver of a request: JSON values, one a line.

Reading and writing have a thread each, so that neither end ever waits for the other one's buffers. Both ends
are processes of ours; what comes is checked by who takes it all the same (`fleet.engine.request_drivers`).
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
from contextlib import suppress
from typing import Any

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
