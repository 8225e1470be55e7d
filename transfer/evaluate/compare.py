"""Several rankers on the same held-out rows: fit, score, judge.

Called by `fleet eval` and the scripts of the results. What is held out is hidden before a ranker sees the
dataset, so a ranker that peeks finds nothing. Knows rankers by their protocol only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agents.records import WorkloadId
from transfer.arrays import Floats
from transfer.data.dataset import Dataset
from transfer.data.intervals import LEVEL, Estimate
from transfer.data.metrics import MEASURES, Metrics, merge
from transfer.data.ranking import places_in
from transfer.data.splits import Split
from transfer.errors import DatasetError
from transfer.evaluate.rankers import Ranker, difference, estimate, judge
from transfer.model.inputs import torch_threads
from transfer.processes import run_each
from transfer.train.rows import trainable_devices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """How rankers did on the same workloads with the same seeds."""

    rankers: tuple[str, ...]
    #: Devices that were judged.
    device_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    #: Names of the splits (of the first seed).
    splits: tuple[str, ...]
    #: Workloads that the metrics' groups point at.
    workload_ids: tuple[WorkloadId, ...]
    #: Metrics of each seed by (ranker, device): the same workloads in the same order for all of a device. A
    #: ranker may have run with the first few seeds only.
    metrics: Mapping[tuple[str, str], tuple[Metrics, ...]]
    #: Why a device was not judged, by device.
    left_out: Mapping[str, str]
    #: Mean wall seconds of fitting one split and scoring its test rows, by ranker.
    seconds: Mapping[str, float]
    #: Noise floor used in `noise_regret`, by device; those not listed had none.
    noise_floors: Mapping[str, float] = field(default_factory=dict)

    def difference(self, ranker: str, other: str, device_id: str, measure: str) -> Estimate:
        """`ranker` less `other` in one of `MEASURES`, with the interval of a paired bootstrap."""
        return difference(self.metrics[ranker, device_id], self.metrics[other, device_id], measure)

    def as_json(self) -> dict[str, Any]:
        """Everything, JSON-ready: estimates as [value, low, high], and what is behind them by workload."""
        devices: dict[str, Any] = {}
        for device_id in self.device_ids:
            first = self.metrics[self.rankers[0], device_id][0]
            devices[device_id] = {
                "workloads": [self.workload_ids[index] for index in first.groups],
                "candidates": first.counts.tolist(),
                "noise_floor": self.noise_floors.get(device_id),
                # Extra time of a random choice.
                "random_regret": float(
                    (first.values["random_of_1_secs"] / first.values["best_secs"] - 1).mean()
                ),
                "rankers": {ranker: _as_json(self.metrics[ranker, device_id]) for ranker in self.rankers},
                # The first ranker minus each other one.
                "differences": {
                    other: {
                        measure: self.difference(self.rankers[0], other, device_id, measure).listed()
                        for measure in MEASURES
                        if not measure.startswith("random")
                    }
                    for other in self.rankers[1:]
                },
            }
        return {
            "rankers": list(self.rankers),
            "seeds": list(self.seeds),
            "splits": list(self.splits),
            "level": LEVEL,
            "devices": devices,
            "left_out": dict(self.left_out),
            "seconds": dict(self.seconds),
        }


def _as_json(runs: Sequence[Metrics]) -> dict[str, Any]:
    return {
        **{name: estimate(runs, name).listed() for name in MEASURES},
        "by_workload": {
            name: [run.by_workload(name).tolist() for run in runs]
            for name in ("top1", "top5", "pairwise", "tau", "regret")
        },
    }


#: Gives the splits of a seed.
Splits = Callable[[int], Sequence[Split]]
#: What is said of the test rows, (rows of the split,) by ranker and device, and the seconds that it took.
FitScores = tuple[Mapping[tuple[str, str], Floats], float]

#: A workload is judged where this many of its held-out candidates were measured: of one alone, any ranker
#: finds the best.
LEAST_CANDIDATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Something was fitted and has scored the test rows of one split."""

    #: Names of what was fitted.
    ranker: str
    split: str
    seed: int
    #: Parts finished so far, and in all.
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One split with one seed."""

    split: Split
    seed: int
    #: Place of the split among those of its seed.
    place: int

    @property
    def fit_seed(self) -> int:
        """Unlike for every seed and split, and inside what every library takes."""
        return int(np.random.SeedSequence([self.seed, self.place]).generate_state(1)[0] >> 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Fold):
    """A ranker that is to be fitted on a fold."""

    ranker: Ranker


def compare(
    rankers: Sequence[Ranker],
    dataset: Dataset,
    splits: Splits,
    seeds: Sequence[int],
    *,
    noise_floors: Mapping[str, float] | None = None,
    workers: int = 1,
    learnt: tuple[str, ...] = (),
    on_progress: Callable[[Finished], None] | None = None,
) -> Comparison:
    """Fit every ranker on every split with every seed, and judge it on the rows held out.

    Args:
        rankers: What to compare, by unlike names; fitted again and again.
        dataset: Candidates of all devices.
        splits: What to hold out, by seed.
        seeds: One run each; intervals need several to say something of initial weights.
        noise_floors: Relative difference of two measurements of one program, by device.
        workers: Processes that fit. The result does not depend on it: each fit runs on one thread.
        learnt: As of `run_fits`.
        on_progress: Told of each fit that ended.

    Raises:
        DatasetError: No device can be judged.
        TransferError: A ranker cannot be fitted, or a process died.
    """
    fits = fits_of(rankers, splits, seeds)
    scores = run_fits(fits, dataset, workers=workers, learnt=learnt)
    return judge_fits(fits, scores, dataset, noise_floors=noise_floors, on_progress=on_progress)


def fits_of(rankers: Sequence[Ranker], splits: Splits, seeds: Sequence[int]) -> list[Fit]:
    """Every fit of a comparison, seed by seed; rankers have unlike names."""
    return [
        Fit(ranker=ranker, split=split, seed=seed, place=place)
        for seed in seeds
        for place, split in enumerate(splits(seed))
        for ranker in rankers
    ]


def run_fits(
    fits: Sequence[Fit], dataset: Dataset, *, workers: int = 1, learnt: tuple[str, ...] = ()
) -> Iterator[FitScores]:
    """Do fits, here or in processes, and give what each says in their order.

    Where a ranker did not learn the device that a split holds out (`Split.targets`), a candidate's score is
    its place in its workload, averaged over the learnt devices: one rule for all rankers.

    Args:
        fits: What to fit.
        dataset: Candidates of all devices.
        workers: Processes.
        learnt: Devices that all rankers have learnt before, whatever a split has to learn from; kept models.
    """
    run = partial(_fit_and_score, whole=dataset, learnt_before=learnt)
    yield from run_each(run, fits, workers, of="the comparison", pieces="fits")


def judge_fits(
    folds: Sequence[Fold],
    fit_scores: Iterable[FitScores],
    dataset: Dataset,
    *,
    noise_floors: Mapping[str, float] | None = None,
    on_progress: Callable[[Finished], None] | None = None,
) -> Comparison:
    """Judge what is said of the rows held out; arguments and errors as of `compare`.

    `fit_scores` are of `folds`, in their order. One ranker at least was fitted with every seed; each device
    is judged by the rankers that know it.
    """
    seeds = tuple(dict.fromkeys(fold.seed for fold in folds))
    splits = {(fold.seed, fold.place): fold.split for fold in folds}
    floors = dict(noise_floors or {})
    runs: dict[tuple[str, str], dict[int, list[Metrics]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, list[float]] = defaultdict(list)
    judged_in: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for done, (fold, (scores, took)) in enumerate(zip(folds, fit_scores, strict=True), start=1):
        names = dict.fromkeys(name for name, _ in scores)
        for name in names:
            seconds[name].append(took)
        for (name, device_id), values in scores.items():
            floor = floors.get(device_id, 0.0)
            metrics = judge(
                dataset, device_id, fold.split.test, values, noise_floor=floor, least=LEAST_CANDIDATES
            )
            if metrics is not None:
                judged_in[device_id].add((fold.seed, fold.place))
                runs[name, device_id][fold.seed].append(metrics)
        if on_progress is not None:
            on_progress(
                Finished(
                    ranker=", ".join(names),
                    split=fold.split.name,
                    seed=fold.seed,
                    done=done,
                    total=len(folds),
                )
            )
    left_out = _left_out(dataset, splits, judged_in)
    judged = tuple(str(device_id) for device_id in dataset.device_ids if device_id not in left_out)
    if not judged:
        raise DatasetError(
            "no device can be judged: " + "; ".join(f"{d}: {why}" for d, why in left_out.items())
        )
    return Comparison(
        rankers=tuple(seconds),
        device_ids=judged,
        seeds=seeds,
        splits=tuple(split.name for (seed, _), split in splits.items() if seed == seeds[0]),
        workload_ids=dataset.workload_ids,
        metrics=_aligned(runs, judged),
        left_out=left_out,
        seconds={name: float(np.mean(values)) for name, values in seconds.items()},
        noise_floors={device_id: floors[device_id] for device_id in judged if device_id in floors},
    )


def _left_out(
    dataset: Dataset,
    splits: Mapping[tuple[int, int], Split],
    judged_in: Mapping[str, set[tuple[int, int]]],
) -> dict[str, str]:
    """Devices that not every split could judge where it should have, with the reason.

    `splits` are by seed and place, of which `judged_in` has those that judged a device.
    """
    reasons = {}
    for column, device_id in enumerate(map(str, dataset.device_ids)):
        due = set()
        for key, split in splits.items():
            measured = np.isfinite(dataset.latency_secs[split.test, column])
            counts = np.bincount(dataset.group[split.test][measured])
            is_target = split.targets is None or device_id in split.targets
            if is_target and counts.max(initial=0) >= LEAST_CANDIDATES:
                due.add(key)
        if not due:
            reasons[device_id] = (
                f"no held-out workload has {LEAST_CANDIDATES} measured candidates there; measure more"
            )
        elif due - judged_in[device_id]:
            reasons[device_id] = (
                "a split leaves no workload with two measured candidates there to learn from; measure more"
            )
    return reasons


def _aligned(
    runs: Mapping[tuple[str, str], Mapping[int, list[Metrics]]], judged: Sequence[str]
) -> dict[tuple[str, str], tuple[Metrics, ...]]:
    """Metrics by seed of each ranker and device, over the workloads that every seed judged."""
    metrics = {}
    for device_id in judged:
        merged = {
            key: [merge(parts) for parts in by_seed.values()]
            for key, by_seed in runs.items()
            if key[1] == device_id
        }
        shared = set.intersection(
            *(set(run.groups.tolist()) for several in merged.values() for run in several)
        )
        if not shared:
            raise DatasetError(
                f"no workload was judged on {device_id!r} with every seed; give more data or fewer seeds"
            )
        for key, several in merged.items():
            metrics[key] = tuple(
                run.take(np.flatnonzero(np.isin(run.groups, list(shared)))) for run in several
            )
    return metrics


def _fit_and_score(fit: Fit, whole: Dataset, learnt_before: tuple[str, ...]) -> FitScores:
    """Fit on what the split shows and score its test rows for every device that it judges, on one thread."""
    split, ranker = fit.split, fit.ranker
    started = time.perf_counter()
    is_visible = split.visible(whole)
    visible = whole.where(is_visible)
    learnt = learnt_before or trainable_devices(visible, split.train)
    scores = {}
    with torch_threads(1):
        ranker.fit(visible, split.train, learnt, fit.fit_seed)
        for device_id in map(str, whole.device_ids) if split.targets is None else split.targets:
            column = whole.column(device_id)
            # A ranker may look at what source devices say of a held-out candidate, not at the device itself.
            beside = np.ones_like(is_visible)
            beside[:, column] = is_visible[:, column]
            view = whole.where(beside)
            if device_id in learnt:
                scores[ranker.name, device_id] = ranker.score(view, split.test, device_id)
            elif split.targets is not None and learnt:
                places = [
                    places_in(ranker.score(view, split.test, source), whole.group[split.test])
                    for source in learnt
                ]
                scores[ranker.name, device_id] = np.mean(places, axis=0)
    return scores, time.perf_counter() - started
