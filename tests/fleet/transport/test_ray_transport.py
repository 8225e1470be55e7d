"""Agents in real Ray processes: killed, stopped, cut off with their host; nothing counts that should not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agents.device.messages import (
    Activity,
    AgentGone,
    AgentUp,
    Batch,
    Heartbeat,
    Message,
    Proposed,
    ProposeRequest,
    Results,
)
from agents.records import Candidate, DeviceId, DeviceSpec, Lease, Protocol, Record, Workload
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.conftest import each_below, until
from tests.fleet.transport.test_transport_contract import TransportContract
from tests.transport_fixtures import (
    batch_of,
    first,
    lease_of,
    poll_until,
    recorded_candidates,
    recorded_file,
    replay_spec,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

GENERIC = DeviceId("generic")
#: What is tested here must not depend on how quiet the host is.
QUICK = Protocol(repeat=2, extra_repeats=0, min_repeat_ms=1.0, check_share=0.0, early_stop_ratio=0.0)


@pytest.fixture(scope="module")
def transport(generic_spec: DeviceSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayTransport]:
    made = RayTransport(
        [generic_spec],
        tmp_path_factory.mktemp("spools"),
        QUICK,
        RayOptions(heartbeat_secs=0.2, replay_heartbeat_secs=0.2),
    )
    yield made
    made.close(20.0)
    left = each_below(os.getpid(), lambda child: child.name())
    assert not [name for name in left if name.startswith("ray") or name == "gcs_server"]


class Lives:
    """Counts the lives of the device, as a coordinator does."""

    def __init__(self, transport: RayTransport, spec: DeviceSpec) -> None:
        self.transport, self.spec = transport, spec
        self.incarnation = 0

    def begin(self) -> AgentUp:
        self.incarnation += 1
        self.transport.start(self.spec, self.incarnation)
        [up] = [m for m in self.until(AgentUp) if isinstance(m, AgentUp)]
        assert up.incarnation == self.incarnation
        return up

    def until(self, kind: type[Message], timeout_secs: float = 90.0) -> list[Message]:
        found = poll_until(self.transport, lambda messages: first(messages, kind) is not None, timeout_secs)
        return [one for one in found if not isinstance(one, Heartbeat) or kind is Heartbeat]

    def measure(self, fencing_token: int, workload: Workload, candidates: list[Candidate]) -> Lease:
        lease = lease_of(GENERIC, fencing_token)
        batch = Batch(
            candidates=tuple(candidates), workloads={workload.workload_id: workload}, protocol=QUICK
        )
        self.transport.measure(lease, self.incarnation, batch)
        return lease

    def acknowledge(self, records: list[Record]) -> None:
        ids = [record.record_id for record in records]
        self.transport.acknowledge(GENERIC, self.incarnation, ids)

    def death(self) -> AgentGone:
        [gone] = [m for m in self.until(AgentGone, 30.0) if isinstance(m, AgentGone)]
        assert (gone.device_id, gone.incarnation) == (GENERIC, self.incarnation)
        return gone


@pytest.fixture(scope="module")
def counter(transport: RayTransport, generic_spec: DeviceSpec) -> Lives:
    return Lives(transport, generic_spec)


@pytest.fixture
def lives(counter: Lives) -> Iterator[Lives]:
    """The device with no agent; one that a test leaves is ended."""
    yield counter
    counter.transport.stop(GENERIC, counter.incarnation, kill=True)
    while counter.transport.pids():
        counter.transport.poll(0.1)


def has_last(messages: list[Message]) -> bool:
    """Whether the last results of a lease are among some messages."""
    return any(isinstance(one, Results) and one.is_last for one in messages)


def records_in(messages: list[Message]) -> list[Record]:
    return [record for one in messages if isinstance(one, Results) for record in one.records]


def family_of(pid: int) -> list[psutil.Process]:
    """A process and everything below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def all_gone(family: list[psutil.Process]) -> bool:
    return not any(map(alive, family))


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.tvm
def test_a_device_measures_and_what_its_killed_agent_had_comes_with_its_lease_in_the_next_life(
    lives: Lives, matmul: Workload, matmul_candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel counts for the whole host, and may kill a process that is none of ours meanwhile.
    monkeypatch.setattr("fleet.transport.ray_hosts.oom_kills", lambda: 7)
    up = lives.begin()
    assert up.pid == lives.transport.pids()[GENERIC, lives.incarnation]
    wish = ProposeRequest(request_id="r", workload=matmul, count=6, seed=1)
    lives.transport.propose(GENERIC, lives.incarnation, wish)
    [proposed] = lives.until(Proposed)
    assert list(proposed.candidates) == matmul_candidates
    # It measures, beats meanwhile, and is told that its records are safe.
    lease = lives.measure(1, matmul, matmul_candidates)
    found = poll_until(lives.transport, has_last, 90.0)
    assert {one.lease for one in found if isinstance(one, Results)} == {lease.tag}
    records = records_in(found)
    assert {one.candidate_id for one in records} == {one.candidate_id for one in matmul_candidates}
    heartbeats = [one for one in found if isinstance(one, Heartbeat) and one.held]
    assert {one.held for one in heartbeats} == {(lease.tag,)}
    assert Activity.BUILDING in {one.busy for one in heartbeats}
    lives.acknowledge(records)
    # It is killed before it is told so again.
    lease = lives.measure(2, matmul, matmul_candidates[:2])
    records = records_in(poll_until(lives.transport, has_last, 90.0))
    family = family_of(up.pid)
    assert len(family) >= 2
    os.kill(up.pid, signal.SIGKILL)
    gone = lives.death()
    assert not gone.was_asked
    assert gone.is_blameless, "SIGKILL came from outside"
    assert "died" in gone.reason
    until(lambda: all_gone(family))
    again = lives.begin()
    assert list(again.pending) == [(lease.tag, record) for record in records]
    lives.acknowledge(records)
    lives.transport.stop(GENERIC, lives.incarnation, kill=False)
    assert lives.death().was_asked


@pytest.mark.tvm
def test_a_stopped_agent_is_killed_with_all_its_processes_and_one_that_prints_before_it_dies_is_quoted(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = lives.begin()
    assert up.pending == (), "all was acknowledged"
    assert {one.is_host_idle for one in lives.until(Heartbeat) if isinstance(one, Heartbeat)} == {None}
    family = family_of(up.pid)
    os.kill(up.pid, signal.SIGSTOP)
    # What it had said before may still be on its way; one that heartbeats is never silent for so long.
    heard = time.monotonic()
    deadline = heard + 20.0
    while time.monotonic() < heard + 1.5:
        assert time.monotonic() < deadline, "a stopped agent goes on beating"
        if lives.transport.poll(0.2):
            heard = time.monotonic()
    # The next life begins before the old one is seen to be gone: it waits for the spool.
    old = lives.incarnation
    lives.transport.stop(GENERIC, old, kill=True)
    lives.incarnation += 1
    # It wants an idle host, and is told of others there.
    options = replace(lives.transport._options, is_idle_only=lambda device_id: device_id == GENERIC)
    monkeypatch.setattr(lives.transport, "_options", options)
    lives.transport.start(lives.spec, lives.incarnation)
    found = poll_until(
        lives.transport,
        lambda messages: first(messages, AgentUp) is not None and first(messages, AgentGone) is not None,
        90.0,
    )
    gone, fresh = first(found, AgentGone), first(found, AgentUp)
    assert (gone.incarnation, gone.was_asked) == (old, True)
    assert fresh.incarnation == lives.incarnation
    until(lambda: all_gone(family))
    poll_until(
        lives.transport,
        lambda messages: any(
            isinstance(one, Heartbeat) and one.is_host_idle in (True, False) for one in messages
        ),
        30.0,
    )
    # Ray's own handler prints the stack of a process that is ended by this signal.
    os.kill(fresh.pid, signal.SIGABRT)
    gone = lives.death()
    assert "Abort" in gone.stderr_tail
    assert not gone.is_blameless


def test_one_hanging_process_of_replay_devices_costs_only_its_own(
    transport: RayTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.transport.ray_transport._STOP_SECS", 1.0)
    monkeypatch.setattr("fleet.transport.ray_transport.REPLAY_PER_PROCESS", 2)
    recorded = recorded_file(tmp_path)
    names = [DeviceId(f"replay-{number}") for number in range(3)]
    for name in names:
        transport.start(replay_spec(recorded, name), 1)
    poll_until(transport, lambda found: sum(isinstance(one, AgentUp) for one in found) == 3)
    pids = transport.pids()
    assert pids[names[0], 1] == pids[names[1], 1] != pids[names[2], 1]
    os.kill(pids[names[0], 1], signal.SIGSTOP)
    transport.stop(names[0], 1, kill=True)
    found = poll_until(transport, lambda found: sum(isinstance(one, AgentGone) for one in found) == 2)
    assert {one.device_id for one in found if isinstance(one, AgentGone)} == set(names[:2])
    transport.measure(lease_of(names[2], 1), 1, batch_of(recorded_candidates(0, 2)))
    poll_until(transport, lambda found: first(found, Results) is not None)
    transport.stop(names[2], 1, kill=True)
    poll_until(transport, lambda found: first(found, AgentGone) is not None)


class TestOverRay(TransportContract):
    """What every transport promises, with the Ray that has been started."""


#: A coordinator in a process of its own: Ray ends the one that has lost its head for a minute, and that may
#: be the suite's. Each server of Ray is killed once; at last it says which process is the agent's, and waits.
COORDINATOR = """
import sys, time
from pathlib import Path
import psutil
from agents.device.messages import AgentGone, AgentUp
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.transport_fixtures import PROTOCOL, first, poll_until, replay_spec
from tests.fleet.transport.test_ray_transport import alive

spec = replay_spec(Path(sys.argv[1]))
transport = RayTransport([], Path(sys.argv[2]), PROTOCOL, RayOptions(heartbeat_secs=0.2))
transport.start(spec, 1)
up = first(poll_until(transport, lambda found: first(found, AgentUp) is not None), AgentUp)
for life, server in enumerate(("raylet", "gcs_server"), start=1):
    agent = psutil.Process(up.pid)
    [victim] = [one for one in psutil.Process().children() if one.name() == server]
    victim.kill()
    gone = first(poll_until(transport, lambda found: first(found, AgentGone) is not None), AgentGone)
    assert (gone.incarnation, gone.was_asked, gone.is_blameless) == (life, False, True), gone
    transport.start(spec, life + 1)
    up = first(poll_until(transport, lambda found: first(found, AgentUp) is not None), AgentUp)
    assert not alive(agent)
print(up.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_ray_that_broke_is_started_again_and_ends_with_a_killed_coordinator(tmp_path: Path) -> None:
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(recorded_file(tmp_path)), str(tmp_path / "spools")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        with coordinator.stdout as stream:
            # Ray says there that its raylet has ended.
            pid = next((line for line in stream if line.strip().isdigit()), "")
        assert pid, "it ended early; standard error has why"
        agent = psutil.Process(int(pid))
        # Ray's own two look for the head for a minute before they give up; they hold no device.
        waiting = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
        everything = [one for one in family_of(coordinator.pid) if one.name() not in waiting]
        assert agent in everything
        agent.suspend()
    finally:
        coordinator.kill()
        coordinator.wait()
    until(lambda: all_gone(everything))
