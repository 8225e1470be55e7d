"""The agents of one process: order, heartbeats, lost answers, backpressure; parts of a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from agents.device.agent_host import AgentHost
from agents.device.messages import (
    Activity,
    AgentRefused,
    AgentRequest,
    AgentUp,
    Batch,
    BeginAgent,
    Conclude,
    Concluded,
    Described,
    Failed,
    Heartbeat,
    Measure,
    Message,
    Part,
    Propose,
    Proposed,
    ProposeRequest,
    Results,
)
from agents.device.replay import ReplayWorker, ReplayWorkerFactory, Worker, open_records
from agents.device.worker import Drawn
from agents.errors import AgentError, SpoolFull, WorkerStartError
from agents.records import Descriptor, DeviceId, LeaseTag
from tests.transport_fixtures import (
    PROTOCOL,
    WORKLOAD,
    batch_of,
    lease_of,
    recorded_candidates,
    recorded_file,
    replay_spec,
)

AGAIN = DeviceId("again")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_file(tmp_path_factory.mktemp("recorded"))


class GatedWorker(ReplayWorker):
    """A replay device that waits for permission before each part of one candidate."""

    def __init__(self, start: BeginAgent, gate: threading.Semaphore) -> None:
        super().__init__(start.spec, open_records(start.spec))
        self._gate = gate

    def measure_parts(self, batch: Batch, tag: LeaseTag | None = None) -> Generator[Part, None, None]:
        for number, one in enumerate(batch.candidates, 1):
            assert self._gate.acquire(timeout=60)
            part = self.measure(replace(batch, candidates=(one,)), tag)
            yield Part(records=part, device_secs=1.0, is_last=number == len(batch.candidates))

    def draw(self, requests: Iterable[ProposeRequest | None]) -> Drawn:
        def gated() -> Iterator[ProposeRequest | None]:
            for request in requests:
                assert request is None or self._gate.acquire(timeout=60)
                yield request

        return super().draw(gated())


def start_of(recorded: Path) -> BeginAgent:
    spec = replay_spec(recorded)
    name = {"device_id": spec.device_id, "incarnation": 1}
    return BeginAgent(**name, spec=spec, protocol=PROTOCOL, spool_folder="unused")


def measure_of(fencing_token: int, first: int, number: int) -> Measure:
    batch = batch_of(recorded_candidates(first, number))
    return Measure(device_id=AGAIN, incarnation=1, lease=lease_of("again", fencing_token), batch=batch)


def done_by(open_worker: Callable[[BeginAgent], Worker], *asked: AgentRequest) -> tuple[AgentHost, list[Any]]:
    """A host that has done what it was asked for, and what it said."""
    host = AgentHost(open_worker, heartbeat_secs=100)
    host.ask(list(asked))
    while host.work():
        pass
    return host, host.take(0, 0)[1]


class Served:
    """A host that works in a thread of its own, with one gated agent; fetched from as a coordinator does."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.host = AgentHost(
            lambda start: GatedWorker(start, self.gate), heartbeat_secs=0.01, most_waiting=2
        )
        self.number = 0

    def ask(self, *requests: AgentRequest) -> None:
        self.host.ask(list(requests))

    def until(self, kind: type[Message], timeout_secs: float = 60.0) -> list[Message]:
        found = []
        deadline = time.monotonic() + timeout_secs
        while not any(isinstance(one, kind) for one in found):
            assert time.monotonic() < deadline, f"no {kind.__name__} in {timeout_secs:g} s"
            self.number, messages = self.host.take(self.number, 1.0)
            found += messages
        return found


Kind = TypeVar("Kind", bound=Message)


def only(kind: type[Kind], messages: list[Message]) -> list[Kind]:
    return [message for message in messages if isinstance(message, kind)]


@pytest.fixture
def served(recorded: Path) -> Iterator[Served]:
    """One whose agent is up."""
    made = Served()
    thread = threading.Thread(target=made.host.serve, daemon=True)
    thread.start()
    made.ask(start_of(recorded))
    made.until(AgentUp)
    yield made
    made.host.close()
    made.gate.release(1000)
    thread.join(60)
    assert not thread.is_alive()


def test_beats_come_while_a_measurement_runs_and_tell_how_far_it_is(served: Served) -> None:
    served.ask(measure_of(1, 0, 3), measure_of(2, 3, 1))
    served.gate.release()
    served.until(Results)

    def heartbeat() -> Heartbeat:
        return only(Heartbeat, served.until(Heartbeat))[0]

    running = next(one for one in (heartbeat() for _ in range(1000)) if one.done == 1)
    assert running.held == (lease_of("again", 1).tag, lease_of("again", 2).tag)
    assert running.busy is Activity.BUILDING
    served.gate.release(3)
    done = []
    while sum(isinstance(one, Results) for one in done) < 3:
        done += served.until(Results)
    resting = next(one for one in (heartbeat() for _ in range(1000)) if one.busy is Activity.IDLE)
    assert (resting.held, resting.done) == ((), 0)


def test_an_agent_that_is_to_conclude_tells_what_it_finished_and_what_it_leaves(served: Served) -> None:
    served.ask(measure_of(1, 0, 3), measure_of(2, 3, 1))
    served.gate.release()
    served.until(Results)
    served.ask(Conclude(device_id=AGAIN, incarnation=1))
    served.gate.release()  # for the part that is at work
    said = served.until(Concluded)
    assert [len(one.records) for one in said if isinstance(one, Results)] == [1]
    [end] = only(Concluded, said)
    assert end.leases == (lease_of("again", 1).tag, lease_of("again", 2).tag)
    heartbeats = only(Heartbeat, served.until(Heartbeat))
    assert heartbeats[-1].held == ()


def test_a_lease_behind_a_long_question_is_at_work(served: Served) -> None:
    wish = ProposeRequest(request_id="r1", workload=WORKLOAD, count=2, seed=1)
    served.ask(Propose(device_id=AGAIN, incarnation=1, wish=wish), measure_of(1, 0, 1))
    lease = lease_of("again", 1).tag
    for _ in range(1000):  # nothing else would renew it
        found = [one for one in served.until(Heartbeat) if isinstance(one, Heartbeat) and one.held]
        if found and found[-1].busy is Activity.BUILDING:
            break
    assert (found[-1].held, found[-1].busy, found[-1].done) == ((lease,), Activity.BUILDING, 0)
    served.gate.release(2)
    answers = [one for one in served.until(Results) if isinstance(one, Proposed | Results)]
    assert [type(one) for one in answers] == [Proposed, Results]


def test_a_wish_that_fails_costs_no_other(recorded: Path) -> None:
    errors = {2: AgentError("not this one"), 4: RuntimeError("broken")}

    class Picky(ReplayWorker):
        def draw(self, requests: Iterable[ProposeRequest | None]) -> Drawn:
            for request, answer in super().draw(requests):
                error = errors.get(request.seed)
                if isinstance(error, RuntimeError):
                    raise error
                yield request, error or answer

    def wish(seed: int) -> Propose:
        asked = ProposeRequest(request_id=f"r{seed}", workload=WORKLOAD, count=2, seed=seed)
        return Propose(device_id=AGAIN, incarnation=1, wish=asked)

    asked = [start_of(recorded), *map(wish, (1, 2, 3)), measure_of(1, 0, 1), *map(wish, (4, 5))]
    _, told = done_by(lambda start: Picky(start.spec, open_records(start.spec)), *asked)
    found = [one for one in told if isinstance(one, Proposed | Failed | Results)]
    assert [type(one) for one in found] == [Proposed, Failed, Proposed, Results, Failed, Proposed]
    assert [one.request_id for one in found if isinstance(one, Failed)] == ["r2", "r4"]
    assert [one.request.request_id for one in found if isinstance(one, Proposed)] == ["r1", "r3", "r5"]


def test_an_answer_that_was_lost_is_given_again_and_one_that_arrived_is_not(recorded: Path) -> None:
    host = AgentHost(ReplayWorkerFactory().open, heartbeat_secs=100)
    host.ask([start_of(recorded), measure_of(1, 0, 2)])
    assert host.work()
    first = host.take(0, 0)
    assert [type(one) for one in first[1]] == [AgentUp]
    assert host.work()
    assert host.take(0, 0) == first
    second = host.take(first[0], 0)
    assert [type(one) for one in second[1]] == [Results]
    assert host.take(second[0], 0)[1] == []
    host.close_workers()


def test_who_makes_records_waits_while_nobody_fetches_them(served: Served) -> None:
    served.ask(measure_of(1, 0, 6))
    served.gate.release(6)
    seen = 0
    while seen < 6:
        found = only(Results, served.until(Results))
        assert len(found) <= 2
        seen += len(found)


def test_an_error_of_ours_refuses_the_device_too(recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(start: BeginAgent) -> Worker:
        raise ZeroDivisionError(f"no {start.device_id}")

    _, said = done_by(broken, start_of(recorded), measure_of(1, 0, 1))
    assert said == [AgentRefused(device_id=AGAIN, incarnation=1, reason="ZeroDivisionError: no again")]
    assert "in broken" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_blameless"),
    [
        (WorkerStartError("a worker process ended before its first job"), True),
        (SpoolFull("no room"), True),
        (AgentError("it broke"), False),
        (ZeroDivisionError("no again"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_a_host_cannot_do_is_told_apart_from_what_a_batch_does(
    recorded: Path, error: Exception, is_blameless: bool
) -> None:
    class Broken(ReplayWorker):
        def measure_parts(self, batch: Batch, tag: LeaseTag | None = None) -> Generator[Part, None, None]:
            raise error

    host, (_, failed) = done_by(
        lambda start: Broken(start.spec, open_records(start.spec)), start_of(recorded), measure_of(1, 0, 1)
    )
    assert isinstance(failed, Failed)
    assert (failed.is_blameless, failed.lease) == (is_blameless, LeaseTag(job_id="job-1", fencing_token=1))
    host.close_workers()


def test_what_canaries_add_to_a_descriptor_is_told_ahead_of_the_results(recorded: Path) -> None:
    """Once, and again only where it is no longer the same."""
    rooflines = iter([(), *(((("flops_per_sec", speed),)) for speed in (1e9, 1.01e9, 2e9))])

    class Measuring(ReplayWorker):
        def descriptor_in(self, environment_id: str) -> Descriptor:
            return replace(self.descriptor, roofline=next(rooflines))

    measured = [measure_of(number, number, 1) for number in (1, 2, 3)]
    host, said = done_by(
        lambda start: Measuring(start.spec, open_records(start.spec)), start_of(recorded), *measured
    )
    assert [type(one) for one in said] == [AgentUp, Described, Results, Results, Described, Results]
    told = [one.descriptor.roofline for one in said if isinstance(one, AgentUp | Described)]
    assert told == [(), (("flops_per_sec", 1e9),), (("flops_per_sec", 2e9),)]
    host.close_workers()
