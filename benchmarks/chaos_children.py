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
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agents.zygote import die_with_parent
from benchmarks.patience import patience

#: How long a child may take in all, and the first answer, which waits for the imports; longer on a full host.
TIMEOUT_SECS = 300.0
_START_SECS = 300.0

#: How a child ends that was refused its start by a full disk.
REFUSED = 3

_MOUNT = 'mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@"'


class ChildError(Exception):
    """A child ended otherwise than it should: what it printed is in the message."""


class Children:
    """Starts, kills and reaps children.

    Args:
        errors: File that the children print their errors to.
        tmpfs: A folder to mount a small file system of memory at, visible to the children alone.
        tmpfs_bytes: Its size.

    Raises:
        ChildError: The process that forks does not start; with `tmpfs`, the host may not allow the mount.
    """

    def __init__(self, errors: Path, *, tmpfs: Path | None = None, tmpfs_bytes: int = 0) -> None:
        self._errors = errors
        command = [sys.executable, "-m", "benchmarks.chaos_load"]
        if tmpfs is not None:
            command = ["unshare", "-rm", "sh", "-c", _MOUNT, str(tmpfs_bytes), str(tmpfs), *command]
        with errors.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"},
            )
        try:
            self._read(patience(_START_SECS))
        except BaseException:
            self.close()
            raise

    def start(self, load: str, arguments: Mapping[str, Any]) -> int:
        """Fork a child that runs a load; returns its process id."""
        return int(self._ask({"op": "fork", "load": load, "arguments": dict(arguments)})["pid"])

    def wait(self, pid: int, timeout_secs: float | None = None) -> int:
        """Wait for the end of a child: its exit code, or minus the signal.

        Raises:
            ChildError: It does not end in time; it is killed then.
        """
        timeout_secs = patience(TIMEOUT_SECS) if timeout_secs is None else timeout_secs
        descriptor = os.pidfd_open(pid)
        try:
            is_over = bool(select.select([descriptor], [], [], timeout_secs)[0])
        finally:
            os.close(descriptor)
        if not is_over:
            os.kill(pid, signal.SIGKILL)
        code = int(self._ask({"op": "wait", "pid": pid})["code"])
        if not is_over:
            raise ChildError(f"a child did not end within {timeout_secs:g} s: {self.last_words()}")
        return code

    def run(self, load: str, arguments: Mapping[str, Any]) -> int:
        """Fork a child, wait for its end; returns its exit code, or minus the signal."""
        return self.wait(self.start(load, arguments))

    def run_and_kill(self, load: str, arguments: Mapping[str, Any], after_secs: float) -> int:
        """Fork a child and kill it after some time, if it still runs."""
        pid = self.start(load, arguments)
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], after_secs)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
        return self.wait(pid)

    def last_words(self) -> str:
        """The end of what the children have printed since the last `hush`."""
        return self._errors.read_text(errors="replace")[-1500:].strip()

    def hush(self) -> None:
        """Forget what the children have printed."""
        os.truncate(self._errors, 0)

    def close(self) -> None:
        """End all children."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # what it was asked last may not have got through
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process that forks."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that forks."""
        return self._process.poll() is None

    def _gone(self) -> ChildError:
        try:
            code: int | None = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        return ChildError(f"the process that forks the children is gone ({code}): {self.last_words()}")

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._gone() from None
        return self._read(patience(TIMEOUT_SECS))

    def _read(self, timeout_secs: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        # One answer a question, so nothing waits in the buffer of the file object.
        ready = select.select([self._process.stdout], [], [], timeout_secs)[0]
        line = self._process.stdout.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise self._gone()
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def serve(loads: Mapping[str, Callable[[dict[str, Any]], None]]) -> None:
    """Fork children as asked on stdin until it ends, then kill those that are left.

    Args:
        loads: What a child can do: a function of its arguments.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    living: set[int] = set()
    _say(answers, {"event": "ready"})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["op"] == "fork":
            pid = os.fork()
            if pid == 0:
                _be_child(loads[request["load"]], request["arguments"])
            living.add(pid)
            _say(answers, {"pid": pid})
        else:
            _, status = os.waitpid(request["pid"], 0)
            living.discard(request["pid"])
            _say(answers, {"code": os.waitstatus_to_exitcode(status)})
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say(answers: Any, value: Mapping[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _be_child(load: Callable[[dict[str, Any]], None], arguments: dict[str, Any]) -> None:
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


__all__ = ["REFUSED", "ChildError", "Children", "serve"]
