"""Leave-one-device-out scores of all strategies, made while nothing else is to be learnt.

A device that arrives then finds them ready (`transfer.auto`), and is given a head by whatever was best among
the known devices. Runs in the process of `fleet.refresh.process`. Imports torch when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.records import Family
from fleet.models.registry_file import DEVICE_SCORES
from fleet.models.registry_reader import RegistryReader
from fleet.models.versions import learnable, load_snapshot, train_config
from fleet.onboarding.choice import family_devices
from fleet.refresh.request import RefreshRequest
from fleet.store.store import Store

#: Scores are made again where there are so many times their measurements, or devices.
_GROWTH = 1.5


def run_device_scores(request: RefreshRequest) -> dict[str, Any]:
    """Try every strategy on the known devices of a family, each left out in turn.

    Returns:
        What was done, JSON-ready: the devices that were left out; none where fewer than two can be.

    Raises:
        FleetError: The store cannot be used.
        TransferError: There is no ok record.
    """
    from transfer.adapt.registry import strategies
    from transfer.auto.leave_one_out import drop_older, leave_one_out, made_ahead
    from transfer.evaluate.onboarding_cases import Regime

    since = RegistryReader(Path(request.models)).environments_since()
    reader = Store.read(Path(request.store)).parted(since)
    snapshot = load_snapshot(reader, device_ids=family_devices(reader, Family(request.family)))
    # What judges heads is not looked at when they are chosen.
    rows, _ = learnable(snapshot)
    learnable_part = snapshot.dataset.take(rows) if len(rows) else snapshot.dataset
    how = (list(strategies().values()), Regime.DEVICE_NEW, train_config(request.epochs))
    cache = Path(request.models).parent / DEVICE_SCORES
    scores = made_ahead(learnable_part, *how, cache, growth=_GROWTH) or leave_one_out(
        learnable_part, *how, cache
    )
    if scores is not None:
        drop_older(scores, cache)
    return {
        "kind": "standings",
        "family": request.family,
        "devices": [] if scores is None else list(scores.devices),
    }
