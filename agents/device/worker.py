"""Everything one device can be asked for, as a plain class: probe, propose, measure, hand over records.

`ray_actors.py` puts it on Ray without adding logic; tests use it as it is. It never imports TVM: what a
candidate may harm happens in the processes of `pool.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agents.codec import device_from_json, workload_from_json
from agents.device.device_cores import quiet_cores, worker_settings
from agents.device.measurements import job_of, record_of
from agents.device.messages import PART_SECS, Activity, Batch, Part, ProposeRequest, TaggedRecord
from agents.errors import AgentError
from agents.host.device_kinds import KINDS, board_differences, environment_id
from agents.host.probe import core_groups, environment, probe, remote_descriptor
from agents.host.process_control import pin_process
from agents.networks.graph import merged
from agents.networks.network_name import read_network_name
from agents.networks.reader import workloads_of_networks
from agents.programs.canaries import Canary, roofline
from agents.programs.derivation import Derivation
from agents.records import (
    CONFIRM,
    DERIVED,
    Candidate,
    Descriptor,
    DeviceKind,
    DeviceSpec,
    Family,
    LeaseTag,
    Outcome,
    Protocol,
    Record,
    Workload,
    as_json_dict,
)
from agents.sandbox.canary_watch import PROBE, Again, CanaryWatch, front_runners, kept_monitor, unmeasured
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool import Question, WorkerPool
from agents.sandbox.stages import WorkerStage
from agents.sandbox.windows import in_windows
from agents.spool.disk_spool import Spool

_LOG = logging.getLogger(__name__)

#: Stages in which a program runs on the device.
_ON_DEVICE = frozenset(
    {WorkerStage.REFERENCE, WorkerStage.TIMING, WorkerStage.CHECKING, WorkerStage.RETIMING}
)


#: Wishes with what was made for each, or why nothing could be.
Drawn = Generator[tuple[ProposeRequest, Derivation | AgentError], None, None]


class DeviceRefusedError(AgentError):
    """The host cannot be the device that its spec describes."""


class DeviceWorker:
    """One device and its worker processes.

    Args:
        spec: What the device claims to be.
        spool_folder: Where finished records wait until they are acknowledged; one folder a device.
        usable_cores: Logical CPUs that it may use; those that this process was given when None. The
            process itself moves to those that do not time.
        spool_wait_secs: How long to wait for a predecessor that is about to end.

    Raises:
        DeviceRefusedError: The host contradicts the spec, nobody serves the device, or its kind cannot be
            timed by this version.
        SpoolError: As `Spool`.

    One thread at a time may use it; `finished` and `busy` may be read by others.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        spool_folder: Path,
        *,
        usable_cores: Sequence[int] | None = None,
        spool_wait_secs: float = 0.0,
    ) -> None:
        self.spec = spec
        if usable_cores is not None:
            pin_process(usable_cores)
        host_descriptor = probe()
        self._kind = KINDS[spec.kind]
        faults = self._kind.differences(spec, host_descriptor)
        if not faults and (absence := self._kind.absence(spec)):
            faults = [absence]
        if faults:
            raise DeviceRefusedError(
                f"device {spec.device_id} is refused by host {host_descriptor.host}: {'; '.join(faults)}"
            )
        self.descriptor: Descriptor = self._kind.describe(spec, host_descriptor)
        self._spool_folder = spool_folder
        timing = spec.cores if self._kind.uses_host_cores else ()
        quiet = quiet_cores(timing, host_descriptor.usable_cores, core_groups())
        with ExitStack() as opened:  # else the next worker of the device would find its spool taken
            self._spool = Spool(spool_folder, lock_timeout_secs=spool_wait_secs)
            opened.callback(self._spool.close)
            #: The worker processes.
            self.pool = WorkerPool(worker_settings(spec, self.descriptor, quiet))
            opened.callback(self.pool.close)
            pin_process(quiet)
            self.pool.start()
            if spec.kind is DeviceKind.RPC:
                self._ask_board()
            opened.pop_all()
        self._canaries: tuple[Canary, ...] = ()
        self._watches: dict[str, CanaryWatch] = {}
        #: Best latency of each (environment, workload), for early stop.
        self._best_secs: dict[str, dict[str, float]] = {}

    def close(self) -> None:
        """End the worker processes; records that nobody acknowledged stay in the spool."""
        self.pool.close()
        self._spool.close()

    def _ask_board(self) -> None:
        """Describe a board by what its server sees; one that is silent or busy by its file.

        Raises:
            DeviceRefusedError: The board lacks instructions that its target asks for.
        """
        try:
            answer = self.pool.ask({"op": "board"})
            board_descriptor = device_from_json(as_json_dict(self.spec), answer["descriptor"])[1]
        except AgentError as error:
            _LOG.info("device %s is described by its file alone: %s", self.spec.device_id, error)
            return
        assert board_descriptor is not None
        self.descriptor = remote_descriptor(self.spec, board_descriptor)
        if faults := board_differences(self.spec, self.descriptor):
            raise DeviceRefusedError(
                f"device {self.spec.device_id} is refused by its board: {'; '.join(faults)}"
            )

    @property
    def finished(self) -> int:
        """Candidates that were timed for the first time, or failed, since it was made."""
        return self.pool.timed

    @property
    def busy(self) -> Activity:
        """What the worker processes do just now."""
        stages = set(self.pool.stages) - {WorkerStage.IDLE}
        if not stages:
            return Activity.IDLE
        return Activity.TIMING if stages & _ON_DEVICE else Activity.BUILDING

    def network_workloads(self, networks: Sequence[str]) -> list[Workload]:
        """List the distinct workloads of networks, heaviest first.

        Those of `agents.programs.networks` are lists of operators. Others are read, traced and lowered in
        confined processes of their own, which takes some ten seconds each unless they were read before.

        Args:
            networks: As `agents.networks.network_name` reads them.

        Raises:
            AgentError: A network is unknown, or cannot be read.
        """
        ours = [name for name in dict.fromkeys(networks) if read_network_name(name).source == "ours"]
        others = [name for name in networks if name not in ours]
        workloads = workloads_of_networks(others, self.spec.family) if others else []
        if ours:
            answer = self.pool.ask({"op": "networks", "networks": ours})
            workloads += [workload_from_json(value) for value in answer["workloads"]]
        return merged(workloads)

    def draw(self, requests: Iterable[ProposeRequest | None]) -> Drawn:
        """Make the candidates of several wishes side by side, each in a process.

        Without parents they are random ones of the workload's design space, which belongs to the device's
        family; with parents, candidates near these; of imported traces, their decisions in our design space.

        Wishes are read as processes become free; None where there is none at this moment. Yields each with
        what was made, or why nothing could be, in the order of finishing.
        """
        received: list[ProposeRequest] = []

        def questions() -> Iterator[Question | None]:
            for request in requests:
                if request is not None:
                    received.append(request)
                yield None if request is None else (_question(request, self.spec.family), request.workload)

        with closing(self.pool.ask_each(questions())) as answers:
            for place, answer in answers:
                request = received[place]
                if isinstance(answer, AgentError):
                    yield request, answer
                    continue
                origin = DERIVED if request.foreign else "evolved" if request.parents else "random"
                candidates = tuple(
                    Candidate(workload_id=request.workload.workload_id, trace=trace, origin=origin)
                    for trace in answer["traces"]
                )
                yield request, Derivation(candidates, answer["refused"])

    def measure(self, batch: Batch, tag: LeaseTag | None = None) -> list[Record]:
        """Measure a batch in one window; the records are on disk in the spool before they are returned.

        Every candidate gives a record, whatever becomes of it. The front-runners of the batch come
        with a second one, and so do those of earlier batches that were measured while the device drifted.
        The spool notes the lease (`tag`) beside the records.
        """
        parts = self.measure_parts(batch, tag, window_secs=math.inf)
        return [record for part in parts for record in part.records]

    def measure_parts(
        self, batch: Batch, tag: LeaseTag | None = None, *, window_secs: float = PART_SECS
    ) -> Generator[Part, None, None]:
        """Measure a batch as `measure` does, in parts of some seconds.

        Each part is a window between two readings of the canaries; the next one is being compiled while its
        last candidates are timed.
        """
        lasting = self.environment_id(batch.protocol)
        watch, best = self._watch(lasting), self._best_secs.setdefault(lasting, {})
        queued = deque(
            Again(candidate, batch.workloads[candidate.workload_id], batch.attempt)
            for candidate in batch.candidates
        )
        repeats = deque[Again]()
        measured = {(measurement.candidate.candidate_id, measurement.attempt) for measurement in queued}

        def stream() -> Iterator[CandidateJob]:
            while queue := repeats or queued:
                yield job_of(queue.popleft(), batch.protocol)

        began, is_last = time.monotonic(), False
        while not is_last:
            windows = in_windows(stream(), self.pool, watch, best, window_secs=window_secs)
            # Whoever stops reading, or a spool that takes no more, ends what is at work.
            with closing(windows):
                for window in windows:
                    roofs = self.descriptor_in(lasting).roofline
                    records = [
                        record_of(self.spec, batch, job, result, window.drift, lasting, roofs)
                        for job, result in window.results
                    ]
                    for job, result in window.results:
                        if result.outcome is Outcome.OK:
                            key = job.workload.workload_id
                            best[key] = min(best.get(key, math.inf), *result.run_secs)
                    again: list[Again] = []
                    suspect = [record for record in records if record.is_suspect]
                    watch.remember(suspect, batch.workloads)
                    # A moment that disturbs most of what is measured disturbs second measurements, too.
                    if not window.drift.suspect and 2 * len(suspect) < max(1, len(records)):
                        again += watch.take_again()
                    if within := batch.confirm_within:
                        again += front_runners(
                            records, batch.workloads, within=within, origin=CONFIRM, best_secs=best
                        )
                    repeats.extend(unmeasured(again, measured))
                    self._spool.put(records, tag)
                    is_last = window.is_last and not repeats
                    ended = time.monotonic()
                    yield Part(records=records, device_secs=ended - began, is_last=is_last)
                    began = ended

    def environment_id(self, protocol: Protocol) -> str:
        """Hash of what must be equal for two records of this device to be compared."""
        snapshot = environment(self.spec.cores) | self._kind.environment(self.spec, self.descriptor)
        return environment_id(snapshot, self.spec, protocol)

    def descriptor_in(self, environment_id: str) -> Descriptor:
        """What the device is, and what its canaries measured in an environment."""
        watch = self._watches.get(environment_id) or kept_monitor(self._spool_folder, environment_id)
        return replace(self.descriptor, roofline=roofline(self.spec.family, watch.usual_secs()))

    def pending_tagged(self) -> Iterator[TaggedRecord]:
        """Records that nobody acknowledged, oldest first, each with the lease that it was made under."""
        return self._spool.pending_tagged()

    def acknowledge(self, record_ids: Collection[str]) -> None:
        """Forget records that the store holds for good."""
        self._spool.acknowledge(record_ids)

    def _watch(self, lasting: str) -> CanaryWatch:
        if not self._canaries:
            answer = self.pool.ask({"op": "canaries", "family": self.spec.family})
            self._canaries = tuple(map(_canary, answer["canaries"]))
        if lasting not in self._watches:
            watch = CanaryWatch(self._spool_folder, self._canaries, lasting)
            self._watches[lasting] = watch
            self.pool.probe_secs = self.pool.probe_secs or watch.usual_secs().get(PROBE, 0.0)
        return self._watches[lasting]


def _question(request: ProposeRequest, family: Family) -> dict[str, Any]:
    """The question of a request for candidates."""
    return {
        "op": "propose",
        "workload_id": request.workload.workload_id,
        "family": family,
        "count": request.count,
        "seed": request.seed,
        "exclude": sorted(request.exclude),
        "parents": request.parents,
        "foreign": request.foreign,
    }


def _canary(value: Mapping[str, Any]) -> Canary:
    workload = workload_from_json(value["workload"])
    candidate = Candidate(workload_id=workload.workload_id, trace=value["trace"], origin="canary")
    return Canary(name=value["name"], workload=workload, candidate=candidate)
