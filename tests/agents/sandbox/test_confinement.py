"""What a worker process can do to the rest of its host: real zygotes, real forks, real programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.errors import AgentError
from agents.host.process_control import environment
from agents.sandbox.confinement import landlock_version
from agents.sandbox.confinement_trial import Aspect, try_confinement
from agents.sandbox.footprint import Footprint, limit_memory
from agents.sandbox.syscall_filter import is_known
from tests.confinement_fixtures import Worker, make_folder
from tests.conftest import child_settings, run_code

needs_filter = pytest.mark.skipif(
    not is_known(os.uname().machine), reason=f"there is no filter of system calls for {os.uname().machine}"
)
needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

#: By what an attack is refused, and what becomes of it in a worker process of a CPU, of a GPU and of a board
#: behind a tracker. A GPU's driver makes local sockets and shared memory and starts programs, and CUDA names
#: its thread; a board is connected to. What is not tried there has a dash. What `try_confinement` tries as
#: well, and no kind of device may do, is left to it.
ATTACKS = """
    filter   EPERM  EPERM  done  socket.create_connection(("127.0.0.1", port), 5).close()
    filter   EPERM  EPERM  EPERM socket.create_server(("127.0.0.1", 0)).close()
    filter   EPERM  EPERM  EPERM socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(f"{folder}/socket")
    filter   EPERM  -      -     os.truncate(kept, 0)
    filter   EPERM  -      -     os.utime(kept, (1, 1))
    filter   EPERM  -      -     os.setxattr(kept, "user.mark", b"1")
    filter   EPERM  EPERM  EPERM os.kill(zygote, 0)
    filter   EPERM  -      -     os.kill(-1, 0)
    filter   EPERM  -      -     fcntl.fcntl(0, F_SETSIG, 9)
    filter   EPERM  EPERM  EPERM system_call(own["ptrace"], PTRACE_SEIZE, zygote, 0, 0)
    filter   EPERM  -      -     resource.prlimit(stranger, resource.RLIMIT_NOFILE, (64, 64))
    filter   EPERM  -      -     os.setpriority(os.PRIO_PROCESS, stranger, 19)
    # Where it may be made, the kernel finds nothing there to mount again.
    filter   EPERM  EPERM  EPERM system_call(own["mount"], b"none", bytes(folder), b"tmpfs", MS_REMOUNT, 0)
    filter   EPERM  -      -     system_call(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))
    filter   EPERM  -      -     system_call(own["bpf"], 0, ctypes.create_string_buffer(128), 128)
    filter   EPERM  EPERM  EPERM system_call(own["setsid"])
    filter   EPERM  done   done  os.posix_spawn("/bin/true", ["true"], {})
    filter   EPERM  done   -     os.close(os.memfd_create("hoard"))
    filter   EPERM  -      -     os.close(system_call(MEMFD_SECRET, 0))
    filter   EPERM  done   EPERM mmap.mmap(-1, 1 << 20, SHARED).close()
    filter   EPERM  -      -     share_zeros()
    filter   EPERM  done   -     [end.detach() for end in socket.socketpair()]
    filter   EPERM  EPERM  -     resource.prlimit(0, DATA, resource.getrlimit(DATA))
    landlock EACCES -      -     (folder / "folder").mkdir()
    landlock EACCES -      -     (folder / "link").symlink_to(kept)
    landlock EACCES -      -     (folder / "name").hardlink_to(kept)
    landlock EACCES EACCES -     Path("/proc/self/oom_score_adj").open("w").close()
    landlock EACCES -      -     Path(f"/proc/{zygote}/mem").open("rb").close()
    landlock -      done   -     Path(f"/proc/self/task/{threading.get_native_id()}/comm").open("w").close()
    landlock -      EACCES -     Path(f"/proc/{stranger}/task/{stranger}/comm").open("w").close()
    limit    EMFILE -      -     [os.dup(0) for _ in range(5000)]
"""
TAKE_MEMORY = "mmap.mmap(-1, 4 << 30, PRIVATE).close()"
KINDS = ("cpu", "gpu", "board")
#: Landlock, or a capability that is not there, refuses with one of these.
REFUSALS = {"EXDEV": "EACCES", "EPERM": "EACCES"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("outside")
    make_folder(made)
    return made


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Somebody listens there, and at a socket in the folder."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
    ):
        local.bind(f"{folder}/socket")
        local.listen()
        yield int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def worker(folder: Path, port: int) -> Iterator[Worker]:
    with Worker(child_settings(), folder, port) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_each_attack_ends_as_it_must_for_the_device(folder: Path, port: int, kind: str) -> None:
    local = child_settings()
    settings = {
        "cpu": local,
        "gpu": replace(local, target={"kind": "cuda"}, device="cuda"),
        "board": replace(local, tracker=f"localhost:{port}", key="board", lock_path=""),
    }[kind]
    by = {"limit": True, "filter": is_known(os.uname().machine), "landlock": bool(landlock_version())}
    expected, found = {}, {}
    with Worker(settings, folder, port) as tried:
        for line in ATTACKS.strip().splitlines():
            refused_by, *outcomes, what = line.split(maxsplit=4)
            outcome = outcomes[KINDS.index(kind)]
            if by.get(refused_by) and outcome != "-":
                expected[what], found[what] = outcome, tried.ask(op="try", what=what)
                if refused_by == "landlock":
                    found[what] = REFUSALS.get(found[what], found[what])
    assert found == expected
    assert {path.name for path in folder.iterdir()} == {"kept", "spare", "socket"}
    assert (folder / "kept").read_text() == "kept"


def test_the_kernel_ends_what_takes_memory_far_beyond_its_limit(folder: Path) -> None:
    with Worker(child_settings(), folder, 1) as worker:
        assert worker.ask(op="try", what=TAKE_MEMORY) == "done"
        pid = int(worker.ask(op="facts")["status"]["Pid"])
        limit_memory(pid, 1 << 30)
        assert worker.ask(op="try", what=TAKE_MEMORY) == "ENOMEM"
        limit_memory(pid, 3 << 30)  # the next job may take more
        assert worker.ask(op="try", what=TAKE_MEMORY) == "done"


@needs_filter
def test_a_worker_process_keeps_what_it_needs_and_runs_as_fast(worker: Worker) -> None:
    facts = worker.ask(op="facts")
    status = facts["status"]
    assert status["NoNewPrivs"] == "1"
    # Reading other users' files is the one capability that root keeps.
    assert int(status["CapEff"], 16) in {0, 1 << 2}
    if os.geteuid() == 0:
        assert int(status["CapBnd"], 16) == 1 << 2
    # A filter makes older kernels switch off the CPU's speculation, which would slow every program.
    lines = Path("/proc/self/status").read_text().splitlines()
    ours = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    for name in ("Speculation_Store_Bypass", "SpeculationIndirectBranch"):
        assert status.get(name) == ours.get(name)
    assert facts["threads"] == [1]
    # Input, output, errors, its two sockets, and the folder that is being listed.
    assert facts["files"] == 6
    assert Path(facts["scratch"]).name == "0"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_its_zygote_moves_the_other_threads_of_a_worker_process(folder: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    settings = replace(child_settings(), timing_cores=(cores[1],), build_cores=(cores[0],))
    with Worker(settings, folder, 1) as worker:
        assert worker.ask(op="pin") == [[cores[1]], [cores[1]]]


def test_a_scratch_folder_goes_with_its_process_and_those_of_killed_zygotes_with_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Worker(child_settings(), folder, 1) as worker:
        assert Path(worker.ask(op="facts")["scratch"]).is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())
    with Worker(child_settings(), folder, 1) as killed:
        assert Path(killed.ask(op="facts")["scratch"]).exists()
        killed.zygote.send_signal(signal.SIGKILL)
        killed.zygote.wait(20)
    assert len(list(tmp_path.iterdir())) == 1
    with Worker(child_settings(), folder, 1) as first, Worker(child_settings(), folder, 1) as second:
        scratch = [Path(each.ask(op="facts")["scratch"]) for each in (first, second)]
        assert {each.parent for each in scratch} == set(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


@needs_landlock
@needs_filter
def test_the_trial_refuses_everything_here() -> None:
    trial = try_confinement()
    assert (trial.allowed, trial.has_filter) == ((), True)
    assert trial.landlock == landlock_version()
    assert {one.aspect for one in trial.attempts} == set(Aspect)


#: Does what is tried, in a process that nothing confines and whose agent does not look.
UNCONFINED = """
import sys
from agents.sandbox import confinement_trial as trial
trial.confine = lambda *_: trial.Confinement(landlock=0, has_filter=False)
trial.main(sys.argv[1:])
"""


def test_all_that_is_tried_can_be_done_by_who_is_not_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", UNCONFINED]
    monkeypatch.setattr("agents.sandbox.confinement_trial.command", lambda _, folder: [*command, folder])
    monkeypatch.setattr("agents.sandbox.confinement_trial.limit_memory", lambda *_: None)
    unseen = Footprint(memory_bytes=0, threads=0)
    monkeypatch.setattr("agents.sandbox.confinement_trial.footprint_of", lambda *_, **__: unseen)
    trial = try_confinement()
    assert [one.what for one in trial.attempts if one.is_refused] == []


def test_a_trial_that_ends_early_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.exit('no such luck')"
    monkeypatch.setattr("agents.sandbox.confinement_trial.command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(AgentError, match="ended with status 1: no such luck"):
        try_confinement()


@needs_filter
def test_without_landlock_the_rest_is_refused_and_what_is_not_is_told(tmp_path: Path) -> None:
    """As on a kernel that lacks it."""
    code = (
        "import sys\nfrom agents.sandbox import confinement, confinement_trial\n"
        "confinement.landlock_version = lambda: 0\nconfinement_trial.main(sys.argv[1:])"
    )
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    make_folder(tmp_path / "outside")
    found = json.loads(run_code(code, tmp_path, env=environment(), input="\n\n"))
    assert (found["landlock"], found["has_filter"]) == (0, True)
    allowed = {one["what"] for one in found["attempts"] if not one["is_refused"]}
    allowed.discard("take memory far beyond its limit")  # nobody has set it
    assert {one.split()[0] for one in allowed} == {"make", "write", "rename", "remove"}
    assert "open network connections" not in allowed
