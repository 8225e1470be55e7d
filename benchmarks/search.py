"""What heads are worth in a search: `python -m benchmarks.search --json --store STORE --device DEVICE`.

Workloads that no training learns from (`fleet.models.holdout`) are searched on one device of this host with
the same number of trials by `fleet tune` with a head trained on the store's other workloads, by `fleet tune`
without a head, by TVM's `tune_tir` with its XGBoost model, and by random draws. None of the searches knows an
earlier record of the workload. Then the best program of each is timed again by one agent, in turn. Needs a
store with records of the device, two cores and, for 3 workloads of 64 trials, some 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from agents.device.batch import Batch
from agents.device.worker import DeviceWorker
from agents.records import Candidate, DeviceId, DeviceSpec, Outcome, Protocol, Record, Workload
from fleet.collection.progress import TerminalDisplay
from fleet.config.settings import FleetConfig, load_fleet, select_devices
from fleet.core.request_words import RequestKind
from fleet.daemon.daemon import UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.models.holdout import held_out
from fleet.models.training import train_version
from fleet.requests.session import EngineSession
from fleet.store.store import Store
from fleet.tuning.tuning import TuneOptions, tune_device

#: TVM's evaluator and ours, alike.
EVALUATOR = {"number": 1, "repeat": 5, "min_repeat_ms": 10}
#: What TVM measures a round; ours is that of `fleet.tuning`.
_PER_ROUND = 16
#: How often the best programs are timed again, in turn.
_TURNS = 5
_SIDES = ("fleet", "fleet_without_head", "tvm", "random")


class Bench:
    """One device, and the workloads that are searched on it.

    Args:
        settings: With the store that heads are trained from.
        device: Id of the device.
        count: Workloads.
        folder: For stores, models and spools of the searches.
    """

    def __init__(self, settings: FleetConfig, device: str, count: int, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._cores = os.sched_getaffinity(0)
        self.spec: DeviceSpec = select_devices(settings)[DeviceId(device)]
        self.workloads = _searched(settings, count)

    def train(self) -> dict[str, Any]:
        """Train a version on the store, less the workloads that it holds out."""
        began = time.perf_counter()
        found = train_version(self._settings, self._folder / "models", ())
        return {"version": found["version"], "secs": round(time.perf_counter() - began, 1)}

    def fleet(self, workload: Workload, trials: int, seed: int, *, head: bool) -> tuple[str | None, float]:
        """The trace that `fleet tune` finds in an empty store, and its wall seconds."""
        name = f"{workload.workload_id}-{'head' if head else 'none'}-{seed}"
        store = self._folder / name / "store"
        networks = tuple(network for network, _ in workload.networks)
        settings = self._settings.model_copy(
            update={
                "store": self._settings.store.model_copy(update={"path": str(store)}),
                "daemon": self._settings.daemon.model_copy(update={"root": str(store.parent / "fleet")}),
                "workloads": self._settings.workloads.model_copy(update={"networks": networks}),
                "training": self._settings.training.model_copy(update={"seed": seed}),
            }
        )
        settings = settings.with_devices(self.spec.device_id)
        options = TuneOptions(
            trials=trials,
            workloads=(workload.name,),
            models=self._folder / "models" if head else self._folder / "none",
            out=self._folder / name / "tuned",
        )
        os.sched_setaffinity(0, self._cores)
        began = time.perf_counter()
        found = _tuned(settings, self.spec, options)
        secs = time.perf_counter() - began
        if head and found["model"] is None:
            raise RuntimeError(f"no head ranked the candidates: {found['why_no_model']}")
        return _fastest(Store.read(store).records()), secs

    def random(self, workload: Workload, trials: int, seed: int) -> tuple[str | None, float]:
        """The best trace of random draws, and the wall seconds of drawing and measuring them."""
        with closing(self._worker(f"random-{workload.workload_id}-{seed}")) as worker:
            began = time.perf_counter()
            drawn = worker.propose(workload, trials, seed=seed)
            records = self._measure(worker, workload, drawn, confirm_within=0.05)
            return _fastest(records), time.perf_counter() - began

    def tvm(self, workload: Workload, trials: int, seed: int) -> tuple[str | None, float]:
        """The trace that TVM's search finds, and its wall seconds."""
        question = {
            "target": self.spec.target,
            "module": workload.module_json,
            "trials": trials,
            "per_round": _PER_ROUND,
            "workers": len(self._cores),
            "seed": seed,
            "evaluator": EVALUATOR,
        }
        os.sched_setaffinity(0, self._cores)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.tvm_search"],
            input=json.dumps(question),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        return answer["trace"], answer["secs"]

    def timed(self, workload: Workload, traces: dict[str, str | None]) -> dict[str, float | None]:
        """Latency of each side's program: the median of several turns in which all of them are timed."""
        known = {side: trace for side, trace in traces.items() if trace is not None}
        found: dict[str, list[float]] = {side: [] for side in known}
        with closing(self._worker(f"again-{workload.workload_id}")) as worker:
            for turn in range(_TURNS):
                for side, trace in known.items():
                    one = Candidate(workload_id=workload.workload_id, trace=trace)
                    # The best of a drifting window come again with the next batch, whichever that is.
                    found[side] += [
                        record.latency_secs
                        for record in self._measure(worker, workload, [one], attempt=turn)
                        if record.outcome is Outcome.OK and record.candidate_id == one.candidate_id
                    ]
        return {side: statistics.median(found[side]) if found.get(side) else None for side in traces}

    def _worker(self, name: str) -> DeviceWorker:
        os.sched_setaffinity(0, self._cores)
        return DeviceWorker(self.spec, self._folder / "spools" / name, usable_cores=sorted(self._cores))

    def _measure(
        self,
        worker: DeviceWorker,
        workload: Workload,
        candidates: list[Candidate],
        *,
        attempt: int = 0,
        confirm_within: float = 0.0,
    ) -> list[Record]:
        batch = Batch(
            candidates=tuple(candidates),
            workloads={workload.workload_id: workload},
            protocol=Protocol(check_share=0.0),
            attempt=attempt,
            confirm_within=confirm_within,
        )
        return worker.measure(batch)


def _tuned(settings: FleetConfig, spec: DeviceSpec, options: TuneOptions) -> dict[str, Any]:
    """What `fleet tune` does where no daemon runs."""
    console = Console(stderr=True)

    def work(session: EngineSession) -> dict[str, Any]:
        session.ready([spec.device_id])
        return tune_device(session, settings, spec, options, TerminalDisplay(console))

    arguments = {"device": spec.device_id, "trials": options.trials}
    up = UpOptions(models=options.models)
    return run_embedded(settings, RequestKind.TUNING, arguments, up, console, work)


def _searched(settings: FleetConfig, count: int) -> list[Workload]:
    """Held-out workloads of the store with many FLOPs, of as many operators as there are."""
    store = Store.read(settings.store.path)
    workloads = store.own_workloads().values()  # TVM is given no module of others
    held = held_out(workloads)
    known = [one for one in workloads if one.workload_id in held and one.networks]
    known.sort(key=lambda one: -one.flops)
    chosen: list[Workload] = []
    while known and len(chosen) < count:
        operators = [one.operator for one in chosen]
        chosen.append(min(known, key=lambda one: operators.count(one.operator)))
        known.remove(chosen[-1])
    if not chosen:
        raise SystemExit(f"{settings.store.path} has no held-out workload of a known network: collect more")
    return chosen


def _fastest(records: Any) -> str | None:
    """The trace of the fastest candidate; measured twice, it counts with its better number."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    return min(ok, key=lambda record: record.latency_secs).trace if ok else None


def measure(settings: FleetConfig, *, device: str, count: int, trials: int, seed: int) -> dict[str, Any]:
    """Search each workload four times and compare what was found."""
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(settings, device, count, Path(made))
        trained = bench.train()
        rows = []
        for workload in bench.workloads:
            found = {
                "fleet": bench.fleet(workload, trials, seed, head=True),
                "fleet_without_head": bench.fleet(workload, trials, seed, head=False),
                "tvm": bench.tvm(workload, trials, seed),
                "random": bench.random(workload, trials, seed),
            }
            latencies = bench.timed(workload, {side: trace for side, (trace, _) in found.items()})
            rows.append(
                {
                    "workload": workload.name,
                    "latency_secs": latencies,
                    "search_secs": {side: round(secs, 1) for side, (_, secs) in found.items()},
                }
            )
    ratios = {side: _ratio(rows, "latency_secs", side) for side in _SIDES[1:]}
    return {
        "benchmark": "search",
        "device": device,
        "trials": trials,
        "trained": trained,
        "evaluator": EVALUATOR,
        "baseline": "TVM tune_tir with its XGBoost model, LocalBuilder and LocalRunner, a process a core",
        "workloads": rows,
        # Above 1: the program of `fleet tune` is faster. Geometric means over the workloads.
        "ratio_latency_tvm": ratios["tvm"],
        "ratio_latency_without_head": ratios["fleet_without_head"],
        "ratio_latency_random": ratios["random"],
        "ratio_search_secs_tvm": _ratio(rows, "search_secs", "tvm"),
    }


def _ratio(rows: list[dict[str, Any]], what: str, side: str) -> float | None:
    pairs = [(row[what][side], row[what]["fleet"]) for row in rows]
    if any(theirs is None or ours is None for theirs, ours in pairs):
        return None
    return round(math.exp(statistics.fmean(math.log(theirs / ours) for theirs, ours in pairs)), 3)


def main() -> None:
    """Parse the command line, search, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--store", type=Path, required=True, help="records that the head is trained from")
    parser.add_argument("--device", required=True, help="device of this host, by its id")
    parser.add_argument("--workloads", type=int, default=3, help="held-out workloads to search")
    parser.add_argument("--trials", type=int, default=64, help="candidates that each side measures of each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = load_fleet(None, {"store.path": str(options.store)}).config
    found = measure(
        settings, device=options.device, count=options.workloads, trials=options.trials, seed=options.seed
    )
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
