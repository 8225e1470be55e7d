"""How far worker processes are confined on this host, found by trying.

`fleet doctor` calls `try_confinement`. It starts this module as a program, which confines itself as a worker
process of a CPU of this host is confined, and then tries what such a process must not be able to do. What its
agent has to see of it, memory and threads, is looked at from outside, as an agent does.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

from agents.errors import AgentError
from agents.host.process_control import command, environment
from agents.sandbox.confinement import MOST_FILE_BYTES, Confinement, confine, has_privileges, system_call
from agents.sandbox.footprint import Footprint, footprint_of, limit_memory
from agents.sandbox.syscall_filter import Needs, call_number

_TIMEOUT_SECS = 20.0
_PTRACE_CONT, _MAP_NORESERVE = 7, 0x4000
_SET_USER_ID = 0o4755
#: Memory and threads that the trial takes for its parent to see, and memory that goes beyond its limit.
_SEEN_BYTES, _SEEN_THREADS, _TOO_MANY_BYTES = 64 << 20, 8, 4 << 30
_SHARED_MEMORY = Path("/dev/shm")


class Aspect(StrEnum):
    """What of its host a worker process is kept from."""

    FILES = "files"
    NETWORK = "network"
    MEMORY = "memory"
    PROCESSES = "processes"


class Means(StrEnum):
    """What keeps a worker process from something."""

    LANDLOCK = "Landlock"
    FILTER = "filter of system calls"
    LIMITS = "limits of the kernel"
    PRIVILEGES = "no privileges"
    WATCH = "watched by its agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Something that a worker process must not be able to do, and whether it was refused."""

    aspect: Aspect
    what: str
    #: What refuses it, if all is well.
    by: Means
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Confinement):
    """What a trial of the confinement found."""

    attempts: tuple[Attempt, ...]
    #: The folder for temporary files, if files in it take memory (tmpfs), which is not counted; else empty.
    memory_folder: str = ""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Forbidden actions that the kernel let through."""
        return tuple(attempt.what for attempt in self.attempts if not attempt.is_refused)


def try_confinement() -> Trial:
    """Try the confinement in a process of its own, which takes some 0.3 s.

    Raises:
        AgentError: That process did not do its work.
    """
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-trial-") as folder:
        for name in ("inside", "outside"):
            Path(folder, name).mkdir()
        for name in ("kept", "spare"):
            Path(folder, "outside", name).write_text("kept")
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command("agents.sandbox.confinement_trial", folder),
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            watchdog = threading.Timer(_TIMEOUT_SECS, process.kill)
            watchdog.start()
            try:
                return _watched(process, tempfile.gettempdir())
            except (OSError, msgspec.MsgspecError) as error:
                process.kill()
                errors.seek(0)
                last = errors.read().strip().rpartition("\n")[2] or f"it did not answer: {error}"
                raise AgentError(
                    f"the process that tries it ended with status {process.wait()}: {last}"
                ) from error
            finally:
                watchdog.cancel()
                process.communicate()


def _watched(process: subprocess.Popen[str], folder: str) -> Trial:
    """Do an agent's part, while the process tries: set its limit, and look at what it holds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()  # it is confined
    before = footprint_of(process.pid, with_group=False)
    limit_memory(process.pid, 0.0)
    print(file=process.stdin, flush=True)
    trial = msgspec.json.decode(process.stdout.readline(), type=Trial)
    held = footprint_of(process.pid, with_group=False)
    return replace(
        trial,
        attempts=(*trial.attempts, *_unseen(before, held)),
        memory_folder=folder if _is_memory(Path(folder)) else "",
    )


def _unseen(before: Footprint, held: Footprint) -> Iterator[Attempt]:
    sees_memory = held.memory_bytes - before.memory_bytes >= _SEEN_BYTES
    sees_threads = held.threads - before.threads >= _SEEN_THREADS
    for aspect, what, is_seen in (
        (Aspect.MEMORY, "take memory that its agent does not see", sees_memory),
        (Aspect.PROCESSES, "start threads that its agent does not see", sees_threads),
    ):
        yield Attempt(aspect=aspect, what=what, by=Means.WATCH, is_refused=is_seen)


def _is_memory(folder: Path) -> bool:
    """Whether files in a folder take memory."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
    nearest = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return nearest is not None and nearest.fstype in ("tmpfs", "ramfs")


_Try = tuple[Aspect, str, Means, Callable[[], object]]


def tries(inside: Path, outside: Path) -> Iterator[_Try]:
    """What a confined process must not be able to do; if it can, none of it does harm.

    Args:
        inside: Its scratch folder.
        outside: Another folder, with files `kept` and `spare`.
    """
    yield from _tries_of_files(inside, outside)
    yield from _tries_of_network()
    yield from _tries_of_memory()
    yield from _tries_of_processes(outside)


def _tries_of_files(inside: Path, outside: Path) -> Iterator[_Try]:
    outside_file = outside / "kept"
    landlock, calls = Means.LANDLOCK, Means.FILTER
    for what, by, attempt in (
        ("make files outside its scratch folder", landlock, lambda: (outside / "made").open("x").close()),
        ("write to files outside it", landlock, lambda: outside_file.open("r+b").close()),
        ("empty files outside it", calls, lambda: os.close(os.open(outside_file, os.O_RDONLY | os.O_TRUNC))),
        ("change modes of files", calls, lambda: _change_mode(outside_file)),
        ("rename files outside it", landlock, lambda: outside_file.rename(outside / "moved")),
        ("remove files outside it", landlock, (outside / "spare").unlink),
        ("write a file without end", Means.LIMITS, lambda: _grow(inside / "long")),
    ):
        yield Aspect.FILES, what, by, attempt


def _tries_of_network() -> Iterator[_Try]:
    for what, attempt in (
        ("open network connections", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()),
        ("listen for connections", lambda: socket.create_server(("127.0.0.1", 0)).close()),
        ("reach services of this host", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()),
    ):
        yield Aspect.NETWORK, what, Means.FILTER, attempt


def _tries_of_memory() -> Iterator[_Try]:
    calls = Means.FILTER
    for what, by, attempt in (
        ("take memory far beyond its limit", Means.LIMITS, _take_too_much),
        ("raise its limits", calls, _raise_limits),
        ("hold memory in files without a name", calls, lambda: os.close(os.memfd_create("trial"))),
        ("hold memory that it has unmapped", calls, _share_memory),
        ("hold memory in pipes", calls, _splice),
        ("hold memory in sockets", calls, _pair_sockets),
        ("make files in memory", Means.LANDLOCK, _make_memory_file),
    ):
        yield Aspect.MEMORY, what, by, attempt


def _tries_of_processes(outside: Path) -> Iterator[_Try]:
    parent = os.getppid()
    for what, by, attempt in (
        ("start processes", Means.FILTER, _fork),
        ("start programs", Means.FILTER, lambda: _start(outside / "missing")),
        ("leave its group of processes", Means.FILTER, lambda: os.setpgid(0, 0)),
        ("send signals to other processes", Means.FILTER, lambda: os.kill(parent, 0)),
        ("move other processes to other cores", Means.FILTER, lambda: _move(parent)),
        ("take hold of other processes", Means.FILTER, lambda: _trace(parent)),
        ("make namespaces", Means.FILTER, lambda: system_call(call_number("unshare"), 0)),
        ("gain privileges", Means.PRIVILEGES, _gain_privileges),
    ):
        yield Aspect.PROCESSES, what, by, attempt


def _grow(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        os.pwrite(file.fileno(), b"x", MOST_FILE_BYTES)


def _take_too_much() -> None:
    # Reserved, not touched: where the limit is missing it takes no memory either.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    mmap.mmap(-1, _TOO_MANY_BYTES, flags).close()


def _raise_limits() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_DATA, resource.getrlimit(resource.RLIMIT_DATA))
    except ValueError as error:  # Python's word for a call that is not permitted
        raise PermissionError from error


def _share_memory() -> None:
    mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS).close()


def _splice() -> None:
    ends = os.pipe()
    try:
        system_call(call_number("vmsplice"), ends[1])  # nothing: of a page it would be as easy
    finally:
        for end in ends:
            os.close(end)


def _pair_sockets() -> None:
    for end in socket.socketpair():
        end.close()


def _make_memory_file() -> None:
    if not _SHARED_MEMORY.is_dir():
        raise FileNotFoundError(_SHARED_MEMORY)
    path = _SHARED_MEMORY / f"tensor-fleet-trial-{os.getpid()}"
    path.open("x").close()
    path.unlink()


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _change_mode(path: Path) -> None:
    path.chmod(_SET_USER_ID)
    if path.stat().st_mode & _SET_USER_ID != _SET_USER_ID:
        raise PermissionError("it had no effect")


def _move(pid: int) -> None:
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))


def _trace(pid: int) -> None:
    try:
        system_call(call_number("ptrace"), _PTRACE_CONT, pid)
    except OSError as error:
        if error.errno != errno.ESRCH:  # it is not traced by us: the call itself may be made
            raise


def _start(path: Path) -> None:
    try:
        os.execv(path, [str(path)])
    except FileNotFoundError:
        return


def _gain_privileges() -> None:
    if not has_privileges():
        raise PermissionError("it holds none, and cannot gain any")


def main(arguments: list[str]) -> None:
    """Confine this process, try, and print as JSON what came of it."""
    inside, outside = (Path(arguments[0], name) for name in ("inside", "outside"))
    applied = confine(inside, Needs())
    print(flush=True)
    sys.stdin.readline()  # its limit is set
    attempts = []
    for aspect, what, by, attempt in tries(inside, outside):
        try:
            attempt()
            is_refused = False
        except OSError:
            is_refused = True
        attempts.append(Attempt(aspect=aspect, what=what, by=by, is_refused=is_refused))
    held, done = b"x" * _SEEN_BYTES, threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(_SEEN_THREADS)]
    for thread in threads:
        thread.start()
    trial = Trial(**asdict(applied), attempts=tuple(attempts))
    print(msgspec.json.encode(trial).decode(), flush=True)
    sys.stdin.readline()  # it was looked at
    del held
    done.set()


if __name__ == "__main__":
    main(sys.argv[1:])
