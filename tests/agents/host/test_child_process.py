"""Children of a coordinator: their ends hold up nothing, leave nothing, and what they print has an end."""

from __future__ import annotations

import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.host import child_process, process_control
from agents.host.child_process import ChildProcess, discard_folder, remove_discarded
from tests.conftest import running, until
from tests.table_fixtures import rows

ROOT = Path(process_control.__file__).parents[2]
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


def start(folder: Path, program: str, **options: Any) -> ChildProcess:
    (folder.parent / "of_a_test.py").write_text(program)
    # Its compiled module would lie beside the folder.
    variables = {"PYTHONPATH": f"{folder.parent}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return ChildProcess(["of_a_test"], folder, variables=variables, **options)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def grandchild(folder: Path) -> int:
    until(lambda: (folder / "stdout").read_text().endswith("\n"))
    return int((folder / "stdout").read_text())


@pytest.mark.parametrize("is_told", [True, False], ids=["told to end", "killed"])
def test_what_a_child_started_ends_with_it(folder: Path, is_told: bool) -> None:
    child = start(folder, STUBBORN)
    below = grandchild(folder)
    if is_told:
        child.end(grace_secs=0.2)
        assert child.poll() is None, "it was waited for"
    else:
        os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60)
    assert child.poll() == -signal.SIGKILL
    until(lambda: not is_there(below))
    child.end()  # of one that is gone


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
    assert {one.name for one in folder.parent.iterdir()} == {folder.name, "of_a_test.py"}
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


def test_it_is_nice_on_its_cores_and_answers_a_question(folder: Path) -> None:
    core = max(os.sched_getaffinity(0))
    child = start(
        folder,
        "import os, sys\nprint('noise')\n"
        "print(sys.stdin.read(), os.nice(0), os.sched_getaffinity(0), len(sys.argv))",
        question=b"how?",
        cores=(core,),
        nice=7,
    )
    assert child.wait(60)
    assert child.answer().startswith(f"how? {min(19, os.nice(0) + 7)} {{{core}}} 1")


def test_a_deadline_can_be_set_anew_and_the_end_names_it(folder: Path) -> None:
    child = start(folder, "import sys, time; print('busy', file=sys.stderr, flush=True); time.sleep(600)")
    until(lambda: (folder / "stderr").read_text() == "busy\n")
    child.limit(0.1)
    assert child.wait(60)
    assert child.failure() == child.failure_line() == "it was not done after 0 s: busy"


def test_it_dies_with_whoever_started_it(tmp_path: Path) -> None:
    code = (
        "import time\nfrom agents.host.child_process import ChildProcess\n"
        "print(ChildProcess(['of_a_test']).pid, flush=True); time.sleep(600)"
    )
    (tmp_path / "of_a_test.py").write_text("import time; time.sleep(600)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with running(code, env=environment) as starter:
        pid = int(starter.first_line)
        assert is_there(pid)
        starter.kill()
        starter.wait(60)
    until(lambda: not is_there(pid))


#: What a process does, and how its end is told.
ENDS = """
    import agents.no_such_module           -> its process ended with code 1:
    import os; os.kill(os.getpid(), 15)    -> its process was ended by SIGTERM: it printed no error
    import os; os.ftruncate(1, 200 << 20)  -> its process printed more than 32 MiB: it printed no error
"""


@pytest.mark.parametrize(("program", "failure"), rows(ENDS))
def test_how_it_ended_is_one_line(
    program: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_program.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = ChildProcess(["a_program"])
    child.join()
    assert child.failure_line().startswith(failure)
    assert "\n" not in child.failure_line()


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
