"""Fixtures that several test files share: small real workloads, specs of this host, a worker process pool."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, settings

from agents.codec import workload_from_json
from agents.host.host_lock import host_lock_path
from agents.records import Candidate, DeviceId, DeviceKind, DeviceSpec, Family, Workload, canonical_json
from agents.sandbox.pool import WorkerPool
from agents.sandbox.stages import ChildSettings
from fleet.state.state_file import StateFile

# A busy machine makes an example slow, not wrong; each test has its own time limit.
settings.register_profile(
    "fleet", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fleet")

# Ray reads its token once a process, so a Ray that a test starts and a cluster that a later one joins must
# share it; it also keeps the tests from writing one into the home folder.
os.environ["RAY_AUTH_TOKEN"] = "0123456789abcdef0123456789abcdef"
# Ray reads it once, when it is imported: also by a test that starts none.
os.environ["RAY_AUTH_MODE"] = "token"
# Test processes run side by side, one on each core; with two threads each, they would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

GENERIC_CPU = {"kind": "llvm", "num-cores": 1}

Found = TypeVar("Found")


def folder_in_memory() -> str | None:
    """A folder for the files of tests: most tests wait for the disk, thousands of times. None without room.

    A kill takes nothing from a file system, whichever it is, and no test takes the power.
    """
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    room = min(shutil.disk_usage(memory).free, psutil.virtual_memory().available)
    return memory if room > 8 << 30 else None


#: Where `tmp_path` lies, and where tests without it make their folders; None for the usual place.
TEMPORARY = os.environ.get("PYTEST_DEBUG_TEMPROOT") or folder_in_memory()
if TEMPORARY:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = TEMPORARY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that may take longest first: no process is left alone with one of them at the end."""
    allowed_secs: Counter[str] = Counter()
    for item in items:
        limit = item.get_closest_marker("timeout")
        allowed_secs[item.nodeid.split("::")[0]] += limit.args[0] if limit and limit.args else 0
    items.sort(key=lambda item: -allowed_secs[item.nodeid.split("::")[0]])


@pytest.fixture(scope="session")
def generic_spec() -> DeviceSpec:
    """A device that every host with LLVM can be: one thread, the generic CPU of its architecture."""
    return DeviceSpec(
        device_id=DeviceId("generic"),
        kind=DeviceKind.LOCAL,
        family=Family.CPU,
        target_json=canonical_json(GENERIC_CPU),
    )


def child_settings() -> ChildSettings:
    """Settings of a worker process that builds and times on core 0."""
    return ChildSettings(
        target=GENERIC_CPU,
        device="cpu",
        index=0,
        timing_cores=(0,),
        build_cores=(0,),
        lock_path=str(host_lock_path()),
    )


def each_below(pid: int, look: Callable[[psutil.Process], Found]) -> list[Found]:
    """What there is to see at every process below one; those that end meanwhile are left out."""
    found: list[Found] = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(look(process))
    return found


def run_code(code: str, *arguments: object, **options: Any) -> str:
    """What a process of its own prints that runs some Python; it must end well."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 100, **options})
    assert done.returncode == 0, done.stderr[-4000:]
    return str(done.stdout)


@contextlib.contextmanager
def running(code: str, *arguments: object, **options: Any) -> Iterator[Any]:
    """A process that has printed its `first_line`; it should end when it reads one, which it gets at last."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:
        process.first_line = process.stdout.readline()
        assert process.first_line
        try:
            yield process
            if process.poll() is None:
                process.communicate("\n", timeout=60)
        finally:
            process.kill()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder is the current one, and the terminal is wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def until(is_so: Callable[[], object], secs: float = 30.0, *, look_secs: float = 0.05) -> None:
    """Wait until something is so; it must be in the time."""
    ends_at = time.monotonic() + secs
    while not is_so():
        assert time.monotonic() < ends_at, f"not so after {secs:g} s"
        time.sleep(look_secs)


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """A pool with one worker process, shared by the session because TVM takes seconds to import."""
    with WorkerPool([child_settings()]) as made:
        yield made


@pytest.fixture(scope="session")
def bert_workloads(pool: WorkerPool) -> list[Workload]:
    """The workloads of BERT-tiny."""
    answer = pool.ask({"op": "networks", "networks": ["bert-tiny"]})
    return [workload_from_json(value) for value in answer["workloads"]]


@pytest.fixture(scope="session")
def matmul(bert_workloads: list[Workload]) -> Workload:
    """A small real matmul, 128 x 128 x 128."""
    return next(workload for workload in bert_workloads if workload.name == "GMM_1x128x128x128")


@pytest.fixture(scope="session")
def matmul_candidates(pool: WorkerPool, matmul: Workload) -> list[Candidate]:
    """Six random candidates of the small matmul."""
    question = {"op": "propose", "workload_id": matmul.workload_id, "family": "cpu", "count": 6, "seed": 1}
    answer = pool.ask({**question, "exclude": []}, matmul)
    return [Candidate(workload_id=matmul.workload_id, trace=trace) for trace in answer["traces"]]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFile]:
    """An empty state file."""
    with contextlib.closing(StateFile(tmp_path / "coverage" / "state.sqlite")) as opened:
        yield opened
