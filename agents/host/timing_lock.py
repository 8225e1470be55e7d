"""The lock under which one process of a host times, whoever runs the fleet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.host.host_lock import shared_folder, take_lock

#: Whoever waits longer for the timing lock is told who holds it. Many devices may take turns at it, with
#: programs that take minutes each; their parent gives up a minute later (`agents.sandbox.process`).
LOCK_WAIT_SECS = 540.0


def host_lock_path(device: str = "") -> Path:
    """Where a timing lock lies: one a host for its CPU, one for each other device, whoever runs the fleet."""
    return shared_folder() / f"tensor-fleet-timing{device and '-'}{device}.lock"


@contextmanager
def timing_lock(path: Path, wait_secs: float = LOCK_WAIT_SECS) -> Iterator[float]:
    """Hold the host's timing lock, which `make_lock` made; yields the seconds that were spent waiting for it.

    Raises:
        FileNotFoundError: There is no such file.
        HostLockError: It cannot be used, or somebody else held it for `wait_secs`.
    """
    started = time.perf_counter()
    handle = take_lock(path, wait_secs=wait_secs)
    try:
        yield time.perf_counter() - started
    finally:
        os.close(handle)


@contextmanager
def not_timing(path: Path) -> Iterator[bool]:
    """Keep anybody from beginning to time; yields False where somebody does already.

    Raises:
        FileNotFoundError: Nobody has ever timed here.
        HostLockError: The lock cannot be used.
    """
    try:
        handle = take_lock(path, wait_secs=0.0, is_shared=True)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)
