"""Two hosts on one machine: two network namespaces, joined by a pair of virtual Ethernet devices.

For `benchmarks.hosts`. Each has its own addresses, routes and loopback interface, and sees nothing else.
Their names hold the process id of who made them, so the next start removes what a killed one has left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

NEAR, FAR = "near", "far"
#: Nothing outside of the two namespaces sees them, so every run may have the same ones.
ADDRESSES = {NEAR: "10.231.0.1", FAR: "10.231.0.2"}
_NAME = re.compile(r"fleet-hosts-(\d+)-(?:near|far)")
#: Where `ip` lies for root, whatever the user's search path.
_FOLDERS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_END_SECS = 20.0


class NetworkError(Exception):
    """A namespace or a link cannot be made."""


def why_not() -> str | None:
    """Why this machine cannot be two hosts; None where it can. Makes a namespace and removes it."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        TwoHosts().close()
    except NetworkError as error:
        return str(error)
    return None


class TwoHosts:
    """The two namespaces, with the link up; those of processes that have ended are removed first.

    Raises:
        NetworkError: The kernel, or who runs this container, does not allow them.
    """

    def __init__(self) -> None:
        remove_stale()
        pid = os.getpid()
        self._names = {side: f"fleet-hosts-{pid}-{side}" for side in ADDRESSES}
        self._started: list[subprocess.Popen[bytes]] = []
        # Names of interfaces have 15 characters at most.
        self._transport = {side: f"fh{pid}{side[0]}" for side in ADDRESSES}
        try:
            for name in self._names.values():
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            near, far = ((self._transport[side], "netns", self._names[side]) for side in ADDRESSES)
            _ip("link", "add", *near, "type", "veth", "peer", "name", *far)
            for side, address in ADDRESSES.items():
                _ip("-n", self._names[side], "address", "add", f"{address}/24", "dev", self._transport[side])
            self.set_link(is_up=True)
        except BaseException:
            self.close()
            raise

    def set_link(self, *, is_up: bool) -> None:
        """Take the link up, or down on both sides."""
        for side in ADDRESSES:
            _ip("-n", self._names[side], "link", "set", self._transport[side], "up" if is_up else "down")

    def start(
        self, side: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, out: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a program on one of the hosts; the process is the program itself."""
        started = subprocess.Popen(
            [_program(), "netns", "exec", self._names[side], *command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        """Kill what runs on the two hosts, and remove them. Twice does no harm."""
        for name in self._names.values():
            _remove(name)
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECS)
        self._started.clear()


def remove_stale() -> list[str]:
    """Remove the namespaces of processes that have ended, and kill what these left there; gives the names."""
    removed = []
    for name in namespaces():
        found = _NAME.fullmatch(name)
        if found is not None and not psutil.pid_exists(int(found.group(1))):
            _remove(name)
            removed.append(name)
    return removed


def namespaces() -> list[str]:
    """All named namespaces; none where the kernel knows none."""
    try:
        return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    except NetworkError:
        return []


def _pids(name: str) -> list[int]:
    return [int(one) for one in _ip("netns", "pids", name).split()]


def _remove(name: str) -> None:
    """Kill all processes of a namespace, and remove it; its end of the link goes with it."""
    if name not in namespaces():
        return
    deadline = time.monotonic() + _END_SECS
    while (pids := _pids(name)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    _ip("netns", "delete", name)


def _program() -> str:
    found = shutil.which("ip", path=_FOLDERS)
    if found is None:
        raise NetworkError("the program `ip` (iproute2) is not installed")
    return found


def _ip(*arguments: str) -> str:
    """Run `ip`; returns what it prints.

    Raises:
        NetworkError: It fails; with its words.
    """
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NetworkError(f"`ip {' '.join(arguments)}` failed: {said}")
    return done.stdout
