"""What waits for an answer gets one, however the other end fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet.drivers.session import ChannelClosedError, DriverChannel, EngineSession
from fleet.errors import FleetError


class Ends(NamedTuple):
    """A driver's channel, and the end of a coordinator that says what a test writes."""

    driver: DriverChannel
    coordinator: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(10)
        driver = DriverChannel(theirs)
        yield Ends(driver, ours)
    driver.close()


@pytest.mark.parametrize(
    "answer", [{"id": 99, "value": 1}, {"value": 1}, {"id": [], "value": 1}], ids=["unasked", "none", "list"]
)
def test_an_answer_that_nobody_asked_for_fails_what_is_open_and_what_comes(ends: Ends, answer: Any) -> None:
    session = EngineSession(ends.driver, Path("store"))
    waiting = [session.ask({"op": "ready"}) for _ in range(2)]
    ends.coordinator.sendall(json.dumps(answer).encode() + b"\n")
    for future in (*waiting, session.ask({"op": "ready"})):
        with pytest.raises(FleetError, match="answer cannot be understood"):
            future.result(10)


def test_a_message_nested_too_deep_ends_the_channel(ends: Ends) -> None:
    ends.coordinator.sendall(b"[" * 200_000 + b"\n")
    with pytest.raises(ChannelClosedError):
        ends.driver.get(10)
