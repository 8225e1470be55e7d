"""Processes of ours beside a caller: started, bounded, watched and ended in one way.

Drivers of requests, trainings, scores, readers of networks and of strangers' files, and TVM's LLVM run in
such a process. What is measured runs in the sandbox instead (`agents.sandbox`). No step of their ends holds
up a turn of the coordinator.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import IO

from agents.host.process_control import (
    CHILD_MAIN,
    command,
    cut_output,
    environment,
    output_tail,
    signal_name,
)

#: How often a child's output is looked at.
_LOOK_SECS = 1.0
#: Longest standard output, whose last line is the answer: the workloads of six networks take some 20 MiB.
MOST_ANSWER_BYTES = 32 << 20
#: Of the last line of standard error, in a message of one line.
_LINE_CHARS = 400
#: After which a killed process is given up: it hangs in the kernel.
_KILL_SECS = 5.0
#: End of the names of folders that are being removed; they begin with a point.
_GONE = ".gone"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class ChildProcess:
    """A module of ours that runs as a program, in a session of its own; a thread watches it.

    The thread starts it, keeps its output short, kills it at its deadline or if it does not end when it is
    to, kills what it started and leaves behind, and reaps it. It dies with this process, however that ends.

    Args:
        program: Module and arguments.
        folder: Folder for its `stdout` and `stderr`; None keeps them in files without a name.
        question: Its standard input; nothing where empty.
        variables: Variables of its environment that differ from ours.
        cores: Logical CPUs that it stays on; all of this process where empty.
        nice: By how much it gives way to others.
        deadline_secs: Seconds after which it is killed.
        pass_fds: File descriptors that it gets.

    Raises:
        OSError: There is no room, or no process to be had.
    """

    def __init__(
        self,
        program: Sequence[str],
        folder: Path | None = None,
        *,
        question: bytes = b"",
        variables: Mapping[str, str] = _NOTHING,
        cores: Sequence[int] = (),
        nice: int = 0,
        deadline_secs: float = float("inf"),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._folder = folder
        self._code: int | None = None
        self._stdout_end = self._stderr_end = ""
        self._end_reason = ""
        self._has_flooded = False
        self._kill_at = self._deadline_secs = float("inf")
        #: Held while its number is used: only until it is reaped does the number mean this process.
        self._lock = threading.Lock()
        self._remover: threading.Thread | None = None
        module, *arguments = program
        begin = (module, str(os.getpid()), str(nice), ",".join(map(str, cores)))
        started: Future[subprocess.Popen[bytes]] = Future()
        with ExitStack() as files:
            out, err = (files.enter_context(_output(folder, name)) for name in ("stdout", "stderr"))
            stdin: IO[bytes] | int = subprocess.DEVNULL
            if question:
                stdin = written = files.enter_context(tempfile.TemporaryFile())
                written.write(question)
                written.seek(0)

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    command(CHILD_MAIN, *begin, *arguments),
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    env={**environment(), **variables},
                    pass_fds=tuple(pass_fds),
                    # A Ctrl-C in the coordinator's terminal is for the coordinator.
                    start_new_session=True,
                )

            ours = [os.dup(stream.fileno()) for stream in (out, err)]
            try:
                self._watcher = _begin(self._run, start, started, *ours)
            except OSError:
                for descriptor in ours:
                    os.close(descriptor)
                raise
            self._process = started.result()
        self.pid = self._process.pid
        self.limit(deadline_secs)

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return None if self._watcher.is_alive() else self._code

    def wait(self, timeout_secs: float | None = None) -> bool:
        """Wait for its end, and for the end of its folder; false if it has not ended in the time."""
        ends_at = time.monotonic() + (timeout_secs or 0.0)
        self._watcher.join(timeout_secs)
        if self._remover is not None:
            self._remover.join(None if timeout_secs is None else max(0.0, ends_at - time.monotonic()))
        return not self._watcher.is_alive()

    def join(self) -> None:
        """Wait for its end, however long that takes; if the wait is interrupted, end it."""
        try:
            self.wait()
        except BaseException:  # a Ctrl-C
            self.end()
            self.wait(_KILL_SECS)
            raise

    def limit(self, secs: float) -> None:
        """Set a new deadline, so many seconds from now, in the place of the one before."""
        self._deadline_secs, self._kill_at = secs, time.monotonic() + secs

    def end(self, grace_secs: float = 0.0) -> None:
        """Have it end, and return at once.

        Args:
            grace_secs: Seconds after which it is killed, with what it started; 0 kills it now.
        """
        self._deadline_secs = float("inf")
        self._kill_at = min(self._kill_at, time.monotonic() + grace_secs)
        self._signal(signal.SIGTERM if grace_secs else signal.SIGKILL)

    def discard(self) -> None:
        """Kill it, and have its folder removed after its end; the name of the folder is free at once."""
        self.end()
        if self._folder is not None:
            self._remover = discard_folder(self._folder, self._watcher.join)

    @property
    def was_late(self) -> bool:
        """Whether it was killed at its deadline."""
        return bool(self._end_reason)

    def answer(self) -> str:
        """The last line that it printed, broken if that was too long; once it has ended."""
        return self._stdout_end.rsplit("\n", 1)[-1]

    def stderr_tail(self) -> str:
        """The end of its standard error; once it has ended."""
        return self._stderr_end

    def how_it_ended(self) -> str:
        """Deadline, exit code or signal in words; once it has ended."""
        code = self._code
        if self._end_reason:
            return self._end_reason
        if self._has_flooded:
            return f"its process printed more than {MOST_ANSWER_BYTES >> 20} MiB"
        if code is not None and code < 0:
            return f"its process was ended by {signal_name(-code)}"
        return f"its process ended with code {code}"

    def failure(self) -> str:
        """How it ended, with the end of its standard error; once it has ended."""
        tail = self.stderr_tail()
        return self.how_it_ended() + (f": {tail}" if tail else "")

    def failure_line(self) -> str:
        """How it ended, with the last line of its standard error; once it has ended."""
        last_line = self.stderr_tail().rpartition("\n")[2].strip()[:_LINE_CHARS]
        return f"{self.how_it_ended()}: {last_line or 'it printed no error'}"

    def _run(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        started: Future[subprocess.Popen[bytes]],
        out: int,
        err: int,
    ) -> None:
        """Start it and watch it: it dies with the thread that started it."""
        with ExitStack() as open_files:
            for descriptor in (out, err):
                open_files.callback(os.close, descriptor)
            try:
                process = start()
            except BaseException as error:
                started.set_exception(error)
                return
            try:
                handle = os.pidfd_open(process.pid)
            except OSError as error:
                process.kill()
                process.wait()
                started.set_exception(error)
                return
            open_files.callback(os.close, handle)
            self._process, self.pid = process, process.pid
            started.set_result(process)
            try:
                self._watch(handle, out, err)
            finally:
                if self._code is None:  # this thread has failed: its caller must not wait for ever
                    self._signal(signal.SIGKILL)
                    self._code = -signal.SIGKILL

    def _watch(self, handle: int, out: int, err: int) -> None:
        while not _is_readable(handle, min(_LOOK_SECS, self._kill_at - time.monotonic())):
            if time.monotonic() >= self._kill_at:
                if self._deadline_secs != float("inf"):
                    self._end_reason = f"it was not done after {self._deadline_secs:,.0f} s"
                self._signal(signal.SIGKILL)
                self._kill_at = time.monotonic() + _LOOK_SECS
            self._has_flooded |= cut_output(out, MOST_ANSWER_BYTES)
            cut_output(err)
        self._signal(signal.SIGKILL)  # what it started: until it is reaped, its group is surely its own
        with self._lock:
            self._code = self._process.wait()
        self._has_flooded |= cut_output(out, MOST_ANSWER_BYTES)
        self._stdout_end, self._stderr_end = output_tail(out, MOST_ANSWER_BYTES), output_tail(err)

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._code is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)


def discard_folder(folder: Path, wait: Callable[[], None] = lambda: None) -> threading.Thread | None:
    """Have a folder removed by a thread, after `wait`; its name is free at once.

    One that cannot be removed now, as on a disk that became read-only, stays.
    """
    aside = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}{_GONE}")

    def remove() -> None:
        wait()
        shutil.rmtree(aside, ignore_errors=True)

    try:
        folder.rename(aside)
        return _begin(remove)
    except OSError:
        return None


def remove_discarded(root: Path) -> None:
    """Remove the folders that a killed process had not removed yet."""
    for folder in root.glob(f".*{_GONE}"):
        shutil.rmtree(folder, ignore_errors=True)


def _begin(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name="child", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread to be had: {error}") from error
    return thread


def _output(folder: Path | None, name: str) -> IO[bytes] | FileIO:
    """A new file that two may write to: each at its end, wherever that is then."""
    if folder is None:
        return tempfile.TemporaryFile("a+b", buffering=0)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    return FileIO(descriptor, "r+")


def _is_readable(descriptor: int, timeout_secs: float) -> bool:
    poll = select.poll()  # `select.select` knows no number above 1,023, and a daemon has thousands of files
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1e3 * max(0.0, timeout_secs)))
