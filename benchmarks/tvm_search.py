"""TVM's own search of one workload: the baselines of `search.py`.

Two ways: `tune_tir` as it is shipped, with its own builder and runner (`stock`), and its search with its
XGBoost model (`xgb`) on our builder and runner, so that only the search differs. Run as a process
of its own, `python -m benchmarks.tvm_search`, with one JSON object on stdin and one on stdout, so that
neither side inherits the other's pinning or memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agents.codec import workload_from_json
from agents.records import Candidate, DeviceId, Outcome, Protocol, canonical_json

#: TVM's default of 30 s would fail all candidates where its processes take longer than that to start.
_TIMEOUT_SECS = 180.0


def stock(question: dict[str, Any]) -> dict[str, Any]:
    """Search one workload with `tune_tir` as it is shipped.

    Args:
        question: `workload` (JSON), `target`, `trials`, `per_round`, `workers`, `seed`, `evaluator` (number,
            repeat, min_repeat_ms).

    Returns:
        `secs` (wall), `trials` as [seconds since the start, latency or None] of each trial, in their order,
        and `best`, the traces of the best program by trials.
    """
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    module = tvm.ir.load_json(question["workload"]["module_json"])
    evaluator = ms.runner.EvaluatorConfig(**question["evaluator"], enable_cpu_cache_flush=False)
    told = _Curve()

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # tvm publishes no types
        """Notes what was measured, and when."""

        def apply(
            self,
            task_scheduler: Any,
            task_id: int,
            measure_candidates: Sequence[Any],
            builder_results: Sequence[Any],
            runner_results: Sequence[Any],
        ) -> None:
            for candidate, result in zip(measure_candidates, runner_results, strict=True):
                told.add(_trace(candidate.sch), _latency(result.run_secs))

    with tempfile.TemporaryDirectory() as folder:
        ms.tune_tir(
            mod=module,
            target=tvm.target.Target(question["target"]),
            work_dir=folder,
            max_trials_global=question["trials"],
            num_trials_per_iter=question["per_round"],
            builder=ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS),
            runner=ms.runner.LocalRunner(timeout_sec=_TIMEOUT_SECS, evaluator_config=evaluator),
            measure_callbacks=[ms.measure_callback.AddToDatabase(), Watch()],
            cost_model="xgb",
            num_tuning_cores=question["workers"],
            seed=question["seed"],
        )
    return told.answer()


def with_our_runner(question: dict[str, Any]) -> dict[str, Any]:
    """Search one workload with TVM's evolutionary search and its XGBoost model; our worker measures.

    Args:
        question: As of `stock`, and `device`, `folder` for the worker's spool.

    Returns:
        As of `stock`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.device.batch import Batch
    from agents.device.worker import DeviceWorker
    from agents.programs.tvm_import import load_tensor_intrinsics
    from fleet.config.settings import load_fleet, select_devices

    workload = workload_from_json(question["workload"])
    spec = select_devices(load_fleet(None).config)[DeviceId(question["device"])]
    load_tensor_intrinsics(spec.family)
    told, cores = _Curve(), os.sched_getaffinity(0)
    with closing(DeviceWorker(spec, Path(question["folder"]), usable_cores=sorted(cores))) as worker:
        os.sched_setaffinity(0, cores)  # its search waits for no timing
        module, target = tvm.ir.load_json(workload.module_json), tvm.target.Target(spec.target)
        context = ms.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name=workload.name,
            num_threads=question["workers"],
            rand_state=question["seed"] + 1,
        )
        database = ms.database.MemoryDatabase()
        model = ms.cost_model.XGBModel(num_tuning_cores=question["workers"])
        entry = database.commit_workload(module)
        context.pre_tuning(question["trials"], question["per_round"], None, database, model)
        while (candidates := context.generate_measure_candidates()) is not None:
            traces = [_trace(one.sch) for one in candidates]
            batch = Batch(
                candidates=tuple(Candidate(workload_id=workload.workload_id, trace=one) for one in traces),
                workloads={workload.workload_id: workload},
                protocol=Protocol(check_share=0.0),
                confirm_within=0.0,
            )
            latency = {
                record.trace: record.latency_secs
                for record in worker.measure(batch)
                if record.outcome is Outcome.OK and record.attempt == 0
            }
            results = []
            for candidate, trace in zip(candidates, traces, strict=True):
                secs = latency.get(trace)
                told.add(trace, secs)
                results.append(ms.runner.RunnerResult(None if secs is None else [secs], _error(secs)))
                if secs is not None:
                    record = ms.database.TuningRecord(
                        candidate.sch.trace, entry, [secs], target, candidate.args_info
                    )
                    database.commit_tuning_record(record)
            context.notify_runner_results(candidates, results)
            model.update(context, candidates, results)
        context.post_tuning()
    return told.answer()


class _Curve:
    """Trials as they come."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._trials: list[list[float | None]] = []
        self._best: dict[str, str] = {}
        self._least = math.inf

    def add(self, trace: str, secs: float | None) -> None:
        """Note one trial."""
        self._trials.append([time.perf_counter() - self._began, secs])
        if secs is not None and secs < self._least:
            self._least = secs
            self._best[str(len(self._trials))] = trace

    def answer(self) -> dict[str, Any]:
        """What is told."""
        return {"secs": time.perf_counter() - self._began, "trials": self._trials, "best": self._best}


def _trace(schedule: Any) -> str:
    from agents.programs.design_space import plain_json

    return canonical_json(plain_json(schedule.trace.as_json()))


def _latency(run_secs: Any) -> float | None:
    """The fastest repeat, as of our records; None where it did not run."""
    secs = [float(one) for one in run_secs or ()]
    return min(secs) if secs and max(secs) < 1e9 else None


def _error(secs: float | None) -> str | None:
    return "it did not run" if secs is None else None


def main() -> None:
    """Answer one question. TVM's own words go to stderr."""
    question = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        answer = stock(question) if question["model"] == "stock" else with_our_runner(question)
    with os.fdopen(answers, "w") as stdout:
        print(json.dumps(answer), file=stdout)


if __name__ == "__main__":
    main()
