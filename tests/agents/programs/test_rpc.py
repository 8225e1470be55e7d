from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.device import rpc_server
from agents.device.worker import DeviceWorker
from agents.host import rpc_tracker
from agents.host.probe import probe, remote_descriptor
from agents.host.rpc_tracker import Listed, NotYetError, listing, served
from agents.programs.build import build
from agents.programs.check import argument_values
from agents.programs.design_space import DesignSpace
from agents.programs.link import LinkLostError
from agents.programs.rpc_session import (
    RpcLink,
    RpcSession,
)
from agents.programs.workloads import operator_workload
from agents.records import (
    Candidate,
    DeviceKind,
    DeviceSpec,
    Family,
    Outcome,
    Protocol,
    Workload,
)
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool import WorkerPool
from benchmarks.bad_programs import EMPTY_TRACE, calling
from tests.conftest import child_settings, run_code, until
from tests.host_fixtures import GREETING, framed, listener
from tests.record_fixtures import ANY_JSON

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:build is deprecated")]

ROOT = Path(__file__).parents[3]
TARGET = {"kind": "llvm", "num-cores": 1}
#: Importing TVM takes some seconds on an idle core.
START_SECS = 90.0
#: What TVM says of a connection that ended.
BROKEN = r"Check failed|kShutdown|[Rr]ecv|Send|reset|closed"


def listed_at(tracker: str) -> dict[str, Listed]:
    try:
        return listing(tracker)
    except NotYetError:
        return {}


def from_a_free_port() -> list[str]:
    """Options for a program of TVM: the first free port from here on, should this one be taken meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return ["--port", str(probe.getsockname()[1]), "--port-end", "65536"]


class Lab:
    """A real tracker on loopback and real servers, each in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        #: Address of the tracker, once it has said where it listens.
        self.tracker = ""
        self.folder = folder
        self.groups: dict[str, subprocess.Popen[bytes]] = {}
        self._start("tracker", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", *from_a_free_port())

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.groups[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=ROOT,
            )

    def serve(self, key: str, module: str = "agents.device.rpc_server") -> None:
        """Start a server; `wait_for` says when it is there."""
        arguments = ["--host", "127.0.0.1", "--tracker", self.tracker, "--key", key]
        # Ours takes any port by itself.
        self._start(key, module, *arguments, *(from_a_free_port() if "tvm" in module else []))

    def wait_for_tracker(self) -> None:
        def is_there() -> bool:
            assert self.groups["tracker"].poll() is None, self.log("tracker")
            if found := re.search(r"bind to (127\.0\.0\.1:\d+)\s", self.log("tracker")):
                self.tracker = found[1]
            return bool(self.tracker) and not served(self.tracker, "").startswith("no RPC tracker")

        until(is_there, START_SECS)

    def wait_for(self, key: str) -> None:
        def is_there() -> bool:
            assert self.groups[key].poll() is None, self.log(key)
            return key in listed_at(self.tracker)

        until(is_there, START_SECS)

    def kill(self, name: str) -> None:
        group = self.groups.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(group.pid, signal.SIGKILL)
        group.wait()

    def close(self) -> None:
        while self.groups:
            self.kill(next(reversed(self.groups)))

    def link(self, key: str, **changes: Any) -> RpcLink:
        usable = min(os.sched_getaffinity(0))
        return RpcLink(self.tracker, key, **{"cores": (usable,), "wait_secs": 30.0, **changes})

    def session_process(self, key: str) -> psutil.Process:
        """The process that holds the only session of a server of `agents.device.rpc_server`."""
        (child,) = psutil.Process(self.groups[key].pid).children(recursive=True)
        return child

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    try:
        made.wait_for_tracker()
        made.serve("box")
        made.serve("stock", "tvm.exec.rpc_server")
        for key in ("box", "stock"):
            made.wait_for(key)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def matmul() -> tuple[Workload, str]:
    workload = operator_workload("GMM", (1, 64, 64, 64))
    candidate = DesignSpace(workload, Family.CPU).sample(1, seed=3).candidates[0]
    return workload, candidate.trace


def compiled(workload: Workload, trace: str = EMPTY_TRACE) -> Any:
    import tvm

    return build(tvm.ir.load_json(workload.module_json), trace, tvm.target.Target(TARGET)).module


def arguments_on(session: RpcSession, workload: Workload) -> list[Any]:
    import tvm

    values = argument_values(workload.arg_shapes, workload.arg_dtypes, 1)
    return [tvm.runtime.tensor(value, device=session.device) for value in values]


def assert_lost(link: RpcLink, words: str) -> None:
    with pytest.raises(LinkLostError, match=words), link.connect():
        pass


def call(session: RpcSession, function: str, *numbers: int) -> None:
    """Run a program on the device that calls a function of its C library."""
    workload, _ = calling(function, function, *numbers)
    session.load(compiled(workload))["main"](*arguments_on(session, workload))


def test_asking_who_is_served_loads_no_tvm() -> None:
    code = (
        "import sys\nfrom agents.host.rpc_tracker import served\n"
        "served('127.0.0.1:1', 'x')\nprint('tvm' in sys.modules)"
    )
    assert run_code(code, cwd=ROOT) == "False\n"


@pytest.mark.parametrize("key", ["box", "stock"])
def test_a_confined_worker_process_measures_over_there_and_the_numbers_are_right(
    lab: Lab, matmul: tuple[Workload, str], key: str
) -> None:
    workload, trace = matmul
    # By name: services that know names are out of its reach, so it was looked up before.
    tracker = f"localhost:{lab.tracker.rpartition(':')[2]}"
    settings = replace(child_settings(), tracker=tracker, key=key, lock_path="")
    candidate = Candidate(workload_id=workload.workload_id, trace=trace)
    quick = Protocol(repeat=3, min_repeat_ms=1.0, visits=1)
    with WorkerPool([settings]) as own:
        [result] = own.run([CandidateJob(workload=workload, candidate=candidate, protocol=quick, check=True)])
    assert result.outcome is Outcome.OK, result.error
    assert len(result.run_secs) >= 3
    assert all(0 < secs < 1 for secs in result.run_secs)
    assert not result.disturbances, "no gate is around what runs elsewhere"
    # What only the board can see of itself comes with the record.
    if key == "box":
        assert {"kernel", "load", "memory_available_bytes"} <= result.environment.keys()


def test_threads_and_cores_are_those_of_the_link(lab: Lab) -> None:
    usable = sorted(os.sched_getaffinity(0))
    with lab.link("box", cores=usable[-1:]).connect():
        (thread,) = lab.session_process("box").threads()
        assert os.sched_getaffinity(thread.id) == {usable[-1]}
    with lab.link("box", threads=2, cores=(usable * 2)[:2]).connect():
        threads = lab.session_process("box").threads()
        assert len(threads) == 2
        assert {frozenset(os.sched_getaffinity(thread.id)) for thread in threads} == {frozenset(usable[:2])}


@pytest.mark.parametrize("key", ["box", "stock"])
def test_a_worker_describes_a_board_by_what_its_server_sees(
    lab: Lab, generic_spec: DeviceSpec, tmp_path: Path, key: str
) -> None:
    usable = min(os.sched_getaffinity(0))
    spec = msgspec.structs.replace(
        generic_spec, kind=DeviceKind.RPC, tracker=lab.tracker, key=key, cores=(usable,)
    )
    affinity = psutil.Process().cpu_affinity()
    worker = DeviceWorker(spec, tmp_path / "spool")
    try:
        found, here = worker.descriptor, probe()
    finally:
        worker.close()
        psutil.Process().cpu_affinity(affinity)
    assert found.host == f"{lab.tracker}/{key}"
    claimed = remote_descriptor(spec)
    assert found.versions == claimed.versions
    if key == "stock":
        assert found == claimed
    else:
        assert (found.cpu_model, found.l2_bytes) == (here.cpu_model, here.l2_bytes)
        assert found.isa_flags == here.isa_flags


def test_a_session_ends_though_its_arguments_are_still_held(lab: Lab, matmul: tuple[Workload, str]) -> None:
    held = []
    for _ in range(3):
        with lab.link("box").connect() as session:
            held.append((arguments_on(session, matmul[0]), session))
    until(lambda: listing(lab.tracker)["box"].free == 1)
    assert not any(session._answers() for _, session in held)


def test_a_busy_device_is_waited_for_no_longer_than_asked(lab: Lab) -> None:
    with lab.link("box").connect():
        words = rf"waited 1 s .* key 'box' is in use at .*{lab.tracker} \(it lists box 0 of 1 free, "
        assert_lost(lab.link("box", wait_secs=1.0), words)
    with lab.link("box").connect() as session:
        assert session.alive()


def test_a_tracker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_tracker, "ANSWER_SECS", 0.3)
    with listener(
        lambda connection: connection.recv(1) and connection.recv(3) and connection.recv(1)
    ) as silent:
        assert "timed out" in served(silent, "box")


@given(
    st.binary(max_size=12)
    | st.binary(max_size=12).map(lambda rest: GREETING + rest)
    | ANY_JSON.map(lambda value: GREETING + framed(value))
    | ANY_JSON.map(lambda value: GREETING + framed([0, value]))
    | ANY_JSON.map(lambda value: GREETING + framed([0, {"server_info": [value], "queue_info": {"k": value}}]))
)
def test_whatever_a_tracker_sends_gives_one_sentence(sent: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1024):
            pass

    with listener(answer) as address:
        sentence = served(address, "box")
    assert sentence.startswith(("no RPC tracker answers at", "nobody serves the key"))


def test_a_server_that_was_killed_is_known_as_dead_and_waited_for(
    lab: Lab, matmul: tuple[Workload, str]
) -> None:
    workload, trace = matmul
    program = compiled(workload, trace)
    try:
        with lab.link("box").connect() as session:
            module, arguments = session.load(program), arguments_on(session, workload)
            process = lab.session_process("box")
            lab.groups["box"].kill()
            until(lambda: not process.is_running())  # sessions go with their server
            with pytest.raises(Exception, match=BROKEN):
                module["main"](*arguments)
            assert not session.alive()
        assert_lost(lab.link("box", wait_secs=1.0), r"nobody serves the key 'box' .*: run `python -m")
    finally:
        lab.kill("box")
        lab.serve("box")
    with lab.link("box", wait_secs=START_SECS).connect() as session:
        arguments = arguments_on(session, workload)
        session.load(program)["main"](*arguments)
        assert session.alive()


@pytest.mark.parametrize("key", ["box", "stock"])
def test_a_program_that_aborts_breaks_its_session_and_only_tvms_own_server(lab: Lab, key: str) -> None:
    is_ours = key == "box"
    with lab.link(key).connect() as session:
        with pytest.raises(Exception, match=BROKEN):
            call(session, "abort")
        assert session.alive() is is_ours
    if is_ours:
        with lab.link(key).connect() as session:
            call(session, "getpid")
            assert session.alive()
        assert lab.groups[key].poll() is None
        assert "exit code -6" in lab.log(key)


def test_a_server_is_free_again_when_its_client_dies_in_the_middle_of_a_run(lab: Lab) -> None:
    with lab.link("box").connect() as session:
        failed: list[Exception] = []

        def run() -> None:
            try:
                call(session, "usleep", 60_000_000)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        process = lab.session_process("box")
        until(
            lambda: Path(f"/proc/{process.pid}/syscall").read_text().split()[0] in ("35", "230", "101", "115")
        )
        session._cut()
        thread.join(20)
        assert failed
    with lab.link("box").connect() as session:
        assert session.alive()
    assert not process.is_running()


def test_a_server_ends_a_session_that_lasts_too_long(lab: Lab) -> None:
    with lab.link("box", session_secs=2.0).connect() as session:
        with pytest.raises(Exception, match=BROKEN):
            call(session, "usleep", 60_000_000)
        assert session.alive()


def test_a_server_without_a_tracker_ends_with_one_line() -> None:
    refused = pytest.raises(
        SystemExit, match=r"cannot serve 'x': no RPC tracker answers at .* \(what listens"
    )
    with listener(lambda connection: connection.sendall(b"HTTP/1.0 400\r\n\r\n")) as address, refused:
        rpc_server.main(["--tracker", address, "--key", "x"])
