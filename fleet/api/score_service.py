"""Scores for the API: one request at a time in a process of its own, a few wait in order, the rest try later.

`fleet.api.app` hands it bodies. The process (`fleet.api.score_process`) starts with the first request, keeps
its models ready, and is ended by force when a request takes too long; the next request starts another.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.host.own_program import command, environment
from fleet.api.score_process import ANSWER_HEAD, REQUEST_HEAD, read_exactly
from fleet.histogram import Histogram

#: File of the daemon's folder with what the process has said last.
LOG = "scores.log"


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
        root: The daemon's folder, which gets the log of the process.
    """

    def __init__(self, settings: ScoreSettings, root: Path) -> None:
        self.settings = settings
        self._log = root / LOG
        self._process: subprocess.Popen[bytes] | None = None
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
        secs = self.settings.score_secs
        try:
            process = self._started()
        except (OSError, RuntimeError) as error:
            refused = {"detail": f"the process that scores cannot be started ({error}); try again later"}
            return 503, 0, json.dumps(refused).encode()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(secs, give_up)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(REQUEST_HEAD.pack(len(body)))
            process.stdin.write(body)
            process.stdin.flush()
            status, scored, size = ANSWER_HEAD.unpack(read_exactly(process.stdout, ANSWER_HEAD.size))
            return status, scored, read_exactly(process.stdout, size)
        except (OSError, EOFError, ValueError):
            self._end()
            why = f"took longer than {secs:.0f} s" if is_late.is_set() else f"ended (see {self._log})"
            answer = f'{{"detail":"the process that scores {why}; ask for fewer traces at a time"}}'
            return 503, 0, answer.encode()
        finally:
            timer.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise RuntimeError("the API is closed")
        if self._process is None or self._process.poll() is not None:
            self._end()
            settings = self.settings
            cores = ",".join(map(str, settings.cores))
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command("fleet.api.score_process", str(settings.models), str(settings.store), cores),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                    # A Ctrl-C in the coordinator's terminal is for the coordinator.
                    start_new_session=True,
                )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            # Bytes that the process did not read are lost with it.
            with suppress(OSError):
                pipe.close()
