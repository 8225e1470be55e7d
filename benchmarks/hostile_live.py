"""What import accepted of strangers, offered to a real device on the way that `fleet collect` plans by.

A database names a public workload by its hash, with the real module and with one that calls the C library.
Its traces are honest ones of the real design space, honest ones with an attack put in, attacks alone, and
anything. What runs foreign code leaves a folder or ends the worker with a known exit code. The device is a
`DeviceWorker` with its processes, without coordinator and Ray between; planning, store and import are those
of the command.
At last the same traces are given to the device as if they were planned.

Run as a program of its own by `run_live`: what runs may do anything to the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from agents.device.batch import Batch
from agents.host.own_program import environment
from agents.records import (
    Candidate,
    CandidateId,
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
from benchmarks.hostile_corpus import attack_steps, packed, seeds, with_marker
from fleet.drivers.session import EngineSession

if TYPE_CHECKING:
    from agents.device.worker import DeviceWorker
    from agents.programs.derivation import Derivation
    from benchmarks.hostile_run import Found
    from fleet.planner.settings import Pools
    from fleet.store.reader import StoreReader
    from fleet.store.store import Store

_Value = TypeVar("_Value")

STRANGER, OWN = DeviceId("stranger"), DeviceId("own")
_PROTOCOL = Protocol(
    repeat=1, extra_repeats=0, min_repeat_ms=0.1, visits=1, reject_interval=0.0, early_stop_ratio=0.0
)
#: Candidates of our own beside the stranger's, and honest traces that attacks are put into.
_OWN_SAMPLES, _HONEST = 4, 8
#: The whole stage.
_LIMIT_SECS = 600.0
#: Exit code of a process that was made to end by foreign code.
EXIT_CODE = 113
#: Rows and columns of every matrix of the public program.
_EXTENT = 64
_TARGET = {"kind": "llvm", "num-cores": 1}
#: Ways to run code, and ways to put them into a trace.
_KINDS, _WAYS = 5, 5


def programs(marker: str) -> tuple[Any, Any]:
    """A public program, an error function of a product, and a stranger's that calls the C library besides."""
    import tvm
    from tvm import te, tirx

    shape = (_EXTENT, _EXTENT)

    def made(called: bool) -> Any:
        left, right = te.placeholder(shape, name="A"), te.placeholder(shape, name="B")
        along = te.reduce_axis((0, _EXTENT), name="k")
        product = te.compute(
            shape, lambda i, j: te.sum(left[i, along] * right[along, j], axis=along), name="C"
        )

        def element(i: Any, j: Any) -> Any:
            value = tirx.erf(product[i, j])
            if not called:
                return value
            call = tirx.call_extern("int32", "mkdir", marker, tirx.IntImm("int32", 448))
            return value + tirx.Cast("float32", call)

        result = te.compute(shape, element, name="D")
        return tvm.IRModule({"main": te.create_prim_func([left, right, result])})

    return made(False), made(True)


def attacked(honest: Sequence[list[Any]], number: int, markers: str, rng: Random) -> list[Any]:
    """A trace: an attack alone, in front of an honest trace, behind it; an honest one; or any of the corpus.

    Args:
        honest: Traces of the public program's design space; at least one.
        number: Tells which; every third attack ends the process instead of leaving a marker.
        markers: Beginning of the marker's name.
        rng: Of the traces of the corpus.
    """
    steps, decisions = honest[number % len(honest)]
    marker = f"{markers}-{number}"
    foreign = attack_steps(number % _KINDS, "" if number % 3 == 2 else marker)
    way = number // _KINDS % _WAYS
    if way == 0:
        return [foreign, []]
    if way == 1:
        return [[*steps, *foreign], decisions]
    if way == 2:
        return [[*foreign, *steps], [[place + len(foreign), choice] for place, choice in decisions]]
    if way == 3:
        return [steps, decisions]
    trace: list[Any] = json.loads(with_marker(json.dumps(rng.choice(seeds("meta_schedule"))[1][0]), marker))
    return trace


def write_database(folder: Path, workload_id: str, modules: Sequence[bytes], traces: Sequence[Any]) -> Path:
    """Write a database whose workloads all claim one hash; returns the file of its tuning records."""
    lines = [json.dumps([str(int(workload_id, 16)), packed(module)]) for module in modules]
    (folder / "database_workload.json").write_text("\n".join(lines) + "\n")
    args = [["TENSOR", "float32", [_EXTENT, _EXTENT]]] * 3
    records = [
        json.dumps([place % len(modules), [trace, [1e-5 * (place + 1)], _TARGET, args]])
        for place, trace in enumerate(traces)
    ]
    log = folder / "database_tuning_record.json"
    log.write_text("\n".join(records) + "\n")
    return log


class DirectEngine(EngineSession):
    """The same for one device in this process.

    Args:
        worker: The device.
        store: Gets what is listed and measured.

    Attributes:
        traces: Every trace that the device was asked to measure.
    """

    def __init__(self, worker: DeviceWorker, store: Store) -> None:
        self._worker, self._store, self._path = worker, store, store.path
        self._part = {}
        self.traces: Counter[str] = Counter()
        store.put_device(worker.spec, worker.descriptor)

    def ready(self, device_ids: Iterable[DeviceId]) -> None:
        """It is."""

    def environment_id(self, device_id: DeviceId) -> str:
        """See `EngineSession`."""
        return self._worker.environment_id(_PROTOCOL)

    def network_workloads(self, device_id: DeviceId, networks: Sequence[str]) -> list[Workload]:
        """See `EngineSession`."""
        found = self._worker.network_workloads(networks)
        self._store.put_workloads(found, own=True)
        return found

    def propose(
        self, device_id: DeviceId, workload: Workload, count: int, seed: int, exclude: Ids[CandidateId]
    ) -> Future[list[Candidate]]:
        """See `EngineSession`."""
        return _done(self._worker.propose(workload, count, seed=seed, exclude=exclude))

    def evolve(
        self,
        device_id: DeviceId,
        workload: Workload,
        parents: Sequence[str],
        count: int,
        seed: int,
        exclude: Ids[CandidateId],
    ) -> Future[list[Candidate]]:
        """See `EngineSession`."""
        return _done(self._worker.evolve(workload, parents, count, seed=seed, exclude=exclude))

    def derive(self, device_id: DeviceId, workload: Workload, traces: Sequence[str]) -> Future[Derivation]:
        """See `EngineSession`."""
        return _done(self._worker.derive(workload, traces))

    def measure(
        self,
        device_id: DeviceId,
        candidates: Sequence[Candidate],
        *,
        attempt: int = 0,
        model_version: str = "",
    ) -> Future[list[Record]]:
        """See `EngineSession`; with the modules of the store, as the coordinator sends them."""
        self.traces.update(one.trace for one in candidates)
        batch = Batch(
            candidates=tuple(candidates),
            workloads=self._store.workloads(),
            protocol=_PROTOCOL,
            attempt=attempt,
        )
        records = self._worker.measure(batch)
        self._store.append(records)
        self._worker.acknowledge([one.record_id for one in records])
        return _done(records)

    def wait(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        """All are over."""
        return list(futures)

    def store(self) -> StoreReader:
        """See `EngineSession`."""
        return self._store


class Watched:
    """A watcher that says nothing, and keeps what was stored and why candidates were refused."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reasons: Counter[str] = Counter()

    def phase(self, name: str, total: int) -> None:
        """See `fleet.planner.settings.Watcher`."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """See `fleet.planner.settings.Watcher`."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """See `fleet.planner.settings.Watcher`."""
        self.reasons.update(reasons)

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """See `fleet.planner.settings.Watcher`."""
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
    from fleet.interchange.import_logs import ImportRequest, import_logs
    from fleet.planner.collect import Collection
    from fleet.planner.settings import CollectSettings
    from fleet.store.store import Store

    rng = Random(f"hostile/live/{seed}")
    public, foreign = programs(f"{markers}/{seed}-module")
    workload = workload_from_module(public, name="public", operator="GMM")
    spec = DeviceSpec(
        device_id=OWN, kind=DeviceKind.LOCAL, family=Family.CPU, target_json=canonical_json(_TARGET)
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
            engine, watcher = DirectEngine(worker, store), Watched()
            settings = CollectSettings(samples=len(known) + _OWN_SAMPLES, seed=seed, noise=2)
            collection = Collection(engine, {OWN: spec}, settings, watcher)
            store.put_workloads([workload], own=True)
            pools = collection.propose([workload])
            # The coordinator takes modules from the store, where the stranger's came first.
            stored = store.workloads()[WorkloadId(workload.workload_id)]
            collection.measure(_pools(workload, ["[[],[]]"]))
            collection.measure(pools)
            collection.measure_noise(only_due=False)
            ours = {canonical_json(one) for one in honest}
            reached = sum(one in known and one not in ours for one in engine.traces)
            planned = len(watcher.records)
            # Whatever planning lets through, the device itself must refuse what is no trace of ours.
            collection.measure(_pools(workload, [canonical_json(one) for one in traces]))
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


def _done(value: _Value) -> Future[_Value]:
    future: Future[_Value] = Future()
    future.set_result(value)
    return future


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


if __name__ == "__main__":
    folder, markers, seed, candidates = sys.argv[1:]
    print(json.dumps(offer(Path(folder), Path(markers), int(seed), int(candidates))))
