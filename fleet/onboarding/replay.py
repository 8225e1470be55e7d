"""`fleet onboard DEVICE --replay`: onboard a recorded device as if it were new, and see what it came to.

Nothing is measured: the store answers. Of each workload one half of the device's recorded candidates can be
"measured", and the head is judged on the other half, so that what was expected stands beside what is true.
The model of the source devices is trained here, on their records alone. Imports torch when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import DeviceId
from fleet.collection.clock import Clock
from fleet.errors import FleetError
from fleet.models.names import DEVICE_SCORES
from fleet.models.versions import load_snapshot, train_config
from fleet.onboarding.adaptation import Onboarding, strategy_for, told
from fleet.store.store import Store

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.data.dataset import Dataset

#: Most candidates of a workload that are looked at: imported logs have thousands.
_MOST = 128


def onboard_recorded(settings: FleetConfig, device: str, models: Path) -> dict[str, Any]:
    """Choose, look up, adapt, tell, and compare with the truth.

    Args:
        settings: Store, samples, strategy, selector, seed, epochs.
        device: A device with records in the store.
        models: Folder beside which leave-one-device-out scores are kept; nothing else is written.

    Raises:
        FleetError: The device has no records, no source devices, or fewer candidates than samples asked for.
        TransferError: There is nothing to learn from.
    """
    from transfer.adapt.fingerprint import distances, from_anchors
    from transfer.adapt.sample_selection import selector_named
    from transfer.auto.strategy import Auto
    from transfer.baselines.situation import FewShotSet, with_few_shot
    from transfer.data.splits import few_of_each
    from transfer.evaluate.onboarding_cases import CasePlan, Regime, make_cases, shown
    from transfer.evaluate.onboarding_contenders import choose_few_shot, situation_of
    from transfer.train.training import train

    clock = Clock()
    seed, samples = settings.training.seed, settings.onboarding.samples
    selector = settings.onboarding.selector
    with clock.part("read"):
        dataset = _family(settings, device)
        rows = np.arange(len(dataset))
        dataset = dataset.take(few_of_each(dataset, rows, _MOST, seed))
    [case] = make_cases(
        dataset, None, CasePlan(regimes=(Regime.DEVICE_NEW,), targets=(device,), seeds=(seed,))
    )
    if samples > len(case.pool):
        raise FleetError(
            f"{samples} samples are asked for, but {device} and its source devices have {len(case.pool)} "
            "recorded candidates to choose from (the others judge the head); ask for at most that many"
        )
    view = shown(dataset, case)
    config = train_config(settings.training.epochs)
    situation = situation_of(view, case)
    sources = situation.sources
    with clock.part("train"):
        source = train(view, case.source_rows, config=config, seed=seed, devices=sources).model
    truth = dataset.latency_secs[:, dataset.column(device)]
    with clock.part("choose"):
        few_shot = choose_few_shot(
            selector_named(selector), situation, case.pool, samples, truth, lambda: source
        )
    seen = with_few_shot(view, device, FewShotSet(few_shot, truth[few_shot]))
    failed = int((~np.isfinite(truth[few_shot])).sum())
    if samples and failed == len(few_shot):
        raise FleetError(
            f"all {failed} samples of {device} failed in its records: no head can be made of failures; "
            "choose another seed, or ask for more samples"
        )
    one = Onboarding(
        dataset=seen,
        target=device,
        few_shot=few_shot,
        source=source,
        source_rows=case.source_rows,
        regime=case.regime,
        config=config,
        seed=seed,
    )
    anchors = from_anchors(seen.take(few_shot), (device, *sources)) if len(few_shot) else {}
    near = distances(anchors[device], anchors.values()) if anchors else {}
    strategy = strategy_for(settings.onboarding.strategy, case.regime, models.parent / DEVICE_SCORES, near)
    device_scores = None
    with clock.part("standings"):
        if isinstance(strategy, Auto):
            device_scores = strategy.prepare(seen, device, source_rows=case.source_rows, config=config)
    with clock.part("adapt"):
        adapted = one.adapt(strategy, few_shot)
    taken = str(adapted.notes.get("strategy", strategy.name))
    result: dict[str, Any] = {
        "device": device,
        "replay": True,
        "samples": len(few_shot),
        "failed_samples": failed,
        "strategy": strategy.name,
        "taken": taken,
        "selector": selector,
        "siblings": list(sources),
        "likeness": near,
        "notes": dict(adapted.notes),
    }
    with clock.part("report"):
        result |= told(one, adapted, taken, case.test, device_scores, len(case.pool))
    result["truth"] = _truth(dataset, device, adapted.score(view, case.test), case.test)
    result["seconds"] = clock.parts
    return result


def _family(settings: FleetConfig, device: str) -> Dataset:
    """Records of the device and its source devices."""
    reader = Store.read(Path(settings.store.path))
    entries = reader.devices()
    if DeviceId(device) not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise FleetError(
            f"device {device!r} has no records in {reader.path}: only recorded devices can be replayed; it "
            f"holds: {known}"
        )
    family = entries[DeviceId(device)].spec.family
    sources = [
        one
        for one, entry in entries.items()
        if entry.spec.family is family and entry.descriptor is not None and one != device
    ]
    if not sources:
        raise FleetError(
            f"{device} is the only device of family {family} in {reader.path}: there is nobody to learn "
            "from; collect on a source device first"
        )
    return load_snapshot(reader, device_ids=[DeviceId(device), *sources]).dataset


def _truth(dataset: Dataset, device: str, scores: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """What the head's first choices really reach on the rows held back, beside a random choice."""
    from transfer.data.metrics import evaluate_ranking

    found = evaluate_ranking(
        scores, dataset.latency_secs[test, dataset.column(device)], dataset.group[test], least=2
    )
    names = ("top1", "top5", "tau", "random_top1", "random_top5")
    return {name: round(float(getattr(found, name)), 4) for name in names}


__all__ = ["onboard_recorded"]
