"""The parts of `benchmarks.collection`, each a measurement of its own on one device of this host."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from msgspec import structs

from agents.device.messages import Batch
from agents.device.worker import DeviceWorker
from agents.records import (
    Candidate,
    DeviceKind,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from agents.sandbox.job import CandidateJob
from benchmarks.bad_programs import end_of, holdings, hung, killers
from benchmarks.disturbing_load import disturbing_load
from benchmarks.harness import Figures, child_json, drawn, stopwatch
from benchmarks.tvm_sides import EVALUATOR
from fleet.config.init import host_profiles
from fleet.planner.batch_plan import BATCH_SIZE
from fleet.planner.selection import choose_workloads

NETWORKS = ("resnet-50", "mobilenet-v2", "bert-tiny")
MIN_FLOPS, MAX_FLOPS = 2e5, 1e8
#: The protocol with every rule that would make our side do less, or more, than the evaluator's settings.
ALIKE = Protocol(extra_repeats=0, visits=1, early_stop_ratio=0.0, check_share=0.0, reject_interval=0.0)
#: As many as the fleet gives to a device at once: what is timed at several moments is so within its batch.
BATCH = BATCH_SIZE
#: TVM starts its processes afresh for each round: what a round of few candidates costs.
_SMALL_ROUND = 16
#: A steady measurement that is off by more than this is wrong.
_WRONG = 0.1
#: Measurements of everything, for how numbers repeat (each pair of them is a comparison), and of a hung
#: kernel.
_PASSES = 3


def latencies(records: Iterable[Record]) -> dict[str, float]:
    """Latency by candidate; one measured again because it was suspect counts with its better number."""
    found: dict[str, float] = {}
    for record in records:
        if record.outcome is Outcome.OK:
            key = record.candidate_id
            found[key] = min(found.get(key, float("inf")), record.latency_secs)
    return found


def compared(passes: Sequence[Sequence[Record]]) -> Figures:
    """Compare every pair of passes over the same candidates, both ways.

    Returns:
        How much latencies change, and how often, by more than the median change of the pair, another
        candidate of a workload is the fastest the next time.
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for record in itertools.chain.from_iterable(passes):
        groups[record.workload_id].add(record.candidate_id)
    secs = [latencies(records) for records in passes]
    calm = [
        {r.candidate_id for r in records if r.outcome is Outcome.OK and not r.is_suspect}
        for records in passes
    ]
    changes: list[float] = []
    steady: list[float] = []
    flips: list[bool] = []
    for one, other in itertools.permutations(range(len(passes)), 2):
        first, again = secs[one], secs[other]
        change = {key: abs(again[key] / first[key] - 1) for key in first.keys() & again.keys()}
        floor = statistics.median(change.values())
        changes += change.values()
        steady += [change[key] for key in change.keys() & calm[one] & calm[other]]
        for group in (members & change.keys() for members in groups.values()):
            if len(group) > 1:
                chosen = min(group, key=first.__getitem__)
                # Another candidate wins by more than numbers differ anyway.
                flips.append(again[chosen] / min(map(again.__getitem__, group)) - 1 > floor)
    shares = [len(one & found.keys()) / len(found) for one, found in zip(calm, secs, strict=True)]
    return {
        "remeasure_median_change": statistics.median(changes),
        "remeasure_p90_change": statistics.quantiles(changes, n=10)[-1],
        "steady_share": statistics.fmean(shares),
        "remeasure_median_change_steady": statistics.median(steady) if steady else None,
        "remeasure_p90_change_steady": statistics.quantiles(steady, n=10)[-1] if len(steady) > 1 else None,
        # Pairs of steady measurements that differ by more than a tenth: one of them is wrongly steady.
        "wrongly_steady": statistics.fmean(change > _WRONG for change in steady) if steady else None,
        "winner_flip": statistics.fmean(flips),
    }


def _disturbances(record: Record) -> Counter[str]:
    """What disturbed the repeats of a record, and `clean` for those that nothing did."""
    quality = json.loads(record.quality)
    return Counter({"clean": quality.get("clean", 0), **quality.get("disturbed", {})})


class Bench:
    """The parts of the benchmark on one device.

    Args:
        folder: For spools.
        workloads: How many to measure, spread over operators and sizes.
    """

    def __init__(self, folder: Path, workloads: int) -> None:
        self._folder = folder
        # The most capable profile of this host.
        [*_, self._spec] = [one.spec for one in host_profiles() if one.spec.kind is DeviceKind.LOCAL]
        self.cores = os.sched_getaffinity(0)
        with closing(self._worker("list")) as worker:
            listed = worker.network_workloads(NETWORKS)
            self.workloads = choose_workloads(
                listed, count=workloads, min_flops=MIN_FLOPS, max_flops=MAX_FLOPS
            )
        self._by_id = {workload.workload_id: workload for workload in self.workloads}

    def candidates(self, each: int) -> list[Candidate]:
        """`each` random candidates of every workload, interleaved."""
        with closing(self._worker("propose")) as worker:
            pools = [drawn(worker, workload, each) for workload in self.workloads]
        return [pool[place] for place in range(each) for pool in pools if place < len(pool)]

    def part(
        self, candidates: Sequence[Candidate], each: int, workloads: int | None = None
    ) -> list[Candidate]:
        """The first `each` candidates of the first workloads, still interleaved."""
        left = Counter({workload.workload_id: each for workload in self.workloads[:workloads]})
        chosen = []
        for candidate in candidates:
            if left[candidate.workload_id] > 0:
                left[candidate.workload_id] -= 1
                chosen.append(candidate)
        return chosen

    def throughput(self, candidates: Sequence[Candidate]) -> Figures:
        """Both sides on the same candidates."""
        baseline, small = self._baseline(candidates), self._baseline(candidates[:_SMALL_ROUND])
        with closing(self._worker("main")) as worker:
            # The first batch also starts processes and learns what the canaries are: paid once a day.
            self._measure(worker, candidates[:BATCH], ALIKE)
            elapsed = stopwatch()
            # One batch, as the baseline has it: the way of `fleet up`.
            whole = Batch(
                candidates=tuple(candidates),
                workloads=self._by_id,
                protocol=ALIKE,
                attempt=1,
                confirm_within=0.0,
            )
            records = [record for part in worker.measure_parts(whole) for record in part.records]
            wall = elapsed()
        # A disturbed candidate is measured again: that is no second record of use to anybody.
        ok = len({record.candidate_id for record in records if record.outcome is Outcome.OK})
        timing = sum(record.timing_secs for record in records)
        return {
            "candidates": len(candidates),
            "evaluator": EVALUATOR,
            "baseline": "TVM LocalBuilder + LocalRunner, one batch, a builder process a core",
            "records_per_s": ok / wall,
            "baseline_records_per_s": baseline,
            "ratio_records_per_s": ok / wall / baseline,
            "ratio_records_per_s_small_round": ok / wall / small,
            # Of the timings alone, one after the other, with nothing to build.
            "ratio_to_timing_floor": timing / wall,
            "secs_per_record": {
                "build": statistics.fmean(record.build_secs for record in records),
                "time": timing / len(records),
            },
        }

    def repeatability(self, candidates: Sequence[Candidate]) -> Figures:
        """Measure everything several times under the default protocol, every other time in opposite order.

        Each pair of passes is compared both ways. All that the agent returns counts: leaders, which it
        measures twice, with their better number. Then the same beside a load of the benchmark's own.
        """
        protocol = Protocol(early_stop_ratio=0.0)
        quiet = self._repeated(candidates, protocol)
        with disturbing_load(self._spec.cores, self.cores):
            disturbed = self._repeated(candidates, protocol)
        return {"quiet": quiet, "disturbed": disturbed}

    def _repeated(self, candidates: Sequence[Candidate], protocol: Protocol) -> Figures:
        within = Batch(candidates=(), workloads={}, protocol=protocol).confirm_within
        orders = candidates, candidates[::-1]
        with closing(self._worker("main")) as worker:
            elapsed = stopwatch()
            passes = [
                self._measure(worker, orders[turn % 2], protocol, attempt=3 * turn, confirm_within=within)
                for turn in range(_PASSES)
            ]
            secs = elapsed()
        every = list(itertools.chain(*passes))
        return {
            "candidates": len(candidates),
            "passes": _PASSES,
            "measurements": len(every),
            "timing_secs_per_candidate": sum(r.timing_secs for r in every) / (_PASSES * len(candidates)),
            "disturbances": sum(map(_disturbances, every), Counter()),
            "repeats_per_candidate": statistics.fmean(len(r.run_secs) for r in every if r.run_secs),
            "secs": secs,
            **compared(passes),
        }

    def early_stop(self, candidates: Sequence[Candidate]) -> Figures:
        """The same candidates with and without early stop, batch by batch in turn.

        What early stop costs is what would be lost if none of the stopped candidates could be chosen, judged
        by the best of both sides' measurements.
        """
        with_stop, without = Protocol(check_share=0.0), Protocol(check_share=0.0, early_stop_ratio=0.0)
        stopped: list[Record] = []
        full: list[Record] = []
        with closing(self._worker("main")) as one, closing(self._worker("full")) as other:
            for start in range(0, len(candidates), BATCH):
                part = candidates[start : start + BATCH]
                stopped += self._measure(one, part, with_stop)
                full += self._measure(other, part, without)
        best = latencies([*stopped, *full])
        given_up = {r.candidate_id for r in stopped if r.is_stopped_early}
        losses = [
            min(best[key] for key in group if key not in given_up) / min(best[key] for key in group) - 1
            for group in self._by_workload(candidates, best)
        ]
        # Leaders of drifting windows are measured once more; how many depends on the host, not on the rule.
        secs, full_secs = (
            sum(r.timing_secs for r in records if r.attempt == 0) for records in (stopped, full)
        )
        return {
            "candidates": len(candidates),
            "early_stop_ratio": with_stop.early_stop_ratio,
            "stopped": len(given_up),
            "timing_secs": secs,
            "timing_secs_without": full_secs,
            "early_stop_time_saved": 1 - secs / full_secs,
            "early_stop_regret": statistics.fmean(losses),
            "early_stop_regret_max": max(losses),
        }

    def soak(self, candidates: Sequence[Candidate], count: int) -> Figures:
        """Measure `count` candidates, bad ones among them, and compare what is held before and after."""
        protocol = Protocol(
            repeat=2, extra_repeats=0, min_repeat_ms=1.0, run_timeout_secs=2.0, reject_interval=0.0
        )
        bad = [*killers(), hung()]
        known = {workload.workload_id: workload for workload, _ in bad}
        done, outcomes = 0, Counter[str]()
        with closing(self._worker("soak")) as worker:
            self._measure(worker, candidates[:BATCH], protocol)
            before = holdings()
            elapsed = stopwatch()
            for turn in itertools.count(1):
                # Bad ones are in the first batch of each turn.
                whole = [*candidates[:BATCH], *(one for _, one in bad), *candidates[BATCH:]]
                records = self._measure(worker, whole[: count - done], protocol, known, attempt=turn)
                worker.acknowledge([record.record_id for record in records])
                outcomes += Counter(record.outcome for record in records)
                done += len(records)
                if done >= count:
                    break
            secs = elapsed()
            # As before: every process has had work, and those that were lost are there again.
            self._measure(worker, candidates[:BATCH], protocol, attempt=0)
            after = holdings()
        return {
            "candidates": done,
            "secs": secs,
            "outcomes": outcomes,
            "before": before,
            "after": after,
        }

    def hung_kernel(self) -> Figures:
        """How long after its time-out a kernel that never returns is gone."""
        protocol = Protocol(run_timeout_secs=2.0)
        workload, candidate = hung()
        late: list[float] = []
        with closing(self._worker("hung")) as worker:
            pool = worker.pool
            for _ in range(_PASSES):
                pool.ask({"op": "networks", "networks": []})
                with ThreadPoolExecutor(1) as watcher:
                    end_at = watcher.submit(end_of, pool.pids[1])
                    started = time.monotonic()
                    job = CandidateJob(candidate=candidate, workload=workload, protocol=protocol)
                    [result] = pool.run([job])
                assert result.outcome is Outcome.RUN_TIMEOUT, result
                lasted = end_at.result() - started - result.build_secs - result.wait_secs
                late.append(lasted - protocol.run_timeout_secs)
        return {
            "hung_kernel_secs_after_timeout": max(late),
            "run_timeout_secs": protocol.run_timeout_secs,
        }

    def _worker(self, name: str) -> DeviceWorker:
        """A fresh worker; one that was before under the same name left what it learnt of the canaries."""
        os.sched_setaffinity(0, self.cores)
        return DeviceWorker(self._spec, self._folder / name, usable_cores=sorted(self.cores))

    def _measure(
        self,
        worker: DeviceWorker,
        candidates: Sequence[Candidate],
        protocol: Protocol,
        known: Mapping[WorkloadId, Workload] = MappingProxyType({}),
        attempt: int = 0,
        confirm_within: float = 0.0,
    ) -> list[Record]:
        whole = Batch(
            candidates=(),
            workloads={**self._by_id, **known},
            protocol=protocol,
            attempt=attempt,
            confirm_within=confirm_within,
        )
        parts = (tuple(candidates[start : start + BATCH]) for start in range(0, len(candidates), BATCH))
        return [one for part in parts for one in worker.measure(structs.replace(whole, candidates=part))]

    def _baseline(self, candidates: Sequence[Candidate]) -> float:
        """Records per second of TVM's own builder and runner."""
        question = {
            "way": "local",
            "target": self._spec.target,
            "workers": len(self.cores),
            "candidates": [[self._by_id[c.workload_id].module_json, c.trace] for c in candidates],
        }
        os.sched_setaffinity(0, self.cores)
        answer = child_json(["-m", "benchmarks.tvm_sides"], question=question)
        if not answer["records_per_s"]:
            raise RuntimeError(f"TVM's own builder and runner measured nothing: {answer['errors'][:1]}")
        return float(answer["records_per_s"])

    def _by_workload(self, candidates: Sequence[Candidate], wanted: Mapping[str, float]) -> list[list[str]]:
        groups: dict[str, list[str]] = {}
        for candidate in candidates:
            if candidate.candidate_id in wanted:
                groups.setdefault(candidate.workload_id, []).append(candidate.candidate_id)
        return [group for group in groups.values() if len(group) > 1]
