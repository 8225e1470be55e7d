"""Which candidates to measure on a new device first.

Called by onboarding and the onboarding curve, which compares the ways at equal k. All of them go on: asked
again with what was measured already, they give what comes next, and nothing twice. None but `search` looks at
latencies of the target.

Legend: P rows of the pool, T trunk width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from transfer.adapt.heads import hardware_distances, likeness
from transfer.adapt.sample_choice import (
    Choice,
    Floats,
    Rows,
    embed,
    ends_first,
    enough,
    first_of,
    in_turns,
    square_distances,
)
from transfer.adapt.space_search import SpaceSearch
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.flat import flat_inputs

#: Measured candidates of each sampled workload: fewer give no ranking, more leave out workloads. With 64
#: samples on one split, 8 of each of 8 workloads did a little better than 4 of each of 16 (tau .52 and .51).
_SAMPLES_PER_WORKLOAD = 8
#: Distance of hardware vectors, in spreads of a slot, at which a source counts exp(-1/2) of one that is the
#: same; and what a workload counts beside its spread, so that each has a chance.
_BANDWIDTH, _LEAST_SPREAD = 1.0, 1e-3
#: Passes of k-means; the centres hardly move after these.
_PASSES = 10


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


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any of them, drawn at random."""

    name: str = "random"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        drawn = np.random.default_rng(choice.seed).permutation(choice.pool)
        return first_of(choice, drawn, count)


@dataclass(frozen=True, slots=True)
class FewOfEach:
    """Workloads in random order, some random candidates of each: those of one workload can be compared."""

    name: str = "few-of-each"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        key = np.random.default_rng(choice.seed).random(len(choice.pool))
        return first_of(choice, in_turns(choice, key, _SAMPLES_PER_WORKLOAD), count)


@dataclass(frozen=True, slots=True)
class Stratified:
    """Every workload in turn, and in each all speeds of the source devices: fast, slow, and between."""

    name: str = "stratified"
    per_workload: int = 2

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        expected, group = choice.expected(), choice.dataset.group[choice.pool]
        key = np.zeros(len(choice.pool))
        for one in np.unique(group):
            mine = np.flatnonzero(group == one)
            key[mine[np.argsort(-expected[mine], kind="stable")]] = ends_first(len(mine))
        return first_of(choice, in_turns(choice, key, self.per_workload), count)


@dataclass(frozen=True, slots=True)
class Paired:
    """What most source devices measured, the fast ones first: their labels line up with the new device's."""

    name: str = "paired"
    per_workload: int = _SAMPLES_PER_WORKLOAD

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        key = choice.expected() + np.isfinite(choice.places()).sum(axis=1)
        return first_of(choice, in_turns(choice, -key, self.per_workload), count)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Where source devices (or heads of those that did not measure) disagree most on a candidate's place."""

    name: str = "uncertainty"
    per_workload: int = _SAMPLES_PER_WORKLOAD

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        places = choice.places()
        if not (np.isfinite(places).sum(axis=1) > 1).any():
            places = choice.head_places()
        known = np.isfinite(places)
        counts = np.maximum(1, known.sum(axis=1))
        mean = np.where(known, places, 0).sum(axis=1) / counts
        spread = np.sqrt((np.where(known, places - mean[:, None], 0) ** 2).sum(axis=1) / counts)
        # What may be the best matters: a disagreement among slow ones does not.
        return first_of(choice, in_turns(choice, -spread * (0.5 + mean), self.per_workload), count)


@dataclass(frozen=True, slots=True)
class HardwareAware:
    """Heavy workloads on which sources like the new device disagree come first, by probability.

    Verma et al. (ExHET 2023), "hardware-aware kernel sampling": kernels with many FLOPs whose times differ
    most between classes of hardware are kept, the others thinned. They give no formula. Here a workload is
    drawn with a chance that grows with the rank of its FLOPs times the spread of its candidates' places over
    the sources, each source weighed by the likeness of its hardware vector to that of the new device.
    """

    name: str = "hardware"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        dataset, group = choice.dataset, choice.dataset.group[choice.pool]
        groups, inverse = np.unique(group, return_inverse=True)
        spread = np.bincount(inverse, self._spread(choice)) / np.bincount(inverse)
        heavy = rankdata(dataset.flops[groups]) / max(1, len(groups))
        chance = heavy * (spread + _LEAST_SPREAD)
        # Exponential times over their rates: a draw without replacement (Efraimidis and Spirakis, 2006).
        wait = np.random.default_rng(choice.seed).exponential(size=len(groups)) / chance
        turn_of = np.argsort(np.argsort(wait))
        known = np.isfinite(choice.places()).sum(axis=1)
        key = -(choice.expected() + known)
        return first_of(choice, in_turns(choice, key, _SAMPLES_PER_WORKLOAD, turn_of), count)

    def _spread(self, choice: Choice) -> Floats:
        """(P,) deviation of a candidate's place over the sources, by their likeness to the target."""
        places = choice.places()
        names: list[str] = [choice.dataset.device_ids[one] for one in choice.sources]
        if not (np.isfinite(places).sum(axis=1) > 1).any():
            places, names = choice.head_places(), list(choice.source_model().device_ids)
        distances = hardware_distances(choice.dataset, choice.target, names)
        share = likeness({one: distances.get(one, 0.0) for one in names}, _BANDWIDTH)
        weight = np.where(np.isfinite(places), np.array([share[one] for one in names]), 0.0)
        weight /= np.maximum(weight.sum(axis=1, keepdims=True), _LEAST_SPREAD)
        mean = (weight * np.nan_to_num(places)).sum(axis=1)
        found: Floats = np.sqrt((weight * (np.nan_to_num(places) - mean[:, None]) ** 2).sum(axis=1))
        return found


@dataclass(frozen=True, slots=True)
class Clustered:
    """K-means over the backbone's embeddings, the candidate nearest to each centre (CDMPP, EuroSys'24)."""

    name: str = "kmeans"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        left = enough(choice, count)
        if count in {0, len(left)}:
            return left[:count]
        x = embed(choice.source_model(), choice.dataset, left)
        random = np.random.default_rng(choice.seed)
        centres = x[random.choice(len(x), count, replace=False)]
        for _ in range(_PASSES):
            nearest = square_distances(x, centres).argmin(axis=1)
            counts = np.bincount(nearest, minlength=count)
            sums = np.zeros_like(centres)
            np.add.at(sums, nearest, x)
            filled = counts > 0
            centres[filled] = sums[filled] / counts[filled, None]
        apart = square_distances(x, centres)
        chosen: dict[int, None] = {}
        for centre in range(count):
            order = np.argsort(apart[:, centre], kind="stable")
            chosen[next(int(one) for one in order if int(one) not in chosen)] = None
        return left[np.array(list(chosen), dtype=np.int64)]


@dataclass(frozen=True, slots=True)
class DiverseFast:
    """Far from all chosen so far, with a bias to fast ones (BALTO, ICLR'23)."""

    name: str = "diverse-fast"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        left = enough(choice, count)
        x = embed(choice.source_model(), choice.dataset, left)
        wanted = choice.expected()[np.searchsorted(choice.pool, left)]
        apart = np.full(len(left), np.inf)
        if len(choice.taken):
            taken = embed(choice.source_model(), choice.dataset, choice.taken)
            apart = square_distances(x, taken).min(axis=1)
        chosen: list[int] = []
        for _ in range(count):
            gain = wanted if not np.isfinite(apart).any() else np.sqrt(apart) * wanted
            gain = gain.copy()
            gain[chosen] = -1.0
            chosen.append(int(gain.argmax()))
            apart = np.minimum(apart, square_distances(x, x[chosen[-1:]])[:, 0])
        return left[np.array(chosen, dtype=np.int64)]


@dataclass(frozen=True, slots=True)
class Fastest:
    """What may be the fastest, by the sources that what was measured speaks for (`SpaceSearch`).

    The one way that looks at the target's measurements: ask it again after every few.
    """

    name: str = "search"

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `Selector.choose`."""
        enough(choice, count)
        group = choice.dataset.group[choice.pool]
        groups = np.random.default_rng(choice.seed).permutation(np.unique(group))
        # (turns that its workload had before, the workload's place, place within it, row); where some
        # workloads have few left, the others give more.
        found: list[tuple[int, int, int, int]] = []
        for each in (_SAMPLES_PER_WORKLOAD + 2 * count // max(1, len(groups)), count):
            found = []
            for turn, one in enumerate(groups.tolist()):
                rows = choice.pool[group == one]
                before = int(np.isin(rows, choice.taken).sum())
                order = enumerate(self._order(choice, rows, min(count, each)).tolist())
                found += [
                    ((before + place) // _SAMPLES_PER_WORKLOAD, turn, place, row) for place, row in order
                ]
            if len(found) >= count:
                break
        return np.array([row for *_, row in sorted(found)[:count]], dtype=np.int64)

    def _order(self, choice: Choice, rows: Rows, count: int) -> Rows:
        """Rows of one workload that were not measured yet, best first."""
        dataset, known = choice.dataset, dict(zip(choice.taken.tolist(), choice.taken_secs, strict=False))
        cells = np.ix_(rows, np.array(choice.sources, dtype=np.int64))
        secs = dataset.latency_secs[cells]
        failed = dataset.failed[cells] & ~np.isfinite(secs)
        numbers = flat_inputs(dataset.features, dataset.spec.category_sizes, rows).astype(np.float64)
        search = SpaceSearch(np.where(failed, np.inf, secs), numbers, seed=choice.seed)
        for place, row in enumerate(rows.tolist()):
            if row in known:
                search.observe(place, float(known[row]))
        return rows[search.choose(count, ~np.isin(rows, choice.taken))]


#: Every way, by name; the first is the default.
SELECTORS: dict[str, Selector] = {
    one.name: one
    for one in (
        Paired(),
        FewOfEach(),
        Uniform(),
        Stratified(),
        Uncertain(),
        HardwareAware(),
        Clustered(),
        DiverseFast(),
        Fastest(),
    )
}
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


def selector_named(name: str) -> Selector:
    """The way to choose with this name.

    Raises:
        TransferError: There is none.
    """
    if name not in SELECTORS:
        raise TransferError(f"unknown way to choose samples {name!r}; known: {', '.join(SELECTORS)}")
    return SELECTORS[name]


def draw_few_shot(
    dataset: Dataset, device_id: str, rows: NDArray[np.int64], samples: int, *, seed: int
) -> NDArray[np.int64]:
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
    wanted = max(1, samples // _SAMPLES_PER_WORKLOAD)
    # Workloads beyond the wanted number wait until the first ones have nothing left.
    turns = [
        (i // wanted, place, i, pool[place]) for i, pool in enumerate(pools) for place in range(len(pool))
    ]
    return np.sort(np.array([row for *_, row in sorted(turns)[:samples]], dtype=np.int64))
