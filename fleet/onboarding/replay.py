"""`fleet onboard DEVICE --replay`: onboard a recorded device as if it were new, and see what it came to.

Nothing is measured: the store answers. Of each workload one half of the device's recorded candidates can be
"measured", and the head is judged on the other half, so that what was expected stands beside what is true.
The model of the source devices is trained here, on their records alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId
from fleet.config.settings import FleetConfig
from fleet.errors import FleetError
from fleet.models.versions import load_snapshot, train_config
from fleet.onboarding.adaptation import adaptation_report, family_devices, strategy_for
from fleet.planner.settings import Clock
from fleet.store.store import Store
from transfer.adapt.base import Onboarding, Regime
from transfer.adapt.sample_selection import SELECTORS, Choice, choose_in_rounds
from transfer.data.dataset import Dataset
from transfer.data.splits import few_of_each, within_workload
from transfer.evaluate.rankers import judge
from transfer.train.rows import trainable_devices
from transfer.train.training import train

#: Most candidates of a workload that are looked at: imported logs have thousands.
_MOST = 128
#: Share of a workload's candidates that the head is judged on.
_JUDGED_SHARE = 0.5


def onboard_recorded(settings: FleetConfig, device: str) -> dict[str, Any]:
    """Choose, look up, adapt, report, and compare with the truth. Nothing is written.

    Raises:
        FleetError: The device has no records, or no source devices.
        TransferError: There is nothing to learn from.
    """
    clock = Clock()
    recorded = _look_up(settings, device, clock)
    onboarding = recorded.onboarding
    strategy = strategy_for(settings.onboarding.strategy, onboarding.regime)
    with clock.part("adapt"):
        adapted = strategy.adapt(onboarding)
    result: dict[str, Any] = {
        "device": device,
        "replay": True,
        "samples_asked": settings.onboarding.samples,
        "failed_samples": recorded.failed,
        "strategy": strategy.name,
        "selector": settings.onboarding.selector,
        "source_devices": list(recorded.sources),
    }
    with clock.part("report"):
        result |= adaptation_report(onboarding, adapted, strategy, recorded.test)
    scores = adapted.score(recorded.view, recorded.test)
    # What the head's first choices really reach on the rows held back, beside a random choice.
    judgement = judge(recorded.dataset, device, recorded.test, scores)
    assert judgement is not None  # of each workload two rows are held back
    names = ("top1", "top5", "tau", "random_top1", "random_top5")
    result["truth"] = {name: round(judgement.value(name), 4) for name in names}
    result["seconds"] = clock.parts
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recorded:
    """A recorded device as if it were new."""

    #: With all measurements of the device.
    dataset: Dataset
    #: Without any of them.
    view: Dataset
    #: Rows that the head is judged on.
    test: np.ndarray
    sources: tuple[str, ...]
    onboarding: Onboarding
    #: Samples that failed.
    failed: int


def _look_up(settings: FleetConfig, device: str, clock: Clock) -> _Recorded:
    """Train a model of the source devices, choose the few-shot set, and look up what it measured."""
    seed, samples = settings.training.seed, settings.onboarding.samples
    with clock.part("read"):
        dataset = _family(settings, device)
        dataset = dataset.take(few_of_each(dataset, np.arange(len(dataset)), _MOST, seed))
    pool, test, source_rows = _divided(dataset, device, seed)
    samples = min(samples, len(pool))
    column, config = dataset.column(device), train_config(settings.training.epochs)
    may_see = np.zeros(dataset.latency_secs.shape, dtype=np.bool_)
    may_see[source_rows] = True
    may_see[:, column] = False
    view = dataset.where(may_see)
    sources = tuple(name for name in trainable_devices(view, source_rows) if name != device)
    with clock.part("train"):
        source = train(view, source_rows, config=config, seed=seed, devices=sources).model
    truth = dataset.latency_secs[:, column]
    with clock.part("choose"):
        choice = Choice(dataset=view, target=device, pool=pool, source_model=lambda: source, seed=seed)
        selector = SELECTORS[settings.onboarding.selector]
        few_shot = choose_in_rounds(selector, choice, truth, samples)
    may_see[few_shot, column] = True
    few_shot_view = dataset.where(may_see)
    failed = int((~np.isfinite(truth[few_shot])).sum())
    if samples and failed == len(few_shot):
        raise FleetError(
            f"all {failed} samples of {device} failed in its records: no head can be made of failures; "
            "choose another seed, or ask for more samples"
        )
    onboarding = Onboarding(
        dataset=few_shot_view,
        target=device,
        few_shot=few_shot,
        source=source,
        source_rows=source_rows,
        regime=Regime.DEVICE_NEW,
        config=config,
        seed=seed,
    )
    return _Recorded(
        dataset=dataset,
        view=view,
        test=test,
        sources=sources,
        onboarding=onboarding,
        failed=failed,
    )


def _divided(dataset: Dataset, device: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that the device may "measure", that it is judged on, and that its source devices measured.

    Raises:
        FleetError: There is nothing to judge by.
    """
    half, column = within_workload(dataset, _JUDGED_SHARE, seed), dataset.column(device)
    measured = np.isfinite(dataset.latency_secs)
    by_others = np.delete(measured, column, axis=1).any(axis=1)
    tried = measured[:, column] | dataset.failed[:, column]
    pool = half.train[(tried & by_others)[half.train]]
    test = half.test[(measured[:, column] & by_others)[half.test]]
    test = test[np.bincount(dataset.group[test], minlength=1)[dataset.group[test]] >= 2]
    if not len(test) or len(pool) < 2:
        raise FleetError(
            f"nothing to judge: no held-out workload has two candidates measured on {device} and on source "
            "devices; collect more, or name another device"
        )
    return pool, test, np.flatnonzero(by_others)


def _family(settings: FleetConfig, device: str) -> Dataset:
    """Records of the device and its source devices."""
    reader = Store.read(Path(settings.store.path))
    entries = reader.devices()
    if DeviceId(device) not in entries:
        recorded_devices = ", ".join(sorted(entries)) or "none"
        raise FleetError(
            f"device {device!r} has no records in {reader.path}: only recorded devices can be replayed; it "
            f"holds: {recorded_devices}"
        )
    family = entries[DeviceId(device)].spec.family
    sources = [device_id for device_id in family_devices(reader, family) if device_id != device]
    if not sources:
        raise FleetError(
            f"{device} is the only device of family {family} in {reader.path}: there is nobody to learn "
            "from; collect on a source device first"
        )
    return load_snapshot(reader, device_ids=[DeviceId(device), *sources]).dataset
