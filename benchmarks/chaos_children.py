"""Child processes by the hundred: one process imports what they need, and forks them in milliseconds.

Both ends of one pipe of JSON lines: `Children` is held by `benchmarks.chaos`, `serve` runs in the process
that forks. Only that process, their parent, reaps the children, so an id that was not waited for is theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from agents.host.process_control import die_with_parent
from benchmarks.fleet_up import patience
from fleet.json_types import Json, JsonDict

#: How long a child may take in all, and the first answer, which waits for the imports; longer on a full host.
TIMEOUT_SECS = 300.0

#: How a child ends that was refused its start by a full disk, and one that a failing disk has ended in order.
REFUSED, DISK_FAILED = 3, 4

#: How long a child is stopped.
_PAUSE_SECS = 0.05


#: Files of a history: which training was stopped, and what every training holds locked while it lives.
STILL, ALIVE = "still", "alive"


def wake_training(still: Path) -> None:
    """Let a training go on that was stopped, if it is there still; one of a life before ends then.

    Args:
        still: File that remembers it.
    """
    if not still.exists():
        return
    with contextlib.suppress(OSError):  # it may have ended
        pid = int(still.read_text())
        if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T"):
            os.kill(pid, signal.SIGCONT)
    still.unlink()


class ChildError(Exception):
    """A child ended otherwise than it should."""


class Forks:
    """The end of the pipe where children are asked for.

    Args:
        requests: Gets one line of JSON a request.
        answers: Has one line of JSON an answer.
    """

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers
        #: One question at a time: threads that watch processes ask as well.
        self._lock = threading.Lock()

    def start(self, load: str, arguments: Json) -> int:
        """Fork a process that runs a load; returns its process id."""
        return int(self._ask({"op": "fork", "load": load, "arguments": dict(arguments)})["pid"])

    def wait(self, pid: int, most_secs: float | None = None) -> int:
        """Wait for the end of a child: its exit code, or minus the signal.

        Raises:
            ChildError: It does not end in the time; it is killed then.
        """
        with _descriptor(pid) as descriptor:
            is_over = bool(select.select([descriptor], [], [], most_secs)[0])
        if not is_over:
            os.kill(pid, signal.SIGKILL)
        code = int(self._ask({"op": "wait", "pid": pid})["code"])
        if not is_over:
            raise ChildError(f"a child did not end within {most_secs:g} s")
        return code

    def _ask(self, request: Json) -> JsonDict:
        with self._lock:
            try:
                _say(self._requests, request)
            except OSError as error:
                raise ChildError(f"nobody forks children any more: {error}") from None
            return self._read()

    def _read(self) -> JsonDict:
        # One answer a question, so nothing waits in the buffer of the file object.
        ready = select.select([self._answers], [], [], patience(TIMEOUT_SECS))[0]
        line = self._answers.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise ChildError("the process that forks the children is gone")
        answer: JsonDict = json.loads(line)
        return answer


class Children(Forks):
    """Starts, kills and reaps children.

    Args:
        errors: File that the children print their errors to.

    Raises:
        ChildError: The process that forks does not start.
    """

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos_load"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdin, self._process.stdout)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def run(self, load: str, arguments: Json) -> int:
        """Fork a child, wait for its end; returns its exit code, or minus the signal."""
        return self.wait(self.start(load, arguments), patience(TIMEOUT_SECS))

    def do(self, load: str, arguments: Json) -> None:
        """Fork a child and wait for its end.

        Raises:
            ChildError: It failed.
        """
        if (code := self.run(load, arguments)) != 0:
            raise ChildError(f"{load} ended with {code}")

    def run_and_kill(
        self, load: str, arguments: Json, after_secs: float, pause_at_secs: float | None = None
    ) -> int:
        """Fork a child and kill it after some time, if it still runs.

        Args:
            load: What it does.
            arguments: Of the load.
            after_secs: When.
            pause_at_secs: When to stop it for a moment before.
        """
        pid = self.start(load, arguments)
        with _descriptor(pid) as descriptor:
            left_secs = after_secs
            if pause_at_secs is not None and not select.select([descriptor], [], [], pause_at_secs)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
                time.sleep(_PAUSE_SECS)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                left_secs = max(0.0, after_secs - pause_at_secs)
            select.select([descriptor], [], [], left_secs)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return self.wait(pid)

    def last_words(self) -> str:
        """The end of what the children have printed since the last `hush`."""
        return self._errors.read_text(errors="replace")[-1500:].strip()

    def hush(self) -> None:
        """Forget what the children have printed."""
        os.truncate(self._errors, 0)

    def close(self) -> None:
        """End all children."""
        with contextlib.suppress(OSError):  # what it was asked last may not have got through
            self._requests.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that forks."""
        return self._process.poll() is None


@contextlib.contextmanager
def _descriptor(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def spawner(loads: Mapping[str, Callable[[JsonDict], None]]) -> Forks:
    """Forks for a process that has threads of its own: made before they begin, and gone with it.

    Args:
        loads: What the forked processes can do.
    """
    requests, to_spawner = os.pipe()
    from_spawner, answers = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        die_with_parent(parent)
        os.close(to_spawner)
        os.close(from_spawner)
        serve(loads, os.fdopen(requests, "rb"), os.fdopen(answers, "wb"))
        os._exit(0)
    os.close(requests)
    os.close(answers)
    made = Forks(os.fdopen(to_spawner, "wb"), os.fdopen(from_spawner, "rb"))
    made._read()
    return made


def serve(loads: Mapping[str, Callable[[JsonDict], None]], requests: IO[bytes], answers: IO[bytes]) -> None:
    """Fork children as asked until there are no more requests, then kill those that are left.

    Args:
        loads: What a child can do: a function of its arguments.
        requests: Lines of JSON.
        answers: One line of JSON a request.
    """
    living: set[int] = set()
    _say(answers, {"event": "ready"})
    for line in requests:
        request = json.loads(line)
        if request["op"] == "fork":
            pid = os.fork()
            if pid == 0:
                _be_child(loads[request["load"]], request["arguments"])
            living.add(pid)
            _say(answers, {"pid": pid})
            continue
        pid, status = os.waitpid(request["pid"], 0)
        living.discard(pid)
        _say(answers, {"code": os.waitstatus_to_exitcode(status)})
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say(pipe: IO[bytes], value: Json) -> None:
    pipe.write(json.dumps(value).encode() + b"\n")
    pipe.flush()


def _be_child(load: Callable[[JsonDict], None], arguments: JsonDict) -> None:
    code = 1
    try:
        die_with_parent(os.getppid())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        load(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
