"""The process that worker processes are forked from, where the host has nothing left to give."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.sandbox.zygote import _Zygote
from tests.conftest import child_settings


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Zygote, socket.socket]]:
    """A zygote in this process, and the other end of its control socket."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGCHLD)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(5)
    zygote = _Zygote(theirs, lambda *_: None)
    try:
        yield zygote, ours
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        for end in (ours, theirs, zygote._woken, zygote._wakeup, zygote._selector):
            end.close()
        zygote._scratch.close()


def test_a_host_without_processes_costs_one_worker_and_not_the_zygote(
    control: tuple[_Zygote, socket.socket], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zygote, ours = control

    def refuse() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    said, stderr = os.pipe()
    channel = os.open("/dev/null", os.O_RDONLY)
    zygote._fork(7, replace(child_settings(), lock_path=""), [channel, stderr])
    assert json.loads(ours.recv(4096)) == {"event": "exited", "token": 7, "code": 1}
    with os.fdopen(said) as words:
        assert "no process could be started: [Errno 11] Resource temporarily unavailable" in words.read()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(channel)
    [root] = tmp_path.glob("tensor-fleet-scratch-*")
    assert not list(root.iterdir())
