"""Locks that all users of a host share: what has their name is never believed, and who holds one is named."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from agents.host import host_lock
from agents.host.host_lock import (
    HostLockError,
    holder_of,
    holder_words,
    host_lock_path,
    make_lock,
    not_timing,
    open_lock,
    shared_folder,
    take_lock,
    timing_lock,
    user_name,
)
from tests.conftest import running

HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "timing.lock"
    make_lock(made)
    return made


def test_every_user_of_the_host_can_take_the_lock_whatever_the_umask_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "timing.lock"
    before = os.umask(0o077)
    try:
        make_lock(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    make_lock(path)
    with timing_lock(path), not_timing(path) as is_free:
        assert not is_free


def test_the_lock_lies_where_it_does_for_every_user_whatever_their_own_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = host_lock_path()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert host_lock_path() == here
    assert here.parent == shared_folder()
    # A folder where others may remove our files, or one that its owner may fill as he likes, is none.
    writable, owned = tmp_path / "writable", tmp_path / "owned"
    for folder, mode in ((writable, 0o777), (owned, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setattr(host_lock, "_FOLDERS", (tmp_path / "missing", writable))
    assert shared_folder() == tmp_path
    monkeypatch.setattr(host_lock, "_FOLDERS", (owned,))
    monkeypatch.setattr(host_lock, "_ROOT", owned.stat().st_uid + 1)
    assert shared_folder() == tmp_path


def test_a_lock_that_another_process_holds_is_waited_for_so_long_and_its_holder_is_named(path: Path) -> None:
    with running(HOLDER, path) as holder:
        named = (
            rf"not come free for 0.2 s: process {holder.pid} \('python.*'\) of user {user_name(os.getuid())}"
        )
        with pytest.raises(HostLockError, match=named), timing_lock(path, 0.2):
            pytest.fail("two hold it")
        assert holder_of(path) == holder.pid
        with not_timing(path) as is_free:
            assert not is_free
    with timing_lock(path, 0.2):
        assert holder_of(path) == os.getpid()
    assert holder_of(path) == 0
    assert "does not show" in holder_words(path)


@pytest.mark.parametrize("take", [open_lock, lambda path: take_lock(path, wait_secs=1.0)])
def test_a_link_a_pipe_a_socket_or_a_folder_in_its_place_is_refused_at_once(
    tmp_path: Path, take: object
) -> None:
    assert callable(take)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    link, pipe, folder, service, second = (tmp_path / name for name in "lpfsn")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    folder.mkdir()
    second.hardlink_to(victim)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(service))
        for path in (link, pipe, folder, service, second, victim):
            make_lock(path)
            with pytest.raises(HostLockError, match=rf"{path} .*belongs to user {user_name(os.getuid())}"):
                take(path)
    assert victim.read_text() == "kept"
    assert stat.S_IMODE(victim.stat().st_mode) != 0o666
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "missing")


def test_a_lock_whose_file_was_replaced_meanwhile_is_taken_again(path: Path) -> None:
    with running(HOLDER, path):
        replaced = path.with_name("new")
        make_lock(replaced)
        replaced.rename(path)
        with timing_lock(path, 5.0):
            assert holder_of(path) == os.getpid()


def test_waiting_leaves_other_alarms_alone(path: Path) -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    others = signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        with running(HOLDER, path), pytest.raises(HostLockError), timing_lock(path, 0.1):
            pytest.fail("two hold it")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 60.0
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        deadline = time.monotonic() + 20
        while not rung and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, before)
