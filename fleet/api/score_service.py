"""Scores for the API: one request at a time in a process of its own, a few wait in order, the rest try later.

`fleet.api.app` hands it bodies. The process (`fleet.api.score_process`) starts with the first request, keeps
its models ready, and is ended by force when a request takes too long; the next request starts another.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agents.host.child_process import ChildProcess
from fleet.api.score_process import ANSWER_HEAD
from fleet.histogram import Histogram

#: Folder of the daemon's own with what the process has printed last.
FOLDER = "scores"
_MODULE = "fleet.api.score_process"
_NICE = 10
#: Seconds in which a process ends whose connection is closed, and after which a killed one is given up.
_END_SECS, _KILL_SECS = 1.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """What scores come from, and what they may take."""

    models: Path
    store: Path
    #: Logical CPUs that do not time; all where empty.
    cores: tuple[int, ...] = ()
    #: Bytes of a body: 4,096 traces of 8 KB each, twice what MetaSchedule's usually take.
    body_bytes: int = 32 << 20
    #: Seconds until the last byte of a body, and those of a scoring: 4,096 traces take some seconds.
    body_secs: float = 30.0
    score_secs: float = 120.0
    #: Requests that are being read, wait or are scored; each may hold a body.
    most: int = 8


class ScoreBusyError(Exception):
    """As many requests as may wait are there."""


class ScoreService:
    """Answers bodies of requests with scores.

    Args:
        settings: What they come from, and what they may take.
        root: The daemon's folder, which gets a folder for what the process prints.
    """

    def __init__(self, settings: ScoreSettings, root: Path) -> None:
        self.settings = settings
        self._folder = root / FOLDER
        self._process: ChildProcess | None = None
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._inside = 0
        self._is_closed = False
        self._secs = Histogram()
        self._candidates = 0
        self._refused: Counter[str] = Counter(busy=0, request=0, failed=0)

    async def answer(
        self, body: Callable[[], Awaitable[bytes]], is_gone: Callable[[], Awaitable[bool]]
    ) -> tuple[int, bytes]:
        """Status and body of the answer to one request.

        Args:
            body: Reads the body; what it raises is passed on.
            is_gone: Whether nobody waits for the answer any more.

        Raises:
            ScoreBusyError: Too many are there.
        """
        if self._inside >= self.settings.most:
            self._refused["busy"] += 1
            raise ScoreBusyError
        self._inside += 1
        try:
            read = await body()
            async with self._turn:
                if await is_gone():
                    return 499, b""
                with self._secs.timed():
                    status, scored, answer = await asyncio.to_thread(self._ask, read)
        finally:
            self._inside -= 1
        self._candidates += scored
        if status != 200:
            self._refused["request" if status < 500 else "failed"] += 1
        return status, answer

    @property
    def view(self) -> dict[str, Any]:
        """JSON-ready: `secs` (a histogram), `candidates` scored, `refused` by why, requests `inside`."""
        return {
            "secs": self._secs.view,
            "candidates": self._candidates,
            "refused": dict(self._refused),
            "inside": self._inside,
        }

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._end()

    def _ask(self, body: bytes) -> tuple[int, int, bytes]:
        """Let the process answer; it is ended where it takes too long."""
        try:
            process, connection = self._started()
        except (OSError, RuntimeError) as error:
            return _failed(f"the process that scores cannot be started ({error}); try again later")
        process.limit(self.settings.score_secs)
        try:
            connection.send_bytes(body)
            answer = connection.recv_bytes()
        except (OSError, EOFError):
            self._end()
            why = f"{process.how_it_ended()} (see {self._folder / 'stderr'})"
            return _failed(f"the process that scores gave no answer: {why}; ask for fewer traces at a time")
        process.limit(float("inf"))
        status, scored = ANSWER_HEAD.unpack_from(answer)
        return status, scored, answer[ANSWER_HEAD.size :]

    def _started(self) -> tuple[ChildProcess, Connection]:
        if self._is_closed:
            raise RuntimeError("the API is closed")
        if self._process is not None and self._connection is not None and self._process.poll() is None:
            return self._process, self._connection
        self._end()
        settings = self.settings
        self._folder.mkdir(exist_ok=True)
        ours, theirs = Pipe()
        with theirs:
            try:
                self._process = ChildProcess(
                    [_MODULE, *map(str, (settings.models, settings.store, theirs.fileno()))],
                    self._folder,
                    variables={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                    cores=settings.cores,
                    nice=_NICE,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        self._connection = ours
        return self._process, ours

    def _end(self) -> None:
        """Kill the process, and wait for that."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        # One that died by itself keeps its own end.
        if process is not None and not process.wait(_END_SECS):
            process.end()
            process.wait(_KILL_SECS)


def _failed(why: str) -> tuple[int, int, bytes]:
    return 503, 0, json.dumps({"detail": why}).encode()
