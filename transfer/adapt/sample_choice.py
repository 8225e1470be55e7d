"""What the ways to choose samples choose from: candidates that source devices know, and how fast each may be.

Shared by the selectors of `transfer.adapt.sample_selection`. Knows none of them, and no latency of the
target.

Legend: P rows of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transfer.data.dataset import Dataset
from transfer.data.ranking import places_in
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


def _nothing() -> Rows:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class Choice:
    """What a selector chooses from.

    Attributes:
        dataset: Holds the candidates; of the source devices it shows what they measured, of the target
            nothing.
        target: The new device.
        pool: Rows that can be measured on the target, those in `measured` too.
        source_model: Gives a model of the source devices when it is called; not called by those who need
            none.
        seed: Of every draw.
        measured: Rows that were measured already.
        measured_secs: Their seconds on the target, NaN where one failed; empty where the way to choose does
            not look at them.
    """

    dataset: Dataset
    target: str
    pool: Rows
    source_model: Callable[[], FleetTLP]
    seed: int
    measured: Rows = field(default_factory=_nothing)
    measured_secs: Floats = field(default_factory=lambda: np.zeros(0))
    _places: Floats | None = field(default=None, init=False)

    @property
    def sources(self) -> Sequence[int]:
        """Columns of the other devices."""
        return [place for place, device_id in enumerate(self.dataset.device_ids) if device_id != self.target]

    def places(self) -> Floats:
        """(P, sources) place of each row of the pool in its workload, 1 for the fastest, NaN for none."""
        if self._places is None:
            group = self.dataset.group[self.pool]
            latency = self.dataset.latency_secs[np.ix_(self.pool, np.array(self.sources, dtype=np.int64))]
            self._places = np.stack([places_in(-column, group) for column in latency.T], axis=1)
        return self._places

    def expected(self) -> Floats:
        """(P,) expected place in the workload: mean over source devices, or their heads where unmeasured."""
        places = self.places()
        has_place = np.isfinite(places)
        mean: Floats = np.where(has_place, places, 0).sum(axis=1) / np.maximum(1, has_place.sum(axis=1))
        missing = ~has_place.any(axis=1)
        if missing.any():
            mean[missing] = self.head_places().mean(axis=1)[missing]
        return mean

    def head_places(self) -> Floats:
        """(P, heads) place of each row in its workload by the heads of the source devices."""
        model = self.source_model()
        group, block = self.dataset.group[self.pool], self.dataset.features.take(self.pool)
        return np.stack(
            [places_in(model.score(block, device_id), group) for device_id in model.device_ids], axis=1
        )


def in_turns(choice: Choice, key: Floats, per_workload: int) -> Rows:
    """All rows of the pool: of each workload, in random order, the `per_workload` lowest keys, then more.

    Args:
        choice: The pool.
        key: (P,) lowest first inside of a workload.
        per_workload: Rows of a workload before the next one has its turn.
    """
    group = choice.dataset.group[choice.pool]
    groups = np.unique(group)
    turn_of = np.random.default_rng(choice.seed).permutation(len(groups))
    order = np.lexsort((key, group))
    place = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    turn = turn_of[np.searchsorted(groups, group[order])]
    ordered: Rows = choice.pool[order[np.lexsort((place, turn, place // per_workload))]]
    return ordered


def enough(choice: Choice, count: int) -> Rows:
    """Rows that were not measured yet.

    Raises:
        TransferError: They are fewer than `count`.
    """
    unmeasured = choice.pool[~np.isin(choice.pool, choice.measured)]
    if not 0 <= count <= len(unmeasured):
        raise TransferError(
            f"cannot choose {count} candidates for {choice.target!r}: {len(unmeasured)} of "
            f"{len(choice.pool)} known ones were not measured yet; ask for at most "
            f"{len(unmeasured)}, or measure more on its source devices"
        )
    return unmeasured


def first_of(choice: Choice, ordered: Rows, count: int) -> Rows:
    """The first `count` rows of an order that were not measured yet."""
    enough(choice, count)
    return ordered[~np.isin(ordered, choice.measured)][:count]
