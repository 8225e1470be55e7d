"""Worker processes that are none: what they say is untrue, and none of it holds up a pool for long."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import pytest

from agents.records import Outcome, Protocol
from agents.sandbox import processes
from agents.sandbox.job import JobResult
from agents.sandbox.pool import WorkerPool
from agents.sandbox.retimed_programs import most_timings
from agents.sandbox.stages import ChildSettings
from agents.sandbox.wire import Channel
from tests.agents.sandbox.test_pool_jobs import job
from tests.conftest import child_settings

#: So many messages are more than any bound.
_MANY = 10_000
Messages = Iterator[dict[str, Any] | bytes]
DONE, STAGE = map(
    json.loads,
    (
        '{"event": "done", "job": 0, "outcome": "ok", "error": "", "build_secs": 0.0, "wait_secs": 0.0}',
        '{"event": "stage", "job": 0, "stage": "timing", "build_secs": 0.0, "wait_secs": 0.0}',
    ),
)


class Zygote:
    """Stands in for `agents.sandbox.process.Zygote`: threads that say what they like.

    Args:
        answers: Messages after the job was told, and after the last timings were asked for.
    """

    pid = 1

    def __init__(self, answers: Callable[[str], Messages]) -> None:
        self._answers = answers
        self.threads: list[threading.Thread] = []

    def is_alive(self) -> bool:
        return True

    def fork(self, channel: socket.socket, stderr: IO[bytes], settings: ChildSettings) -> int:
        thread = threading.Thread(target=self._work, args=(channel.dup(),), daemon=True)
        self.threads.append(thread)
        thread.start()
        return 0

    def _work(self, end: socket.socket) -> None:
        channel = Channel(end)
        try:
            channel.send({"event": "ready", "pid": 0})
            while (message := channel.receive()) is not None:
                for answer in self._answers(message["op"]):
                    if isinstance(answer, bytes):
                        time.sleep(0.3)  # what was said before is read alone
                        end.sendall(answer)
                    else:
                        channel.send(answer)
        except OSError:
            pass  # the pool has had enough of it
        channel.close()

    def end_of(self, token: int, timeout_secs: float) -> str:
        return "did not end"

    def kill(self, token: int) -> str:
        return "killed by SIGKILL"

    def kill_all(self) -> None: ...

    def last_words(self) -> str:
        return ""

    def close(self) -> None: ...


def retimed(left: int, run_secs: Sequence[float] = (1e-3,)) -> dict[str, Any]:
    return {"event": "retimed", "job": 0, "run_secs": list(run_secs), "timing_secs": 0.0, "left": left}


def over_and_over(message: dict[str, Any]) -> Callable[[], Messages]:
    return lambda: (message for _ in range(_MANY))


def slowly(message: dict[str, Any]) -> Messages:
    while True:
        time.sleep(0.05)
        yield message


def result_of(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> JobResult:
    """What becomes of one job; in the end no process is left."""
    monkeypatch.setattr(processes, "Zygote", lambda *_: zygote)
    with WorkerPool([child_settings()]) as pool:
        [result] = pool.run([job(0, protocol=Protocol(visits=2, run_timeout_secs=0.3))])
    for thread in zygote.threads:
        thread.join(10)
        assert not thread.is_alive()
    return result


@pytest.mark.parametrize(
    ("says", "visits"),
    [
        (over_and_over(retimed(left=1)), most_timings(2)),
        (over_and_over(retimed(left=1, run_secs=())), 1),
        (lambda: iter([{"event": "rested"}]), 1),
        (lambda: slowly({"event": "retiming"}), 1),
    ],
    ids=["timings without end", "a program that failed goes on", "nothing is timed", "it only begins"],
)
def test_a_process_that_never_ends_its_timings_is_ended_and_the_program_keeps_those_it_has(
    monkeypatch: pytest.MonkeyPatch, says: Callable[[], Messages], visits: int
) -> None:
    def answers(operation: str) -> Messages:
        if operation == "measure":
            yield {**DONE, "run_secs": [1e-3], "is_kept": True}
        elif operation == "retime":
            yield {"event": "retiming"}
            yield from says()

    result = result_of(Zygote(answers), monkeypatch)
    assert result.outcome is Outcome.OK
    assert result.quality.get("visits", 1) == visits


@pytest.mark.parametrize(
    "garbage",
    [[{**DONE, "job": 5}], [b"\x04\0\0\0none"], [STAGE] * 99],
    ids=["another job", "no JSON", "stages without end"],
)
def test_a_process_whose_memory_is_damaged_is_a_strike_against_its_candidate(
    monkeypatch: pytest.MonkeyPatch, garbage: list[Any]
) -> None:
    turns = iter([[STAGE, *garbage], [{**DONE, "run_secs": [1e-3]}]])
    zygote = Zygote(lambda operation: iter(next(turns) if operation == "measure" else ()))
    result = result_of(zygote, monkeypatch)
    assert (result.outcome, result.quality["strikes"]) == (Outcome.OK, 1)
    assert len(zygote.threads) == 2, "one process more"
