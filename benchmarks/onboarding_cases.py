"""Who is new, and what is held out: the divisions that an onboarding curve is run on.

For each device in turn the others are its source devices. Three regimes, never mixed. *Device new*: source
devices have measured the candidates that are to be put in order (the target measures some of one half of each
workload's candidates, and is judged on the other half). *Candidate new*: the same halves, but nobody has
measured the other one, as in a search on a known workload. *Device and workload new*: whole networks are held
out on every device. Fits nothing.

Legend: N candidates of a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from agents.records import Workload, WorkloadId
from transfer.adapt.base import Regime
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits, within_workload
from transfer.errors import DatasetError
from transfer.train.rows import trainable_devices

_Result = TypeVar("_Result")

#: Share of a workload's candidates that the target is judged on where source devices have measured them.
_JUDGED_SHARE = 0.5
#: Parts of the workloads where no networks can be held out.
_FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """Which divisions to make."""

    regimes: tuple[Regime, ...]
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    #: Families of networks to hold out; all in turn where empty. Not looked at where no network is known.
    held: tuple[str, ...] = ()
    #: Most candidates of a workload that the target may measure and its source devices did, and that it is
    #: judged on.
    most_pool: int = 64
    most_judged: int = 256
    #: Most splits of a regime and seed, those that hold out most workloads; 0 for all.
    most_splits: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One new device and one division of the rows."""

    regime: Regime
    target: str
    #: What is held out.
    split: str
    #: Rows that the target may measure.
    pool: Rows
    #: Rows whose measurements on source devices may be seen.
    source_rows: Rows
    #: Rows that the target is judged on.
    test: Rows
    seed: int


@dataclass(kw_only=True, eq=False)
class Situation:
    """What may be seen of a new device and its source devices when some rows are to be put in order for it.

    Attributes:
        dataset: All candidates, with every measurement taken out that may not be seen; no measurement of the
            target at all.
        target: The new device.
        sources: Devices that may be learnt from.
        source_rows: Rows that they were measured on, as far as it may be seen.
        test: Rows to score.
        seed: Of everything random.
    """

    dataset: Dataset
    target: str
    sources: tuple[str, ...]
    source_rows: Rows
    test: Rows
    seed: int
    _shared: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], _Result]) -> _Result:
        """What `make` gives, made once for all contenders and numbers of samples."""
        if name not in self._shared:
            self._shared[name] = make()
        return cast(_Result, self._shared[name])


@dataclass(frozen=True, eq=False)
class FewShotSet:
    """What was measured on the new device."""

    rows: Rows
    #: (len(rows),) seconds, NaN where the candidate failed.
    latency_secs: Floats


class FewShot(NamedTuple):
    """What others would do with a few measurements of a new device."""

    #: In tables.
    name: str
    #: From a situation to (test rows,) scores, higher is faster; None where it does not apply.
    score: Callable[[Situation, FewShotSet], Floats | None]


def make_cases(dataset: Dataset, workloads: Mapping[WorkloadId, Workload], plan: CasePlan) -> list[Case]:
    """Every division, seed by seed, so that a run that is cut short has whole seeds.

    Args:
        dataset: Candidates of devices of one family.
        workloads: Of the dataset; of no network, random ones are held out instead of networks.
        plan: Which divisions.

    Raises:
        DatasetError: No target has anything to be judged on, or `held` names a family that is not there.
    """
    networks = networks_to_hold_out(dataset, workloads) if plan.held else ()
    if networks and (unknown := sorted(set(plan.held) - set(networks))):
        raise DatasetError(f"no network {', '.join(unknown)} to hold out; there are {', '.join(networks)}")
    cases: list[Case] = []
    for seed in plan.seeds:
        for regime in plan.regimes:
            divisions = _divisions(dataset, workloads, regime, plan, seed)
            if plan.most_splits:
                # Those that judge by most workloads.
                divisions.sort(key=lambda split: -len(np.unique(dataset.group[split.test])))
                divisions = divisions[: plan.most_splits]
            several = (
                _case(dataset, regime, target, division, plan, seed)
                for division in divisions
                for target in plan.targets
            )
            cases += [case for case in several if case is not None]
    if not cases:
        raise DatasetError(
            f"nothing to judge: no held-out workload has two candidates measured on "
            f"{', '.join(plan.targets)} and on source devices; collect more, or name other devices"
        )
    return cases


def visible_dataset(dataset: Dataset, case: Case) -> Dataset:
    """The dataset with every measurement taken out that may not be seen; none of the target is left."""
    is_visible = np.zeros(dataset.latency_secs.shape, dtype=np.bool_)
    is_visible[case.source_rows] = True
    is_visible[:, dataset.column(case.target)] = False
    return dataset.where(is_visible)


def situation_of(view: Dataset, case: Case) -> Situation:
    """The situation of a case; `view` is what of the dataset may be seen (`visible_dataset`)."""
    return Situation(
        dataset=view,
        target=case.target,
        sources=tuple(
            device_id for device_id in trainable_devices(view, case.source_rows) if device_id != case.target
        ),
        source_rows=case.source_rows,
        test=case.test,
        seed=case.seed,
    )


def with_few_shot(dataset: Dataset, target: str, few_shot: FewShotSet) -> Dataset:
    """The dataset with what was measured on the target put in."""
    column = dataset.column(target)
    latency, failed = dataset.latency_secs.copy(), dataset.failed.copy()
    latency[few_shot.rows, column] = few_shot.latency_secs
    failed[few_shot.rows, column] = ~np.isfinite(few_shot.latency_secs)
    return replace(dataset, latency_secs=latency, failed=failed)


def _divisions(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload],
    regime: Regime,
    plan: CasePlan,
    seed: int,
) -> list[Split]:
    """Rows to learn from and rows held out."""
    if regime is not Regime.BOTH_NEW:
        return [replace(within_workload(dataset, _JUDGED_SHARE, seed), name="half of the candidates")]
    splits = _by_network(dataset, workloads)
    if not splits:
        return make_splits(SplitKind.BY_WORKLOAD, dataset, workloads, folds=_FOLDS, seed=seed)
    return [split for split in splits if not plan.held or split.name in plan.held]


def networks_to_hold_out(dataset: Dataset, workloads: Mapping[WorkloadId, Workload]) -> tuple[str, ...]:
    """Families of networks that can be held out; none where random workloads are."""
    return tuple(split.name for split in _by_network(dataset, workloads))


def _by_network(dataset: Dataset, workloads: Mapping[WorkloadId, Workload]) -> list[Split]:
    try:
        return make_splits(SplitKind.BY_NETWORK, dataset, workloads, folds=_FOLDS, seed=0)
    except DatasetError:  # no network is known, or only one family
        return []


def _case(
    dataset: Dataset, regime: Regime, target: str, split: Split, plan: CasePlan, seed: int
) -> Case | None:
    """The case of one target; None where there is nothing to learn from or to judge."""
    column = dataset.column(target)
    others = np.array([place for place in range(len(dataset.device_ids)) if place != column], dtype=np.int64)
    measured = np.isfinite(dataset.latency_secs)
    tried = measured[:, column] | dataset.failed[:, column]
    pool, test = split.train[tried[split.train]], split.test[measured[split.test, column]]
    source_rows = split.train
    if regime is not Regime.BOTH_NEW:
        beside = np.asarray(measured[:, others].any(axis=1))
        pool, test = pool[beside[pool]], test[beside[test]]
    if regime is Regime.DEVICE_NEW:
        source_rows = np.arange(len(dataset))
    pool = few_of_each(dataset, pool, plan.most_pool, seed)
    test = few_of_each(dataset, test, plan.most_judged, seed)
    source_rows = source_rows[measured[source_rows][:, others].any(axis=1)]
    if regime is Regime.BOTH_NEW:
        # The same ones for every seed: what is made of them can be kept between seeds.
        source_rows = few_of_each(dataset, source_rows, plan.most_pool, 0)
    counts = np.bincount(dataset.group[test], minlength=1)
    test = test[counts[dataset.group[test]] >= 2]
    if not len(test) or len(pool) < 2 or not len(source_rows):
        return None
    return Case(
        regime=regime,
        target=target,
        split=split.name,
        pool=pool,
        source_rows=source_rows,
        test=test,
        seed=seed,
    )
