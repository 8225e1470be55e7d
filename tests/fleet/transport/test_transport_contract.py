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
from agents.records import DeviceId, DeviceSpec, Outcome
from fleet.errors import FleetError
from fleet.transport.local import LocalTransport
from fleet.transport.transport import AgentTransport
from tests.record_fixtures import make_spec
from tests.transport_fixtures import (
    PROTOCOL,
    WORKLOAD,
    batch_of,
    lease_of,
    poll_until,
    recorded_candidates,
    recorded_file,
    replay_spec,
)

NAMES = count()


def of(messages: list[Message], spec: DeviceSpec) -> list[Message]:
    return [one for one in messages if one.device_id == spec.device_id and not isinstance(one, Heartbeat)]


def next_of(transport: AgentTransport, spec: DeviceSpec, *kinds: type[Message]) -> list[Any]:
    """The next messages about a device, heartbeats aside: they are of these kinds."""
    found = of(poll_until(transport, lambda messages: len(of(messages, spec)) >= len(kinds)), spec)
    assert [type(one) for one in found] == list(kinds)
    return found


class TransportContract:
    """What each promises; `test_ray_transport.py` tries it with the Ray that it has started."""

    @pytest.fixture(scope="class")
    @classmethod
    def recorded(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return recorded_file(tmp_path_factory.mktemp("recorded"))

    @pytest.fixture
    def spec(self, recorded: Path) -> DeviceSpec:
        """A device of its own for each test."""
        return replay_spec(recorded, f"device-{next(NAMES)}")

    def test_an_agent_comes_up_and_beats(self, transport: AgentTransport, spec: DeviceSpec) -> None:
        transport.start(spec, 7)
        found = poll_until(
            transport,
            lambda messages: any(
                isinstance(m, Heartbeat) and m.device_id == spec.device_id for m in messages
            ),
        )
        [up] = of(found, spec)
        assert isinstance(up, AgentUp)
        assert (up.incarnation, up.pending, up.descriptor.cpu_model) == (7, (), "Some CPU")
        assert len(up.environment_id) == 32
        assert up.pid > 0
        heartbeat = next(m for m in found if isinstance(m, Heartbeat) and m.device_id == spec.device_id)
        assert (heartbeat.incarnation, heartbeat.held, heartbeat.done) == (7, (), 0)

    def test_results_carry_their_lease_and_come_in_the_order_of_asking(
        self, transport: AgentTransport, spec: DeviceSpec
    ) -> None:
        transport.start(spec, 1)
        candidates = recorded_candidates(0, 6)
        transport.measure(lease_of(spec.device_id, 3), 1, batch_of(candidates[:4]))
        transport.measure(lease_of(spec.device_id, 4), 1, batch_of(candidates[4:]))
        up, *results = next_of(transport, spec, AgentUp, Results, Results)
        measured = []
        for message in results:
            assert message.is_last
            assert message.device_secs > 0
            assert {record.environment_id for record in message.records} == {up.environment_id}
            measured.append((message.lease, [record.candidate_id for record in message.records]))
        assert measured == [
            (lease_of(spec.device_id, 3).tag, [one.candidate_id for one in candidates[:4]]),
            (lease_of(spec.device_id, 4).tag, [one.candidate_id for one in candidates[4:]]),
        ]

    def test_candidates_are_drawn_and_evolved(self, transport: AgentTransport, spec: DeviceSpec) -> None:
        transport.start(spec, 1)
        known = recorded_candidates(1, 3)
        drawn = ProposeRequest(request_id="r1", workload=WORKLOAD, count=4, seed=3)
        near = ProposeRequest(
            request_id="r2",
            workload=WORKLOAD,
            count=2,
            seed=3,
            parents=(known[0].trace,),
            exclude=frozenset(one.candidate_id for one in known),
        )
        transport.propose(spec.device_id, 1, drawn)
        transport.propose(spec.device_id, 1, near)
        _, first, second = next_of(transport, spec, AgentUp, Proposed, Proposed)
        # What was excluded need not travel back.
        assert (first.request, second.request) == (drawn, replace(near, exclude=frozenset()))
        assert [one.origin for one in first.candidates] == ["random"] * 4
        assert [one.origin for one in second.candidates] == ["evolved"] * 2
        assert not {one.candidate_id for one in second.candidates} & near.exclude

    def test_workloads_are_listed_and_a_failed_request_is_told_and_costs_nothing_else(
        self, transport: AgentTransport, spec: DeviceSpec
    ) -> None:
        transport.start(spec, 1)
        transport.list_workloads(spec.device_id, 1, ["bert-tiny"])
        unknown = replace(batch_of(()), candidates=(None,))
        transport.measure(lease_of(spec.device_id, 1), 1, unknown)
        transport.measure(lease_of(spec.device_id, 2), 1, batch_of(recorded_candidates(1, 1)))
        _, listed, failed, results = next_of(transport, spec, AgentUp, WorkloadsListed, Failed, Results)
        assert (listed.networks, listed.workloads) == (("bert-tiny",), (WORKLOAD,))
        assert (failed.what, failed.lease) == (Asked.MEASURE, lease_of(spec.device_id, 1).tag)
        assert failed.error.startswith("AttributeError: ")
        assert [record.outcome for record in results.records] == [Outcome.OK]

    def test_unacknowledged_records_stay_and_acknowledgements_may_be_repeated(
        self, transport: AgentTransport, spec: DeviceSpec
    ) -> None:
        transport.start(spec, 1)
        transport.measure(lease_of(spec.device_id, 1), 1, batch_of(recorded_candidates(0, 3)))
        _, results = next_of(transport, spec, AgentUp, Results)
        ids = [record.record_id for record in results.records]
        for _ in range(2):
            transport.acknowledge(spec.device_id, 1, [*ids, "unknown"])
        transport.measure(lease_of(spec.device_id, 2), 1, batch_of(recorded_candidates(0, 3)))
        [again] = next_of(transport, spec, Results)
        assert [record.record_id for record in again.records] == ids

    @pytest.mark.parametrize("kill", [False, True])
    def test_a_stopped_agent_is_gone_once_and_last(
        self, transport: AgentTransport, spec: DeviceSpec, kill: bool
    ) -> None:
        transport.start(spec, 1)
        transport.measure(lease_of(spec.device_id, 1), 1, batch_of(recorded_candidates(0, 2)))
        transport.stop(spec.device_id, 1, kill=kill)
        transport.measure(lease_of(spec.device_id, 2), 1, batch_of(recorded_candidates(2, 2)))
        transport.start(spec, 2)
        found = poll_until(
            transport,
            lambda messages: (
                {1, 2} <= {m.incarnation for m in of(messages, spec) if isinstance(m, AgentGone | AgentUp)}
                and any(isinstance(m, AgentGone) for m in of(messages, spec))
            ),
        )
        old = [m for m in of(found, spec) if m.incarnation == 1]
        [gone] = [m for m in old if isinstance(m, AgentGone)]
        assert old[-1] is gone
        assert gone.was_asked
        if not kill:
            assert [type(m) for m in old] == [AgentUp, Results, AgentGone]
        transport.stop(spec.device_id, 1, kill=True)  # of a life that is over: nothing follows
        transport.measure(lease_of(spec.device_id, 3), 1, batch_of(recorded_candidates(2, 2)))
        transport.measure(lease_of(spec.device_id, 4), 2, batch_of(recorded_candidates(2, 2)))
        [results] = next_of(transport, spec, Results)
        assert (results.incarnation, results.lease.fencing_token) == (2, 4)

    def test_a_device_that_cannot_be_is_refused_once_and_last(
        self, transport: AgentTransport, tmp_path: Path
    ) -> None:
        spec = replay_spec(tmp_path / "nothing.parquet", f"device-{next(NAMES)}")
        transport.start(spec, 1)
        transport.measure(lease_of(spec.device_id, 1), 1, batch_of(recorded_candidates(0, 1)))
        [refused] = next_of(transport, spec, AgentRefused)
        assert "nothing.parquet" in refused.reason
        assert of(transport.poll(0.5), spec) == []

    def test_unknown_agents_are_ignored(self, transport: AgentTransport) -> None:
        ghost = DeviceId("ghost")
        transport.stop(ghost, 1, kill=True)
        transport.acknowledge(ghost, 1, ["x"])
        transport.measure(lease_of("ghost", 1), 1, batch_of(recorded_candidates(0, 1)))
        assert [m for m in transport.poll(0.0) if m.device_id == ghost] == []


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
