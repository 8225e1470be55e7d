"""Whether somebody else uses this host: what all its CPUs did, less what the fleet's own processes did.

`agents.device.agent_host` asks for devices that may be measured on an idle host only, and says it with their
heartbeats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from agents.host.process_control import CHILD_MAIN

#: Seconds between two looks: each reads the times of every process of the host.
_EVERY_SECS = 5.0
#: CPUs that others may keep busy on an idle host: background services need some.
_MOST_CPUS = 0.25
#: Times of all CPUs that are no work, or are counted twice.
_NO_WORK = ("idle", "iowait", "guest", "guest_nice")
#: Programs that run another one, which a list of processes should name, and their option for a text to run.
_INTERPRETERS = {
    r"python[\d.]*": r"-[bBdEiIOPqsSuvx]*c",
    r"(?:ba|da|z|k)?sh": r"-[a-z]*c",
    r"node|perl|ruby": r"-[a-z]*e",
}
#: Python's option that names a module: alone, with the name, or behind other flags (`-Im`).
_MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m(?P<name>[\w.]*)")
_LONGEST_NAME = 60


class HostLoad:
    """Looks at the load of this host that is not the fleet's own.

    Args:
        roots: Processes of the fleet on this host; all below them are its own, too.
        clock: Seconds that never go back.
        times: Gives CPU seconds since some moment: of all CPUs, and of the fleet's own processes.
    """

    def __init__(
        self,
        roots: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
        times: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        self._clock, self._times = clock, times or (lambda: cpu_secs(roots))
        self._at, self._last_times = clock(), self._times()
        self._is_idle: bool | None = None

    @property
    def is_idle(self) -> bool | None:
        """Whether nobody else uses the host; None while nobody knows."""
        now = self._clock()
        if now - self._at >= _EVERY_SECS:
            busy, own = self._times()
            others = (busy - self._last_times[0]) - (own - self._last_times[1])
            self._is_idle = others / (now - self._at) <= _MOST_CPUS
            self._at, self._last_times = now, (busy, own)
        return self._is_idle


def cpu_secs(roots: Sequence[int]) -> tuple[float, float]:
    """CPU seconds since the host's boot: of all its CPUs, and of some processes with all below them.

    What their ended children took is with them, so that no time is counted for others when one ends.
    """
    times = psutil.cpu_times()
    # Linux counts the time of guests in `user` and `nice` as well.
    busy = sum(times) - sum(getattr(times, name, 0.0) for name in _NO_WORK)
    own = 0.0
    for process in processes_of(roots):
        with suppress(psutil.Error):
            used = process.cpu_times()
            own += used.user + used.system + used.children_user + used.children_system
    return busy, own


def program_of(command: Sequence[str]) -> str:
    """The program of a command line, and what an interpreter runs: `python -m pytest`, `bash build.sh`.

    Other arguments are left out: they may be long, or secret. Empty if the command line is.
    """
    if not command:
        return ""
    # A process may have renamed itself to a sentence.
    program = Path(command[0]).name if command[0].startswith(("/", ".")) else command[0]
    program = program[:_LONGEST_NAME]
    text = next((text for names, text in _INTERPRETERS.items() if re.fullmatch(names, program)), None)
    if text is None:
        return program
    is_python, arguments = program.startswith("python"), iter(command[1:])
    for argument in arguments:
        if is_python and (module := _MODULE.fullmatch(argument)):
            name = module["name"] or next(arguments, "")
            name = next(arguments, "") if name == CHILD_MAIN else name
            return f"{program} -m {name[:_LONGEST_NAME]}".rstrip()
        if re.fullmatch(text, argument):
            return f"{program} {argument[:1]}{argument[-1]}"
        if is_python and argument in ("-W", "-X"):
            next(arguments, "")
        elif not argument.startswith("-"):
            return f"{program} {Path(argument).name[:_LONGEST_NAME]}"
    return program


def processes_of(roots: Sequence[int]) -> set[psutil.Process]:
    """Some processes with all below them; without those that have ended."""
    processes: set[psutil.Process] = set()
    for root in roots:
        with suppress(psutil.Error):
            process = psutil.Process(root)
            processes |= {process, *process.children(recursive=True)}
    return processes
