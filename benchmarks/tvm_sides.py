"""TVM's own ways to measure and to search: the baselines of `collection`, `search` and `networks`.

- `local`: `LocalBuilder` and `LocalRunner` on given candidates.
- `stock`: `tune_tir` as it is shipped, with its own builder and runner, of one workload.
- `plugged`: `tune_tir` with our builder and runner.
- `xgb`: its search with its XGBoost model on our builder and runner, so that only the search differs.
- `network`: `tune_relax` with its XGBoost model, of a whole network, until it is ended. It measures with our
  worker processes: its own builder starts processes anew for each round, half a minute on two cores, and
  would see few candidates in the same time.

Run as a process of its own, `python -m benchmarks.tvm_sides`, with one JSON object on stdin, whose `way` is
one of these, and one on stdout, so that neither side inherits the other's pinning or memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agents.codec import workload_from_json
from agents.records import Candidate, DeviceId, Family, Outcome, Protocol, canonical_json
from fleet.json_types import JsonDict

#: TVM's default of 30 s would fail all candidates where its processes take longer than that to start.
_TIMEOUT_SECS = 180.0


def local(question: JsonDict) -> JsonDict:
    """Build and run candidates in one batch, as TVM's measuring loop does.

    Args:
        question: `target`, `workers`, `evaluator` (number, repeat, min_repeat_ms), `candidates` as a list of
            [module JSON, trace JSON].

    Returns:
        Wall seconds of building and of running, the mean seconds of each candidate (None: failed), errors.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.build import replay

    target = tvm.target.Target(question["target"])
    # Replayed before the clock starts: in its measuring loop TVM holds the schedules already.
    scheduled = [
        (replay(tvm.ir.load_json(module), trace), tvm.ir.load_json(module))
        for module, trace in question["candidates"]
    ]
    builder = ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS)
    runner = ms.runner.LocalRunner(
        timeout_sec=_TIMEOUT_SECS,
        evaluator_config=ms.runner.EvaluatorConfig(**question["evaluator"], enable_cpu_cache_flush=False),
    )
    started = time.perf_counter()
    built = builder.build([ms.builder.BuilderInput(module, target) for module, _ in scheduled])
    between = time.perf_counter()
    inputs = [
        ms.runner.RunnerInput(
            result.artifact_path, "cpu", ms.arg_info.ArgInfo.from_prim_func(original["main"])
        )
        for result, (_, original) in zip(built, scheduled, strict=True)
        if result.artifact_path is not None
    ]
    latencies: list[float | None] = []
    errors = [str(result.error_msg) for result in built if result.error_msg]
    for future in runner.run(inputs):
        result = future.result()
        errors += [str(result.error_msg)] if result.error_msg else []
        seconds = result.run_secs
        latencies.append(sum(map(float, seconds)) / len(seconds) if seconds else None)
    ended = time.perf_counter()
    return {
        "build_secs": between - started,
        "run_secs": ended - between,
        "latencies": latencies,
        "built": len(inputs),
        "errors": errors,
    }


def stock(question: JsonDict) -> JsonDict:
    """Search one workload with `tune_tir`: as it is shipped, or plugged into our builder and runner.

    Args:
        question: `workload` (JSON), `target`, `trials`, `per_round`, `workers`, `seed`, and `evaluator`
            (number, repeat, min_repeat_ms) or, of the way `plugged`, `device`.

    Returns:
        `secs` (wall), `trials` as [seconds since the start, latency or None] of each trial, in their order,
        and `best`, the traces of the best program by trials.
    """
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    module = tvm.ir.load_json(question["workload"]["module_json"])
    told = Curve()

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

    with tempfile.TemporaryDirectory() as folder, _measure(question) as (builder, runner):
        ms.tune_tir(
            mod=module,
            target=tvm.target.Target(question["target"]),
            work_dir=folder,
            max_trials_global=question["trials"],
            num_trials_per_iter=question["per_round"],
            builder=builder,
            runner=runner,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), Watch()],
            cost_model="xgb",
            num_tuning_cores=question["workers"],
            seed=question["seed"],
        )
    return told.answer()


@contextlib.contextmanager
def _measure(question: JsonDict) -> Iterator[tuple[Any, Any]]:
    """Builder and runner of a search with `tune_tir`."""
    from tvm.s_tir import meta_schedule as ms

    from fleet import tvm_measure

    if question["way"] == "plugged":
        with tvm_measure(question["device"]) as ours:
            yield ours.builder, ours.runner
        return
    evaluator = ms.runner.EvaluatorConfig(**question["evaluator"], enable_cpu_cache_flush=False)
    yield (
        ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS),
        ms.runner.LocalRunner(timeout_sec=_TIMEOUT_SECS, evaluator_config=evaluator),
    )


def with_our_runner(question: JsonDict) -> JsonDict:
    """Search one workload with TVM's evolutionary search and its XGBoost model; our worker measures.

    Args:
        question: As of `stock`, and `device`, `folder` for the worker's spool.

    Returns:
        As of `stock`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.device.messages import Batch
    from agents.device.worker import DeviceWorker
    from agents.programs.tvm_import import load_tensor_intrinsics
    from fleet.config.settings import load_fleet, select_devices

    workload = workload_from_json(question["workload"])
    spec = select_devices(load_fleet(None).config)[DeviceId(question["device"])]
    load_tensor_intrinsics(spec.family)
    told, cores = Curve(), os.sched_getaffinity(0)
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
                results.append(ms.runner.RunnerResult(secs and [secs], None if secs else "it did not run"))
                if secs is not None:
                    record = ms.database.TuningRecord(
                        candidate.sch.trace, entry, [secs], target, candidate.args_info
                    )
                    database.commit_tuning_record(record)
            context.notify_runner_results(candidates, results)
            model.update(context, candidates, results)
        context.post_tuning()
    return told.answer()


class Curve:
    """Trials as they come, and the programs that led."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._trials: list[list[float | None]] = []
        self._best: dict[str, str] = {}
        self._least = math.inf

    def add(self, trace: str, secs: float | None, at_secs: float | None = None) -> None:
        """Note one trial, which ended just now, or so many seconds after the start."""
        self._trials.append([time.perf_counter() - self._began if at_secs is None else at_secs, secs])
        if secs is not None and secs < self._least:
            self._least = secs
            self._best[str(len(self._trials))] = trace

    def answer(self) -> JsonDict:
        """What is told."""
        return {"secs": time.perf_counter() - self._began, "trials": self._trials, "best": self._best}


def _trace(schedule: Any) -> str:
    from agents.programs.design_space import plain_json

    return canonical_json(plain_json(schedule.trace.as_json()))


def _latency(run_secs: Any) -> float | None:
    """The fastest repeat, as of our records; None where it did not run."""
    secs = [float(one) for one in run_secs or ()]
    return min(secs) if secs and max(secs) < 1e9 else None


def programs(text: str) -> Any:
    """A network as the tensor programs of `fleet tune`."""
    from agents.networks.graph import fused, relax_module
    from agents.networks.network_name import read_network_name
    from agents.networks.sources import load

    return fused(relax_module(load(read_network_name(text))), Family.CPU, text)


def network(question: JsonDict) -> None:
    """Search a network.

    Args:
        question: `network`, `target`, `work_dir`, `trials`, `per_round`, `seed`, `device`, `devices` (folder
            of its file), `is_stock` (whether builder, runner and rounds are TVM's own).
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.device.tvm_measure import tvm_measure
    from fleet.config.settings import load_fleet, select_devices

    with contextlib.ExitStack() as stack:
        own: JsonDict = {}
        if not question["is_stock"]:
            settings = load_fleet(None, {"devices.folder": question["devices"]}).config
            spec = select_devices(settings.with_devices(question["device"]))[DeviceId(question["device"])]
            ours = stack.enter_context(tvm_measure(spec))
            own = {"builder": ours.builder, "runner": ours.runner}
            own["num_trials_per_iter"] = question["per_round"]
        ms.relax_integration.tune_relax(
            mod=programs(question["network"]),
            params={},
            target=tvm.target.Target(question["target"]),
            work_dir=question["work_dir"],
            max_trials_global=question["trials"],
            cost_model="xgb",
            seed=question["seed"],
            **own,
        )


WAYS = {
    "local": local,
    "stock": stock,
    "plugged": stock,
    "xgb": with_our_runner,
    "network": network,
}


def main() -> None:
    """Answer one question. TVM's own words go to stderr."""
    question = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        answer = WAYS[question["way"]](question)
    with os.fdopen(answers, "w") as stdout:
        print(json.dumps(answer), file=stdout)


if __name__ == "__main__":
    main()
