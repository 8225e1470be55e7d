"""Does adding a source device help or hurt each head? Measured on workloads that nobody trained on.

For each head, the joint model of all devices is compared with the joint models that lack one source, and
with a model of the head alone, on the same held-out workloads. One model without a device serves all other
heads, so D devices cost 2 D + 1 trainings a fold. Called by `fleet train --check-transfer`; knows nothing of
where data come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from transfer.data.dataset import Dataset
from transfer.data.intervals import LEVEL, Estimate
from transfer.data.metrics import Metrics, merge
from transfer.data.splits import Split
from transfer.errors import TransferError
from transfer.evaluate.evaluator import difference, judge
from transfer.processes import run_each
from transfer.train.config import TrainConfig
from transfer.train.rows import trainable_devices
from transfer.train.training import train

#: Enough for the far ends of the intervals.
_RESAMPLES = 20_000
HELPS, HURTS, UNCLEAR = "helps", "hurts", "no clear difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one source, or all of them together, does to one head."""

    head: str
    #: The source device; None for all others together, against the head alone.
    source: str | None
    #: Share of pairs in the right order: with the source less without it, over the same workloads. The
    #: steadier measure of the two, so it gives the verdict.
    pairwise: Estimate
    #: The same of the share of the best speed that the first choice reaches.
    top1: Estimate
    #: Held-out workloads that both were judged on.
    workloads: int

    @property
    def verdict(self) -> str:
        """`helps` or `hurts` where the whole interval of `pairwise` says so."""
        if self.pairwise.low > 0:
            return HELPS
        return HURTS if self.pairwise.high < 0 else UNCLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCheck:
    """Result of `check_transfer`."""

    effects: tuple[Effect, ...]
    folds: int
    #: Share of the resamples inside each interval: so wide that all of them hold at once with `LEVEL`.
    level: float

    def to_json(self) -> dict[str, Any]:
        """As plain values, for reports: `leave_out` names sources that hurt a head, by head.

        A head that is `better_alone` is better in a model of its own than in the joint one.
        """
        hurt = sorted((one for one in self.effects if one.verdict == HURTS), key=lambda one: one.head)
        leave_out: dict[str, list[str]] = {}
        for one in hurt:
            if one.source is not None:
                leave_out.setdefault(one.head, []).append(one.source)
        return {
            "folds": self.folds,
            "level": self.level,
            "effects": [asdict(effect) | {"verdict": effect.verdict} for effect in self.effects],
            "leave_out": leave_out,
            "better_alone": [one.head for one in hurt if one.source is None],
        }


def check_transfer(
    dataset: Dataset,
    splits: Sequence[Split],
    config: TrainConfig,
    *,
    seed: int,
    devices: Sequence[str] | None = None,
    workers: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> TransferCheck:
    """Compare joint models with and without each source on held-out workloads.

    Args:
        dataset: Candidates of all devices.
        splits: Folds that hold each workload out once, see `transfer.data.splits.workload_folds`.
        config: How every model is trained.
        seed: Of everything random; all models of fold i use `seed + i`.
        devices: Devices to look at. Default: all that every fold can train a head for.
        workers: Processes that train. The result does not depend on it.
        on_progress: Told how many models are trained, and of how many, after each.

    Raises:
        TransferError: There are fewer than two devices, or a worker process died.
    """
    known = [trainable_devices(dataset, split.train) for split in splits]
    chosen = tuple(d for d in devices or known[0] if all(d in each for each in known))
    if len(chosen) < 2:
        raise TransferError(
            f"a transfer check compares devices with each other, and only {len(chosen)} can be trained in "
            "all folds; measure at least two devices on the same workloads"
        )
    sets = _device_sets(chosen)
    jobs = [(fold, group) for fold in range(len(splits)) for group in sets]
    run = partial(_judge_set, dataset, splits, config, seed)
    found: dict[tuple[tuple[str, ...], str], list[Metrics]] = {}
    made = run_each(run, jobs, workers, of="the transfer check", pieces="trainings")
    for done, ((_, group), metrics) in enumerate(zip(jobs, made, strict=True), start=1):
        for head, one in metrics.items():
            found.setdefault((group, head), []).append(one)
        if on_progress is not None:
            on_progress(done, len(jobs))
    joined = {key: merge(parts) for key, parts in found.items()}
    asked = [
        (head, source)
        for head in chosen
        if (chosen, head) in joined
        # Of two devices, the other one is all others.
        for source in (None, *(chosen if len(chosen) > 2 else ()))
        if source != head
    ]
    # Many verdicts at once: the chance that any of them is an accident stays that of one interval.
    level = 1 - (1 - LEVEL) / max(1, len(asked))
    effects = []
    for head, source in asked:
        without = (head,) if source is None else tuple(d for d in chosen if d != source)
        mine, theirs = joined[chosen, head], joined[without, head]
        pairwise, top1 = (
            difference([mine], [theirs], one, level, seed, _RESAMPLES) for one in ("pairwise", "top1")
        )
        effects.append(
            Effect(head=head, source=source, pairwise=pairwise, top1=top1, workloads=len(mine.groups))
        )
    return TransferCheck(effects=tuple(effects), folds=len(splits), level=level)


def _device_sets(devices: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All devices, all but one each, and each alone."""
    without = [tuple(d for d in devices if d != left_out) for left_out in devices]
    return list(dict.fromkeys([devices, *without, *((device,) for device in devices)]))


def _judge_set(
    dataset: Dataset,
    splits: Sequence[Split],
    config: TrainConfig,
    seed: int,
    job: tuple[int, tuple[str, ...]],
) -> dict[str, Metrics]:
    """Train one set of devices in one fold and judge those of its heads that have a held-out pair."""
    fold, devices = job
    split = splits[fold]
    model = train(dataset, split.train, config=config, seed=seed + fold, devices=devices).model
    held = dataset.features.take(split.test)
    found = {one: judge(dataset, one, split.test, model.score(held, one)) for one in devices}
    return {device_id: metrics for device_id, metrics in found.items() if metrics is not None}
