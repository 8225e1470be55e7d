"""What every device worker promises, whatever it is: run on a real local device and on a replay of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from agents.codec import record_from_json, record_to_json
from agents.device.measurements import measuring_code
from agents.device.messages import Activity, Batch
from agents.device.replay import ReplayWorker, open_records
from agents.device.worker import DeviceWorker
from agents.errors import AgentError
from agents.host.priority import Priority
from agents.records import (
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    LeaseTag,
    Outcome,
    Protocol,
    Record,
    Replay,
    Workload,
)
from agents.sandbox.canary_watch import PROBE
from benchmarks.harness import drawn
from fleet.daemon.replay_files import ready
from fleet.store.store import Store

pytestmark = pytest.mark.tvm

#: What is tested here must not depend on how quiet the host is.
QUICK = Protocol(
    repeat=2, extra_repeats=0, min_repeat_ms=1.0, check_share=0.0, early_stop_ratio=0.0, reject_interval=0.0
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A device worker, and what is known of its device."""

    worker: DeviceWorker | ReplayWorker
    workload: Workload
    #: Candidates that the device can measure.
    candidates: tuple[Candidate, ...]


@pytest.fixture(scope="module")
def real(
    generic_spec: DeviceSpec,
    matmul: Workload,
    matmul_candidates: list[Candidate],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Subject]:
    affinity = psutil.Process().cpu_affinity()
    made = DeviceWorker(generic_spec, tmp_path_factory.mktemp("real") / "spool")
    yield Subject(made, matmul, tuple(matmul_candidates))
    made.close()
    psutil.Process().cpu_affinity(affinity)


@pytest.fixture(scope="module")
def replay(real: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """A replay of what the real device measures here, near candidates of good ones too."""
    folder = tmp_path_factory.mktemp("replay")
    parents = [one.trace for one in real.candidates[:1]]
    near = drawn(real.worker, real.workload, 3, parents=parents)
    records = measure(real, (*real.candidates, *near), attempt=100)
    real.worker.acknowledge([record.record_id for record in records])
    with Store.open(folder / "store") as store:
        store.put_device(real.worker.spec, real.worker.descriptor)
        store.put_workloads([real.workload])
        store.append(records)
    spec = replace(
        real.worker.spec,
        device_id=DeviceId("again"),
        kind=DeviceKind.REPLAY,
        target_json="{}",
        replay=Replay(records=str(folder / "store"), device=real.worker.spec.device_id),
    )
    [spec] = ready({spec.device_id: spec}, folder / "files").values()
    made = ReplayWorker(spec, open_records(spec))
    yield Subject(made, real.workload, real.candidates)
    made.close()


@pytest.fixture(params=["real", "replay"])
def subject(request: pytest.FixtureRequest) -> Subject:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Subject)
    return found


def batch_of(subject: Subject, candidates: tuple[Candidate, ...], **changes: Any) -> Batch:
    workloads = {subject.workload.workload_id: subject.workload}
    return Batch(candidates=candidates, workloads=workloads, protocol=QUICK, **changes)


def measure(
    subject: Subject, candidates: tuple[Candidate, ...], *, attempt: int = 0, model_version: str = ""
) -> list[Record]:
    batch = batch_of(subject, candidates, attempt=attempt, model_version=model_version)
    # A real device may measure others again with a batch, having drifted before: with the next attempt.
    return [record for record in subject.worker.measure(batch) if record.attempt == attempt]


def test_the_same_seed_gives_the_same_draws_and_exclude_only_filters(subject: Subject) -> None:
    propose = partial(drawn, subject.worker, subject.workload)
    first = propose(4, seed=5)
    assert len({one.candidate_id for one in first}) == 4
    assert {one.origin for one in first} == {"random"}
    assert {one.workload_id for one in first} == {subject.workload.workload_id}
    assert propose(4, seed=5) == first
    assert propose(3, seed=5, exclude=[first[0].candidate_id]) == first[1:]
    assert propose(4, seed=6) != first
    assert propose(0, seed=5) == []


def test_evolved_candidates_are_new_and_can_be_measured(subject: Subject) -> None:
    parents = [one.trace for one in subject.candidates[:1]]
    known = [one.candidate_id for one in subject.candidates]
    evolved = drawn(subject.worker, subject.workload, 3, parents=parents, exclude=known)
    assert evolved
    assert {one.origin for one in evolved} == {"evolved"}
    assert not {one.candidate_id for one in evolved} & set(known)
    assert drawn(subject.worker, subject.workload, 3, parents=parents, exclude=known) == evolved
    [record] = measure(subject, tuple(evolved[:1]), attempt=30)
    assert (record.outcome, record.error) == (Outcome.OK, "")


def test_every_candidate_gives_a_record_that_says_what_was_asked(subject: Subject) -> None:
    asked = tuple(replace(one, origin="model") for one in subject.candidates[:3])
    records = measure(subject, asked, attempt=20, model_version="m-7")
    assert {record.candidate_id for record in records} == {one.candidate_id for one in asked}
    for record in records:
        assert record.outcome is Outcome.OK, record.error
        assert all(secs > 0 for secs in record.run_secs)
        assert record.latency_secs == min(record.run_secs)
        assert record.device_id == subject.worker.spec.device_id
        assert (record.origin, record.model_version) == ("model", "m-7")
        assert record.environment_id == subject.worker.environment_id(QUICK)
        assert json.loads(record.environment)["versions"]["apache-tvm"]
        assert json.loads(record.quality)["interval"] >= 0
        assert (record.build_secs > 0, record.timing_secs > 0, record.number > 0) == (True, True, True)
        assert len(record.warmup_secs) in {1, 2}
        assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_a_candidate_that_cannot_be_measured_gets_an_outcome_and_the_batch_goes_on(subject: Subject) -> None:
    nonsense = Candidate(workload_id=subject.workload.workload_id, trace="[[],[[0,[1]]]]")
    known = subject.candidates[0]
    found = {record.candidate_id: record for record in measure(subject, (nonsense, known), attempt=40)}
    failed = found[nonsense.candidate_id]
    assert failed.outcome in (Outcome.BUILD_FAILED, Outcome.LOST)
    assert failed.error
    assert failed.run_secs == ()
    assert found[known.candidate_id].outcome is Outcome.OK


def test_parts_come_with_the_lease_that_the_spool_notes(subject: Subject) -> None:
    subject.worker.acknowledge([record.record_id for _, record in subject.worker.pending_tagged()])
    tag = LeaseTag(job_id="job-7", fencing_token=7)
    before = subject.worker.finished
    batch = batch_of(subject, subject.candidates[:3], attempt=80)
    parts = list(subject.worker.measure_parts(batch, tag))
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(part.device_secs > 0 for part in parts)
    records = [record for part in parts for record in part.records]
    # A device that drifted measures others again with a batch: with the next attempt.
    asked = {record.candidate_id for record in records if record.attempt == batch.attempt}
    assert asked == {one.candidate_id for one in batch.candidates}
    assert list(subject.worker.pending_tagged()) == [(tag, record) for record in records]
    assert subject.worker.finished - before >= 3
    assert subject.worker.busy is Activity.IDLE
    subject.worker.acknowledge([record.record_id for record in records])


def test_workloads_of_known_networks_come_with_their_modules_and_unknown_ones_are_refused(
    subject: Subject,
) -> None:
    assert subject.workload in subject.worker.network_workloads(["bert-tiny"])
    with pytest.raises(AgentError, match="resnet-1001"):
        subject.worker.network_workloads(["resnet-1001"])


def test_a_record_of_a_real_device_says_how_far_it_can_be_trusted_and_has_a_roofline(real: Subject) -> None:
    worker = real.worker
    assert isinstance(worker, DeviceWorker)
    lasting = worker.environment_id(QUICK)
    [record] = measure(real, real.candidates[:1], attempt=300)
    assert set(json.loads(record.quality)["canary"]) == {"compute", "memory", "latency", PROBE}
    seen = json.loads(record.environment)
    assert seen["affinity"] == seen["cores"] == list(worker.spec.cores)
    assert (seen["threads"], seen["measuring_code"]) == (1, measuring_code())
    assert seen["priority"] in list(Priority)
    assert {"kernel", "load"} <= seen.keys()
    found = dict(worker.descriptor_in(lasting).roofline)
    # What no core of these years is below or above: arithmetic, stream, and loads that wait for each other.
    assert 1e9 < found["flops_per_sec"] < 1e12
    assert 1e8 < found["bytes_per_sec"] < 1e12
    assert 1e7 < found["loads_per_sec"] < 1e10
    # A disturbed window is measured again, and its canaries are then read again: near, not the same digits.
    assert seen["roofline"] == pytest.approx(found, rel=1.0)
    assert worker.descriptor_in("another environment").roofline == ()
