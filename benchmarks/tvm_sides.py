"""TVM's own ways to measure and to search: the baselines of `collection`, `search` and `networks`.

- `local`: `LocalBuilder` and `LocalRunner` on given candidates.
- `stock`: `tune_tir` as it is shipped, with its own builder and runner, of one workload.
- `xgb`: `tune_tir`, its evolutionary search with XGBoost, on our builder and runner: only the search differs.
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
from typing import Any

from agents.records import DeviceId, Family, canonical_json
from benchmarks.harness import stopwatch
from fleet.json_types import JsonDict

#: TVM's evaluator and ours, alike: five repeats of 10 ms.
EVALUATOR = {"number": 1, "repeat": 5, "min_repeat_ms": 10}
#: TVM's default of 30 s would fail all candidates where its processes take longer than that to start.
_TIMEOUT_SECS = 180.0


def local(question: JsonDict) -> JsonDict:
    """Build and run candidates in one batch, as TVM's measuring loop does.

    Args:
        question: `target`, `workers`, `candidates` as a list of [module JSON, trace JSON].

    Returns:
        `records_per_s` of building and running together, and `errors`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.build import scheduled

    target = tvm.target.Target(question["target"])
    # Replayed before the clock starts: in its measuring loop TVM holds the schedules already.
    replayed = [
        (scheduled(tvm.ir.load_json(module), trace).mod, tvm.ir.load_json(module))
        for module, trace in question["candidates"]
    ]
    builder = ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS)
    runner = ms.runner.LocalRunner(
        timeout_sec=_TIMEOUT_SECS,
        evaluator_config=ms.runner.EvaluatorConfig(**EVALUATOR, enable_cpu_cache_flush=False),
    )
    elapsed = stopwatch()
    built = builder.build([ms.builder.BuilderInput(module, target) for module, _ in replayed])
    inputs = [
        ms.runner.RunnerInput(
            result.artifact_path, "cpu", ms.arg_info.ArgInfo.from_prim_func(original["main"])
        )
        for result, (_, original) in zip(built, replayed, strict=True)
        if result.artifact_path is not None
    ]
    results = [*built, *(future.result() for future in runner.run(inputs))]
    secs = elapsed()
    ran = sum(bool(result.run_secs) for result in results[len(built) :])
    errors = [str(result.error_msg) for result in results if result.error_msg]
    return {"records_per_s": ran / secs, "errors": errors}


def stock(question: JsonDict) -> JsonDict:
    """Search one workload with `tune_tir`: as it is shipped, or with our builder and runner.

    Args:
        question: `workload` (JSON), `target`, `trials`, `per_round`, `workers`, `seed`, and `way`;
            of `xgb` the `device` too.

    Returns:
        `trials` as [seconds since the start, latency or None] of each trial, in their order,
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

    if question["way"] == "xgb":
        with tvm_measure(question["device"]) as ours:
            yield ours.builder, ours.runner
        return
    evaluator = ms.runner.EvaluatorConfig(**EVALUATOR, enable_cpu_cache_flush=False)
    yield (
        ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS),
        ms.runner.LocalRunner(timeout_sec=_TIMEOUT_SECS, evaluator_config=evaluator),
    )


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
        return {"trials": self._trials, "best": self._best}


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
    "xgb": stock,
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
