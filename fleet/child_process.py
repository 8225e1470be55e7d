"""Processes of ours that work beside a coordinator: no step of their ends holds up one of its turns.

`fleet.refresh.trainer_process` and `fleet.daemon.launch` start theirs with it. What is measured runs in the
sandbox instead (`agents.sandbox`).
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from agents.host.own_program import environment
from agents.host.process_control import cut_output

#: How often a child's output is looked at.
_LOOK_SECS = 1.0
#: What is read of the end of its output: its answer is one line, of a few hundred bytes a device.
_ANSWER_BYTES = 4 << 20
_TAIL_BYTES = 2000
#: End of the names of folders that are being removed; they begin with a point.
_GONE = ".gone"


class ChildProcess:
    """A program of ours at work, in a session of its own; a thread watches it.

    The thread keeps its output short, kills it if it does not end when told to, kills what it started and
    leaves behind, and reaps it. It dies with the thread of the caller only if it asks the kernel to.

    Args:
        command: Program and arguments (`agents.host.own_program.command`).
        folder: Folder for its `stdout` and `stderr`.
        variables: Variables of its environment that differ from ours.
        pass_fds: File descriptors that it gets.

    Raises:
        OSError: There is no room, or no process to be had.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._folder = folder
        self._code: int | None = None
        self._stdout_end = self._stderr_end = b""
        self._kill_at = float("inf")
        #: Held while its number is used: only until it is reaped does the number mean this process.
        self._lock = threading.Lock()
        with _output(folder / "stdout") as out, _output(folder / "stderr") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environment(), **variables},
                pass_fds=tuple(pass_fds),
                # A Ctrl-C in the coordinator's terminal is for the coordinator.
                start_new_session=True,
            )
            self.pid = self._process.pid
            try:
                descriptors = [os.pidfd_open(self.pid), *(os.dup(stream.fileno()) for stream in (out, err))]
                self._watcher = _begin(self._watch, *descriptors)
            except BaseException:
                self._process.kill()
                self._process.wait()
                raise
        self._remover: threading.Thread | None = None

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return None if self._watcher.is_alive() else self._code

    def wait(self, timeout_secs: float) -> bool:
        """Wait for its end, and for the end of its folder; false if it has not ended in the time."""
        ends_at = time.monotonic() + timeout_secs
        self._watcher.join(timeout_secs)
        if self._remover is not None:
            self._remover.join(max(0.0, ends_at - time.monotonic()))
        return not self._watcher.is_alive()

    def end(self, grace_secs: float = 0.0) -> None:
        """Tell it to end, and return at once.

        Args:
            grace_secs: Seconds after which it is killed, with what it started; 0 kills it now.
        """
        self._kill_at = min(self._kill_at, time.monotonic() + grace_secs)
        self._signal(signal.SIGTERM if grace_secs else signal.SIGKILL)

    def discard(self) -> None:
        """Kill it, and have its folder removed after its end; the name of the folder is free at once."""
        self.end()
        self._remover = discard_folder(self._folder, self._watcher.join)

    def answer(self) -> str:
        """The last line that it printed; once it has ended."""
        return self._stdout_end.decode(errors="replace").strip().rsplit("\n", 1)[-1]

    def stderr_tail(self) -> str:
        """The end of its standard error; once it has ended."""
        return self._stderr_end.decode(errors="replace").strip()

    def how_it_ended(self) -> str:
        """Exit code or signal in words; once it has ended."""
        code = self._code
        if code is not None and code < 0:
            return f"its process was ended by signal {-code}"
        return f"its process ended with code {code}"

    def _watch(self, handle: int, out: int, err: int) -> None:
        try:
            while not _is_readable(handle, min(_LOOK_SECS, self._kill_at - time.monotonic())):
                if time.monotonic() >= self._kill_at:
                    self._signal(signal.SIGKILL)
                    self._kill_at = time.monotonic() + _LOOK_SECS
                cut_output(out)
                cut_output(err)
            self._signal(signal.SIGKILL)  # what it started: until it is reaped, its group is surely its own
            with self._lock:
                self._code = self._process.wait()
            self._stdout_end, self._stderr_end = _end_of(out, _ANSWER_BYTES), _end_of(err, _TAIL_BYTES)
        finally:
            for descriptor in (handle, out, err):
                os.close(descriptor)
            if self._code is None:  # this thread has failed: who asks must not wait for ever
                self._signal(signal.SIGKILL)
                self._code = -signal.SIGKILL

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


def _output(path: Path) -> FileIO:
    """A new file that two may write to: each at its end, wherever that is then."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    return FileIO(descriptor, "r+")


def _is_readable(descriptor: int, timeout_secs: float) -> bool:
    poll = select.poll()  # `select.select` knows no number above 1,023, and a daemon has thousands of files
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1e3 * max(0.0, timeout_secs)))


def _end_of(descriptor: int, most_bytes: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, most_bytes, max(0, size - most_bytes))
