"""What remains to be done on a host when an agent's process no longer answers: end it, read its last words.

`fleet.transport.ray_transport` calls it for its own host, and through an actor for others. It knows no Ray.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import site
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# What every process of this project begins with: where Python looks for modules, who may write its files.
#
# Python may look for modules in the present folder first: a `random.py` that lies there would be run
# instead of the library's. A user without a umask would let everybody write to stores and spools.

#: Ray's token runs code on every host: a program that is measured must not find it.
_SECRETS = frozenset({"RAY_AUTH_TOKEN"})
#: Module that every child begins with; the module that the child is for is its first argument.
CHILD_MAIN = "agents.host.child_main"
#: Rights that no new file or folder gets: writing for the group, anything for others.
_UMASK = 0o027


def begin_process() -> None:
    """Prepare a process of our own, as early as possible: its new files, and modules of its children."""
    _add_to_umask()
    os.environ["PYTHONSAFEPATH"] = "1"


@contextmanager
def private_files() -> Iterator[None]:
    """Make new files as `begin_process` does, for a while: the process may belong to another program."""
    before = _add_to_umask()
    try:
        yield
    finally:
        os.umask(before)


def command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module; needs `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """The environment of this process without its secrets, for a program to find the same project."""
    variables = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**variables, **import_environment()}


def import_environment() -> dict[str, str]:
    """Variables with which any Python finds this project, and nothing in the folder it is started in."""
    folder = str(Path(__file__).resolve().parents[2])
    # An empty entry would mean the present folder.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Installed, it is found by itself; its neighbours there must not come before the standard library.
    if folder not in (*site.getsitepackages(), site.getusersitepackages(), *paths[:1]):
        paths.insert(0, folder)
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def leave_out_torch() -> None:
    """Have TVM start without torch in this process, for a program that never needs torch.

    TVM imports torch wherever it is installed: 3.1 s of the 4.7 s that TVM's start took on two cores.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own sign of a module that is not there


def _add_to_umask() -> int:
    """Take rights away from new files of this process; returns the umask before."""
    before = os.umask(_UMASK)
    os.umask(before | _UMASK)
    return before


_TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1
#: Longest file of what a process prints, and what stays of one that grew longer.
MOST_OUTPUT_BYTES, _LAST_OUTPUT_BYTES = 16 << 20, 64 << 10
#: Input, output and errors.
_STANDARD_FILES = 3
#: What is printed at the end of a process that goes down by itself: by Ray's handler of fatal signals, by
#: Python's, by the C++ library, by `work_or_end`.
_THREAD_FAULT = "the thread that does the work has failed"
_FAULT = re.compile(
    r"\*\*\* SIG(SEGV|ILL|FPE|ABRT|BUS|TRAP)|Fatal Python error|terminate called|MemoryError|" + _THREAD_FAULT
)
#: What the kernel says of a process that is no more. Anything else, such as a lack of file descriptors, says
#: nothing of it.
_GONE = frozenset({errno.ENOENT, errno.ESRCH})
_VMSTAT = Path("/proc/vmstat")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessName:
    """A process of one host, told apart from a later one with the same number."""

    pid: int
    #: When it started, in clock ticks since the host's boot.
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessName:
        """Name a living process.

        Raises:
            OSError: There is none.
        """
        return cls(pid=pid, started=_stat(pid)[1])


def is_alive(name: ProcessName) -> bool:
    """Whether a process runs, or is stopped by a signal; one that only waits to be reaped has ended.

    One that cannot be looked at, as where no file descriptor is left, is not known to have ended: it counts
    as alive.
    """
    try:
        state, started = _stat(name.pid)
    except OSError as error:
        return error.errno not in _GONE
    return started == name.started and state not in "ZX"


def end_process(name: ProcessName) -> bool:
    """Kill a process, even one that is stopped by a signal; false if it had ended before.

    Its children see to their own end: agents' worker processes ask the kernel to die with their parent.

    Raises:
        OSError: It could not be reached, as where no file descriptor is left; it may be tried again.
    """
    try:
        # A file descriptor of the process, so that its number cannot go to another one in between.
        handle = os.pidfd_open(name.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(name):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def keep_stderr(path: Path) -> None:
    """Send what this process prints to a file from now on; what it held before is dropped.

    The process bounds it with `cut_output` of its standard error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def work_or_end(work: Callable[[], object]) -> None:
    """Do the work of a thread without which its process is of no use; if it fails, end the process.

    A process that only says that it is alive would be waited for by all who asked it something.
    """
    try:
        work()
    except BaseException:
        traceback.print_exc()
        print(_THREAD_FAULT, file=sys.stderr, flush=True)
        os._exit(1)


def cut_output(descriptor: int, most_bytes: int | None = None) -> bool:
    """Cut a file of what a process prints to its end, if it grew too long: nothing else would bound it.

    Whoever writes to it must append. What is printed in this very moment may be lost.

    Args:
        descriptor: The file, open to read and to append.
        most_bytes: Longest file; `MOST_OUTPUT_BYTES` if None.

    Returns:
        Whether it was too long.
    """
    most_bytes = MOST_OUTPUT_BYTES if most_bytes is None else most_bytes
    with suppress(OSError):  # a full or failing disk ends no process for what it prints
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            end = os.pread(descriptor, _LAST_OUTPUT_BYTES, size - _LAST_OUTPUT_BYTES)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, end)
            return True
    return False


def stderr_tail(path: Path) -> str:
    """The end of what `keep_stderr` kept; empty if there is none."""
    try:
        with path.open("rb") as stream:
            return output_tail(stream.fileno())
    except OSError:
        return ""


def output_tail(descriptor: int, most_bytes: int = _TAIL_BYTES, *, start: int = 0) -> str:
    """The end of a file of what a process printed, of which only what lies behind `start` counts."""
    size = os.fstat(descriptor).st_size
    start = max(start, size - most_bytes)
    return os.pread(descriptor, size - start, start).decode(errors="replace").strip()


def shows_fault(tail: str) -> bool:
    """Whether the last words of a process tell of a fault of its own; SIGKILL leaves no time for any."""
    return _FAULT.search(tail) is not None


def oom_kills() -> int | None:
    """How many processes this host's kernel has killed for want of memory; None where it does not say."""
    try:
        match = _OOM_KILLS.search(_VMSTAT.read_text())
    except OSError:
        return None
    return int(match[1]) if match is not None else None


def _stat(pid: int) -> tuple[str, int]:
    """State and start of a process."""
    # After the name in brackets, which may hold any bytes, state is field 3 and the start field 22.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def signal_name(number: int) -> str:
    """The name of a signal, for people."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return f"signal {number}"


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process when its parent does, so that no orphan works on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def close_all_but(*handles: int) -> None:
    """Close every file of this process but the standard ones and these."""
    for handle in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if handle >= _STANDARD_FILES and handle not in handles:
            with suppress(OSError):
                os.close(handle)


def pin_process(cores: Sequence[int], pid: int | None = None) -> None:
    """Bind every thread of a process, this one by default; on return none of them runs elsewhere.

    Raises:
        OSError: It is another user's, or there are no such cores.
    """
    with suppress(FileNotFoundError):  # it ended meanwhile
        for thread in Path(f"/proc/{pid or 'self'}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
