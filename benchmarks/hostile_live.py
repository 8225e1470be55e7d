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
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agents.records import Candidate, DeviceId, Family, Record, Workload, canonical_json
from benchmarks.fleet_up import write_fleet
from benchmarks.harness import run_bounded, stopwatch
from benchmarks.hostile_corpus import MARKER, attack_steps, packed, padded, seeds
from benchmarks.hostile_run import SLOW_STAGES, Found
from benchmarks.hostile_values import SEEDS
from fleet.json_types import JsonDict
from fleet.planner.progress import TerminalDisplay

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Pools

STRANGER, OWN = DeviceId("stranger"), DeviceId("own")
#: Quick: what counts is whether anything runs at all.
_PROTOCOL = {
    **{"repeat": 1, "extra_repeats": 0, "min_repeat_ms": 0.1, "visits": 1},
    **{"reject_interval": 0.0, "early_stop_ratio": 0.0},
}
#: Candidates of our own beside the stranger's, and honest traces that attacks are put into.
_OWN_SAMPLES, _HONEST = 4, 8
#: Exit code of a process that was made to end by foreign code.
EXIT_CODE = 113
#: Rows and columns of every matrix of the public program.
_EXTENT = 64
_TARGET = {"kind": "llvm", "num-cores": 1}
#: Ways to run code.
_KINDS = 5


def programs(marker: str) -> tuple[str, str]:
    """TVM's JSON of a public program, the error function of a product of matrices, and of a stranger's.

    The stranger's has the same shapes, and calls the C library to make the folder `marker`.
    """
    public, foreign = (SEEDS / "programs.jsonl").read_text().replace(MARKER, marker).splitlines()
    return public, foreign


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
    shifted = [[place + len(foreign), choice] for place, choice in decisions]
    anything = json.loads(
        json.dumps(rng.choice(seeds("meta_schedule"))[1][0]).replace(MARKER, padded(marker))
    )
    ways: tuple[list[Any], ...] = (
        [foreign, []],
        [[*steps, *foreign], decisions],
        [[*foreign, *steps], shifted],
        [steps, decisions],
        anything,
    )
    return ways[number // _KINDS % len(ways)]


def write_database(folder: Path, workload_id: str, modules: Sequence[str], traces: Sequence[Any]) -> Path:
    """Write a database whose workloads all claim one hash; returns the file of its tuning records."""
    lines = [json.dumps([str(int(workload_id, 16)), packed(module.encode())]) for module in modules]
    (folder / "database_workload.json").write_text("\n".join(lines) + "\n")
    args = [["TENSOR", "float32", [_EXTENT, _EXTENT]]] * 3
    records = [
        json.dumps([place % len(modules), [trace, [1e-5 * (place + 1)], _TARGET, args]])
        for place, trace in enumerate(traces)
    ]
    log = folder / "database_tuning_record.json"
    log.write_text("\n".join(records) + "\n")
    return log


class _Watcher(TerminalDisplay):
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
    workload = workload_from_module(tvm.ir.load_json(public), name="public", operator="GMM")
    drawn = DesignSpace(workload, Family.CPU).sample(_HONEST, seed=seed + 1).candidates
    honest = [json.loads(candidate.trace) for candidate in drawn]
    traces = [attacked(honest, place, f"{markers}/{seed}-live", rng) for place in range(count)]
    # The stranger's module comes first, under the hash of the public one.
    log = write_database(folder, workload.workload_id, [foreign, public], traces)
    with Store.open(folder / "store") as store:
        request = ImportRequest(paths=(log,), device_id=STRANGER, devices_folder=folder / "none")
        imported = import_logs(store, request)
        offered = {record.trace for record in store.records(device_id=STRANGER)}
        store.put_workloads([workload], own=True)
    device = {"kind": "local", "family": "cpu", "target": _TARGET}
    settings = load_fleet(write_fleet(folder, {OWN: device}, folder, protocol=_PROTOCOL)).config
    how = CollectSettings(samples=len(offered) + _OWN_SAMPLES, seed=seed, noise=2)
    witness = _Watcher()

    def work(session: EngineSession) -> set[str]:
        collection = Collection(session, select_devices(settings), how, witness)
        session.ready([OWN])
        pools = collection.propose([workload])
        collection.measure(_pools(workload, ["[[],[]]"]))
        collection.measure(pools)
        collection.measure_noise(only_due=False)
        measured = {record.trace for record in witness.records}
        # Whatever planning lets through, the device itself must refuse what is no trace of ours.
        collection.measure(_pools(workload, [canonical_json(trace) for trace in traces]))
        return measured

    up = UpOptions(models=folder / "models")
    arguments = {"devices": [OWN]}
    measured = run_embedded(settings, RequestKind.COLLECTION, arguments, up, Console(quiet=True), work)
    # The coordinator takes modules from the store, where the stranger's came first.
    stored = Store.read(folder / "store").workloads()[workload.workload_id]
    return {
        "candidates": count,
        "imported": imported.imported,
        "rejected": dict(imported.counts.rejected),
        "refused": dict(witness.reasons),
        "reached_device": len(measured & offered - {canonical_json(trace) for trace in honest}),
        "ended_by_exit": sum(f"status {EXIT_CODE}" in record.error for record in witness.records),
        "module_is_ours": stored.module_json == workload.module_json,
    }


def _pools(workload: Workload, traces: Sequence[str]) -> Pools:
    """Candidates as planning would give them."""
    candidates = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in dict.fromkeys(traces)]
    return {Family.CPU: {workload.workload_id: candidates}}


def run_live(folder: Path, markers: Path, found: Found, *, seed: int, candidates: int) -> JsonDict:
    """Run `offer` in a process of its own, and count how it ended.

    Args:
        folder: Where it works.
        markers: Folder that foreign code would write to.
        found: Takes the end of the stage.
        seed: Of the traces.
        candidates: How many are offered.
    """
    folder.mkdir(parents=True)
    words = (str(folder), str(markers), str(seed), str(candidates))
    elapsed = stopwatch()
    ended = run_bounded([sys.executable, "-P", "-m", "benchmarks.hostile_live", *words], SLOW_STAGES["live"])
    how = {0: "ok", None: "hang"}.get(ended.code, "crash")
    about = {"kind": f"ended with {ended.code}", "text": ended.errors[-3_000:]}
    found.take("live", {"ended": "live", "how": how, "secs": elapsed(), "peak_mb": 0.0, **about})
    return dict(json.loads(ended.printed.splitlines()[-1])) if how == "ok" else {}


if __name__ == "__main__":
    folder, markers, seed, candidates = sys.argv[1:]
    print(json.dumps(offer(Path(folder), Path(markers), int(seed), int(candidates))))
