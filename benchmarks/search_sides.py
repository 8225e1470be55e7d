"""The sides of `benchmarks.search`: each searches one workload, on the same builder and runner.

Every finished run is a file of the folder, so that a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import fleet
from agents.codec import workload_from_json
from agents.device.messages import Batch
from agents.device.worker import DeviceWorker
from agents.records import (
    REPEATS,
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Outcome,
    Protocol,
    Record,
    Workload,
    as_json_dict,
)
from benchmarks.harness import child_json, drawn, kept, stopwatch
from benchmarks.tvm_sides import Curve
from fleet.config.settings import FleetConfig, load_fleet, select_devices
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.models.registry import Registry
from fleet.models.training import train_version
from fleet.models.versions import is_held_out
from fleet.store.store import Store
from fleet.tuning.search import Search, unmeasured

#: The sides.
OURS, NO_HEAD, XGB, RANDOM, STOCK = "ours", "ours_without_head", "xgb", "random", "stock"
#: Ours with the head of the shipped model, without a sample; searched only where it is asked for.
DAY_ZERO = "ours_day_zero"
#: Samples of the device that its head may be made from.
MOST_SAMPLES = 256
#: What a round measures; ours is that of `fleet.tuning`.
_PER_ROUND = 16
#: How often the best programs are timed again, in turn.
_TURNS = 9
_SECS_LIMIT = 3600.0


class SearchBench:
    """One device, the head that it is searched with, and the runs so far.

    Args:
        settings: With the store that the head is made from.
        device: Id of the device.
        folder: For stores, models, spools and finished runs; kept.
        without: Devices of the store that the head learns nothing from.
        models: Folder whose head of the device is taken, in place of one that is made; None for none.
    """

    def __init__(
        self,
        settings: FleetConfig,
        device: str,
        folder: Path,
        without: Collection[str] = (),
        models: Path | None = None,
    ) -> None:
        self._settings = settings
        self._folder, self._models = folder, models or folder / "models"
        self._is_made = models is None
        self._without = without
        self._cores = os.sched_getaffinity(0)
        self.spec: DeviceSpec = select_devices(settings)[DeviceId(device)]

    def head(self) -> JsonDict:
        """Make the device's head from other workloads of the store, with few samples of the device."""
        if self._is_made:
            return self._once("head", self._trained)
        champion = Registry(self._models).champions().get(self.spec.device_id)
        if champion is None:
            raise FleetError(f"{self._models} has no head that serves {self.spec.device_id}")
        return {"version": champion.version, "reason": champion.reason}

    def workloads(self, networks: tuple[str, ...], count: int, most_flops: float) -> list[Workload]:
        """Workloads that no head learns from: of the networks in turn, and of as many operators."""

        def listed() -> JsonDict:
            with closing(self._worker("workloads")) as worker:
                return {"found": [as_json_dict(one) for one in worker.network_workloads(networks)]}

        known = [workload_from_json(one) for one in self._once("workloads", listed)["found"]]
        known = [one for one in known if is_held_out(one) and 1e6 <= one.flops <= most_flops]
        known.sort(key=lambda one: (-one.flops, one.workload_id))
        chosen: list[Workload] = []
        operators, used = Counter[str](), Counter[str]()
        while known and len(chosen) < count:
            best = min(
                known, key=lambda one: (min(used[name] for name, _ in one.networks), operators[one.operator])
            )
            known.remove(best)
            chosen.append(best)
            operators[best.operator] += 1
            used.update(name for name, _ in best.networks)
        return chosen

    def run(self, side: str, workload: Workload, trials: int, seed: int) -> JsonDict:
        """A side's search: see `benchmarks.search`; `best` holds the traces of its incumbents by trials."""
        ways: dict[str, Callable[[Workload, int, int], JsonDict]] = {
            **{name: partial(self._ours, name) for name in (OURS, NO_HEAD, DAY_ZERO)},
            RANDOM: self._random,
            **{name: partial(self._tvm, name) for name in (XGB, STOCK)},
        }
        name = f"{side}-{workload.workload_id}-{trials}-{seed}"
        return self._once(name, lambda: ways[side](workload, trials, seed))

    def timed(self, name: str, workload: Workload, traces: Mapping[str, str]) -> dict[str, list[float]]:
        """Latencies of programs in several turns; of one all are a batch, each timed at several moments."""
        asked = {
            label: Candidate(workload_id=workload.workload_id, trace=trace) for label, trace in traces.items()
        }
        distinct = unmeasured(asked.values(), ())

        def measure() -> JsonDict:
            found: dict[CandidateId, list[float]] = {one.candidate_id: [] for one in distinct}
            with closing(self._worker(f"again-{workload.workload_id}")) as worker:
                for turn in range(_TURNS):
                    latencies: dict[CandidateId, float] = {}
                    for record in self._measure(worker, workload, distinct, attempt=turn):
                        # The best of a drifting window come again with the next batch.
                        if record.outcome is Outcome.OK:
                            latencies.setdefault(record.candidate_id, record.latency_secs)
                    for candidate_id, secs in latencies.items():
                        found[candidate_id].append(secs)
            return {label: found[one.candidate_id] for label, one in asked.items()}

        return self._once(f"led-{name}-{workload.workload_id}", measure)

    def _trained(self) -> JsonDict:
        elapsed = stopwatch()
        known = self._folder / "known"
        source = Store.read(self._settings.store.path)
        workloads = source.workloads()
        left, learnt = MOST_SAMPLES, list[Record]()
        for record in source.records():
            workload = workloads.get(record.workload_id)
            if workload is None or is_held_out(workload) or record.device_id in self._without:
                continue
            if record.device_id == self.spec.device_id:
                if left <= 0:
                    continue
                left -= record.attempt == 0
            learnt.append(record)
        with Store.open(known) as store:
            for entry in source.devices().values():
                if entry.descriptor is not None and entry.spec.device_id not in self._without:
                    store.put_device(entry.spec, entry.descriptor)
            own = source.own_workloads()
            store.put_workloads(list(own.values()), own=True)
            store.put_workloads([one for name, one in workloads.items() if name not in own])
            store.append(learnt)
        settings = load_fleet(None, {"store.path": str(known)}).config
        found = train_version(settings, self._models, ())
        return {
            "version": found["version"],
            "samples": MOST_SAMPLES - left,
            "records_of_other_devices": sum(one.device_id != self.spec.device_id for one in learnt),
            "learnt_workloads": len({one.workload_id for one in learnt}),
            "secs": elapsed(),
        }

    def _ours(self, side: str, workload: Workload, trials: int, seed: int) -> JsonDict:
        name = f"{workload.workload_id}-{side}-{trials}-{seed}"
        place = self._folder / "stores" / f"{name}-{time.time_ns()}"  # empty, also after a kill
        options = fleet.EngineOptions(
            models=self._models if side == OURS else place / "models",
            settings={"training.seed": seed, "onboarding.shipped": side == DAY_ZERO},
        )
        os.sched_setaffinity(0, self._cores)
        began, clock = time.time(), time.perf_counter()
        found = tuned(
            place,
            options,
            device=self.spec.device_id,
            networks=[network for network, _ in workload.networks],
            workloads=[workload.name],
            trials=trials,
        )
        secs = time.perf_counter() - clock
        if side != NO_HEAD and found["model"] is None:
            raise RuntimeError(f"no head ranked the candidates: {found['why_no_model']}")
        records = sorted(Store.read(place / "store").records(), key=lambda one: one.measured_at)
        [searched] = found["workloads"]
        ends = [tried for tried, _ in searched["curve"]]
        return {
            **_settled_curve(Search(workload), _in_rounds(records, ends, seed), records, began),
            "secs": secs,
            "parts": found["seconds"],
            "ended": found["ended"],
        }

    def _random(self, workload: Workload, trials: int, seed: int) -> JsonDict:
        with closing(self._worker(f"random-{workload.workload_id}-{seed}")) as worker:
            began, clock = time.time(), time.perf_counter()
            pool = drawn(worker, workload, trials, seed=seed)
            places = {one.candidate_id: place for place, one in enumerate(pool)}
            records = self._measure(worker, workload, pool)
            records.sort(key=lambda one: places.get(one.candidate_id, len(places)))
            curve = Curve()
            for record in records:
                if not _is_second_look(record):
                    curve.add(record.trace, _secs_of(record), record.measured_at - began)
            return {**curve.answer(), "secs": time.perf_counter() - clock}

    def _tvm(self, model: str, workload: Workload, trials: int, seed: int) -> JsonDict:
        question = {
            "way": model,
            "workload": as_json_dict(workload),
            "device": self.spec.device_id,
            "target": self.spec.target,
            "trials": trials,
            "per_round": _PER_ROUND,
            "workers": len(self._cores),
            "seed": seed,
        }
        os.sched_setaffinity(0, self._cores)
        elapsed = stopwatch()
        command = ["-m", "benchmarks.tvm_sides"]
        answer = child_json(command, question=question, timeout_secs=_SECS_LIMIT)
        return {**answer, "secs": elapsed()}

    def _worker(self, name: str) -> DeviceWorker:
        os.sched_setaffinity(0, self._cores)
        return DeviceWorker(self.spec, self._folder / "spools" / name, usable_cores=sorted(self._cores))

    def _measure(
        self, worker: DeviceWorker, workload: Workload, candidates: list[Candidate], *, attempt: int = 0
    ) -> list[Record]:
        batch = Batch(
            candidates=tuple(candidates),
            workloads={workload.workload_id: workload},
            protocol=Protocol(check_share=0.0),
            attempt=attempt,
            confirm_within=0.0,
        )
        return worker.measure(batch)

    def _once(self, name: str, make: Callable[[], JsonDict]) -> JsonDict:
        return kept(self._folder / "runs" / f"{name}.json", make)


def _in_rounds(records: list[Record], ends: Sequence[int], seed: int) -> list[list[Record]]:
    """Trials by round, at random inside of each.

    A fast program is timed once more at the end of its batch, so records end with the fastest ones: in that
    order a search would seem to need all trials of a round to find its best.

    Args:
        records: As they ended.
        ends: Trials after each round.
        seed: Of the order.
    """
    trials = [one for one in records if not _is_second_look(one)]
    places = random.Random(seed)
    return [
        places.sample(trials[start:end], len(trials[start:end]))
        for start, end in itertools.pairwise([0, *ends, len(trials)])
    ]


def _secs_of(record: Record) -> float | None:
    return record.latency_secs if record.outcome is Outcome.OK else None


def _is_second_look(record: Record) -> bool:
    return record.origin in REPEATS or record.attempt > 0


def _settled_curve(
    search: Search, rounds: Sequence[Sequence[Record]], records: Sequence[Record], began: float
) -> JsonDict:
    """Trials of one of our searches, and the programs that it would have given after each.

    Second looks are no trials. At the end of its round each is taken in, as `fleet tune` does.
    """
    trials: list[list[float | None]] = []
    best: dict[str, str] = {}
    looks = [one for one in records if _is_second_look(one)]
    starts = [min((one.measured_at for one in found), default=math.inf) for found in rounds]
    for found, end in zip(rounds, [*starts[1:], math.inf], strict=True):
        due = [one for one in looks if one.measured_at < end]
        looks = looks[len(due) :]
        for seen in [*([one] for one in found), due]:
            search.see(seen)
            trials += [[one.measured_at - began, _secs_of(one)] for one in seen if not _is_second_look(one)]
            if search.parents:
                best[str(len(trials))] = search.parents[0]
    pairs = itertools.pairwise([("", ""), *best.items()])
    changes = {count: trace for (_, before), (count, trace) in pairs if trace != before}
    return {"trials": trials, "best": changes}


def tuned(folder: Path, options: fleet.EngineOptions, **request: Any) -> JsonDict:
    """What `fleet tune` does in an empty store where no daemon runs.

    Args:
        folder: Gets store, daemon and what `fleet tune` writes.
        options: Models, minutes and settings.
        request: Of `fleet.Tune`.
    """
    settings = {**options.settings, "daemon.root": str(folder / "fleet")}
    options = replace(options, store=folder / "store", settings=settings, console=Console(stderr=True))
    result = fleet.run(fleet.Tune(out=str(folder / "tuned"), **request), options)
    assert result is not None  # no daemon was left alone with it
    return result
