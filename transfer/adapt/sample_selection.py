"""Which candidates to measure on a new device first.

Called by onboarding and the onboarding curve, which compares the ways at equal k. All of them go on: asked
again with what was measured already, they give what comes next, and nothing twice. None but `search` looks at
latencies of the target.

Legend: P rows of the pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from transfer.adapt.space_search import SpaceSearch
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.data.ranking import places_in
from transfer.errors import TransferError
from transfer.features.flat import flat_inputs
from transfer.features.hardware import kinship_steps
from transfer.model.fleet_tlp import FleetTLP

#: Measured candidates of each sampled workload: fewer give no ranking, more leave out workloads. With 64
#: samples on one split, 8 of each of 8 workloads did a little better than 4 of each of 16 (tau .52 and .51).
_SAMPLES_PER_WORKLOAD = 8


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
    measured: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
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


def in_turns(choice: Choice, key: Floats) -> Rows:
    """All rows of the pool: of each workload, in random order, those with the lowest keys, then more.

    `key` (P,) orders the rows of a workload; `_SAMPLES_PER_WORKLOAD` of them are taken in a turn.
    """
    group = choice.dataset.group[choice.pool]
    groups = np.unique(group)
    turn_of = np.random.default_rng(choice.seed).permutation(len(groups))
    order = np.lexsort((key, group))
    place = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    turn = turn_of[np.searchsorted(groups, group[order])]
    ordered: Rows = choice.pool[order[np.lexsort((place, turn, place // _SAMPLES_PER_WORKLOAD))]]
    return ordered


def check_enough(choice: Choice, count: int) -> None:
    """Refuse a choice of more rows than were not measured yet.

    Raises:
        TransferError: They are fewer than `count`.
    """
    unmeasured = int((~np.isin(choice.pool, choice.measured)).sum())
    if not 0 <= count <= unmeasured:
        raise TransferError(
            f"cannot choose {count} candidates for {choice.target!r}: {unmeasured} of {len(choice.pool)} "
            f"known ones were not measured yet; ask for at most {unmeasured}, or measure more on its source "
            "devices"
        )


def first_of(choice: Choice, ordered: Rows, count: int) -> Rows:
    """The first `count` rows of an order that were not measured yet."""
    check_enough(choice, count)
    return ordered[~np.isin(ordered, choice.measured)][:count]


class Selector(Protocol):
    """One way to choose."""

    @property
    def name(self) -> str:
        """Short name in reports and settings."""
        ...

    def choose(self, choice: Choice, count: int) -> Rows:
        """Choose `count` rows that were not measured yet, in the order in which to measure them.

        Raises:
            TransferError: The pool has fewer left.
        """
        ...


class Paired:
    """What most source devices measured, the fast ones first: their labels line up with the new device's."""

    name = "paired"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        key = choice.expected() + np.isfinite(choice.places()).sum(axis=1)
        return first_of(choice, in_turns(choice, -key), count)


class Fastest:
    """What may be the fastest, by the sources that what was measured speaks for (`SpaceSearch`).

    The one way that looks at the target's measurements: ask it again after every few.
    """

    name = "search"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        check_enough(choice, count)
        group = choice.dataset.group[choice.pool]
        groups = np.random.default_rng(choice.seed).permutation(np.unique(group))
        # (turns that its workload had before, the workload's place, place within it, row); where some
        # workloads have few left, the others give more.
        ranked: list[tuple[int, int, int, int]] = []
        for each in (_SAMPLES_PER_WORKLOAD + 2 * count // max(1, len(groups)), count):
            ranked = []
            for turn, group_number in enumerate(groups.tolist()):
                rows = choice.pool[group == group_number]
                before = int(np.isin(rows, choice.measured).sum())
                order = enumerate(self._order(choice, rows, min(count, each)).tolist())
                ranked += [
                    ((before + place) // _SAMPLES_PER_WORKLOAD, turn, place, row) for place, row in order
                ]
            if len(ranked) >= count:
                break
        return np.array([row for *_, row in sorted(ranked)[:count]], dtype=np.int64)

    def _order(self, choice: Choice, rows: Rows, count: int) -> Rows:
        """Rows of one workload that were not measured yet, best first."""
        dataset = choice.dataset
        measured_secs = dict(zip(choice.measured.tolist(), choice.measured_secs, strict=False))
        cells = np.ix_(rows, np.array(choice.sources, dtype=np.int64))
        secs = dataset.latency_secs[cells]
        failed = dataset.failed[cells] & ~np.isfinite(secs)
        numbers = flat_inputs(dataset.features, dataset.spec.category_sizes, rows).astype(np.float64)
        steps = kinship_steps(dataset.hardware[[*choice.sources, dataset.column(choice.target)]])
        search = SpaceSearch(np.where(failed, np.inf, secs), numbers, choice.seed, steps)
        for place, row in enumerate(rows.tolist()):
            if row in measured_secs:
                search.observe(place, float(measured_secs[row]))
        return rows[search.choose(count, ~np.isin(rows, choice.measured))]


#: Every way, by name; the first is the default.
SELECTORS: dict[str, Selector] = {selector.name: selector for selector in (Paired(), Fastest())}
#: Ways that look at what was measured, so that they choose a few at a time.
IN_ROUNDS = frozenset({Fastest().name})
#: Samples between two choices of such a way, and choices at most.
_ROUND, _MOST_ROUNDS = 8, 16


def rounds(selector: str, samples: int) -> list[int]:
    """How many samples there are to be after each choice; all at once where results do not matter."""
    if selector not in IN_ROUNDS or samples <= _ROUND:
        return [samples]
    step = max(_ROUND, math.ceil(samples / _MOST_ROUNDS))
    return [*range(step, samples, step), samples]


def choose_in_rounds(selector: Selector, choice: Choice, truth: Floats, count: int) -> Rows:
    """Rows of the pool to measure where all that would be measured is known, ascending.

    As in an onboarding (`rounds`), a way that looks at results is shown the `truth`, (N,) seconds on the
    target, of the rows that it has chosen before.
    """
    if count >= len(choice.pool):
        return np.sort(choice.pool)
    chosen = choice.measured
    for so_far in rounds(selector.name, count) if count else ():
        choice = replace(choice, measured=chosen, measured_secs=truth[chosen])
        chosen = np.concatenate([chosen, selector.choose(choice, so_far - len(chosen))])
    return np.sort(chosen)


def draw_few_shot(dataset: Dataset, device_id: str, rows: Rows, samples: int, *, seed: int) -> Rows:
    """Draw the few candidates whose target latency adaptation may see.

    Workloads are drawn at random, then candidates in turn from each, so that every sample has others to be
    compared with: a lone candidate of a workload teaches nothing about ranking.

    Args:
        dataset: Candidates of all devices.
        device_id: The target.
        rows: Rows to draw from. Those that failed on the target are drawn too: they cost a measurement.
        samples: How many (k).
        seed: Of the draw.

    Raises:
        TransferError: Fewer rows were measured on the target than samples asked for.
    """
    column = dataset.column(device_id)
    tried = rows[np.isfinite(dataset.latency_secs[rows, column]) | dataset.failed[rows, column]]
    if not 2 <= samples <= len(tried):
        raise TransferError(
            f"cannot draw {samples} samples of {device_id!r} from {len(tried)} measured candidates: "
            f"ask for 2 to {len(tried)}"
        )
    random = np.random.default_rng(seed)
    groups = random.permutation(np.unique(dataset.group[tried]))
    pools = [random.permutation(tried[dataset.group[tried] == group]) for group in groups]
    group_count = max(1, samples // _SAMPLES_PER_WORKLOAD)
    # Workloads beyond the wanted number wait until the first ones have nothing left.
    turns = [
        (i // group_count, place, i, pool[place])
        for i, pool in enumerate(pools)
        for place in range(len(pool))
    ]
    return np.sort(np.array([row for *_, row in sorted(turns)[:samples]], dtype=np.int64))
