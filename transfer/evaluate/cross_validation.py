"""The whole story of an onboarding by cross-validation: what heads are worth on workloads they never saw.

For each fold `cross_validate` trains the source devices on the training workloads, adapts to the target with
k samples drawn from those workloads, and scores the held-out workloads. Beside it stand the same network
without transfer (scratch), without adaptation (nearest), and with all target data (full). Called by the
command line and onboarding; knows nothing of how data were collected. Whole rankers are compared by `compare`
(`transfer.evaluate.compare`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from transfer.adapt.base import FewShotTask, Strategy, unmeasured
from transfer.adapt.guard import MultiTask, Scratch
from transfer.adapt.heads import with_target_head
from transfer.adapt.sample_selection import draw_few_shot
from transfer.arrays import Floats, Ints, Rows
from transfer.data.dataset import Dataset
from transfer.data.intervals import Estimate
from transfer.data.metrics import Metrics, merge
from transfer.data.splits import Split
from transfer.evaluate.rankers import difference, estimate, judge_folds
from transfer.model.inputs import torch_threads
from transfer.processes import run_each
from transfer.train.rows import TrainConfig, trainable_devices
from transfer.train.training import train

#: What is trained in each fold, in this order; `full` learns from all data of the target, as an upper bound.
PARTS = ("source", "warm", "scratch", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidationPlan:
    """What `cross_validate` trains, and how."""

    target_device: str
    #: Target measurements that adaptation may see (k).
    samples: int
    config: TrainConfig
    strategy: Strategy = field(default_factory=MultiTask)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Predicted and measured values of one device's held-out candidates, for plots; all arrays are (n,)."""

    rows: Rows
    scores: Floats
    #: Relative speed among the held-out candidates, NaN where not measured.
    labels: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Approach:
    """How one way to get a head did on all held-out workloads."""

    metrics: Metrics
    scored: Scored
    #: Of the resampling.
    seed: int

    def interval(self, measure: str) -> list[float]:
        """90 % bootstrap interval of a measure over workloads, low and high."""
        bounds = estimate([self.metrics], measure, seed=self.seed)
        return [bounds.low, bounds.high]

    def minus(self, other: Approach) -> Estimate:
        """Mean difference of top-1 to another approach over the same workloads, with its 90 % interval."""
        return difference([self.metrics], [other.metrics], "top1", seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossValidation:
    """Result of `cross_validate`; every workload was held out once."""

    target_device: str
    #: Target measurements used in each fold.
    samples: int
    #: Measurements that `full` learns from, mean over the folds, rounded.
    full_samples: int
    #: Source heads by device.
    sources: Mapping[str, Approach]
    #: Ways to get the target's head: `warm`, `nearest`, `scratch` and `full`.
    target: Mapping[str, Approach]
    #: Mean wall seconds of each part in one fold.
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """Scores of one fold's test rows, by (part, device)."""

    split: Split
    scores: dict[tuple[str, str], Floats]
    seconds: dict[str, float]


_Result = TypeVar("_Result")
#: Called with the names of a fold and of the part of it that is finished.
PartCallback = Callable[[str, str], None]


def cross_validate(
    dataset: Dataset,
    splits: Sequence[Split],
    plan: CrossValidationPlan,
    *,
    seed: int,
    workers: int = 1,
    on_progress: PartCallback = lambda *_: None,
) -> CrossValidation:
    """Tell how well a new device is onboarded, on workloads that nobody trained on.

    Args:
        dataset: Candidates of all devices, the target included; its other devices are the sources.
        splits: Folds that hold each workload out once, see `transfer.data.splits.workload_folds`.
        plan: What to train.
        seed: Of everything random; fold i uses `seed + i`.
        workers: Processes that work on folds. The result does not depend on it: each fold runs on one
            thread either way.
        on_progress: Called after each of `PARTS`; with several workers, for all parts of a fold at its end.

    Raises:
        TransferError: A fold cannot be trained or judged, or a worker process died.
    """
    folds = _run_folds(dataset, plan, splits, seed, workers, on_progress)
    approaches = {
        key: judged(dataset, key[1], [(fold.split.test, fold.scores[key]) for fold in folds], seed)
        for key in folds[0].scores
    }
    target = {part: approach for (part, _), approach in approaches.items() if part != "source"}
    return CrossValidation(
        target_device=plan.target_device,
        samples=plan.samples,
        full_samples=_mean_training_rows(dataset, plan.target_device, splits),
        sources={
            device_id: approach for (part, device_id), approach in approaches.items() if part == "source"
        },
        target=target,
        seconds={part: float(np.mean([f.seconds[part] for f in folds])) for part in PARTS},
    )


def _mean_training_rows(dataset: Dataset, device_id: str, splits: Sequence[Split]) -> int:
    rows = dataset.rows_of(device_id)
    return round(float(np.mean([np.isin(rows, split.train).sum() for split in splits])))


def average_repeats(repeats: Sequence[CrossValidation]) -> CrossValidation:
    """Several cross-validations of the same plan and splits with other seeds as one.

    One draw of the few-shot set and one initialisation decide much of a top-1 score; a mean over several says
    more about the method. Scored candidates are those of the first.
    """

    def joined(each: Sequence[Mapping[str, Approach]]) -> dict[str, Approach]:
        return {
            key: replace(approach, metrics=merge([approaches[key].metrics for approaches in each]))
            for key, approach in each[0].items()
        }

    first = repeats[0]
    return replace(
        first,
        sources=joined([repeat.sources for repeat in repeats]),
        target=joined([repeat.target for repeat in repeats]),
        seconds={
            part: float(np.mean([repeat.seconds[part] for repeat in repeats])) for part in first.seconds
        },
    )


def _run_folds(
    dataset: Dataset,
    plan: CrossValidationPlan,
    splits: Sequence[Split],
    seed: int,
    workers: int,
    on_progress: PartCallback,
) -> list[_Fold]:
    """Run every fold, here or in processes, and tell of each part.

    A device that only some folds can train a head for is left out: its workloads would not all be judged.
    """
    folds: list[_Fold] = []
    jobs = [(split, seed + i) for i, split in enumerate(splits)]
    if workers <= 1 or len(splits) == 1:
        folds = [_onboard(dataset, plan, on_progress, job) for job in jobs]
    else:
        # No part can be told of from another process.
        run = partial(_onboard, dataset, plan, None)
        for fold in run_each(run, jobs, workers, of="the cross-validation", pieces="folds"):
            folds.append(fold)
            for part in fold.seconds:
                on_progress(fold.split.name, part)
    shared = set(folds[0].scores).intersection(*(fold.scores for fold in folds))
    for fold in folds:
        for key in set(fold.scores) - shared:
            del fold.scores[key]
    return folds


def _onboard(
    dataset: Dataset, plan: CrossValidationPlan, on_part: PartCallback | None, job: tuple[Split, int]
) -> _Fold:
    """Onboard the target in one fold, with its own seed, and score its test rows, on one thread."""
    split, seed = job
    target = plan.target_device
    seconds: dict[str, float] = {}
    scores: dict[tuple[str, str], Floats] = {}
    unseen = unmeasured(dataset, split.test)
    held = unseen.features

    def timed(part: str, make: Callable[[], _Result]) -> _Result:
        started = time.perf_counter()
        result = make()
        seconds[part] = time.perf_counter() - started
        if on_part is not None:
            on_part(split.name, part)
        return result

    with torch_threads(1):
        sources = [d for d in trainable_devices(dataset, split.train) if d != target]
        few_shot = draw_few_shot(dataset, target, split.train, plan.samples, seed=seed)
        model = timed(
            "source",
            lambda: train(dataset, split.train, config=plan.config, seed=seed, devices=sources).model,
        )
        for device_id in sources:
            scores["source", device_id] = model.score(held, device_id)
        task = FewShotTask(
            source=model,
            dataset=dataset,
            target=target,
            few_shot=few_shot,
            source_rows=split.train,
            config=plan.config,
            seed=seed,
        )
        nearest = with_target_head(model, task.visible(), target, seed=seed)
        scores["nearest", target] = nearest.score(held, target)
        for part, strategy in (("warm", plan.strategy), ("scratch", Scratch())):
            adapted = timed(part, partial(strategy.adapt, task))
            # Nobody has measured a held-out workload: source devices' labels must not help.
            scores[part, target] = adapted.score(unseen, np.arange(len(unseen)))
        full = timed("full", lambda: train(dataset, split.train, config=plan.config, seed=seed).model)
        scores["full", target] = full.score(held, target)
    return _Fold(split, scores, seconds)


def judged(
    dataset: Dataset,
    device_id: str,
    folds: Sequence[tuple[Ints, Floats]],
    seed: int,
) -> Approach:
    """Judge the scores of held-out rows, fold by fold; folds without measurements are left out.

    Args:
        dataset: Holds what was measured.
        device_id: One of its devices.
        folds: Rows and their scores.
        seed: Of the resampling.

    Raises:
        TransferError: Nothing of it was measured.
    """
    column = dataset.column(device_id)
    measured = [fold for fold in folds if np.isfinite(dataset.latency_secs[fold[0], column]).any()]
    metrics = judge_folds(dataset, device_id, measured, least=1)
    rows = np.concatenate([held for held, _ in measured])
    return Approach(
        metrics=metrics,
        scored=Scored(
            rows=rows,
            scores=np.concatenate([scores for _, scores in measured]),
            labels=dataset.labels(rows)[:, column],
        ),
        seed=seed,
    )
