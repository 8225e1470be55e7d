"""A device that answers from recorded measurements: `DeviceWorker`'s duck type without a device.

`ray_actors.py` puts it on Ray like any other. Nothing is built, run or timed here, so a collection, a search
or an onboarding can be tried in seconds, and again. What is answered when: `docs/replay.md`.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from agents.device.device_cores import agent_cores
from agents.device.messages import Activity, Batch, BeginAgent, Part, ProposeRequest, TaggedRecord
from agents.device.replay_answers import answer
from agents.device.replay_records import ReplayRecords
from agents.device.worker import DeviceRefusedError, DeviceWorker, Drawn
from agents.errors import AgentError
from agents.host.probe import core_groups
from agents.networks.network_name import members
from agents.programs.derivation import Derivation
from agents.programs.networks import NETWORKS
from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceId,
    DeviceSpec,
    LeaseTag,
    Protocol,
    Record,
    Workload,
    canonical_json,
    content_hash,
)
from agents.spool.disk_spool import MemorySpool, Spool

_LOG = logging.getLogger(__name__)

#: Recorded candidates of a workload that are looked at for neighbours of good ones: drawn at random above.
_MOST_NEIGHBOURS = 2000
_SEPARATORS = re.compile(r"[\[\], ]+")


def open_records(spec: DeviceSpec) -> ReplayRecords:
    """Open what a replay device answers from: a Parquet file that `fleet export` wrote.

    Raises:
        DeviceRefusedError: The spec names no records, they cannot be read, or have no such device.
    """
    if spec.replay is None:
        raise DeviceRefusedError(
            f"device {spec.device_id} is refused: its file does not say which records it answers from; "
            "write records and device"
        )
    try:
        return ReplayRecords(Path(spec.replay.records), spec.replay.device)
    except AgentError as error:
        raise DeviceRefusedError(f"device {spec.device_id} is refused: {error}") from error


class ReplayWorker:
    """One recorded device.

    Records that were made wait in memory until they are acknowledged: one that is lost with the process can
    be had again, equal but for its moment.

    Args:
        spec: The device.
        records: What it answers from (`open_records`); whoever opened it closes it.
        spool: Where records wait instead, durably; it is closed with the worker.

    Raises:
        DeviceRefusedError: The records belong to another family or target.

    Attributes:
        descriptor: That of the recorded device; nearly empty where it was never probed.
        finished: Candidates that were answered since it was made.

    One thread at a time may use it.
    """

    def __init__(self, spec: DeviceSpec, records: ReplayRecords, spool: Spool | None = None) -> None:
        self._records = records
        assert spec.replay is not None
        self.spec, self._replay = spec, spec.replay
        recorded = self._records.recorded.spec
        if (recorded.family, recorded.target) != (spec.family, spec.target):
            raise DeviceRefusedError(
                f"device {spec.device_id} is refused: its file says family {spec.family} and target "
                f"{spec.target_json}, the recorded device {recorded.device_id} has {recorded.family} and "
                f"{recorded.target_json}; copy these, or leave target out"
            )
        if self._records.left_out:
            _LOG.warning(
                "device %s answers from %d records of one environment; %d of other environments are left out",
                spec.device_id,
                len(self._records),
                self._records.left_out,
            )
        self.descriptor: Descriptor = self._records.descriptor
        self.finished = 0
        self._spool: Spool | MemorySpool = MemorySpool() if spool is None else spool

    def close(self) -> None:
        """Close the spool."""
        self._spool.close()

    @property
    def busy(self) -> Activity:
        """Nothing runs on it, ever."""
        return Activity.IDLE

    def network_workloads(self, networks: Sequence[str]) -> list[Workload]:
        """List the recorded workloads of some networks, heaviest first.

        Those that belong to no network of `agents.programs.networks` are listed too: imported logs name
        networks that nobody can ask for.

        Raises:
            AgentError: None of them was recorded.
        """
        recorded = self._records.workloads.values()
        requested = set(members(networks))
        workloads = []
        for workload in recorded:
            our_networks = {name for name, _ in workload.networks} & set(NETWORKS)
            if not our_networks or our_networks & requested:
                workloads.append(workload)
        if not workloads:
            network_names = sorted({name for workload in recorded for name, _ in workload.networks})
            raise AgentError(
                f"no workload of {', '.join(networks)} was recorded on {self._replay.device}; its records "
                f"have {len(recorded)} workloads of {', '.join(network_names) or 'no network'}"
            )
        return sorted(
            workloads, key=lambda workload: (-workload.weight * workload.flops, workload.workload_id)
        )

    def draw(self, requests: Iterable[ProposeRequest | None]) -> Drawn:
        """Grant wishes as they come, until there is none: each with what it gets, or why not.

        The same seed gives the same draws; what a wish excludes only filters them. Parents get the recorded
        candidates that differ least from one of them, none that is equal to one.
        """
        for request in requests:
            if request is None:
                return
            try:
                answer: Derivation | AgentError = self._granted(request)
            except AgentError as error:
                answer = error
            yield request, answer

    def _granted(self, request: ProposeRequest) -> Derivation:
        if request.foreign:
            # Imported candidates are answered for as they are.
            return Derivation((), {"a replay device makes no programs": len(request.foreign)})
        workload_id = request.workload.workload_id
        recorded = self._records.candidates(workload_id, failed=self._replay.failures)
        shuffled = random.Random(f"{request.seed}/{workload_id}").sample(recorded, len(recorded))
        drawn = [candidate_id for candidate_id in shuffled if candidate_id not in request.exclude]
        if request.parents:
            drawn = self._nearest(drawn[:_MOST_NEIGHBOURS], request.parents)
        origin = "evolved" if request.parents else "random"
        candidates = (
            Candidate(workload_id=workload_id, trace=trace, dialect=dialect, origin=origin)
            for dialect, trace in self._records.schedules(drawn[: request.count])
        )
        return Derivation(tuple(candidates), {})

    def _nearest(self, candidate_ids: Sequence[CandidateId], parents: Sequence[str]) -> list[CandidateId]:
        """Those that differ from all parents (traces), the nearest to one of them first."""
        families = [_SEPARATORS.split(parent) for parent in parents]
        far: list[tuple[int, CandidateId]] = []
        for candidate_id, (_, trace) in zip(
            candidate_ids, self._records.schedules(candidate_ids), strict=True
        ):
            words = _SEPARATORS.split(trace)
            if distance := min(_difference(words, family) for family in families):
                far.append((distance, candidate_id))
        far.sort(key=lambda pair: pair[0])
        return [candidate_id for _, candidate_id in far]

    def measure_parts(self, batch: Batch, tag: LeaseTag | None = None) -> Generator[Part, None, None]:
        """Answer a batch, at once: it takes no time that would be worth dividing."""
        began = time.monotonic()
        records = self.measure(batch, tag)
        yield Part(records=records, device_secs=time.monotonic() - began, is_last=True)

    def measure(self, batch: Batch, tag: LeaseTag | None = None) -> list[Record]:
        """Answer a batch from the records; every candidate gives a record.

        A candidate that was never recorded is `lost`: nothing is known of it.
        """
        ids = [candidate.candidate_id for candidate in batch.candidates]
        measurements = self._records.measurements(ids)
        lasting = self.environment_id(batch.protocol)
        records = [
            answer(
                self.spec, self._records.environment_id, candidate, measurements.get(name, []), batch, lasting
            )
            for candidate, name in zip(batch.candidates, ids, strict=True)
        ]
        self._spool.put(records, tag)
        self.finished += len(records)
        return records

    def environment_id(self, protocol: Protocol) -> str:
        """Hash of what must be equal for two records of this device to be compared.

        The protocol does not matter: what is answered was timed as it was.
        """
        replay = self._replay
        return content_hash(
            "replay",
            replay.device,
            self._records.environment_id,
            canonical_json([replay.seed, replay.noise, replay.failures]),
        )

    def descriptor_in(self, environment_id: str) -> Descriptor:
        """What the recorded device was; it stays that."""
        del environment_id
        return self.descriptor

    def pending_tagged(self) -> Iterator[TaggedRecord]:
        """Records that nobody acknowledged, oldest first, each with the lease that it was made under."""
        return self._spool.pending_tagged()

    def acknowledge(self, record_ids: Collection[str]) -> None:
        """Forget records that the store holds for good."""
        self._spool.acknowledge(record_ids)


def _difference(words: Sequence[str], others: Sequence[str]) -> int:
    """In how many places two traces differ."""
    same = sum(map(str.__eq__, words, others))
    return max(len(words), len(others)) - same


# Make the worker of a device from the request that starts its agent. Called by who runs an `AgentHost`.

#: What an agent does its work with.
Worker = DeviceWorker | ReplayWorker

#: A killed agent holds its spool until the kernel has ended it, and its last write.
_SPOOL_WAIT_SECS = 10.0


def open_device(start: BeginAgent) -> Worker:
    """Make the worker of a device that is measured.

    Raises:
        AgentError: As `DeviceWorker`.
    """
    usable = start.usable_cores or tuple(sorted(os.sched_getaffinity(0)))
    return DeviceWorker(
        start.spec,
        Path(start.spool_folder).expanduser(),
        usable_cores=agent_cores(start.spec, start.neighbours or (start.spec,), usable, core_groups()),
        spool_wait_secs=_SPOOL_WAIT_SECS,
    )


class ReplayWorkerFactory:
    """Makes the workers of replay devices; those that replay the same device share its records.

    Args:
        spooled: Whether what they answer waits on the disk, as that of other devices does; else in memory.
    """

    def __init__(self, *, spooled: bool = False) -> None:
        self._spooled = spooled
        #: By path and recorded device.
        self._records: dict[tuple[str, DeviceId] | None, ReplayRecords] = {}

    def open(self, start: BeginAgent) -> Worker:
        """Make the worker of a replay device.

        Raises:
            DeviceRefusedError: As `ReplayWorker`.
            SpoolError: As `Spool`.
        """
        replay = start.spec.replay
        key = None if replay is None else (replay.records, replay.device)
        if key not in self._records:
            self._records[key] = open_records(start.spec)
        spool = None
        if self._spooled:
            spool = Spool(Path(start.spool_folder), lock_timeout_secs=_SPOOL_WAIT_SECS)
        try:
            return ReplayWorker(start.spec, self._records[key], spool)
        except BaseException:
            if spool is not None:
                spool.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for records in self._records.values():
            records.close()
        self._records.clear()
