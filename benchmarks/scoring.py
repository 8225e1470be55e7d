"""What scoring in a search costs: `python -m benchmarks.scoring --json`.

Real MetaSchedule candidates of eight operators, held as TVM holds them during a search, scored in one process
on one core by both sides in turn, operator by operator (CPU seconds, so that other processes of the host do
not count):

- features: TVM's `PerStoreFeature`, which lowers every candidate, against `Extractor.extract_live`, which
  reads traces;
- scores: TVM's XGBoost cost model (`XGBModel.predict`, its features included), fitted as TVM does on 64 of
  the candidates with random labels, against our features and `FleetTLP.score`. The weights of our network
  are random, and its trees grown to random values: the time hardly depends on them.

Ours is timed with a fresh extractor, so that each design space is compiled in the time. `fleet tune` holds
candidates as decisions in known design spaces, without a schedule: `ratio_decisions` is of their features.
Each time is the median of some repeats. At the end, 4,096 candidates are scored from ready features on two
cores (wall seconds). Takes about four minutes.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from tvm.s_tir import meta_schedule as ms

from agents.programs.build import scheduled
from agents.programs.design_space import SPACE_TARGETS, DesignSpace
from agents.programs.workloads import operator_workload
from agents.records import Family
from benchmarks.harness import Figures, benchmark, by_turns, option, stopwatch
from transfer.features.block_builder import BlockBuilder
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.flat import flat_inputs
from transfer.features.hardware import HARDWARE_NAMES
from transfer.model.fleet_tlp import FleetTLP, model_config
from transfer.model.trees import Trees, pack, tree_inputs
from transfer.train.rows import TrainConfig
from transfer.train.tree_fit import grow

#: Layers of common networks; a search asks for a few hundred candidates of one workload at a time.
OPERATORS = (
    "C2D 1 56 56 64 64 3 1 1",
    "C2D 1 14 14 256 512 1 2 0",
    "GMM 1 128 768 768",
    "GMM 12 128 64 128",
    "DEP 1 112 112 32 3 1 1",
    "GRP 1 56 56 64 128 3 2 1 1 4",
    "T2D 1 4 4 512 256 4 2 1",
    "SFM 256 256",
)
_FITTED = 64
_READY = 4096
_HEAD = "x86-64-v3"


@dataclass(frozen=True)
class _Case:
    """The candidates of one workload, as a search holds them."""

    workload: Any
    #: TVM's `TuneContext`, on one thread.
    context: Any
    schedules: list[Any]
    #: The same as TVM's `MeasureCandidate`.
    candidates: list[Any]
    #: The same as stored candidates.
    stored: list[Any]


@dataclass(frozen=True)
class Options:
    """What is measured."""

    candidates: int = option(2048, "live candidates in all, of all operators together", least=1)
    repeats: int = option(3, "times that each side does everything", least=1)


def measure(options: Options) -> Figures:
    """Compare both sides."""
    cores = sorted(os.sched_getaffinity(0))
    share, extra = divmod(options.candidates, len(OPERATORS))
    cases = [_case(operator, share + (place < extra)) for place, operator in enumerate(OPERATORS)]
    os.sched_setaffinity(0, cores[:1])
    torch.set_num_threads(1)
    xgb_model = _fitted_xgb(cases)
    model = _model(cases)
    warm = Extractor()
    decided = {
        case.workload.name: [warm.decided(case.workload, one.trace) for one in case.stored] for case in cases
    }

    def live(case: _Case) -> Any:
        return Extractor().extract_live(case.workload, case.schedules)

    ways: dict[str, Callable[[_Case], Any]] = {
        "tvm_features": lambda case: _per_store(case.context, case.candidates),
        "features": live,
        "tvm_predict": lambda case: xgb_model.predict(case.context, case.candidates),
        "features_and_model": lambda case: model.score(live(case), _HEAD),
        "features_of_decisions": lambda case: Extractor().extract_decided(
            case.workload, decided[case.workload.name]
        ),
    }
    # A full collection walks all candidates of the benchmark, and would strike one side by chance.
    gc.collect()
    gc.freeze()
    spent = [
        by_turns(
            {name: partial(way, case) for name, way in ways.items()},
            options.repeats,
            clock=time.process_time,
        )
        for case in cases
    ]
    rounds = {name: zip(*(turns[name] for turns in spent), strict=True) for name in ways}
    secs = {name: statistics.median(map(sum, each)) for name, each in rounds.items()}
    os.sched_setaffinity(0, cores)
    return {
        "candidates": sum(len(case.schedules) for case in cases),
        "workloads": [case.workload.name for case in cases],
        "repeats": options.repeats,
        "ratio_features": secs["tvm_features"] / secs["features"],
        "ratio_decisions": secs["tvm_features"] / secs["features_of_decisions"],
        "ratio_features_and_model": secs["tvm_predict"] / secs["features_and_model"],
        "cpu_secs": secs,
        "ready_secs": _ready_secs(model, cases, len(cores)),
    }


def _case(text: str, count: int) -> _Case:
    """Random candidates of one workload, replayed as a search would hold them."""
    operator, *sizes = text.split()
    workload = operator_workload(operator, tuple(map(int, sizes)))
    module = tvm.ir.load_json(workload.module_json)
    stored = DesignSpace(workload, Family.CPU).sample(count, seed=0).candidates
    schedules = [scheduled(module, candidate.trace) for candidate in stored]
    context = ms.TuneContext(
        mod=module,
        target=tvm.target.Target(SPACE_TARGETS[Family.CPU]),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        task_name=workload.name,
        num_threads=1,
    )
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    candidates = [ms.MeasureCandidate(schedule, arguments) for schedule in schedules]
    return _Case(workload, context, schedules, candidates, list(stored))


def _per_store(context: Any, candidates: list[Any]) -> list[Any]:
    return list(ms.feature_extractor.PerStoreFeature().extract_from(context, candidates))


def _fitted_xgb(cases: list[_Case]) -> Any:
    """TVM's XGBoost model, fitted on a few candidates of each workload with random labels."""
    random = np.random.default_rng(0)
    model = ms.cost_model.XGBModel(num_warmup_samples=1, num_tuning_cores=1, adaptive_training=False)
    each = -(-_FITTED // len(cases))
    for case in cases:
        seconds = random.uniform(1e-4, 1e-2, each).tolist()
        results = [ms.runner.RunnerResult([value], None) for value in seconds]
        model.update(case.context, case.candidates[:each], results)
    return model


def _model(cases: list[_Case]) -> Any:
    """A model of the usual sizes: random weights, and trees grown to random values."""
    config = TrainConfig()
    model = FleetTLP(model_config(DEFAULT_SPEC, config.sizes), (_HEAD,))
    block = _features(cases)
    model.fit_scaler(block)
    random = np.random.default_rng(0)
    hardware = random.normal(size=len(HARDWARE_NAMES)).astype(np.float32)
    wanted = random.normal(size=len(block))
    x = tree_inputs(flat_inputs(block, DEFAULT_SPEC.category_sizes), hardware)
    model.trees = Trees(pack(grow(x, wanted, np.ones(len(x)), count=config.trees, seed=0)))
    model.set_hardware(_HEAD, torch.from_numpy(hardware))
    return model.eval()


def _features(cases: list[_Case]) -> Any:
    """Features of all stored candidates."""
    builder, count = BlockBuilder(Extractor()), 0
    for case in cases:
        for candidate in case.stored:
            builder.add(case.workload, candidate)
            count += 1
    return builder.finish(np.arange(count))


def _ready_secs(model: Any, cases: list[_Case], cores: int) -> float:
    """Score many candidates from ready features on up to two cores."""
    block = _features(cases)
    block = block.take(np.resize(np.arange(len(block)), _READY))
    torch.set_num_threads(min(2, cores))
    seconds = []
    for _ in range(5):
        elapsed = stopwatch()
        model.score(block, _HEAD)
        seconds.append(elapsed())
    return statistics.median(seconds)


main = benchmark("scoring", __doc__, Options, measure)

if __name__ == "__main__":
    main()
