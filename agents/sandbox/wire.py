"""Messages between a device worker and its child processes: length-prefixed JSON over a socket pair.

JSON and not pickle: what a child sends is data, whatever a candidate did to the child. What arrives is
bounded before it is decoded: its length, and its number of values, which take up to thirty times their text.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from agents.codec import bounded_json
from agents.errors import MessageError

#: Largest message accepted if nothing else is said, in bytes: traces and modules of many workloads.
MAX_MESSAGE_BYTES = 64 << 20
#: Values of one message at most. Times of warm-up runs are the most: modules and traces are one text each.
_MOST_VALUES = 250_000
_LENGTH = struct.Struct("<I")


class Channel:
    """One end of a socket pair. Sending blocks; receiving may be polled through `fileno`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()
        #: Bytes of the next message at most; who waits for an answer knows how long an honest one is.
        self.most_bytes = MAX_MESSAGE_BYTES

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: The other end is gone.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> dict[str, Any] | None:
        """Block until one message is complete; None when the other end is gone.

        Raises:
            MessageError: As `receive_ready`.
        """
        while True:
            message = self._take()
            if message is not None:
                return message
            if not self._read():
                return None

    def receive_ready(self) -> tuple[list[dict[str, Any]], bool]:
        """Read what has arrived, once; returns the complete messages and whether the other end lives.

        Raises:
            MessageError: What arrived is no message. Nothing more can be read from this end.
        """
        alive = self._read()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages, alive

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _read(self) -> bool:
        try:
            chunk = self._socket.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError):
            return False
        self._buffer += chunk
        return bool(chunk)

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self.most_bytes:
            raise MessageError(
                f"a worker process announced a message of {length} bytes, at most {self.most_bytes} are "
                "accepted: its memory is damaged"
            )
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        try:
            # Both ends write other characters as escapes; one of them alone would take four times the room.
            message = bounded_json(self._buffer[_LENGTH.size : end].decode("ascii"), _MOST_VALUES)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a worker process sent no JSON ({str(error)[:100]})") from error
        del self._buffer[:end]
        if not isinstance(message, dict):
            raise MessageError(f"a worker process sent {type(message).__name__} where a message was expected")
        return message
