from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import AgentError
from agents.sandbox.wire import MAX_MESSAGE_BYTES, Channel

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50)
values = scalars | st.lists(scalars, max_size=5)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield Channel(one), Channel(two), one


@given(st.lists(st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=4))
def test_messages_arrive_whole_and_in_order(messages: list[dict[str, Any]]) -> None:
    one, two = socket.socketpair()
    with one, two:
        sender, receiver = Channel(one), Channel(two)
        for message in messages:
            sender.send(message)
        assert [receiver.receive() for _ in messages] == messages


def test_the_end_of_the_other_side_is_none(ends: tuple[Channel, Channel, socket.socket]) -> None:
    sender, receiver, _ = ends
    sender.send({"a": 1})
    sender.close()
    assert receiver.receive() == {"a": 1}
    assert receiver.receive() is None


def test_a_torn_message_is_never_delivered(ends: tuple[Channel, Channel, socket.socket]) -> None:
    _, receiver, raw = ends
    raw.sendall(struct.pack("<I", 10) + b'{"a"')
    raw.close()
    assert receiver.receive() is None


@pytest.mark.parametrize(
    "body", [struct.pack("<I", MAX_MESSAGE_BYTES + 1), struct.pack("<I", 2) + b"[]"], ids=["huge", "list"]
)
def test_damaged_messages_are_refused(ends: tuple[Channel, Channel, socket.socket], body: bytes) -> None:
    _, receiver, raw = ends
    raw.sendall(body)
    with pytest.raises(AgentError):
        receiver.receive()
