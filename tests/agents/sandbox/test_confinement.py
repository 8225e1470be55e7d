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
from typing import Any

import pytest

from agents.errors import AgentError
from agents.host.own_program import environment
from agents.programs.workloads import workload_from_module
from agents.records import Candidate, Outcome, Protocol, Workload
from agents.sandbox.confinement import landlock_version, needs_of
from agents.sandbox.confinement_trial import Aspect, try_confinement
from agents.sandbox.footprint import MOST_THREADS, Footprint, footprint_of, limit_memory
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool import WorkerPool
from agents.sandbox.syscall_filter import is_known
from benchmarks.bad_programs import EMPTY_TRACE
from tests.confinement_fixtures import Worker, make_folder
from tests.conftest import child_settings, run_code

needs_filter = pytest.mark.skipif(
    not is_known(os.uname().machine), reason=f"there is no filter of system calls for {os.uname().machine}"
)
needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

FILTERED = [
    *("connect", "bind", "local_socket", "empty", "empty_when_reading", "set_times", "set_attribute"),
    *("kill", "kill_all", "signal_by_descriptor", "ptrace", "move_to_cores", "limit", "be_nicer"),
    *("mount", "make_namespace", "io_uring", "bpf", "leave_group", "fork", "start_program"),
    *(
        "nameless_file",
        "secret_memory",
        "shared_memory",
        "shared_zeros",
        "splice",
        "socket_pair",
        "raise_limit",
    ),
]
RESTRICTED = [
    *("make_file", "make_folder", "make_link", "make_name", "write", "remove", "rename"),
    *("write_settings", "read_memory"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("outside")
    make_folder(made)
    return made


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
    ):
        local.bind(f"{folder}/socket")
        local.listen()
        with Worker(child_settings(), folder, listening.getsockname()[1]) as made:
            yield made


@needs_filter
@pytest.mark.parametrize("what", FILTERED)
def test_a_worker_process_cannot_reach_the_network_or_other_processes_or_hold_memory_unseen(
    worker: Worker, folder: Path, what: str
) -> None:
    assert worker.ask(op="try", what=what) == "EPERM"
    assert (folder / "kept").read_text() == "kept"


@needs_landlock
@pytest.mark.parametrize("what", RESTRICTED)
def test_a_worker_process_cannot_change_files_outside_its_scratch_folder(
    worker: Worker, folder: Path, what: str
) -> None:
    assert worker.ask(op="try", what=what) in {"EACCES", "EXDEV", "EPERM"}
    assert {path.name for path in folder.iterdir()} == {"kept", "spare", "socket"}
    assert (folder / "kept").read_text() == "kept"


def test_a_worker_process_prints_no_disk_full(worker: Worker) -> None:
    assert worker.ask(op="try", what="grow") == "EFBIG"


def test_a_worker_process_opens_few_files(folder: Path) -> None:
    with Worker(child_settings(), folder, 1) as worker:
        assert worker.ask(op="try", what="many_files") == "EMFILE"


def test_the_kernel_ends_what_takes_memory_far_beyond_its_limit(folder: Path) -> None:
    with Worker(child_settings(), folder, 1) as worker:
        assert worker.ask(op="try", what="take_memory") == "done"
        pid = int(worker.ask(op="facts")["status"]["Pid"])
        limit_memory(pid, 1 << 30)
        assert worker.ask(op="try", what="take_memory") == "ENOMEM"
        limit_memory(pid, 3 << 30)  # the next job may take more
        assert worker.ask(op="try", what="take_memory") == "done"


def test_threads_of_a_worker_process_are_seen(folder: Path) -> None:
    with Worker(child_settings(), folder, 1) as worker:
        pid = worker.ask(op="threads", count=MOST_THREADS)
        assert footprint_of(pid, with_group=False).threads == MOST_THREADS + 1


@needs_filter
def test_modes_of_files_stay_as_they_are(worker: Worker, folder: Path) -> None:
    before = (folder / "kept").stat().st_mode
    worker.ask(op="mode")
    assert (folder / "kept").stat().st_mode == before


@needs_filter
def test_a_worker_process_keeps_what_it_needs_and_runs_as_fast(worker: Worker) -> None:
    facts = worker.ask(op="facts")
    status: dict[str, str] = facts["status"]
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


def test_only_devices_that_need_them_get_programs_and_connections() -> None:
    local = child_settings()
    board = replace(local, tracker="127.0.0.1:9190", key="board", lock_path="")
    gpu = replace(local, target={"kind": "cuda"}, device="cuda")
    found = [(one.programs, one.network, one.gpu) for one in map(needs_of, (local, board, gpu))]
    assert found == [(False, False, False), (True, True, False), (True, False, True)]


@needs_filter
def test_a_worker_process_of_a_gpu_makes_local_sockets_and_starts_programs_but_connects_to_nothing(
    folder: Path,
) -> None:
    settings = replace(child_settings(), target={"kind": "cuda"}, device="cuda")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local, Worker(settings, folder, 1) as worker:
        (folder / "socket").unlink(missing_ok=True)
        local.bind(f"{folder}/socket")
        local.listen()
        assert worker.ask(op="try", what="start_program") == "done"
        # CUDA does so, and refuses to start where it may not.
        if landlock_version():
            assert worker.ask(op="try", what="name_own_thread") == "done"
            for what in ("name_other_thread", "write_settings"):
                assert worker.ask(op="try", what=what) == "EACCES", what
        for what in (
            "connect",
            "bind",
            "local_socket",
            "kill",
            "ptrace",
            "mount",
            "leave_group",
            "raise_limit",
        ):
            assert worker.ask(op="try", what=what) == "EPERM", what
        # Drivers do so.
        for what in ("nameless_file", "shared_memory", "socket_pair"):
            assert worker.ask(op="try", what=what) == "done", what


@needs_filter
def test_a_worker_process_of_a_board_connects_and_does_not_listen(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        port = tracker.getsockname()[1]
        settings = replace(child_settings(), tracker=f"localhost:{port}", key="board", lock_path="")
        with Worker(settings, folder, port) as worker:
            assert worker.ask(op="try", what="connect") == "done"
            assert worker.ask(op="try", what="start_program") == "done"
            for what in ("bind", "local_socket", "kill", "ptrace", "mount", "leave_group", "shared_memory"):
                assert worker.ask(op="try", what=what) == "EPERM", what


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


def writing(function: str, *arguments: Any) -> tuple[Workload, Candidate]:
    """A workload whose program calls a function of the C library with texts and numbers."""
    import tvm
    from tvm import te, tirx

    source = te.placeholder((1,), name="A", dtype="float32")
    given = [
        tvm.ir.StringImm(one) if isinstance(one, str) else tirx.IntImm("int32", one) for one in arguments
    ]

    def element(i: Any) -> Any:
        return source[i] + tirx.Cast("float32", tirx.call_extern("int32", function, *given))

    module = tvm.IRModule({"main": te.create_prim_func([source, te.compute((1,), element, name="B")])})
    workload = workload_from_module(module, name=f"calls_{function}", operator="bad")
    return workload, Candidate(workload_id=workload.workload_id, trace=EMPTY_TRACE)


def run_here(workload: Workload) -> None:
    """Run the program in this process, which nothing confines."""
    import tvm

    program = tvm.tirx.build(
        tvm.ir.load_json(workload.module_json), target=tvm.target.Target({"kind": "llvm"})
    )
    arguments = [
        tvm.runtime.empty(shape, dtype)
        for shape, dtype in zip(workload.arg_shapes, workload.arg_dtypes, strict=True)
    ]
    program.get_function("main", query_imports=True)(*arguments)


@pytest.mark.tvm
@needs_landlock
@needs_filter
@pytest.mark.parametrize("function", ["system", "creat"])
def test_a_program_that_writes_a_file_writes_none_when_it_is_measured(tmp_path: Path, function: str) -> None:
    marker = tmp_path / "marker"
    arguments = (f"echo > {marker}",) if function == "system" else (str(marker), 0o600)
    workload, candidate = writing(function, *arguments)
    run_here(workload)
    assert marker.exists(), "the program writes nothing at all"
    marker.unlink()
    protocol = Protocol(repeat=2, min_repeat_ms=1.0, visits=1)
    job = CandidateJob(workload=workload, candidate=candidate, protocol=protocol, check=True)
    harmless, its_candidate = writing("abs", -3)
    jobs = [job, replace(job, workload=harmless, candidate=its_candidate)]
    with WorkerPool([child_settings()]) as own:
        results = sorted(own.run(jobs), key=lambda result: result.job)
    assert not marker.exists()
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK], results
