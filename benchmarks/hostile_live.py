"""What import accepted of strangers, offered to a real device on the way that `fleet collect` plans by.

A database names a public workload by its hash, with the real module and with one that calls the C library.
Its traces are honest ones of the real design space, honest ones with an attack put in, attacks alone, and
anything. What runs foreign code leaves a folder or ends the worker with a known exit code. Import, planning,
engine and agent are those of the command. At last the same traces are given to the device as if they were
planned.

Run as a program of its own by `run_live`: what runs may do anything to the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agents.records import Candidate, DeviceId, Family, Record, Workload, canonical_json
from benchmarks.fleet_up import write_fleet
from benchmarks.harness import run_bounded
from benchmarks.hostile_corpus import attack_steps, packed, seeds, with_marker
from fleet.json_types import JsonDict
from fleet.planner.progress import TerminalDisplay

if TYPE_CHECKING:
    from benchmarks.hostile_run import Found
    from fleet.drivers.session import EngineSession
    from fleet.planner.collect import Collection
    from fleet.planner.settings import Pools

STRANGER, OWN = DeviceId("stranger"), DeviceId("own")
#: Quick: what counts is whether anything runs at all.
_PROTOCOL = {
    **{"repeat": 1, "extra_repeats": 0, "min_repeat_ms": 0.1, "visits": 1},
    **{"reject_interval": 0.0, "early_stop_ratio": 0.0},
}
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


class Watched(TerminalDisplay):
    """Keeps what was stored, and why candidates were refused; shows nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.records: list[Record] = []
        self.reasons: Counter[str] = Counter()

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """See `Watcher`."""
        self.reasons.update(reasons)

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """See `Watcher`."""
        self.records += records


def _measured(
    session: EngineSession,
    collection: Collection,
    watcher: Watched,
    workload: Workload,
    traces: Sequence[Any],
) -> int:
    """Measure what planning chooses, then the traces whatever they are; how many records came of the plan."""
    session.ready([OWN])
    pools = collection.propose([workload])
    collection.measure(_pools(workload, ["[[],[]]"]))
    collection.measure(pools)
    collection.measure_noise(only_due=False)
    planned = len(watcher.records)
    # Whatever planning lets through, the device itself must refuse what is no trace of ours.
    collection.measure(_pools(workload, [canonical_json(one) for one in traces]))
    return planned


def offer(folder: Path, markers: Path, seed: int, count: int) -> JsonDict:
    """Import a stranger's database, then collect on a device of this host.

    Returns:
        How many candidates were imported, how many of them reached the device as they came, and how many
        ended a worker as foreign code would.
    """
    import tvm

    from agents.programs.design_space import DesignSpace
    from agents.programs.workloads import workload_from_module
    from fleet.config.settings import load_fleet, select_devices
    from fleet.core.words import RequestKind
    from fleet.daemon.daemon import UpOptions
    from fleet.daemon.embedded import run_embedded
    from fleet.interchange.import_logs import ImportRequest, import_logs
    from fleet.planner.collect import Collection
    from fleet.planner.settings import CollectSettings
    from fleet.store.store import Store

    rng = Random(f"hostile/live/{seed}")
    public, foreign = programs(f"{markers}/{seed}-module")
    workload = workload_from_module(public, name="public", operator="GMM")
    drawn = DesignSpace(workload, Family.CPU).sample(_HONEST, seed=seed + 1).candidates
    honest = [json.loads(one.trace) for one in drawn]
    traces = [attacked(honest, place, f"{markers}/{seed}-live", rng) for place in range(count)]
    # The stranger's module comes first, under the hash of the public one.
    modules = [tvm.ir.save_json(one).encode() for one in (foreign, public)]
    log = write_database(folder, workload.workload_id, modules, traces)
    with Store.open(folder / "store") as store:
        request = ImportRequest(paths=(log,), device_id=STRANGER, devices_folder=folder / "none")
        imported = import_logs(store, request)
        known = {one.trace for one in store.records(device_id=STRANGER)}
        store.put_workloads([workload], own=True)
    device = {"kind": "local", "family": "cpu", "target": _TARGET}
    settings = load_fleet(write_fleet(folder, {OWN: device}, folder, protocol=_PROTOCOL)).config
    how = CollectSettings(samples=len(known) + _OWN_SAMPLES, seed=seed, noise=2)
    watcher = Watched()

    def work(session: EngineSession) -> int:
        collection = Collection(session, select_devices(settings), how, watcher)
        return _measured(session, collection, watcher, workload, traces)

    up = UpOptions(models=folder / "models")
    arguments = {"devices": [OWN]}
    planned = run_embedded(settings, RequestKind.COLLECTION, arguments, up, Console(quiet=True), work)
    measured = {one.trace for one in watcher.records[:planned]}
    # The coordinator takes modules from the store, where the stranger's came first.
    stored = Store.read(folder / "store").workloads()[workload.workload_id]
    return {
        "candidates": count,
        "imported": imported.imported,
        "rejected": dict(imported.counts.rejected),
        "refused": dict(watcher.reasons),
        "reached_device": len(measured & known - {canonical_json(one) for one in honest}),
        "ended_by_exit": sum(f"status {EXIT_CODE}" in record.error for record in watcher.records),
        "module_is_ours": stored.module_json == workload.module_json,
    }


def _pools(workload: Workload, traces: Sequence[str]) -> Pools:
    """Candidates as planning would give them."""
    made = [Candidate(workload_id=workload.workload_id, trace=one) for one in dict.fromkeys(traces)]
    return {Family.CPU: {workload.workload_id: made}}


def run_live(folder: Path, markers: Path, found: Found, *, seed: int, candidates: int) -> JsonDict:
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
    ended = run_bounded(command, _LIMIT_SECS)
    tally.longest_secs = time.monotonic() - began
    if ended.code == 0:
        return dict(json.loads(ended.printed.splitlines()[-1]))
    tally.hangs, tally.crashes = int(ended.code is None), int(ended.code is not None)
    kind = "hang" if ended.code is None else f"ended with {ended.code}"
    found.find("live", kind, "live", ended.errors[-3_000:])
    return {}


if __name__ == "__main__":
    folder, markers, seed, candidates = sys.argv[1:]
    print(json.dumps(offer(Path(folder), Path(markers), int(seed), int(candidates))))
