"""How far worker processes are confined on this host, found by trying.

`fleet doctor` calls `try_confinement`. It starts this module as a program, which confines itself as a worker
process of a CPU of this host is confined, and then tries what such a process must not be able to do.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.errors import AgentError
from agents.host.own_program import command, environment
from agents.sandbox.confinement import Confinement, confine, has_privileges, system_call
from agents.sandbox.syscall_filter import Needs

_TIMEOUT_SECS = 20.0
#: System calls: x86-64, AArch64.
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_PTRACE = {"x86_64": 101, "aarch64": 117}
_PTRACE_CONT = 7
_SET_USER_ID = 0o4755


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Confinement):
    """What a trial of the confinement found."""

    #: Forbidden actions that the kernel refused, and those that it let through.
    refused: tuple[str, ...]
    allowed: tuple[str, ...]


def try_confinement() -> Trial:
    """Try the confinement in a process of its own, which takes some 0.2 s.

    Raises:
        AgentError: That process did not do its work.
    """
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-trial-") as folder:
        for name in ("inside", "outside"):
            Path(folder, name).mkdir()
        for name in ("kept", "spare"):
            Path(folder, "outside", name).write_text("kept")
        try:
            done = subprocess.run(
                command("agents.sandbox.confinement_trial", folder),
                env=environment(),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECS,
                check=True,
            )
            found = json.loads(done.stdout)
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().rpartition("\n")[2]
            raise AgentError(
                f"the process that tries it ended with status {error.returncode}: {last}"
            ) from error
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise AgentError(f"the process that tries it did not answer: {error}") from error
    return Trial(**found | {name: tuple(found[name]) for name in ("refused", "allowed")})


def tries(outside: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a confined process must not be able to do; where it can, none of it does harm.

    Args:
        outside: A folder that is not its scratch folder, with files `kept` and `spare`.
    """
    parent, kept, machine = os.getppid(), outside / "kept", os.uname().machine
    yield "open network connections", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    yield "reach services of this host", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()
    yield "make files outside its scratch folder", lambda: (outside / "made").open("x").close()
    yield "write to files outside it", lambda: kept.open("r+b").close()
    yield "empty files outside it", lambda: os.close(os.open(kept, os.O_RDONLY | os.O_TRUNC))
    yield "rename files outside it", lambda: kept.rename(outside / "moved")
    yield "remove files outside it", (outside / "spare").unlink
    yield "change modes of files", lambda: _change_mode(kept)
    yield "send signals to other processes", lambda: os.kill(parent, 0)
    yield "move other processes to other cores", lambda: _move(parent)
    yield "take hold of other processes", lambda: _trace(_PTRACE[machine], parent)
    yield "make namespaces", lambda: system_call(_UNSHARE[machine], 0)
    yield "start programs", lambda: _start(outside / "missing")
    yield "gain privileges", _gain_privileges


def _change_mode(path: Path) -> None:
    path.chmod(_SET_USER_ID)
    if path.stat().st_mode & _SET_USER_ID != _SET_USER_ID:
        raise PermissionError("it had no effect")


def _move(pid: int) -> None:
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))


def _trace(number: int, pid: int) -> None:
    try:
        system_call(number, _PTRACE_CONT, pid)
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
    """Confine this process, try, print what came of it as JSON."""
    folder = Path(arguments[0])
    applied = confine(folder / "inside", Needs())
    outcomes: dict[str, list[str]] = {"refused": [], "allowed": []}
    for what, attempt in tries(folder / "outside"):
        try:
            attempt()
        except OSError:
            outcomes["refused"].append(what)
        else:
            outcomes["allowed"].append(what)
    print(json.dumps({**asdict(applied), **outcomes}))


if __name__ == "__main__":
    main(sys.argv[1:])
