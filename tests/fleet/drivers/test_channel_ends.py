"""What waits for an answer gets one, however the other end or a thread of this one fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fleet.drivers import session as channel_module
from fleet.drivers.session import ChannelClosedError, DriverChannel, EngineSession
from fleet.errors import FleetError


@pytest.fixture
def other() -> Iterator[socket.socket]:
    """The end of a coordinator that says what a test writes."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(10)
        CHANNELS.append(DriverChannel(theirs))
        yield ours
    CHANNELS.pop().close()


CHANNELS: list[DriverChannel] = []


def say(other: socket.socket, value: Any) -> None:
    other.sendall(json.dumps(value).encode() + b"\n")


def number_of(other: socket.socket) -> int:
    return int(json.loads(other.recv(1 << 16).splitlines()[0])["id"])


@pytest.mark.parametrize(
    "answer", [{"id": 99, "value": 1}, {"value": 1}, {"id": [], "value": 1}], ids=["unasked", "none", "list"]
)
def test_an_answer_that_nobody_asked_for_fails_what_is_open_and_what_comes(
    other: socket.socket, answer: Any
) -> None:
    session = EngineSession(CHANNELS[-1], Path("store"))
    waiting = [session.ask({"op": "ready"}) for _ in range(2)]
    say(other, answer)
    for future in (*waiting, session.ask({"op": "ready"})):
        with pytest.raises(FleetError, match="answer cannot be understood"):
            future.result(10)


def test_a_question_that_was_given_up_costs_no_other_its_answer(other: socket.socket) -> None:
    session = EngineSession(CHANNELS[-1], Path("store"))
    first: Future[Any] = session.ask({"op": "ready"})
    number = number_of(other)
    first.cancel()
    second = session.ask({"op": "ready"})
    say(other, {"id": number, "value": 1})
    say(other, {"id": number_of(other), "value": 2})
    assert second.result(10) == 2


def test_the_end_of_a_channel_is_told_whatever_broke_it(
    other: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(line: bytes) -> Any:
        raise MemoryError

    monkeypatch.setattr(channel_module, "_value", no_memory)
    say(other, {"op": "progress"})
    with pytest.raises(ChannelClosedError):
        CHANNELS[-1].get(10)
    assert "what came cannot be read" in caplog.text


def test_a_message_nested_too_deep_ends_the_channel(other: socket.socket) -> None:
    other.sendall(b"[" * 200_000 + b"\n")
    with pytest.raises(ChannelClosedError):
        CHANNELS[-1].get(10)
