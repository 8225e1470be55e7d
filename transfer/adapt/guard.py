"""`auto`: the default strategy, unless another is better beyond luck on samples that were held back.

A part of the new device's samples is kept from the strategies and put in order by the heads that they make of
the others. The first strategy stays unless another orders clearly more pairs on most workloads: a check of a
few workloads is mostly luck. Called by onboarding, which also asks heads that did not see a sample what it is
worth (`held_back_scores`). Knows strategies by their protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from transfer.adapt.base import Adapted, FewShotTask, Regime, Strategy, is_enough
from transfer.adapt.heads import Boosted, FineTuneHead, Momentum, shortened, with_target_head
from transfer.adapt.maml import Maml
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceDevices
from transfer.arrays import Floats, Groups, Mask, Rows
from transfer.data.dataset import Dataset
from transfer.data.intervals import is_beyond_luck
from transfer.data.ranking import order_agreement
from transfer.errors import TransferError
from transfer.train.rows import trainable_devices
from transfer.train.training import TrainRun, train

# MTL-TLP as onboarding: a head for the target trained together with replay of the sources' data.
#
# The published method (TLP, ASPLOS'23, section 5) trains all heads at once from nothing, on half a million
# target labels. With a few dozen the target's head cannot shape the backbone by itself: it starts from the
# source head that ranks the few-shot set best, and the sources' data keep the backbone from forgetting.
# Beside it stands the same training without any transfer (`Scratch`).


#: Epochs and learning rate of the adaptation, as shares of the source model's. A few dozen labels are soon
#: known by heart: with 64, a sixth of the epochs gave a Kendall's tau of .52 on held-out workloads, half .51,
#: all of them .50; with the whole rate the adapted head was no better than the one it started from.
_EPOCH_SHARE, _RATE_SHARE = 0.2, 0.3


class MultiTask:
    """Train source heads and the new head together, starting from the source model where there is one."""

    name = "multitask"
    least_samples = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train with replay; without a source model, from a new one. See `Strategy.adapt`."""
        part, target, config, seed, init = task.visible(), task.target, task.config, task.seed, None
        if task.source is not None:
            init = with_target_head(task.source, part, target, seed=seed)
            config = shortened(config, _EPOCH_SHARE, _RATE_SHARE)
        rows = np.arange(len(part))
        head_ids = part.device_ids if init is None else init.device_ids
        devices = [d for d in trainable_devices(part, rows) if d in head_ids or d == target]
        model = train(part, rows, config=config, seed=seed, devices=devices, run=TrainRun(init=init)).model
        return Adapted(device_id=target, model=model, notes={"sources": list(devices)})


class Scratch:
    """No transfer: a new model with the target's head only, trained on the few-shot rows only.

    The yardstick of every other strategy.
    """

    name = "scratch"
    least_samples = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train from nothing on nothing but the samples. See `Strategy.adapt`."""
        part = task.samples()
        rows = np.arange(len(part))
        model = train(part, rows, config=task.config, seed=task.seed, devices=(task.target,)).model
        return Adapted(device_id=task.target, model=model)


#: Parts that samples are held back in.
_FOLDS = 3
#: Samples that ran, at least, on either side of a check.
_LEAST_CHECKED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Take the first of some strategies that can work, unless another is better on samples held back.

    Args:
        strategies: The default first, then those that it is checked against.
        regime: What the head will be asked.
    """

    strategies: tuple[Strategy, ...]
    regime: Regime = Regime.DEVICE_NEW
    name: ClassVar = "auto"
    least_samples: ClassVar = 0

    def adapt(self, task: FewShotTask) -> Adapted:
        """Choose, check, adapt. See `Strategy.adapt`; `notes` say what was chosen and why."""
        rows, latency, group = task.few_shot, task.latency, task.dataset.group

        def able(some: Rows) -> list[Strategy]:
            return [
                strategy
                for strategy in self.strategies
                if (task.source is not None or isinstance(strategy, Scratch))
                and is_enough(strategy, group[some], latency[some])
            ]

        measured = int(np.isfinite(latency[rows]).sum())
        if not (possible := able(rows)):
            raise TransferError(
                f"no strategy can give {task.target!r} a head from {measured} measurements; measure at "
                "least two candidates of one workload there, or train a model of its source devices first"
            )
        chosen, check = possible[0], f"none: {measured} measurements are too few to keep some back"
        notes: dict[str, Any] = {"strategy": chosen.name, "check": check}
        held = _held_for_check(group[rows], latency[rows], self.regime, task.seed)
        if held is not None and chosen in (checked := able(rows[~held])) and len(checked) > 1:
            rivals = [
                rival
                for rival in checked
                if rival is not chosen and _is_fair(rival, self.regime) and _is_ready(rival, task)
            ]

            def agreement(strategy: Strategy) -> Floats:
                scores = held_back_scores(strategy, task, held, self.regime)
                return agreement_by_workload(group[rows[held]], scores, latency[rows[held]])

            verdict = _checked(chosen, rivals, agreement, self.regime)
            notes |= {"strategy": verdict["taken"], "check": verdict}
            chosen = next(strategy for strategy in possible if strategy.name == verdict["taken"])
        adapted = chosen.adapt(task)
        return replace(adapted, notes={**notes, "of_strategy": dict(adapted.notes)})


def _is_fair(rival: Strategy, regime: Regime) -> bool:
    """Whether a rival knows no more of the samples held back than it will know of what it is asked.

    A model of the source devices has learnt what these measured of the held-back candidates. Where nobody
    will have measured those in question, that would put a head made from it alone ahead of all others.
    """
    return regime is not Regime.CANDIDATE_NEW or isinstance(rival, Scratch)


def _is_ready(rival: Strategy, task: FewShotTask) -> bool:
    """Whether a rival takes seconds: nobody waits for a start of meta-learning, which a training makes."""
    return (
        task.source is None
        or not isinstance(rival, Maml)
        or rival.has_start(task.source, task.config, task.seed)
    )


def _checked(
    chosen: Strategy, rivals: list[Strategy], agreement: Callable[[Strategy], Floats], regime: Regime
) -> dict[str, Any]:
    """The verdict on a choice. What beats it in a short form has to beat it in full, too."""
    agreements = {rival.name: agreement(rival) for rival in rivals}
    short = for_check(chosen, regime)
    verdict = judge({**agreements, chosen.name: agreement(short)}, chosen.name)
    if verdict["taken"] != chosen.name and short is not chosen:
        verdict = judge({**agreements, chosen.name: agreement(chosen)}, chosen.name)
    return verdict


def judge(agreements: Mapping[str, Floats], chosen: str) -> dict[str, Any]:
    """Whether the chosen strategy stays.

    Args:
        agreements: By strategy, (workloads,) share of the held-back pairs in the right order.
        chosen: One of the strategies.

    Returns:
        JSON-ready: `taken`, `chosen`, number of `workloads`, mean `agreement` by strategy, `beaten_by` (in
        the mean, be it by luck) and a sentence.
    """
    means = {name: float(values.mean()) for name, values in agreements.items()}
    better = [
        name
        for name, values in agreements.items()
        if name != chosen and is_beyond_luck(values - agreements[chosen], among=len(agreements) - 1)
    ]
    taken = max(better, key=lambda name: means[name], default=chosen)
    beaten_by = sorted(name for name in means if means[name] > means[chosen])
    workloads = len(agreements[chosen])
    if taken != chosen:
        sentence = f"{chosen} does not beat {taken} on the check samples: {taken} is taken"
    elif beaten_by:
        sentence = (
            f"{chosen} does not beat {', '.join(beaten_by)} on the check samples, but {workloads} workloads "
            "are too few to be sure of it"
        )
    else:
        sentence = f"{chosen} is not beaten on the check samples"
    return {
        "taken": taken,
        "chosen": chosen,
        "workloads": workloads,
        "agreement": {name: round(value, 4) for name, value in means.items()},
        "beaten_by": beaten_by,
        "says": sentence,
    }


def agreement_by_workload(group: Groups, scores: Floats, latency_secs: Floats) -> Floats:
    """(workloads,) share of the pairs in the right order, of workloads where two candidates ran."""
    ran = np.isfinite(latency_secs)
    workloads, counts = np.unique(group[ran], return_counts=True)
    shares = []
    for workload in workloads[counts >= 2]:
        mine = ran & (group == workload)
        shares.append(order_agreement(scores[mine], latency_secs[mine])[0])
    return np.array(shares)


def folds(group: Groups, regime: Regime, seed: int) -> list[Mask]:
    """Masks over samples: what is held back in turn, so that held-back ones can be compared with each other.

    Args:
        group: (n,) workloads of the samples.
        regime: Whole workloads are held back where the head will be asked about new ones; of each workload
            its share else.
        seed: Draws the parts.

    Returns:
        Up to three masks; none that is empty or leaves nothing.
    """
    random = np.random.default_rng(seed)
    if regime is Regime.BOTH_NEW:
        groups = random.permutation(np.unique(group))
        parts = [np.isin(group, groups[fold::_FOLDS]) for fold in range(_FOLDS)]
    else:
        order = random.permutation(len(group))
        order = order[np.argsort(group[order], kind="stable")]
        fold_of = np.empty(len(group), dtype=np.int64)
        fold_of[order] = np.arange(len(group)) % _FOLDS
        parts = [fold_of == fold for fold in range(_FOLDS)]
    return [part for part in parts if part.any() and not part.all()]


def scores_by_others(strategy: Strategy, task: FewShotTask, regime: Regime) -> Floats:
    """(k,) scores of the samples by heads made without them, in turn, asked as in a regime; NaN: none."""
    scores = np.full(len(task.few_shot), np.nan)
    for held in folds(task.dataset.group[task.few_shot], regime, task.seed):
        scores[held] = held_back_scores(strategy, task, held, regime)
    return scores


def held_back_scores(strategy: Strategy, task: FewShotTask, held: Mask, regime: Regime) -> Floats:
    """(held,) scores of samples by a head that was made without them, asked as it will be in earnest.

    `held` (k,) tells which are held back. What source devices measured of candidates or workloads that nobody
    will have measured is hidden.
    """
    check = task.few_shot[held]
    hidden = check if regime is Regime.CANDIDATE_NEW else check[:0]
    others = replace(task, few_shot=task.few_shot[~held], source_rows=np.setdiff1d(task.source_rows, hidden))
    return strategy.adapt(others).score(checking_view(task.dataset, check, regime), check)


def checking_view(dataset: Dataset, check: Rows, regime: Regime) -> Dataset:
    """What a head may look at when it scores rows held back."""
    if regime is Regime.DEVICE_NEW:
        return dataset
    hidden = np.isin(dataset.group, np.unique(dataset.group[check]))[:, None]
    if regime is Regime.CANDIDATE_NEW:
        hidden = np.isin(np.arange(len(dataset)), check)[:, None]
    return dataset.where(~hidden)


def for_check(strategy: Strategy, regime: Regime) -> Strategy:
    """What gives nearly the same scores where a check asks, in less time if it can.

    Where source devices have measured whatever is asked, half of the weight is theirs, and needs no head.
    """
    if regime is Regime.DEVICE_NEW and isinstance(strategy, SourceDevices):
        return replace(strategy, trains_head=False)
    return strategy


def _held_for_check(group: Groups, latency_secs: Floats, regime: Regime, seed: int) -> Mask | None:
    """The samples to check by; None where either side would have too little to compare."""
    ran = np.isfinite(latency_secs)
    for held in folds(group, regime, seed)[:1]:
        has_pair = bool(np.bincount(group[ran & held], minlength=1).max() >= 2)
        if has_pair and min((ran & held).sum(), (ran & ~held).sum()) >= _LEAST_CHECKED:
            return held
    return None


# The strategies by name, best guess first: what the curve compares, and what `auto` takes and is checked
# by.
#
# Called by onboarding and the benchmarks. A strategy is added here and nowhere else.

#: What `auto` takes first, and what that is checked against.
GUARDED = ("source_devices", "multitask", "maml", "scratch")
#: The same where nothing is known of source devices but their heads.
GUARDED_ALONE = ("boosted", "nearest", "scratch")


def strategies(starts: Path | None = None) -> dict[str, Strategy]:
    """All strategies, fresh ones: some keep what they made for given sources.

    Args:
        starts: Folder of the source model's version, where its meta-trained start is kept; None for nowhere.
    """
    several: tuple[Strategy, ...] = (
        SourceDevices(),
        Boosted(),
        MultiTask(),
        FineTuneHead(),
        Momentum(),
        Maml(starts=starts),
        Nearest(),
        Scratch(),
    )
    return {strategy.name: strategy for strategy in several}


def auto(regime: Regime, by_name: dict[str, Strategy], guarded: tuple[str, ...] = GUARDED) -> Auto:
    """The strategy that users get, made of some of those in `by_name`."""
    return Auto(strategies=tuple(by_name[name] for name in guarded), regime=regime)


#: All names, for options and settings.
NAMES = tuple(strategies())
