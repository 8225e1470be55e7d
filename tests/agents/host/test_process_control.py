"""Ending processes that no longer answer, and their last words."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agents.host.process_control import (
    ProcessName,
    end_process,
    is_alive,
    shows_fault,
    stderr_tail,
)
from tests.disk_fixtures import failing
from tests.table_fixtures import rows


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_stopped_process_is_ended(child: subprocess.Popen[bytes]) -> None:
    name = ProcessName.of(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    assert is_alive(name)
    assert end_process(name)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "it waits to be reaped"
    for _ in range(2):
        assert not is_alive(name)
        assert not end_process(name)
        assert child.wait(10) == -signal.SIGKILL


def test_another_process_with_the_same_number_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    earlier = replace(ProcessName.of(child.pid), started=1)
    assert not is_alive(earlier)
    assert not end_process(earlier)
    assert child.poll() is None


def test_the_last_words_of_a_process_are_kept_and_those_of_the_one_before_dropped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "agent.stderr"
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom agents.host.process_control import keep_stderr\n"
        "keep_stderr(Path(sys.argv[1]))\nos.write(2, sys.argv[2].encode())\nos.abort()"
    )
    assert stderr_tail(path) == ""
    for words in ("x" * 5000, "it went wrong"):
        subprocess.run([sys.executable, "-c", code, str(path), words], check=False)
        tail = stderr_tail(path)
        assert len(tail) <= 2000
        assert tail.endswith(words[-2000:])
    assert "x" not in tail


FAULTS = {
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "no memory": "raise MemoryError",
}


@pytest.mark.parametrize("code", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_its_own_is_told_by_a_process(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert shows_fault(done.stderr)


@pytest.mark.parametrize(
    ("words", "is_fault"),
    rows(r"""
        *** SIGSEGV received at time=1700000000 on cpu 1 ***\nPC: @ 0x7f         -> yes
        terminate called after throwing an instance of 'std::bad_alloc'           -> yes
        *** SIGTERM received at time=1700000000 ***                               -> no
        Traceback (most recent call last):\n  ...\nValueError: one that failed    -> no
        -> no
    """),
)
def test_other_words_that_show_a_fault_or_none(words: str, is_fault: str) -> None:
    assert shows_fault(words.replace("\\n", "\n")) is (is_fault == "yes")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM])
def test_a_process_that_cannot_be_looked_at_is_not_taken_for_dead(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    name = ProcessName.of(child.pid)
    with monkeypatch.context() as patched:
        patched.setattr("agents.host.process_control._stat", failing(number))
        assert is_alive(name)
        assert end_process(name)
        for gone in (errno.ENOENT, errno.ESRCH):
            patched.setattr("agents.host.process_control._stat", failing(gone))
            assert not is_alive(name)
    assert child.wait(10) == -signal.SIGKILL


def ended(program: str, path: Path) -> int:
    """Exit code of a process that keeps what it prints in a file."""
    begin = (
        "import time\nfrom pathlib import Path\nfrom threading import Thread\n"
        "from agents.host import process_control as control\n"
        f"control.keep_stderr(Path({str(path)!r}))\n"
    )
    return subprocess.run([sys.executable, "-c", begin + program], timeout=60, check=False).returncode


def test_a_process_ends_with_the_thread_that_does_its_work_and_says_why(tmp_path: Path) -> None:
    program = """
def work():
    raise RuntimeError("no more")
Thread(target=control.work_or_end, args=[work], daemon=True).start()
time.sleep(50)
"""
    assert ended(program, tmp_path / "stderr") == 1
    tail = stderr_tail(tmp_path / "stderr")
    assert "RuntimeError: no more" in tail
    assert shows_fault(tail), "it went down by itself"
