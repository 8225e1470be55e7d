from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import AgentError, MessageError
from agents.sandbox.wire import MAX_MESSAGE_BYTES, Channel
from agents.sandbox.worker_messages import MOST_EVENT_BYTES, parse_answer, parse_event
from tests.conftest import run_code
from tests.table_fixtures import rows

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50)
values = scalars | st.lists(scalars, max_size=5)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield Channel(one), Channel(two), one


@pytest.mark.parametrize("torn", [b"", struct.pack("<I", 10) + b'{"a"'])
def test_the_end_of_the_other_side_is_none_and_a_torn_message_is_never_delivered(
    ends: tuple[Channel, Channel, socket.socket], torn: bytes
) -> None:
    sender, receiver, raw = ends
    sender.send({"a": 1})
    raw.sendall(torn)
    sender.close()
    assert receiver.receive() == {"a": 1}
    assert receiver.receive() is None


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<I", MAX_MESSAGE_BYTES + 1),
        *(
            struct.pack("<I", len(one)) + one
            for one in (b"[]", b"{", b"\xff{}", b"[" * 100_000, '{"a":"é"}'.encode())
        ),
    ],
    ids=["huge", "list", "torn", "no text", "deep", "no ASCII"],
)
def test_damaged_messages_are_refused(ends: tuple[Channel, Channel, socket.socket], body: bytes) -> None:
    _, receiver, raw = ends
    raw.sendall(body)
    with pytest.raises(MessageError):
        receiver.receive()


#: Sends a frame of lists, as a program does that has its process in hand; reads it with the bound of events.
FLOOD = """
import os, resource, socket, struct, sys
from agents.errors import MessageError
from agents.sandbox.process import MOST_EVENT_BYTES
from agents.sandbox.wire import Channel
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    body = b'{"event":"done","run_secs":[' + b"[]," * (int(sys.argv[1]) // 3) + b"0]}"
    try:
        theirs.sendall(struct.pack("<I", len(body)) + body)
    except OSError:
        pass
    os._exit(0)
theirs.close()
channel, before = Channel(ours), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
channel.most_bytes = MOST_EVENT_BYTES
try:
    channel.receive()
except MessageError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("size", [60_000_000, MOST_EVENT_BYTES - 100])
def test_a_flood_of_values_takes_little_memory_of_who_reads_it(size: int) -> None:
    assert int(run_code(FLOOD, str(size))) < 40


ANSWER, STAGE, DONE, RETIMED = map(
    json.loads,
    """
    {"event": "proposed", "traces": ["[]"], "refused": {"too long": 2}}
    {"event": "stage", "job": 3, "stage": "timing", "build_secs": 0.1, "wait_secs": 0}
    {"event": "done", "job": 3, "outcome": "ok", "error": "", "run_secs": [1e-3, 2e-3], "number": 4, \
     "environment": {"threads": 1}, "quality": {"checked": true}, "probe_secs": 1e-5, \
     "disturbances": ["", "slow_core"], "has_new_level": true, "is_kept": true, \
     "build_secs": 0.1, "wait_secs": 0}
    {"event": "retimed", "job": 0, "run_secs": [1e-3], "timing_secs": 0.2, "left": 2}
    """.strip().splitlines(),
)


@pytest.mark.parametrize(
    "message",
    [
        *({"event": "ready", "pid": 7}, STAGE, DONE, {"event": "retiming"}, {"event": "rested"}),
        {**RETIMED, "disturbances": ["preempted"]},
    ],
    ids=lambda message: message["event"],
)
def test_what_a_sound_process_says_is_believed(message: dict[str, Any]) -> None:
    event = msgspec.json.decode(msgspec.json.encode(parse_event(message)))
    assert {name: event[name] for name in message} == message


#: What no sound process says: a message, or changes of the one that is named; and what is named of it.
UNSOUND = """
    {}                                    -> None
    {"event": "proposed", "traces": []}   -> proposed
    {"event": ["done"]}                   -> done
    {"event": "ready", "pid": -1}         -> pid
    {"event": "stage", "job": 3}          -> stage
    STAGE {"stage": "dreaming"}           -> dreaming
    STAGE {"stage": []}                   -> stage
    STAGE {"stage": "idle"}               -> idle
    STAGE {"stage": "starting"}           -> starting
    STAGE {"stage": "retiming"}           -> retiming
    STAGE {"build_secs": 1e300}           -> build_secs
    STAGE {"wait_secs": -1.0}             -> wait_secs
    DONE {"outcome": "fine"}              -> fine
    DONE {"job": true}                    -> job
    DONE {"run_secs": [1e-3, NaN]}        -> run_secs
    DONE {"run_secs": "1"}                -> run_secs
    DONE {"run_secs": []}                 -> run_secs
    DONE {"run_secs": [1e-3, 0.0]}        -> run_secs
    DONE {"outcome": "wrong_output"}      -> is_kept
    DONE {"is_device_lost": true}         -> is_device_lost
    DONE {"quality": {"visits": "x"}}     -> quality
    DONE {"quality": {"suspect": true}}   -> quality
    DONE {"quality": {"interval": 0.1}}   -> quality
    DONE {"disturbances": [""]}           -> disturbances
    DONE {"disturbances": ["", "tired"]}  -> disturbances
    DONE {"probe_secs": -1.0}             -> probe_secs
    RETIMED {"disturbances": ["", ""]}    -> disturbances
    DONE {"error": null}                  -> error
    DONE {"environment": []}              -> environment
    DONE {"environment": {"load": Infinity}} -> environment
    DONE {"is_kept": 1}                   -> is_kept
    DONE {"ended_at": 1.0}                -> ended_at
    {"event": "retimed", "job": 0, "run_secs": [1e-3], "timing_secs": 0.2} -> left
"""


def unsound(line: str) -> dict[str, Any]:
    for name, sound in (("STAGE", STAGE), ("DONE", DONE), ("RETIMED", RETIMED)):
        if line.startswith(name):
            return {**sound, **json.loads(line.removeprefix(name))}
    return json.loads(line)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        *((unsound(line), named) for line, named in rows(UNSOUND)),
        ({**STAGE, "build_secs": 10**400}, "build_secs"),
        ({name: value for name, value in DONE.items() if name != "run_secs"}, "run_secs"),
        ({**DONE, "error": "x" * (2 << 20)}, "error"),
        ({**DONE, "quality": {"x": "y" * (2 << 20)}}, "quality"),
    ],
)
def test_what_no_sound_process_says_is_refused(message: dict[str, Any], named: str) -> None:
    with pytest.raises(MessageError, match=named):
        parse_event(message)


@pytest.mark.parametrize(
    "change",
    [{"event": "done"}, {"traces": "[]"}, {"traces": [7]}, {"refused": {"too long": "2"}}, {"refused": None}],
)
def test_an_answer_is_of_checked_types_or_refused(change: dict[str, Any]) -> None:
    assert parse_answer(ANSWER) == {"traces": ["[]"], "refused": {"too long": 2}}
    with pytest.raises(MessageError):
        parse_answer(ANSWER | change)
    with pytest.raises(AgentError, match=r"^no such network$"):
        parse_answer({"event": "refused", "error": "no such network"})


@given(
    st.sampled_from([STAGE, DONE, {"event": "ready", "pid": 7}, {}]),
    st.dictionaries(
        st.sampled_from([*DONE, *STAGE, "pid", "left", "timing_secs"]),
        values | st.floats() | st.dictionaries(st.text(max_size=3), values, max_size=2),
        max_size=4,
    ),
)
def test_any_message_is_believed_or_refused(sound: dict[str, Any], changes: dict[str, Any]) -> None:
    with contextlib.suppress(MessageError):
        parse_event({**sound, **changes})
