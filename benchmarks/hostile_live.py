"""What import accepted of strangers, offered to a real device on the way that `fleet collect` plans by.

A database names a public workload by its hash, with the real module and with one that calls the C library.
Its traces are honest ones of the real design space, honest ones with an attack put in, attacks alone, and
anything. What runs foreign code leaves a folder or ends the worker with a known exit code. The device is a
`DeviceWorker` with its processes, without Ray between; planning, store and import are those of the command.
At last the same traces are given to the device as if they were planned.

Run as a program of its own by `run_live`: what runs may do anything to the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from agents.host.own_program import environment
from agents.records import (
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Protocol,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
)
from benchmarks.hostile_attacks import EXIT_CODE
from benchmarks.hostile_stranger import TARGET, attacked, programs, write_database

if TYPE_CHECKING:
    from agents.device.worker import DeviceWorker
    from benchmarks.hostile_found import Found
    from fleet.collection.settings import Pools

STRANGER, OWN = DeviceId("stranger"), DeviceId("own")
_PROTOCOL = Protocol(
    repeat=1, extra_repeats=0, min_repeat_ms=0.1, visits=1, reject_interval=0.0, early_stop_ratio=0.0
)
#: Candidates of our own beside the stranger's, and honest traces that attacks are put into.
_OWN_SAMPLES, _HONEST = 4, 8
#: The whole stage.
_LIMIT_SECS = 600.0


class DirectSession:
    """What a collection uses of `fleet.transport.ray_session.RaySession`, over one device in this process.

    Attributes:
        traces: Every trace that the device was asked to measure.
    """

    def __init__(self, worker: DeviceWorker) -> None:
        self._worker = worker
        self._answers: dict[int, Any] = {}
        self._references = itertools.count()
        self.device_ids = [OWN]
        self.traces: Counter[str] = Counter()

    def submit(self, device_id: DeviceId, method: str, *arguments: Any) -> int:
        """Ask, and keep the answer."""
        reference = next(self._references)
        self._answers[reference] = self.call(device_id, method, *arguments)
        return reference

    def wait(self, references: Iterable[int]) -> list[int]:
        """All are answered."""
        return [min(references)]

    def result(self, reference: int, _device_id: DeviceId) -> Any:
        """Give an answer."""
        return self._answers.pop(reference)

    def await_restart(self, device_id: DeviceId) -> None:
        """Nothing restarts: the device is in this process."""

    def call(self, _device_id: DeviceId, method: str, *arguments: Any) -> Any:
        """Ask the device."""
        worker = self._worker
        if method == "descriptor":
            return worker.descriptor
        if method == "propose":
            workload, count, seed, exclude = arguments
            return worker.propose(workload, count, seed=seed, exclude=exclude)
        if method == "evolve":
            workload, parents, count, seed, exclude = arguments
            return worker.evolve(workload, parents, count, seed=seed, exclude=exclude)
        if method == "measure":
            self.traces.update(one.trace for one in arguments[0].candidates)
            return worker.measure(*arguments)
        return getattr(worker, method)(*arguments)


class Watched:
    """A watcher that says nothing, and keeps what was stored and why candidates were refused."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reasons: Counter[str] = Counter()

    def phase(self, name: str, total: int) -> None:
        """See `fleet.collection.settings.Watcher`."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """See `fleet.collection.settings.Watcher`."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """See `fleet.collection.settings.Watcher`."""
        self.reasons.update(reasons)

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """See `fleet.collection.settings.Watcher`."""
        self.records += records


def offer(folder: Path, markers: Path, seed: int, count: int) -> dict[str, Any]:
    """Import a stranger's database, then collect on a device of this host.

    Returns:
        How many candidates were imported, how many of them reached the device as they came, what became of
        them, and how many ended a worker as foreign code would.
    """
    import tvm

    from agents.device.worker import DeviceWorker
    from agents.programs.workloads import workload_from_module
    from fleet.collection.collect import Collection, CollectSettings
    from fleet.interchange.import_logs import ImportRequest, import_logs
    from fleet.store.store import Store

    rng = Random(f"hostile/live/{seed}")
    public, foreign = programs(f"{markers}/{seed}-module")
    workload = workload_from_module(public, name="public", operator="GMM")
    spec = DeviceSpec(
        device_id=OWN, kind=DeviceKind.LOCAL, family=Family.CPU, target_json=canonical_json(TARGET)
    )
    with closing(DeviceWorker(spec, folder / "spool")) as worker:
        honest = [json.loads(one.trace) for one in worker.propose(workload, _HONEST, seed=seed + 1)]
        traces = [attacked(honest, place, f"{markers}/{seed}-live", rng) for place in range(count)]
        # The stranger's module comes first, under the hash of the public one.
        modules = [tvm.ir.save_json(one).encode() for one in (foreign, public)]
        log = write_database(folder, workload.workload_id, modules, traces)
        with Store.open(folder / "store") as store:
            request = ImportRequest(paths=(log,), device_id=STRANGER, devices_folder=folder / "none")
            imported = import_logs(store, request)
            known = {one.trace for one in store.records(device_id=STRANGER)}
            session, watcher = DirectSession(worker), Watched()
            settings = CollectSettings(
                samples=len(known) + _OWN_SAMPLES, protocol=_PROTOCOL, seed=seed, noise=2
            )
            collection = Collection(session, store, {OWN: spec}, settings, watcher)  # type: ignore[arg-type]
            collection.register()
            pools = collection.propose([workload])
            # The daemon takes modules from the store, where the stranger's came first.
            stored = store.workloads()[WorkloadId(workload.workload_id)]
            collection.measure(_pools(workload, ["[[],[]]"]), [stored])
            collection.measure(pools, [workload])
            collection.measure_noise(only_due=False)
            ours = {canonical_json(one) for one in honest}
            reached = sum(one in known and one not in ours for one in session.traces)
            planned = len(watcher.records)
            # Whatever planning lets through, the device itself must refuse what is no trace of ours.
            collection.measure(_pools(workload, [canonical_json(one) for one in traces]), [workload])
    return {
        "candidates": count,
        "imported": imported.imported,
        "rejected": dict(imported.counts.rejected),
        "refused": dict(watcher.reasons),
        "reached_device": reached,
        "outcomes": _outcomes(watcher.records[:planned]),
        "outcomes_if_planned": _outcomes(watcher.records[planned:]),
        "ended_by_exit": sum(f"status {EXIT_CODE}" in record.error for record in watcher.records),
        "module_is_ours": stored.module_json == workload.module_json,
    }


def _outcomes(records: Sequence[Record]) -> dict[str, int]:
    return dict(Counter(record.outcome.value for record in records))


def _pools(workload: Workload, traces: Sequence[str]) -> Pools:
    """Candidates as planning would give them."""
    made = [Candidate(workload_id=workload.workload_id, trace=one) for one in dict.fromkeys(traces)]
    return {Family.CPU: {workload.workload_id: made}}


def run_live(folder: Path, markers: Path, found: Found, *, seed: int, candidates: int) -> dict[str, Any]:
    """Run `offer` in a process of its own, and count how it ended.

    Args:
        folder: Where it works.
        markers: Folder that foreign code would write to.
        found: Takes the tally of the stage.
        seed: Of the traces.
        candidates: How many are offered.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "benchmarks.hostile_live", str(folder), str(markers)]
    command += [str(seed), str(candidates)]
    tally, began = found.stage("live"), time.monotonic()
    tally.files = candidates
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment())
        try:
            output, _ = process.communicate(timeout=_LIMIT_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            tally.hangs += 1
            found.find("live", "hang", "live", f"{_LIMIT_SECS} s")
            return {}
        errors.seek(0)
        told = errors.read()[-3_000:].decode(errors="replace")
    tally.longest_secs = round(time.monotonic() - began, 1)
    if process.returncode:
        tally.crashes += 1
        found.find("live", f"ended with {process.returncode}", "live", told)
        return {}
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Offer, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("markers", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("candidates", type=int)
    options = parser.parse_args()
    print(json.dumps(offer(options.folder, options.markers, options.seed, options.candidates)))


if __name__ == "__main__":
    main()
