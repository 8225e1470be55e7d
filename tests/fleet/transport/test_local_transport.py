"""The way to replay devices in this process; what all promise: `test_transport_contract.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.device.messages import AgentGone, AgentUp, Heartbeat, Message, Results
from agents.lease import LeaseTag
from agents.records import DeviceId
from fleet.errors import FleetError
from fleet.transport.local import LocalTransport
from tests.record_fixtures import make_spec
from tests.transport_fixtures import (
    PROTOCOL,
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


def told(messages: list[Message]) -> list[Message]:
    return [one for one in messages if not isinstance(one, Heartbeat)]


def test_only_replay_devices_can_be_had() -> None:
    with pytest.raises(FleetError, match="only replay devices"):
        LocalTransport(protocol=PROTOCOL).start(make_spec(), 1)


def test_the_same_calls_give_the_same_messages(recorded: Path) -> None:
    def run() -> list[str]:
        transport = LocalTransport(protocol=PROTOCOL)
        kinds = []
        for name in ("one", "two"):
            transport.start(replay_spec(recorded, name), 1)
            transport.measure(lease_of(name, 1), 1, batch_of(recorded_candidates(0, 4)))
        transport.stop(DeviceId("one"), 1, kill=False)
        for message in told(transport.poll(0.0)):
            records = [one.record_id for one in message.records] if isinstance(message, Results) else []
            kinds.append(f"{type(message).__name__} {message.device_id} {records}")
        transport.close()
        return kinds

    assert run() == run()
    assert [line.split(" [")[0] for line in run()] == [
        "AgentUp one",
        "Results one",
        "AgentUp two",
        "Results two",
        "AgentGone one",
    ]


def test_what_a_crashed_agent_had_not_said_is_in_its_spool_with_its_lease(
    recorded: Path, tmp_path: Path
) -> None:
    transport = LocalTransport(protocol=PROTOCOL, spool_root=tmp_path)
    transport.start(replay_spec(recorded), 1)
    transport.poll(0.0)
    transport.measure(lease_of("again", 5), 1, batch_of(recorded_candidates(0, 3)))
    transport.crash(AGAIN, 1, is_done=True)
    assert told(transport.poll(0.0)) == [
        AgentGone(device_id=AGAIN, incarnation=1, reason="killed by SIGKILL", was_asked=False)
    ]
    transport.start(replay_spec(recorded), 2)
    [up] = told(transport.poll(0.0))
    assert [tag for tag, _ in up.pending] == [LeaseTag(job_id="job-5", fencing_token=5)] * 3
    transport.acknowledge(AGAIN, 2, [record.record_id for _, record in up.pending])
    transport.poll(0.0)
    transport.close()
    again = LocalTransport(protocol=PROTOCOL, spool_root=tmp_path)
    again.start(replay_spec(recorded), 3)
    [up] = told(again.poll(0.0))
    assert up.pending == ()
    again.close()


def test_a_frozen_agent_says_nothing_until_it_is_thawed_and_then_with_its_old_number(recorded: Path) -> None:
    transport = LocalTransport(protocol=PROTOCOL, heartbeat_secs=0.0)
    transport.start(replay_spec(recorded), 1)
    assert any(isinstance(one, Heartbeat) for one in transport.poll(0.0))
    transport.freeze(AGAIN, 1)
    transport.measure(lease_of("again", 1), 1, batch_of(recorded_candidates(0, 2)))
    assert told(transport.poll(0.0)) == []
    assert transport.poll(0.0) == []
    transport.start(replay_spec(recorded), 2)
    assert [(type(one), one.incarnation) for one in told(transport.poll(0.0))] == [(AgentUp, 2)]
    transport.thaw(AGAIN, 1)
    assert [(type(one), one.incarnation) for one in told(transport.poll(0.0))] == [(Results, 1)]
    transport.freeze(AGAIN, 1)
    transport.stop(AGAIN, 1, kill=True)
    assert [(type(one), one.incarnation) for one in told(transport.poll(0.0))] == [(AgentGone, 1)]
    transport.close()
