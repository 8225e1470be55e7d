"""Children of a coordinator: their ends hold up nothing, leave nothing, and what they print has an end."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from pathlib import Path

import pytest

from agents.host import process_control
from fleet import child_process
from fleet.child_process import ChildProcess, discard_folder, remove_discarded
from tests.conftest import until

#: Does not end when asked to, and has a child of its own, whose number it prints.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "of-a-child"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells a child to end must not wait: no folder is removed on this thread."""
    mine, rmtree = threading.get_ident(), child_process.shutil.rmtree

    def elsewhere(*arguments: object, **named: object) -> None:
        assert threading.get_ident() != mine
        rmtree(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(child_process.shutil, "rmtree", elsewhere)
    monkeypatch.setattr(child_process, "_LOOK_SECS", 0.05)


def start(folder: Path, program: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", program], folder, {})


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def grandchild(folder: Path) -> int:
    until(lambda: (folder / "stdout").read_text().endswith("\n"))
    return int((folder / "stdout").read_text())


def test_one_that_does_not_end_when_asked_is_killed_with_what_it_started(folder: Path) -> None:
    child = start(folder, STUBBORN)
    below = grandchild(folder)
    child.end(grace_secs=0.2)
    assert child.poll() is None, "it was waited for"
    assert child.wait(60)
    assert child.poll() == -signal.SIGKILL
    until(lambda: not is_there(below))
    child.end()  # of one that is gone


def test_what_it_leaves_behind_goes_with_it(folder: Path) -> None:
    child = start(folder, STUBBORN)
    below = grandchild(folder)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60)
    until(lambda: not is_there(below))


def test_the_name_of_its_folder_is_free_while_it_still_dies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(folder, STUBBORN)
    grandchild(folder)
    # As if it hung in the kernel.
    monkeypatch.setattr(child, "_signal", lambda number: None)
    child.discard()
    assert child.poll() is None
    folder.mkdir()
    (folder / "of-the-next").touch()
    monkeypatch.undo()
    child.end()
    assert child.wait(60)
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]
    assert [one.name for one in folder.iterdir()] == ["of-the-next"]


def test_what_it_prints_is_bounded_and_its_end_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_control, "MOST_OUTPUT_BYTES", 1 << 16)
    monkeypatch.setattr(process_control, "_LAST_OUTPUT_BYTES", 1 << 10)
    child = start(
        folder,
        "import sys, time\n"
        "for _ in range(200):\n"
        "    print('x' * 1000, file=sys.stderr, flush=True); time.sleep(0.01)\n"
        "time.sleep(0.5); print('the end', file=sys.stderr); print('{}')",
    )
    assert child.wait(60)
    assert (child.poll(), child.answer()) == (0, "{}")
    assert child.stderr_tail().endswith("the end")
    assert len(child.stderr_tail()) <= 2000
    assert (folder / "stderr").stat().st_size < 100_000


def test_what_a_killed_coordinator_did_not_remove_goes_with_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(child_process.shutil, "rmtree", lambda *_, **__: None)
        remover = discard_folder(folder)
        assert remover is not None
        remover.join()
    assert len(list(folder.parent.iterdir())) == 1
    thread = threading.Thread(target=remove_discarded, args=[folder.parent])
    thread.start()
    thread.join()
    assert list(folder.parent.iterdir()) == []
    assert discard_folder(folder) is None, "there is none any more"


def test_a_child_that_cannot_be_watched_is_no_child(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(OSError, match="no thread to be had"):
        start(folder, STUBBORN)


def test_a_process_with_many_files_may_have_children(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        child = start(folder, "print('done')")
        assert child.wait(60)
        assert (child.poll(), child.answer()) == (0, "done")
    finally:
        for descriptor in files:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
