"""From a candidate to its job, and from the result of a job to its record. Called by `worker.py`."""

from __future__ import annotations

from agents.device.messages import Batch
from agents.files import code_hash
from agents.programs.check import is_checkable
from agents.programs.quality import (
    Drift,
    gate_quality,
    interval_quality,
    is_rejected,
    judged_secs,
    relative_interval,
)
from agents.records import DeviceSpec, Outcome, Protocol, Record, canonical_json
from agents.sandbox.canary_watch import Again
from agents.sandbox.job import CandidateJob, JobResult

#: Folders of `agents` whose code a measurement depends on.
_MEASURING = ("programs", "sandbox")


def measuring_code() -> str:
    """Hash of this project's own measuring code."""
    return code_hash(_MEASURING)


def job_of(measurement: Again, protocol: Protocol) -> CandidateJob:
    """The job of a candidate of a batch, with the check of its output where its turn has come."""
    # By the hash, so that every device checks the same ones and a run can be repeated.
    place = int(measurement.candidate.candidate_id[:8], 16) / 2**32
    return CandidateJob(
        candidate=measurement.candidate,
        workload=measurement.workload,
        protocol=protocol,
        attempt=measurement.attempt,
        check=place < protocol.check_share and is_checkable(measurement.workload.flops),
    )


def record_of(
    spec: DeviceSpec,
    batch: Batch,
    job: CandidateJob,
    result: JobResult,
    drift: Drift,
    environment_id: str,
    roofline: tuple[tuple[str, float], ...] = (),
) -> Record:
    """The record of a job of a batch, which ended in a window with this drift.

    What the canaries measured so far (`Descriptor.roofline`) goes with the environment, and which code of
    this project measured: a difference that is reported and does not make another environment.
    """
    candidate = job.candidate
    outcome, error = result.outcome, result.error
    repeats, judged = result.repeats, judged_secs(result.repeats)
    if outcome is Outcome.OK and is_rejected(judged, batch.protocol):
        outcome = Outcome.REJECTED
        error = (
            f"its {len(judged)} repeats leave the latency uncertain by "
            f"{relative_interval(judged):.0%}, more than reject_interval"
        )
    environment = {**result.environment, "measuring_code": measuring_code()}
    if roofline:
        environment["roofline"] = dict(roofline)
    quality = {**result.quality, **interval_quality(judged), **gate_quality(repeats, batch.protocol)}
    if drift.ratios:
        quality["canary"] = dict(drift.ratios)
    # The canaries say that something was wrong some time; a gate says of each repeat whether.
    if drift.suspect and not repeats.disturbances:
        quality["suspect"] = True
    return Record(
        device_id=spec.device_id,
        workload_id=candidate.workload_id,
        candidate_id=candidate.candidate_id,
        dialect=candidate.dialect,
        trace=candidate.trace,
        origin=candidate.origin,
        outcome=outcome,
        run_secs=result.run_secs,
        warmup_secs=result.warmup_secs,
        number=result.number,
        build_secs=result.build_secs,
        wait_secs=result.wait_secs,
        timing_secs=result.timing_secs,
        error=error,
        protocol=batch.protocol,
        environment=canonical_json(environment),
        environment_id=environment_id,
        attempt=job.attempt,
        measured_at=result.ended_at,
        model_version=batch.model_version,
        quality=canonical_json(quality),
    )
