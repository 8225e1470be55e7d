"""What every implementation of `fleet.transport.transport.AgentTransport` promises, with replay devices.

At the end: what only the one in this process can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.device.messages import (
    AgentGone,
    AgentRefused,
    AgentUp,
    Asked,
    Failed,
    Heartbeat,
    Message,
    Proposed,
    ProposeRequest,
    Results,
    WorkloadsListed,
)
from agents.records import DeviceSpec, Outcome
from fleet.errors import FleetError
from fleet.transport.local import LocalTransport
from fleet.transport.transport import AgentTransport
from tests.record_fixtures import make_spec
from tests.transport_fixtures import (
    PROTOCOL,
    WORKLOAD,
    batch_of,
    first,
    lease_of,
    poll_until,
    recorded_candidates,
    recorded_file,
    replay_spec,
)

NAMES = count()


class Device:
    """A replay device behind a transport."""

    def __init__(self, transport: AgentTransport, spec: DeviceSpec) -> None:
        self.transport, self.spec, self.name = transport, spec, spec.device_id

    def start(self, incarnation: int = 1) -> None:
        self.transport.start(self.spec, incarnation)

    def measure(self, fencing_token: int, first: int, count: int, incarnation: int = 1) -> None:
        """Ask for some of the recorded candidates."""
        batch = batch_of(recorded_candidates(first, count))
        self.transport.measure(lease_of(self.name, fencing_token), incarnation, batch)

    def of(self, messages: list[Message]) -> list[Message]:
        """Those about the device, heartbeats aside."""
        return [one for one in messages if one.device_id == self.name and not isinstance(one, Heartbeat)]

    def next(self, *kinds: type[Message]) -> list[Any]:
        """The next messages about it, heartbeats aside: they are of these kinds."""
        found = self.of(poll_until(self.transport, lambda messages: len(self.of(messages)) >= len(kinds)))
        assert [type(one) for one in found] == list(kinds)
        return found


class TransportContract:
    """What each promises; `test_ray_transport.py` tries it with the Ray that it has started."""

    @pytest.fixture(scope="class")
    @classmethod
    def recorded(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return recorded_file(tmp_path_factory.mktemp("recorded"))

    @pytest.fixture
    def device(self, transport: AgentTransport, recorded: Path) -> Device:
        """A device of its own for each test."""
        return Device(transport, replay_spec(recorded, f"device-{next(NAMES)}"))

    def test_an_agent_comes_up_and_beats(self, device: Device) -> None:
        device.start(7)
        found = poll_until(device.transport, lambda messages: first(messages, Heartbeat, device.name))
        [up] = device.of(found)
        assert (up.incarnation, up.pending, up.descriptor.cpu_model) == (7, (), "Some CPU")
        assert len(up.environment_id) == 32
        assert up.pid > 0
        heartbeat = first(found, Heartbeat, device.name)
        assert (heartbeat.incarnation, heartbeat.held, heartbeat.done) == (7, (), 0)

    def test_results_carry_their_lease_and_come_in_the_order_of_asking(self, device: Device) -> None:
        device.start()
        device.measure(3, 0, 4)
        device.measure(4, 4, 2)
        up, *results = device.next(AgentUp, Results, Results)
        measured = []
        for message in results:
            assert message.is_last
            assert message.device_secs > 0
            assert {record.environment_id for record in message.records} == {up.environment_id}
            measured.append((message.lease, [record.candidate_id for record in message.records]))
        ids = [one.candidate_id for one in recorded_candidates(0, 6)]
        assert measured == [(lease_of(device.name, 3).tag, ids[:4]), (lease_of(device.name, 4).tag, ids[4:])]

    def test_candidates_are_drawn_and_evolved(self, device: Device) -> None:
        device.start()
        known = recorded_candidates(1, 3)
        drawn = ProposeRequest(request_id="r1", workload=WORKLOAD, count=4, seed=3)
        near = replace(
            drawn,
            request_id="r2",
            count=2,
            parents=(known[0].trace,),
            exclude=frozenset(one.candidate_id for one in known),
        )
        for wish in (drawn, near):
            device.transport.propose(device.name, 1, wish)
        _, first_answer, second = device.next(AgentUp, Proposed, Proposed)
        # What was excluded need not travel back.
        assert (first_answer.request, second.request) == (drawn, replace(near, exclude=frozenset()))
        assert [one.origin for one in first_answer.candidates] == ["random"] * 4
        assert [one.origin for one in second.candidates] == ["evolved"] * 2
        assert not {one.candidate_id for one in second.candidates} & near.exclude

    def test_workloads_are_listed_and_a_failed_request_is_told_and_costs_nothing_else(
        self, device: Device
    ) -> None:
        device.start()
        device.transport.list_workloads(device.name, 1, ["bert-tiny"])
        unknown = replace(batch_of(()), candidates=(None,))
        device.transport.measure(lease_of(device.name, 1), 1, unknown)
        device.measure(2, 1, 1)
        _, listed, failed, results = device.next(AgentUp, WorkloadsListed, Failed, Results)
        assert (listed.networks, listed.workloads) == (("bert-tiny",), (WORKLOAD,))
        assert (failed.what, failed.lease) == (Asked.MEASURE, lease_of(device.name, 1).tag)
        assert failed.error.startswith("AttributeError: ")
        assert [record.outcome for record in results.records] == [Outcome.OK]

    def test_unacknowledged_records_stay_and_acknowledgements_may_be_repeated(self, device: Device) -> None:
        device.start()
        device.measure(1, 0, 3)
        _, results = device.next(AgentUp, Results)
        ids = [record.record_id for record in results.records]
        for _ in range(2):
            device.transport.acknowledge(device.name, 1, [*ids, "unknown"])
        device.measure(2, 0, 3)
        [again] = device.next(Results)
        assert [record.record_id for record in again.records] == ids

    @pytest.mark.parametrize("kill", [False, True])
    def test_a_stopped_agent_is_gone_once_and_last(self, device: Device, kill: bool) -> None:
        device.start()
        device.measure(1, 0, 2)
        device.transport.stop(device.name, 1, kill=kill)
        device.measure(2, 2, 2)
        device.start(2)
        found = poll_until(
            device.transport,
            lambda messages: (
                {1, 2} <= {one.incarnation for one in device.of(messages) if not isinstance(one, Results)}
                and first(messages, AgentGone, device.name)
            ),
        )
        old = [one for one in device.of(found) if one.incarnation == 1]
        assert isinstance(old[-1], AgentGone)
        assert old[-1].was_asked
        kinds = [type(one) for one in old]
        assert kinds == [AgentUp, Results, AgentGone] if not kill else kinds.count(AgentGone) == 1
        device.transport.stop(device.name, 1, kill=True)  # of a life that is over: nothing follows
        device.measure(3, 2, 2)
        device.measure(4, 2, 2, incarnation=2)
        [results] = device.next(Results)
        assert (results.incarnation, results.lease.fencing_token) == (2, 4)

    def test_a_device_that_cannot_be_is_refused_once_and_last(
        self, transport: AgentTransport, tmp_path: Path
    ) -> None:
        nothing = Device(transport, replay_spec(tmp_path / "nothing.parquet", f"device-{next(NAMES)}"))
        nothing.start()
        nothing.measure(1, 0, 1)
        [refused] = nothing.next(AgentRefused)
        assert "nothing.parquet" in refused.reason
        assert nothing.of(transport.poll(0.5)) == []

    def test_unknown_agents_are_ignored(self, transport: AgentTransport) -> None:
        ghost = Device(transport, make_spec("ghost"))
        transport.stop(ghost.name, 1, kill=True)
        transport.acknowledge(ghost.name, 1, ["x"])
        ghost.measure(1, 0, 1)
        assert ghost.of(transport.poll(0.0)) == []


class TestLocal(TransportContract):
    """The transport in this process."""

    @pytest.fixture(scope="class")
    @classmethod
    def transport(cls) -> Iterator[AgentTransport]:
        made = LocalTransport(protocol=PROTOCOL, heartbeat_secs=0.2)
        yield made
        made.close(20.0)

    def test_only_replay_devices_can_be_had(self) -> None:
        with pytest.raises(FleetError, match="only replay devices"):
            LocalTransport(protocol=PROTOCOL).start(make_spec(), 1)
