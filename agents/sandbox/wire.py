"""Messages between a device worker and its child processes: length-prefixed JSON over a socket pair.

JSON and not pickle: what a child sends is data, whatever a candidate did to the child.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from agents.errors import MessageError

#: Largest message accepted, in bytes: a module of a large workload is well below 1 MB.
MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")


class Channel:
    """One end of a socket pair. Sending blocks; receiving may be polled through `fileno`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()

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
        if length > MAX_MESSAGE_BYTES:
            raise MessageError(
                f"a worker process announced a message of {length} bytes, at most {MAX_MESSAGE_BYTES} are "
                "accepted: its memory is damaged"
            )
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        try:
            message = json.loads(bytes(self._buffer[_LENGTH.size : end]))
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a worker process sent no JSON ({str(error)[:100]})") from error
        del self._buffer[:end]
        if not isinstance(message, dict):
            raise MessageError(f"a worker process sent {type(message).__name__} where a message was expected")
        return message
