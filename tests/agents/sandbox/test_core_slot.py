"""Timing cores that are lent to a builder: real processes, real affinities."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.host.host_lock import make_lock, timing_lock
from agents.host.priority import Priority, allowed_priority
from agents.records import Workload
from agents.sandbox import core_slot
from agents.sandbox.core_slot import WORKER_NAME, CoresHeldError, CoreSlot, ProcessCores
from agents.sandbox.pool import WorkerPool
from agents.sandbox.stages import ChildSettings
from tests.conftest import child_settings, running

CORES = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")

#: A process that takes the slot as a builder does and says where it is whenever it is asked.
BUILDER = """
import ctypes, os, sys
from tests.agents.sandbox.test_core_slot import slot_of
name, slot, lock = sys.argv[1], sys.argv[2], sys.argv[3]
ctypes.CDLL(None).prctl(15, name.encode())
if len(sys.argv) > 4:
    os.setuid(int(sys.argv[4]))
with slot_of(slot, lock).building() as lent:
    print(lent, flush=True)
    sys.stdin.readline()
print(sorted(os.sched_getaffinity(0)), flush=True)
"""
ROOT = Path(__file__).parents[3]
#: The user `nobody` of most systems.
NOBODY = 65534


def settings_of(slot: Path | str, lock: Path | str) -> ChildSettings:
    cores = {"timing_cores": (CORES[0],), "build_cores": (CORES[-1],)}
    return replace(child_settings(), **cores, lock_path=str(lock), slot_path=str(slot))


def slot_of(slot: Path | str, lock: Path | str) -> CoreSlot:
    """The slot as this process uses it; what its zygote would do it does by itself."""
    cores = ProcessCores(os.getpid(), settings_of(slot, lock))
    cores.pin(timing=False)
    return CoreSlot(Path(slot), Path(lock), cores)


Start = Callable[..., Any]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that build until they are told to stop; each says at first whether cores are lent."""
    with ExitStack() as stack:
        yield lambda slot, lock, name=WORKER_NAME, *user: stack.enter_context(
            running(BUILDER, name, slot, lock, *user, cwd=ROOT)
        )


def is_lent(builder: Any) -> bool:
    return bool(builder.first_line == "True\n")


def cores_of(builder: Any) -> list[int]:
    return sorted(os.sched_getaffinity(builder.pid))


def finish(builder: Any) -> list[int]:
    """Have it stop; the cores on which it was at its end."""
    output, _ = builder.communicate("\n", timeout=20)
    return json.loads(output)


def paths_in(folder: Path) -> tuple[Path, Path]:
    made = folder / "timing.slot", folder / "timing.lock"
    for path in made:
        make_lock(path)
    return made


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return paths_in(tmp_path)


@pytest.fixture(autouse=True)
def own_cores() -> Iterator[None]:
    yield
    os.sched_setaffinity(0, CORES)


def test_one_builder_at_a_time_and_none_while_something_is_timed(
    paths: tuple[Path, Path], start: Start
) -> None:
    first, second = start(*paths), start(*paths)
    assert (is_lent(first), is_lent(second)) == (True, False)
    assert cores_of(second) == finish(second) == CORES[-1:]
    finish(first)
    with timing_lock(paths[1]), slot_of(*paths).cleared():
        third = start(*paths)
        assert not is_lent(third)
    # It stays where it began: nobody lends the cores in the middle of a build.
    assert cores_of(third) == CORES[-1:]


@pytest.mark.tvm
def test_candidates_are_drawn_on_the_timing_cores_too(paths: tuple[Path, Path], matmul: Workload) -> None:
    settings = settings_of(*paths)
    question = {"op": "propose", "workload_id": matmul.workload_id, "family": "cpu", "seed": 1, "exclude": []}
    with WorkerPool([settings]) as pool, ThreadPoolExecutor(1) as thread:
        pool.ask({**question, "count": 1}, matmul)
        [worker] = [one for one in pool.pids if psutil.Process(one).name() == WORKER_NAME]
        drawn = thread.submit(pool.ask, {**question, "count": 400}, matmul)
        while os.sched_getaffinity(worker) != {CORES[0]}:  # the test's time-out ends it
            time.sleep(0.005)
        with timing_lock(paths[1]), slot_of(*paths).cleared():
            assert os.sched_getaffinity(worker) == {CORES[-1]}
        assert os.sched_getaffinity(worker) == {CORES[0]}
        assert len(drawn.result()["traces"]) == 400
        assert os.sched_getaffinity(worker) == {CORES[-1]}
        paths[0].unlink()
        paths[0].symlink_to(paths[1])
        assert pool.ask({**question, "count": 1}, matmul)["traces"], "without the slot it draws where it is"


@pytest.mark.parametrize(
    ("name", "user"), [("python3", ()), ("fleet-worker", (NOBODY,))], ids=["another program", "another user"]
)
def test_other_processes_than_own_workers_are_waited_for_not_moved(
    name: str, user: tuple[int, ...], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    if user and os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    with tempfile.TemporaryDirectory() as folder:  # another user cannot enter the folders of pytest
        Path(folder).chmod(0o777)
        paths = paths_in(Path(folder))
        other = start(*paths, name, *user)
        assert is_lent(other)
        with monkeypatch.context() as patch:
            patch.setattr("agents.sandbox.core_slot._MOST_SECS", 0.1)
            named = pytest.raises(CoresHeldError, match=rf"process {other.pid} \('{name}'\) of user")
            with named, timing_lock(paths[1]), slot_of(*paths).cleared():
                pytest.fail("it timed beside a builder")
        assert cores_of(other) == CORES[:1]
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(lambda: (time.sleep(0.3), finish(other))[1])
            with timing_lock(paths[1], 20.0), slot_of(*paths).cleared():
                pass
            assert done.result(20) == CORES[-1:]


def test_what_the_file_of_the_slot_holds_moves_nobody(paths: tuple[Path, Path]) -> None:
    with running("print(1, flush=True); input()") as stranger:
        started = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
        written = json.dumps({"token": [stranger.pid, started, 1], "timing": CORES[:1], "quiet": CORES[-1:]})
        paths[0].write_text(written)
        with timing_lock(paths[1]), slot_of(*paths).cleared():
            assert sorted(os.sched_getaffinity(stranger.pid)) == CORES
        assert sorted(os.sched_getaffinity(stranger.pid)) == CORES
        assert paths[0].read_text() == written


def test_a_builder_that_leaves_as_a_timing_ends_stays_off_the_timing_cores(
    paths: tuple[Path, Path], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up, it leaves, and only then it is moved: that move must not last."""
    moves = []
    move, builder = core_slot.pin_process, start(*paths)

    def late(cores: tuple[int, ...], pid: int) -> None:
        if pid == builder.pid and cores == (CORES[0],):
            builder.kill()
            builder.wait(20)
        moves.append(cores)
        move(cores, pid)

    with timing_lock(paths[1]), slot_of(*paths).cleared():
        monkeypatch.setattr("agents.sandbox.core_slot.pin_process", late)
    assert moves == [(CORES[0],), (CORES[-1],)]


def test_requests_that_are_none_are_refused(paths: tuple[Path, Path]) -> None:
    cores = ProcessCores(os.getpid(), settings_of(*paths))
    assert [cores.answer(one) for one in (b"", b"\xff", b"time 1")] == [b"refused"] * 3
    assert sorted(os.sched_getaffinity(0)) == CORES
    assert cores.answer(b"lent") == b"usual"
    assert sorted(os.sched_getaffinity(0)) == CORES[:1]
    gone = ProcessCores(1 << 22, settings_of(*paths))
    assert gone.answer(b"time").decode() in list(Priority)
    wrong = replace(settings_of(*paths), timing_cores=(1023,))
    assert ProcessCores(os.getpid(), wrong).answer(b"time") == b"refused"


def test_only_what_times_goes_before_others(paths: tuple[Path, Path]) -> None:
    policies = {"fifo": os.SCHED_FIFO | os.SCHED_RESET_ON_FORK}
    with running("print(1, flush=True); input()") as process:
        cores = ProcessCores(process.pid, settings_of(*paths))
        for request in (b"time", b"lent", b"time", b"build"):
            priority = cores.answer(request).decode()
            assert priority == (allowed_priority() if request == b"time" else "usual")
            assert os.sched_getscheduler(process.pid) == policies.get(priority, os.SCHED_OTHER)
            assert (os.getpriority(os.PRIO_PROCESS, process.pid) == -20) == (priority == "nice")
            assert request == b"build" or sorted(os.sched_getaffinity(process.pid)) == CORES[:1]
