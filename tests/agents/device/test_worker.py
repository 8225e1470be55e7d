"""One real device worker: real programs, real canaries, a real spool."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

import agents.device.worker
from agents.device.measurements import record_of
from agents.device.messages import Batch
from agents.device.worker import DeviceRefusedError, DeviceWorker
from agents.programs.gate import Disturbance
from agents.programs.quality import Drift
from agents.records import Candidate, DeviceKind, DeviceSpec, Outcome, Protocol, Record, Workload
from agents.sandbox.canary_watch import CanaryWatch
from agents.sandbox.job import CandidateJob, JobResult
from tests.host_fixtures import GPU, cuda_spec, gpu_host
from tests.table_fixtures import rows

pytestmark = pytest.mark.tvm

#: What is tested here must not depend on how quiet the host is.
QUICK = Protocol(repeat=3, min_repeat_ms=2.0, check_share=1.0, early_stop_ratio=0.0, reject_interval=0.0)


class SteadyWatch(CanaryWatch):
    """A watch whose device never drifts."""

    def read(self, results: Sequence[JobResult]) -> Drift:
        return dataclasses.replace(super().read(results), suspect=False)


def without_gate(spec: DeviceSpec, batch: Batch, job: CandidateJob, result: JobResult, *facts: Any) -> Record:
    """A record that says nothing of clean repeats."""
    return record_of(spec, batch, job, replace(result, disturbances=()), *facts)


@pytest.fixture(scope="module")
def worker(generic_spec: DeviceSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceWorker]:
    affinity = psutil.Process().cpu_affinity()
    made = DeviceWorker(generic_spec, tmp_path_factory.mktemp("worker") / "spool")
    with pytest.MonkeyPatch.context() as patch:
        # A busy host drifts, and leaders of such windows would come with the batch of another test.
        patch.setattr(agents.device.worker, "CanaryWatch", SteadyWatch)
        patch.setattr(agents.device.worker, "record_of", without_gate)
        yield made
    made.close()
    psutil.Process().cpu_affinity(affinity)


@contextmanager
def another(worker: DeviceWorker, watch: type[CanaryWatch], folder: Path) -> Iterator[DeviceWorker]:
    """A worker of the same device with such watches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents.device.worker, "CanaryWatch", watch)
        cores = worker.descriptor.usable_cores
        with closing(DeviceWorker(worker.spec, folder / "spool", usable_cores=cores)) as made:
            yield made


def measure(
    worker: DeviceWorker, workload: Workload, candidates: Sequence[Candidate], **changes: Any
) -> list[Record]:
    workloads = {workload.workload_id: workload}
    batch = Batch(candidates=tuple(candidates), workloads=workloads, protocol=QUICK, confirm_within=0.0)
    return worker.measure(replace(batch, **changes))


def test_numbers_that_scatter_too_much_are_rejected(
    worker: DeviceWorker, matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    picky = replace(QUICK, reject_interval=1e-9)
    [record] = measure(worker, matmul, matmul_candidates[:1], attempt=8, protocol=picky)
    assert record.outcome is Outcome.REJECTED
    assert "reject_interval" in record.error
    assert json.loads(record.quality)["checked"] is True
    assert record.run_secs


@pytest.mark.parametrize(
    ("repeats", "quality"),
    rows("""
        - - -          drifting -> {"clean": 3}
        - - preempted  steady   -> {"clean": 2, "disturbed": {"preempted": 1}, "suspect": true}
        slow_core slow_core slow_core steady -> {"clean": 0, "disturbed": {"slow_core": 3}, "suspect": true}
        drifting                -> {"suspect": true}
        steady                  -> {}
    """),
)
def test_a_record_is_suspect_by_its_own_repeats_and_without_a_gate_by_the_canaries(
    generic_spec: DeviceSpec, matmul: Workload, repeats: str, quality: str
) -> None:
    *disturbances, canaries = repeats.split()
    candidate = Candidate(workload_id=matmul.workload_id, trace="[0]")
    job = CandidateJob(candidate=candidate, workload=matmul, protocol=QUICK)
    batch = Batch(candidates=(candidate,), workloads={matmul.workload_id: matmul}, protocol=QUICK)
    gated = tuple(Disturbance(word.replace("-", "")) for word in disturbances)
    result = JobResult(job=0, outcome=Outcome.OK, run_secs=(1.0, 1.1, 2.0), disturbances=gated)
    drift = Drift(suspect=canaries == "drifting", ratios={"compute": 1.3}, which=())
    record = record_of(generic_spec, batch, job, result, drift, "an environment")
    found, expected = json.loads(record.quality), json.loads(quality)
    assert {name: found[name] for name in ("clean", "disturbed") if name in found} | (
        {"suspect": True} if record.is_suspect else {}
    ) == expected
    assert record.latency_secs == 1.0


class ScriptedWatch(CanaryWatch):
    """A watch whose device drifts in its first batch, leaders again included, and then no more."""

    windows = 0

    def read(self, results: Sequence[JobResult]) -> Drift:
        drift = super().read(results)
        ScriptedWatch.windows += 1
        return dataclasses.replace(drift, suspect=ScriptedWatch.windows <= 3)


def test_leaders_of_a_drifting_window_come_back_at_once_and_with_the_next_batch(
    worker: DeviceWorker, tmp_path: Path, matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    with another(worker, ScriptedWatch, tmp_path) as own:
        drifting = measure(own, matmul, matmul_candidates[:2], confirm_within=10.0)
        steady = measure(own, matmul, matmul_candidates[2:3])
    assert all(record.is_suspect for record in drifting if not record.attempt)
    assert [record.origin for record in drifting if record.attempt] == ["confirm"] * 2
    assert {record.attempt for record in drifting} == {0, 1}
    assert [record.is_suspect for record in steady] == [False] * len(steady)
    again = [record for record in steady if record.attempt == 2]
    assert again
    assert {record.candidate_id for record in again} <= {record.candidate_id for record in drifting}
    assert {record.origin for record in again} == {"remeasure"}
    assert len({record.record_id for record in drifting + steady}) == len(drifting + steady)


def test_a_gpu_whose_programs_cannot_be_compiled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.device.worker, "probe", lambda: gpu_host(GPU))
    monkeypatch.setattr("agents.host.device_kinds.compiler_fault", lambda: "no CUDA toolkit is at /opt/cuda")
    with pytest.raises(DeviceRefusedError, match=r"cuda-0 is refused by host .*: no CUDA toolkit is at /opt"):
        DeviceWorker(cuda_spec(), tmp_path / "spool")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": DeviceKind.REPLAY}, "replay"),
        ({"kind": DeviceKind.RPC, "tracker": "127.0.0.1:1", "key": "board"}, "127.0.0.1:1"),
        ({"cores": (4095,)}, "4095"),
    ],
    ids=["replay", "no tracker", "no such core"],
)
def test_a_device_that_cannot_be_had_is_refused_in_one_sentence(
    generic_spec: DeviceSpec, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    spec = replace(generic_spec, **changes)
    with pytest.raises(DeviceRefusedError, match=words) as refusal:
        DeviceWorker(spec, tmp_path / "spool")
    assert "\n" not in str(refusal.value)
