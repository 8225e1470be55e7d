"""A new device's head as a version of the model: the rows that it may learn from, and how it is kept.

Called by `fleet.onboarding.onboarding`; measures nothing. Imports torch when called.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from agents.records import CandidateId, Descriptor, DeviceId, DeviceSpec, Outcome, WorkloadId
from fleet.errors import FleetError
from fleet.models.judge import publish_if_better, verdicts_as_json
from fleet.models.opponents import HeadCache, Opponent, opponents_of
from fleet.models.promotion import LEAST_JUDGED, DeviceDecision
from fleet.models.registry_reader import RegistryReader
from fleet.models.shipped_model import ShippedHeads, ShippedModelError
from fleet.models.standings import LEAST_RANKED, standing
from fleet.models.versions import (
    INHERITED,
    ORIGIN,
    DatasetSnapshot,
    learnable,
    load_snapshot,
    manifest_of,
    training_provenance,
)
from fleet.onboarding.adaptation import strategy_for
from fleet.onboarding.fingerprint import Earlier
from fleet.store.noise import settled
from fleet.store.reader import StoreReader
from transfer.arrays import Rows
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted, Onboarding, Regime, Strategy
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.train.rows import TrainConfig


# Whether an onboarded head may serve: by the rule of all heads, on samples that it is made without.
#
# A head from samples meets the champion and the shipped head on workloads of the samples. Each sample is
# scored by a head that learnt from other workloads. A workload judges nobody if the source model or a rival
# has learnt from it; but what heads of one origin were both taught gives none of them a lead. Imports torch
# when called.

_WORDS = 200


def decide_by_samples(
    onboarding: Onboarding, shipped: ShippedHeads, strategy_name: str, adapted: Adapted
) -> DeviceDecision:
    """Decide whether a new head serves its device; `strategy_name` made it, or chose what did.

    A champion that cannot serve any more gives its place to the shipped head first.
    """
    from transfer.adapt.base import Regime
    from transfer.adapt.guard import scores_by_others

    device_id, heads = DeviceId(onboarding.target), HeadCache(shipped.registry)
    opponents = opponents_of(device_id, shipped, heads)
    if opponents.gone and opponents.champion is not None:
        with suppress(ShippedModelError):
            if shipped.serve_instead(opponents.champion, opponents.gone):
                opponents = opponents_of(device_id, shipped, heads)
    rows = _judging_rows(onboarding, opponents.heads)
    rivals = opponents.rivals(onboarding.dataset, rows, 0.0)
    why_not = opponents.why_not or (_lack(onboarding, rows) if rivals else "")
    challenger = None
    if rivals and not why_not:
        try:
            strategy = strategy_for(str(adapted.notes.get("strategy", strategy_name)), onboarding.regime)
            scores = scores_by_others(strategy, onboarding, Regime.BOTH_NEW)
        except TransferError as error:
            why_not = f"it cannot be judged ({str(error)[:_WORDS]})"
        else:
            mine, group = scores[np.isin(onboarding.few_shot, rows)], onboarding.dataset.group[rows]
            challenger = standing(mine, onboarding.latency[rows], group, 0.0)
    return opponents.decide(challenger, rivals, adapted.model.kind, why_not=why_not)


def _judging_rows(onboarding: Onboarding, opponents: Sequence[Opponent]) -> Rows:
    """Rows of the samples that ran, of workloads with enough of them that give no head a lead."""
    dataset = onboarding.dataset
    unfair: set[WorkloadId] = set()
    for opponent in opponents:
        is_kin = opponent.origin == onboarding.origin
        unfair |= opponent.learnt - onboarding.inherited if is_kin else opponent.learnt | onboarding.inherited
    is_fair = np.array([workload_id not in unfair for workload_id in dataset.workload_ids], dtype=np.bool_)
    rows = onboarding.few_shot[np.isfinite(onboarding.latency[onboarding.few_shot])]
    rows = rows[is_fair[dataset.group[rows]]]
    counts = np.bincount(dataset.group[rows], minlength=len(dataset.workload_ids))
    chosen: Rows = rows[counts[dataset.group[rows]] >= LEAST_RANKED]
    return chosen


def _lack(onboarding: Onboarding, rows: Rows) -> str:
    """What an onboarding lacks to judge its head; empty where the samples suffice."""
    group = onboarding.dataset.group
    count = len(np.unique(group[rows]))
    if count >= LEAST_JUDGED:
        return ""
    return (
        f"needs samples of {LEAST_JUDGED - count} more workloads to be judged: {count} of "
        f"{len(np.unique(group[onboarding.few_shot]))} can judge it, for {LEAST_RANKED} samples ran of each, "
        f"and only the head itself learns from them; {LEAST_JUDGED} must"
    )


def onboarding_of(
    snapshot: DatasetSnapshot,
    target: DeviceId,
    few_shot: Collection[CandidateId],
    source: FleetTLP,
    config: TrainConfig,
    seed: int,
    *,
    holds_out: bool = False,
    regime: Regime | None = None,
) -> Onboarding:
    """Say which rows of a snapshot a new device's head is made from.

    `few_shot` are candidates that the device measured; of it only these are looked at. With `holds_out`
    nothing is learnt from the held-out workloads (`fleet.models.versions`), so that later versions can be
    compared with this one. Without a regime the head will be asked about candidates that the source devices
    measured.
    """
    from transfer.adapt.base import Onboarding, Regime

    dataset = snapshot.dataset
    rows, kept_out = learnable(snapshot) if holds_out else (np.arange(len(dataset)), frozenset())
    chosen = np.flatnonzero([candidate_id in few_shot for candidate_id in dataset.candidate_ids])
    return Onboarding(
        dataset=dataset,
        target=target,
        few_shot=np.intersect1d(rows, chosen),
        source=source,
        source_rows=rows,
        regime=regime or Regime.DEVICE_NEW,
        config=config,
        seed=seed,
        holds_out=bool(kept_out),
    )


def adapt_version(
    onboarding: Onboarding,
    snapshot: DatasetSnapshot,
    shipped: ShippedHeads,
    strategy: Strategy,
    *,
    earlier: Earlier | None = None,
    strangers: Collection[str] = (),
) -> tuple[Adapted, str]:
    """Give a new device its head, and keep the model as a version, which serves the device if it may.

    What the strategy needs beside the head to score as it was judged is kept with it
    (`transfer.adapt.kept`).

    Args:
        onboarding: What the head is made from.
        snapshot: Where its rows are from.
        shipped: Heads of the shipped model; the version is kept in their registry.
        strategy: Makes the head.
        earlier: Environment of the target before the present one; its head is only a source, and is not kept.
        strangers: Devices of other people, whose heads are sources and are not kept.

    Returns:
        The head, and the name of the version.
    """
    from transfer.adapt.kept import files_of
    from transfer.model.fleet_tlp import FleetTLP

    started = time.perf_counter()
    adapted = strategy.adapt(onboarding)
    model = adapted.model
    if isinstance(model, FleetTLP):
        gone = {*strangers, *([earlier.device_id] if earlier is not None else [])}
        for head in sorted(gone & set(model.device_ids)):
            model.drop_head(head)
    manifest = manifest_of(
        snapshot,
        seed=onboarding.seed,
        config=asdict(onboarding.config),
        seconds=time.perf_counter() - started,
        sources=onboarding.source.device_ids,
    )
    onboarded = {
        "onboarded": onboarding.target,
        "samples": len(onboarding.few_shot),
        "strategy": strategy.name,
    }
    onboarded |= {"environment_since": earlier.present_since} if earlier is not None else {}
    verdict = decide_by_samples(onboarding, shipped, strategy.name, adapted)
    onboarded |= {ORIGIN: onboarding.origin, "verdicts": verdicts_as_json([verdict])}
    # A model may have heads of devices that this store never saw.
    heads = [head for head in model.device_ids if head in onboarding.dataset.device_ids]
    rows = np.union1d(onboarding.source_rows, onboarding.few_shot)
    provenance = training_provenance(onboarding.dataset, rows, heads, {}, holds_out=onboarding.holds_out)
    provenance[INHERITED] = sorted(onboarding.inherited - set(provenance["trained_workloads"]))
    version, _ = publish_if_better(
        shipped.registry, model, {**manifest, **onboarded, **provenance}, [verdict], files_of(adapted)
    )
    return adapted, version


def with_target(
    store: StoreReader,
    sources: list[DeviceId],
    spec: DeviceSpec,
    parts: Mapping[DeviceId, Mapping[str, DeviceId]],
) -> DatasetSnapshot:
    """The records of the source devices and the target; an empty column where it has none (k = 0)."""
    snapshot = load_snapshot(store, device_ids=[*sources, spec.device_id], environments=parts)
    descriptor = store.devices()[spec.device_id].descriptor
    assert descriptor is not None  # it is ready
    return with_columns(snapshot, {spec.device_id: (spec, descriptor)})


def with_columns(
    snapshot: DatasetSnapshot, devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]]
) -> DatasetSnapshot:
    """The snapshot with an empty column for each of some devices that it has no record of."""
    from transfer.features.hardware import hardware_table, hardware_vector

    dataset = snapshot.dataset
    new = {
        device_id: hardware for device_id, hardware in devices.items() if device_id not in dataset.device_ids
    }
    if not new:
        return snapshot
    shape = len(dataset), len(new)
    grown = replace(
        dataset,
        device_ids=(*dataset.device_ids, *new),
        latency_secs=np.concatenate([dataset.latency_secs, np.full(shape, np.nan)], axis=1),
        failed=np.concatenate([dataset.failed, np.zeros(shape, dtype=np.bool_)], axis=1),
        hardware=hardware_table(
            [*dataset.hardware, *(hardware_vector(*hardware) for hardware in new.values())]
        ),
    )
    return replace(snapshot, dataset=grown, devices={**snapshot.devices, **new})


def without_head(source: FleetTLP, target: DeviceId, earlier: Earlier | None = None) -> FleetTLP:
    """The model without the head of an earlier onboarding: it saw the samples that check the new one.

    A head of an earlier environment did not, and becomes that of a source. Trees and what is known of the
    other devices stay as they are.
    """
    if target not in source.device_ids:
        return source
    model = source.copy()
    if earlier is not None:
        model.rename_head(target, earlier.device_id)
    else:
        model.drop_head(target)
    return model.eval()


def sample_outcomes(
    store: StoreReader, target: DeviceId, environment_id: str, few_shot: Collection[CandidateId]
) -> dict[str, int]:
    """How the samples ended: of each the record that a dataset takes (`fleet.store.noise.settled`).

    Raises:
        FleetError: None of them ran.
    """
    settled_records = settled(
        record
        for record in store.records(device_id=target)
        if record.candidate_id in few_shot and record.environment_id == environment_id
    )
    counts = Counter(str(record.outcome) for record in settled_records)
    if few_shot and not counts[Outcome.OK]:
        error = next((record.error for record in settled_records if record.error), "no error text")
        said = ", ".join(f"{outcome} {count}" for outcome, count in counts.items()) or "no record"
        raise FleetError(
            f"none of the {len(few_shot)} samples ran on {target} ({said}); no head can be made of failures. "
            f"One of them says: {error.strip().splitlines()[-1][:200] if error.strip() else 'nothing'}. Run "
            f"`fleet doctor`, mend the device, and onboard it again"
        )
    return dict(counts)


def serving_of(registry: RegistryReader, target: DeviceId, version: str) -> dict[str, str]:
    """Which version serves the device from now on and why, and why not the new one; empty for none."""
    champion = registry.champions().get(target)
    if champion is None:
        verdict = registry.manifest(version).get("verdicts", {}).get(target, {}) if version else {}
        return {"served_by": "", "why_not_served": str(verdict.get("reason", "no head was made"))}
    if champion.version == version:
        return {"served_by": version, "why_served": champion.reason}
    named, _, why = champion.retained.partition(": ")
    why = why if named == version else "another was published meanwhile"
    return {"served_by": champion.version, "why_served": champion.reason, "why_not_served": why}
