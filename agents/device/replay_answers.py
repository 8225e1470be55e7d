"""The answers of a replay device: one record for each candidate, from its recorded measurements. Pure.

Called by `replay.py`. What is answered when: `docs/replay.md`.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agents.codec import bounded_json, protocol_from_json
from agents.device.messages import Batch
from agents.programs.quality import interval_quality
from agents.records import (
    Candidate,
    CandidateId,
    DeviceSpec,
    Outcome,
    Protocol,
    Record,
    Replay,
    canonical_json,
)

#: What is known of a candidate that was never recorded.
_NEVER: Mapping[str, Any] = {
    "outcome": Outcome.LOST,
    "run_secs": (),
    "warmup_secs": (),
    "number": 0,
    "build_secs": 0.0,
    "wait_secs": 0.0,
    "timing_secs": 0.0,
    "quality": "{}",
}


def answer(
    spec: DeviceSpec,
    recorded_environment_id: str,
    candidate: Candidate,
    rows: Sequence[dict[str, Any]],
    batch: Batch,
    environment_id: str,
) -> Record:
    """The record that a replay device answers a candidate of a batch with, under `environment_id`.

    `rows` are its recorded measurements (`ReplayRecords.measurements`) in the environment that is replayed;
    without any it is `lost`.
    """
    replay = spec.replay
    assert replay is not None
    row: Mapping[str, Any] = {
        **_NEVER,
        "error": (
            f"never recorded on {replay.device} in the environment that is replayed; a replay device can "
            "only answer for recorded candidates"
        ),
    }
    protocol = batch.protocol
    environment: Mapping[str, Any] = {}
    source: dict[str, Any] = {
        "device": replay.device,
        "environment_id": recorded_environment_id,
        "seed": replay.seed,
        "noise": replay.noise,
        "failures": replay.failures,
    }
    if rows:
        row = _pick(replay, candidate.candidate_id, rows, batch.attempt)
        protocol = _protocol(row["protocol"])
        environment = _environment(row["environment"])
        source |= {"attempt": row["attempt"], "measured_at": row["measured_at"]}
    return Record(
        device_id=spec.device_id,
        workload_id=candidate.workload_id,
        candidate_id=candidate.candidate_id,
        dialect=candidate.dialect,
        trace=candidate.trace,
        origin=candidate.origin,
        outcome=Outcome(row["outcome"]),
        run_secs=tuple(row["run_secs"]),
        warmup_secs=tuple(row["warmup_secs"]),
        number=row["number"],
        build_secs=row["build_secs"],
        wait_secs=row["wait_secs"],
        timing_secs=row["timing_secs"],
        error=row["error"],
        protocol=protocol,
        environment=canonical_json({**environment, "replay": source}),
        environment_id=environment_id,
        attempt=batch.attempt,
        measured_at=time.time(),
        model_version=batch.model_version,
        quality=_lasting_quality(row["quality"]),
    )


def _pick(
    replay: Replay, candidate_id: CandidateId, rows: Sequence[dict[str, Any]], attempt: int
) -> dict[str, Any]:
    """The measurement that one attempt at a candidate is answered with; `rows` are all of it."""
    counting = next((row for row in rows if row["counts"]), rows[0])
    if not replay.noise and not replay.failures:
        return counting
    draws = random.Random(f"{replay.seed}/{candidate_id}/{attempt}")
    with_latency = [row for row in rows if row["outcome"] == Outcome.OK]
    if replay.failures:
        drawn = draws.choice(rows)
        if drawn["outcome"] != Outcome.OK:
            return drawn
    elif counting["outcome"] != Outcome.OK:
        return counting
    if replay.noise:
        return _resampled(draws.choice(with_latency), draws)
    return counting if counting["outcome"] == Outcome.OK else with_latency[0]


def _resampled(row: dict[str, Any], draws: random.Random) -> dict[str, Any]:
    """A measurement with as many repeats as it has, drawn among them with replacement."""
    run_secs = draws.choices(row["run_secs"], k=len(row["run_secs"]))
    quality = _object(row["quality"])
    quality.pop("interval", None)
    return {**row, "run_secs": run_secs, "quality": canonical_json(quality | interval_quality(run_secs))}


@functools.lru_cache(maxsize=64)
def _protocol(text: str) -> Protocol:
    return protocol_from_json(_object(text))


@functools.lru_cache(maxsize=1024)
def _environment(text: str) -> Mapping[str, Any]:
    return _object(text)


@functools.lru_cache(maxsize=8192)
def _lasting_quality(text: str) -> str:
    """The quality without what tells of the moment, not of the candidate."""
    quality = _object(text)
    quality.pop("canary", None)
    return canonical_json(quality)


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a column holds; imported records may hold anything."""
    try:
        value = bounded_json(text)
        canonical_json(value)  # refuses numbers that are none: the answer's own JSON can hold none
    except (AttributeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
