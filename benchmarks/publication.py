"""How often the rule of publication lets a head take the shipped one's place.

`python -m benchmarks.publication STORE DEVICE`: heads of one device are trained from few and from many
workloads of a store that holds a published dataset. The shipped model and they order the held-out workloads,
from which none of them has learnt. Then the rule of `fleet.models.promotion` is asked about each of them
again and again, each time on as many of these workloads as a user might have. What a head is worth on all of
them is the truth that this is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from agents.records import DeviceId
from benchmarks.harness import Figures, Option, benchmark
from fleet.models.opponents import head_standing
from fleet.models.promotion import Rank, compared
from fleet.models.shipped_model import read_shipped
from fleet.models.standings import Standing
from fleet.models.versions import DatasetSnapshot, learnable, load_snapshot, train_config
from fleet.store.store import Store
from transfer.adapt.base import Adapted
from transfer.train.training import train

#: Candidates of each workload that a head learns from, and the noise floor of all devices.
_CANDIDATES, _FLOOR = 24, 0.03
#: Workloads that heads learn from, and seeds of each; held-out workloads that judge, and how often.
_BREADTHS, _SEEDS, _JUDGED, _TRIES = (42, 100, 300), 2, (3, 4, 6, 8, 12, 24), 4000
_EPOCHS = 24
_TAKES = {Rank.BETTER, Rank.AS_GOOD}


@dataclass(frozen=True, slots=True)
class Options:
    """What is compared."""

    store: Annotated[
        Path, Option("a store with a published dataset (fleet datasets open)", is_positional=True)
    ]
    device: Annotated[str, Option("device of the dataset with a shipped head", is_positional=True)]


def measure(options: Options) -> Figures:
    """Train, order, and ask the rule."""
    device_id = DeviceId(options.device)
    snapshot = load_snapshot(Store.read(options.store), device_ids=[device_id])
    spec, _ = snapshot.devices[device_id]
    shipped = read_shipped(spec.family)
    assert shipped is not None
    open_rows, held = learnable(snapshot)
    learnt = set(shipped.manifest["trained_workloads"])
    names = snapshot.dataset.workload_ids
    clean = np.array([name in held and name not in learnt for name in names])
    rows = np.flatnonzero(clean[snapshot.dataset.group])
    floor = _standing(Adapted(device_id=device_id, model=shipped.model), snapshot, rows)
    heads: dict[str, Standing] = {}
    for other in shipped.model.device_ids:
        if other != device_id:
            model = shipped.model.copy()
            model.drop_head(device_id)
            model.rename_head(other, device_id)
            heads[f"shipped head of {other}"] = _standing(
                Adapted(device_id=device_id, model=model.eval()), snapshot, rows
            )
    for breadth in _BREADTHS:
        for seed in range(_SEEDS):
            adapted = _own(snapshot, device_id, open_rows, breadth, seed)
            heads[f"of {breadth} workloads, seed {seed}"] = _standing(adapted, snapshot, rows)
    return {
        "held_out_workloads": len(floor.groups),
        "shipped": _worth(floor),
        "heads": {name: _asked(one, floor) for name, one in heads.items()},
    }


def _own(snapshot: DatasetSnapshot, device_id: DeviceId, open_rows: Any, breadth: int, seed: int) -> Adapted:
    """A head of some workloads, as `fleet train` makes one."""
    dataset, random = snapshot.dataset, np.random.default_rng(seed)
    chosen = random.permutation(np.unique(dataset.group[open_rows]))[:breadth]
    of_each = [random.permutation(open_rows[dataset.group[open_rows] == one])[:_CANDIDATES] for one in chosen]
    config = replace(train_config(_EPOCHS), device="cpu", lends=True)
    rows = np.sort(np.concatenate(of_each))
    model = train(dataset, rows, config=config, seed=seed, devices=[device_id]).model
    return Adapted(device_id=device_id, model=model)


def _standing(head: Adapted, snapshot: DatasetSnapshot, rows: Any) -> Standing:
    standing = head_standing(head, snapshot.dataset, rows, _FLOOR)
    assert standing is not None
    return standing


def _worth(standing: Standing) -> Mapping[str, float]:
    named = {"pairs": standing.shares(), "top1": standing.top1, "top5": standing.top5}
    return {name: float(values.mean()) for name, values in named.items()}


def _asked(head: Standing, floor: Standing) -> Figures:
    """What a head is worth, and how often it takes the place, by workloads that judge."""
    random = np.random.default_rng(0)
    takes: dict[str, float] = {}
    for count in _JUDGED:
        drawn = random.integers(0, len(head.groups), (_TRIES, count))
        ranks = [compared(_some(head, each), _some(floor, each), "it").rank for each in drawn]
        takes[str(count)] = float(np.mean([rank in _TAKES for rank in ranks]))
    return {
        **_worth(head),
        "sd": float((head.shares() - floor.shares()).std(ddof=1)),
        "takes": takes,
    }


def _some(standing: Standing, places: Any) -> Standing:
    return Standing(**{one.name: getattr(standing, one.name)[places] for one in fields(standing)})


main = benchmark("publication", __doc__, Options, measure)

if __name__ == "__main__":
    main()
