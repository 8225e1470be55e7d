"""What goes from process to process comes out as it went in, and what many share goes once."""

from __future__ import annotations

import pickle

import pytest

from agents.device.batch import Batch
from agents.device.messages import (
    Acknowledge,
    Activity,
    AgentGone,
    Heartbeat,
    Measure,
    Proposed,
    ProposeRequest,
    Results,
    Stop,
)
from agents.lease import Lease, LeaseTag
from agents.records import Candidate, DeviceId, Protocol
from agents.values import Value
from tests.record_fixtures import make_batch, make_workload

A = DeviceId("a")
WORKLOAD = make_workload(1)
CANDIDATE = Candidate(workload_id=WORKLOAD.workload_id, trace="[1]")
TAG = LeaseTag(job_id="j", fencing_token=3)
REQUEST = ProposeRequest(request_id="r", workload=WORKLOAD, count=2, seed=1, exclude=frozenset("x"))
BATCH = Batch(candidates=(CANDIDATE,), workloads={WORKLOAD.workload_id: WORKLOAD}, protocol=Protocol())
LEASE = Lease(device_id=A, job_id="j", fencing_token=3, deadline_secs=1.5)
VALUES = [
    CANDIDATE,
    *make_batch(0, 2),
    TAG,
    LEASE,
    BATCH,
    REQUEST,
    AgentGone(device_id=A, incarnation=1, reason="killed"),
    Heartbeat(device_id=A, incarnation=1, held=(TAG,), done=2, busy=Activity.TIMING),
    Results(device_id=A, incarnation=1, lease=TAG, records=make_batch(0, 3), device_secs=0.5, is_last=True),
    Proposed(device_id=A, incarnation=1, request=REQUEST, candidates=(CANDIDATE,)),
    Measure(device_id=A, incarnation=1, lease=LEASE, batch=BATCH),
    Acknowledge(device_id=A, incarnation=1, record_ids=("1", "2")),
    Stop(device_id=A, incarnation=1, kill=True),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_out_as_it_went_in(value: Value) -> None:
    found = pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    assert found == value
    assert type(found) is type(value)


def test_one_candidate_of_many_batches_goes_once() -> None:
    one = len(pickle.dumps([Measure(device_id=A, incarnation=1, lease=LEASE, batch=BATCH)]))
    long = Candidate(workload_id=WORKLOAD.workload_id, trace="x" * 10_000)
    batches = [
        Batch(candidates=(long,), workloads=BATCH.workloads, protocol=BATCH.protocol) for _ in range(9)
    ]
    many = [Measure(device_id=A, incarnation=1, lease=LEASE, batch=batch) for batch in batches]
    assert len(pickle.dumps(many)) < one + 10_000 + 9 * 200
