"""The strategy that chooses a strategy, and checks what it got before anybody relies on it.

Which strategy to take at which k is told by leave-one-device-out among the devices already known
(`transfer.auto.leave_one_out`), done ahead and cached. Then comes the guard against harm: some samples are
kept back as a check, and where the adapted head does not beat training from scratch and the nearest device's
head on them, `auto` says so and takes the better one. Called by onboarding; knows strategies by their
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, Strategy, visible_part
from transfer.adapt.multitask import Scratch
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceDevices
from transfer.auto.leave_one_out import LeaveOneOutScores, leave_one_out, made_ahead
from transfer.data.dataset import Dataset
from transfer.data.intervals import is_beyond_luck
from transfer.data.ranking import order_agreement
from transfer.errors import TransferError
from transfer.evaluate.onboarding_cases import FewShotSet, Regime
from transfer.evaluate.onboarding_contenders import is_enough
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig

Rows = NDArray[np.int64]

#: Share of the samples that are kept back as a check, and how many there must be for one.
_CHECK_SHARE = 0.25
_LEAST_CHECKED = 8
#: Scores from an eighth of the records are taken where a device waits: making new ones takes minutes.
_LATE = 8.0
#: Workloads of a check that count as much as what leave-one-device-out told: a check of a few workloads is
#: mostly luck, one of many decides.
_PRIOR_WORKLOADS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Choose among strategies, guard against harm.

    Args:
        strategies: To choose from, best guess first: what is taken where nothing is known yet.
        regime: What the head will be asked: candidates that source devices measured, or unseen ones of known
            or of new workloads.
        ready: More to choose from where somebody has made the leave-one-device-out scores of all of these
            ahead, as the daemon does in its idle time: they are too many to be tried while a device waits.
        cache: Folder where leave-one-device-out scores are kept between calls; made again each time where
            None.
        waits: Make the scores where none are ready; else the first strategy is taken, and guarded.
        guard: Check the choice against scratch, and nearest where that is fair.
    """

    strategies: tuple[Strategy, ...]
    regime: Regime = Regime.DEVICE_NEW
    ready: tuple[Strategy, ...] = ()
    cache: Path | None = field(default=None, repr=False)
    waits: bool = True
    guard: bool = True
    name: str = "auto"
    least_samples: int = 0

    def prepare(
        self, dataset: Dataset, target_device: str, *, source_rows: Rows, config: TrainConfig
    ) -> LeaveOneOutScores | None:
        """Find, or look up, how the strategies stand among the other devices; minutes when done anew.

        Args:
            dataset: Candidates of all devices; nothing of the target is looked at.
            target_device: The new device.
            source_rows: Rows whose latencies on the other devices may be seen.
            config: How source models are trained.

        Returns:
            None where fewer than two other devices have anything to rank, there is nothing to choose, or none
            are ready and it does not wait.
        """
        if len(self.strategies) + len(self.ready) < 2:
            return None
        visible_data = visible_part(
            dataset, target_device, np.zeros(0, dtype=np.int64), source_rows, need_few_shot=False
        )
        sources = visible_data.of_devices(
            [device_id for device_id in visible_data.device_ids if device_id != target_device]
        )
        if self.ready and self.cache is not None:
            ahead = made_ahead(sources, self.ready, self.regime, config, self.cache, growth=_LATE)
            if ahead is not None:
                return ahead
        if not self.waits:
            return None
        return leave_one_out(sources, self.strategies, self.regime, config, self.cache)

    def adapt(
        self,
        source: FleetTLP | None,
        dataset: Dataset,
        target_device: str,
        few_shot_rows: Rows,
        *,
        source_rows: Rows,
        config: TrainConfig,
        seed: int,
    ) -> Adapted:
        """Choose, check, adapt. See `Strategy.adapt`; `notes` say what was chosen and why."""
        few_shot_rows = np.asarray(few_shot_rows, dtype=np.int64)
        device_scores = self.prepare(dataset, target_device, source_rows=source_rows, config=config)
        latency = dataset.latency_secs[:, dataset.column(target_device)]
        measured = int(np.isfinite(latency[few_shot_rows]).sum())
        strategies_by_name = {strategy.name: strategy for strategy in (*self.strategies, *self.ready)}
        if device_scores is None:
            strategies_by_name = {strategy.name: strategy for strategy in self.strategies}
        able = [
            strategy
            for strategy in strategies_by_name.values()
            if self._can(strategy, source, dataset, few_shot_rows, latency)
        ]
        if not able:
            raise TransferError(
                f"no strategy can give {target_device!r} a head from {measured} measurements; measure at "
                "least two candidates of one workload there, or train a model of its source devices first"
            )
        chosen = able[0] if device_scores is None else device_scores.best(able, measured)
        notes: dict[str, Any] = {"strategy": chosen.name}
        if device_scores is not None:
            notes["standings"] = device_scores.at(measured)

        def run(strategy: Strategy, rows: Rows, hidden: Rows) -> Adapted:
            visible_rows = np.setdiff1d(source_rows, hidden)
            return strategy.adapt(
                source, dataset, target_device, rows, source_rows=visible_rows, config=config, seed=seed
            )

        if self.guard and source is not None:
            parts = split_few_shot(dataset, few_shot_rows, latency, self.regime, seed)
            if parts is None:
                notes["check"] = f"none: {measured} measurements are too few to keep some back"
            else:
                fit, check = parts
                hidden = check if self.regime is Regime.CANDIDATE_NEW else check[:0]
                rivals = {
                    strategy.name: strategy
                    for strategy in (chosen, *_rivals(self.regime))
                    if self._can(strategy, source, dataset, fit, latency)
                }
                agreements = {
                    name: check_agreement(
                        run(for_check(strategy, self.regime), fit, hidden),
                        dataset,
                        check,
                        latency,
                        self.regime,
                    )
                    for name, strategy in rivals.items()
                }
                notes["check"] = verdict = judge(agreements, chosen.name, device_scores, measured)
                chosen = rivals[verdict["taken"]]
                notes["strategy"] = chosen.name
        adapted = run(chosen, few_shot_rows, few_shot_rows[:0])
        return replace(adapted, notes={**notes, "of_strategy": dict(adapted.notes)})

    @staticmethod
    def _can(
        strategy: Strategy,
        source: FleetTLP | None,
        dataset: Dataset,
        rows: Rows,
        latency: NDArray[np.float64],
    ) -> bool:
        """Whether a strategy can work with what there is."""
        if source is None and not isinstance(strategy, Scratch):
            return False
        return is_enough(strategy, dataset, FewShotSet(rows, latency[rows]))


def _rivals(regime: Regime) -> tuple[Strategy, ...]:
    """What a choice is checked against."""
    # Heads of source devices have learnt what these measured of the candidates of a check. Where nobody will
    # have measured those in question, that would put the nearest of them ahead of all others.
    return (Scratch(),) if regime is Regime.CANDIDATE_NEW else (Scratch(), Nearest())


def split_few_shot(
    dataset: Dataset, rows: Rows, latency: NDArray[np.float64], regime: Regime, seed: int
) -> tuple[Rows, Rows] | None:
    """Part the samples into those to fit by and those to check by.

    The check asks what the head will be asked: other candidates of the same workloads where source devices
    measured them, whole workloads where nobody did.

    Returns:
        Rows to fit and rows to check; None where either side would have nothing to compare.
    """
    ran = rows[np.isfinite(latency[rows])]
    random = np.random.default_rng(seed)
    held = np.zeros(len(ran), dtype=np.bool_)
    groups, counts = np.unique(dataset.group[ran], return_counts=True)
    if regime is Regime.BOTH_NEW:
        able = random.permutation(groups[counts >= 2])
        take = max(1, round(_CHECK_SHARE * len(able)))
        if len(able) - take < 1:
            return None
        held = np.isin(dataset.group[ran], able[:take])
    else:
        for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
            take = max(2, round(_CHECK_SHARE * count))
            if count - take >= 2:
                mine = np.flatnonzero(dataset.group[ran] == group)
                held[random.permutation(mine)[:take]] = True
    if held.sum() < _LEAST_CHECKED or (~held).sum() < _LEAST_CHECKED:
        return None
    failed = rows[~np.isfinite(latency[rows])]
    return np.sort(np.concatenate([ran[~held], failed])), np.sort(ran[held])


def for_check(strategy: Strategy, regime: Regime) -> Strategy:
    """What gives nearly the same scores where a check asks, in less time if it can.

    Where source devices have measured whatever is asked, half of the weight is theirs, and needs no head.
    """
    if regime is Regime.DEVICE_NEW and isinstance(strategy, SourceDevices):
        return replace(strategy, trains_head=False)
    return strategy


def checking_view(dataset: Dataset, check: Rows, regime: Regime) -> Dataset:
    """What a head may look at when it scores check rows: what it will see when it is asked in earnest."""
    if regime is Regime.DEVICE_NEW:
        return dataset
    hidden = np.isin(dataset.group, np.unique(dataset.group[check]))[:, None]
    if regime is Regime.CANDIDATE_NEW:
        hidden = np.isin(np.arange(len(dataset)), check)[:, None]
    return dataset.where(~hidden)


def check_agreement(
    adapted: Adapted, dataset: Dataset, check: Rows, latency: NDArray[np.float64], regime: Regime
) -> NDArray[np.float64]:
    """(workloads,) share of the check's pairs in the right order, workload by workload."""
    scores = adapted.score(checking_view(dataset, check, regime), check)
    group = dataset.group[check]
    shares = []
    for workload in np.unique(group):
        mine = group == workload
        if mine.sum() >= 2:
            shares.append(order_agreement(scores[mine], latency[check][mine])[0])
    return np.array(shares)


def judge(
    agreements: Mapping[str, NDArray[np.float64]],
    chosen: str,
    device_scores: LeaveOneOutScores | None,
    k: int,
) -> dict[str, Any]:
    """Whether the chosen strategy stays: its check against the rivals', with known scores as a prior.

    Returns:
        JSON-ready: `taken`, `agreement` by strategy, `beaten_by` (of raw agreement) and a sentence.
    """
    raw = {name: float(values.mean()) for name, values in agreements.items()}
    workloads = len(agreements[chosen])
    shrunk = {}
    for name, values in agreements.items():
        before = 0.0 if device_scores is None else device_scores.difference(name, chosen, k)
        after = float((values - agreements[chosen]).sum())
        shrunk[name] = (after + _PRIOR_WORKLOADS * before) / (workloads + _PRIOR_WORKLOADS)
    winner = max(shrunk, key=lambda name: (shrunk[name], name == chosen))
    if winner != chosen and not is_beyond_luck(agreements[winner] - agreements[chosen]):
        winner = chosen
    beaten_by = sorted(name for name in raw if raw[name] > raw[chosen])
    if winner != chosen:
        sentence = f"{chosen} does not beat {winner} on the check samples: {winner} is taken"
    elif beaten_by:
        sentence = (
            f"{chosen} does not beat {', '.join(beaten_by)} on the check samples, but {workloads} workloads "
            "are too few to be sure of it"
        )
    else:
        sentence = f"{chosen} beats its rivals on the check samples"
    return {
        "taken": winner,
        "chosen": chosen,
        "workloads": workloads,
        "agreement": {name: round(value, 4) for name, value in raw.items()},
        "beaten_by": beaten_by,
        "says": sentence,
    }
