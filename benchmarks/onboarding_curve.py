"""What a new device's head is worth after k measured candidates: leave one device out, again and again.

The points of finished cases are kept, one JSON file for each contender in a case, under a hash of everything
that they follow from but the code: a curve that gains a contender or a number of samples runs that alone.

What is new and what is held out: `benchmarks.onboarding_cases`; what is done with one of these:
`benchmarks.onboarding_contenders`. Called by `benchmarks.onboarding`; knows neither stores nor files.
What was found is read by `benchmarks.onboarding_table`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import Workload, WorkloadId, canonical_json, content_hash
from benchmarks.onboarding_cases import Case, CasePlan, make_cases
from benchmarks.onboarding_contenders import Adapting, Asked, Contender, Point, judged, run_case
from transfer.adapt.base import Regime
from transfer.adapt.sample_selection import Selector
from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.processes import run_each
from transfer.train.config import TrainConfig
from transfer.train.state import digest

#: Measured candidates of each point of the curve; the last point is always all there are.
SAMPLES = (0, 8, 32, 64, 256, 1024, 4096)
#: Up to here every seed is run; beyond, the first ones only, for draws differ less and cost more.
ALL_SEEDS_UP_TO = 1024
_SEEDS_BEYOND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlan:
    """What to run."""

    cases: CasePlan
    #: Of different names.
    contenders: tuple[Contender, ...]
    #: How baselines choose their samples.
    selector: Selector
    #: How source models are trained.
    config: TrainConfig
    samples: tuple[int, ...] = SAMPLES
    #: With a point of all that the target may measure.
    with_all: bool = True


def run_curve(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload] | None,
    plan: CurvePlan,
    *,
    workers: int = 1,
    until: float = math.inf,
    on_case: Callable[[int, int, Case, float], None] | None = None,
    kept: Path | None = None,
) -> list[Point]:
    """Run every contender at every k on every case.

    Args:
        dataset: Candidates of devices of one family; no more devices than may be source devices.
        workloads: Of the dataset; without them random workloads are held out instead of networks.
        plan: What to run.
        workers: Processes; the result does not depend on it.
        until: No case of a later seed is begun after this value of `time.monotonic`, and no points of seeds
            that did not run on every case are given. The first seed runs in any way.
        on_case: Told of each finished case: how many are done, of how many, which, its seconds.
        kept: Folder of points of cases that finished before: a contender that was run there with as many
            samples is not run again.

    Raises:
        DatasetError: There is nothing to judge.
        TransferError: A contender cannot be fitted, or a process died.
    """
    cases = make_cases(dataset, workloads, plan.cases)
    points: dict[int, list[Point]] = {}
    done = 0
    for seed in plan.cases.seeds:
        if points and time.monotonic() > until:
            break
        mine = [case for case in cases if case.seed == seed]
        found_of: list[Point] = []
        ran = 0
        for case, found, seconds in _run(mine, dataset, plan, workers, kept):
            found_of += found
            ran, done = ran + 1, done + 1
            if on_case is not None:
                on_case(done, len(cases), case, seconds)
            if points and time.monotonic() > until:
                break
        if ran == len(mine):
            points[seed] = found_of
    return [point for found in points.values() for point in found]


def _asked(plan: CurvePlan, case: Case) -> list[Asked]:
    """Whom to ask with how many samples."""
    first = case.seed in plan.cases.seeds[:_SEEDS_BEYOND]
    samples = [k for k in plan.samples if k <= len(case.pool) and (first or k <= ALL_SEEDS_UP_TO)]
    return [
        (k, contender)
        for k in [*samples, *([None] if plan.with_all and first else [])]
        for contender in plan.contenders
    ]


def _timed(
    dataset: Dataset, job: tuple[Case, Sequence[Asked]], plan: CurvePlan
) -> tuple[list[Point | None], float]:
    started = time.perf_counter()
    found = run_case(dataset, *job, plan.selector, plan.config)
    return found, time.perf_counter() - started


def _run(
    cases: Sequence[Case], dataset: Dataset, plan: CurvePlan, workers: int, kept: Path | None
) -> Iterator[tuple[Case, list[Point], float]]:
    """The points of each case, those that were kept first; what is found anew is kept at once."""
    jobs = []
    for case in cases:
        keeper = KeptPoints(kept, dataset, case) if kept is not None else None
        # By contender and number of samples; None where it could say nothing.
        points = {
            (contender.name, k): point
            for contender in plan.contenders
            if keeper is not None
            for k, point in keeper.get(_about(plan, contender)).items()
        }
        missing = [(k, one) for k, one in _asked(plan, case) if (one.name, k) not in points]
        jobs.append((case, keeper, points, missing))
    # Whole ones first: they can be shown while the others run.
    jobs.sort(key=lambda job: bool(job[3]))
    waiting = [(case, missing) for case, _, _, missing in jobs if missing]
    run = partial(_timed, dataset, plan=plan)
    made = run_each(run, waiting, workers, of="the onboarding curve", pieces="cases")
    for case, keeper, points, missing in jobs:
        found, seconds = next(made) if missing else ([], 0.0)
        for contender in plan.contenders:
            new = {k: point for (k, one), point in zip(missing, found, strict=True) if one is contender}
            if new and keeper is not None:
                keeper.put(_about(plan, contender), new)
            points |= {(contender.name, k): point for k, point in new.items()}
        every = [points[contender.name, k] for k, contender in _asked(plan, case)]
        random = judged("random", case, dataset, 0, 0, None, 0.0)
        yield case, [random, *(point for point in every if point is not None)], seconds


def _about(plan: CurvePlan, contender: Contender) -> list[Any]:
    """What the points of a contender follow from beside the case."""
    how = [plan.selector.name]
    if isinstance(contender, Adapting):
        how = [repr(contender.strategy), contender.selector.name]
    # Selectors may look at the model of the sources, so baselines hang on its training too.
    return [contender.name, *how, repr(plan.config)]


_ARRAYS = ("groups", "top1", "top5", "tau")
#: Stands for all samples there are in a file.
_ALL = "all"


class KeptPoints:
    """Points of one case in a folder.

    Args:
        folder: Made when something is kept.
        dataset: What the case divides.
        case: Which case.
    """

    def __init__(self, folder: Path, dataset: Dataset, case: Case) -> None:
        self._folder = folder
        self._case = content_hash(
            canonical_json([case.regime.value, case.target, case.split, case.seed]),
            canonical_json(list(map(str, dataset.device_ids))),
            digest(case.pool, case.source_rows, case.test),
            digest(
                dataset.latency_secs,
                dataset.failed,
                dataset.group,
                dataset.features.summary,
                dataset.hardware,
            ),
        )

    def get(self, about: Any) -> dict[int | None, Point | None]:
        """What a contender found, by samples asked for.

        Args:
            about: What its points follow from beside the case, as JSON values.

        Returns:
            None for a number of samples that it could say nothing with; nothing for one that it was not run
            with, or where the file is damaged: it runs again.
        """
        try:
            values = json.loads(self._path(about).read_text())
            return {
                None if name == _ALL else int(name): None if value is None else _point(value)
                for name, value in values.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def put(self, about: Any, points: Mapping[int | None, Point | None]) -> None:
        """Add what a contender found to what is kept of it; the file appears whole or not at all."""
        path = self._path(about)
        values = {
            _ALL if k is None else str(k): None if point is None else _values(point)
            for k, point in (self.get(about) | dict(points)).items()
        }
        put_file(path, json.dumps(values, default=float).encode())

    def _path(self, about: Any) -> Path:
        return self._folder / f"points-{content_hash(self._case, canonical_json(about))}.json"


def _values(point: Point) -> dict[str, Any]:
    value = asdict(point)
    return {**value, **{name: value[name].tolist() for name in _ARRAYS}}


def _point(value: dict[str, Any]) -> Point:
    kinds = {"groups": np.int32}
    arrays = {name: np.array(value[name], dtype=kinds.get(name, np.float64)) for name in _ARRAYS}
    return Point(**{**value, **arrays, "regime": Regime(value["regime"])})
