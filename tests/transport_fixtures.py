"""Replay devices over recorded measurements, and what to ask them: for tests of transport and coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.device.messages import Batch, Message
from agents.records import (
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Lease,
    Protocol,
    Record,
    Replay,
    Workload,
)
from fleet.interchange.export_store import export
from fleet.store.store import Store
from fleet.transport.transport import AgentTransport
from tests.record_fixtures import make_batch, make_descriptor, make_spec, make_workload

WORKLOAD = make_workload(1)
PROTOCOL = Protocol(repeat=3)


def recorded_file(folder: Path, count: int = 40, workloads: Sequence[Workload] = (WORKLOAD,)) -> Path:
    """A file that replay devices answer from: `count` records of one device and each workload."""
    path = folder / "recorded.parquet"
    with Store.open(folder / "recorded-store") as store:
        store.put_device(make_spec(), make_descriptor())
        store.put_workloads(workloads)
        for one in workloads:
            store.append(make_batch(0, count, workload=one.workload_id))
        export(store, path, "parquet")
    return path


def replay_spec(path: Path, name: str = "again") -> DeviceSpec:
    """A device that replays the file's one."""
    return make_spec(name, kind=DeviceKind.REPLAY, replay=Replay(records=str(path), device=DeviceId("dev-a")))


def recorded_candidates(start: int, count: int) -> tuple[Candidate, ...]:
    """Candidates that the file knows, some of which have failed."""
    return tuple(map(candidate_of, make_batch(start, count, workload=WORKLOAD.workload_id)))


def candidate_of(record: Record) -> Candidate:
    return Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)


def batch_of(candidates: tuple[Candidate, ...], *, attempt: int = 0) -> Batch:
    return Batch(
        candidates=candidates,
        workloads={WORKLOAD.workload_id: WORKLOAD},
        protocol=PROTOCOL,
        attempt=attempt,
    )


def lease_of(device: str, fencing_token: int) -> Lease:
    return Lease(
        device_id=DeviceId(device),
        job_id=f"job-{fencing_token}",
        fencing_token=fencing_token,
        deadline_secs=2e9 + fencing_token,
    )


def poll_until(
    transport: AgentTransport, is_enough: Callable[[list[Message]], bool], timeout_secs: float = 60.0
) -> list[Message]:
    """Poll until the messages so far are enough; fails with what came if that takes too long."""
    found: list[Message] = []
    deadline = time.monotonic() + timeout_secs
    while not is_enough(found):
        assert time.monotonic() < deadline, f"after {timeout_secs:g} s only {found}"
        found += transport.poll(0.2)
    return found


def first(messages: list[Message], kind: type[Message], device: str | None = None) -> Message | None:
    """The first message of a kind, of a device if one is named."""
    return next((m for m in messages if isinstance(m, kind) and device in (None, m.device_id)), None)
