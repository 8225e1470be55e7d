"""What source devices' latencies of the same candidate say of a new device, in closed form.

Called by `transfer.adapt.source_devices`. All of it works on logarithms of seconds, where "twice as slow" is
the same distance everywhere, and inside a workload. A latency is the sum of three parts:

- what all devices agree on: the mean of the source devices over the candidate (`Agreed.shared`,
  `transfer.adapt.source_model`);
- what each source device says beside it, of the candidate itself (`Agreed.own`) and as a linear function of
  the candidate's features; both are carried over to the target by likeness of hardware, which may
  extrapolate;
- what the target's few own measurements say beside that: a Gaussian process over features, source devices'
  own parts and workloads, whose strength is chosen by leaving one measurement out, "none" included.

Fast candidates weigh more: a choice among slow ones is of no use, yet they have the largest errors.

Legend: n rows, S source devices, P feature slots, m measurements of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Floats, Groups, Ints, Mask, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.labels import group_min

#: Passes that part a table with holes into row and column effects.
_PASSES = 8
#: A candidate that is e times slower than the best of its workload counts 1/e.
_FAST = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Agreed:
    """Source devices' log latencies parted."""

    #: (n,) log seconds that the source devices agree on; NaN where none measured the row.
    shared: Floats
    #: (n, S) what a source device says beside it; 0 where it did not measure the row.
    own: Floats


def part_latencies(latency_secs: Floats, group: Groups) -> Agreed:
    """Part source devices' latencies into what they share and what is their own.

    A source device that lacks some candidates of a workload must not make those look fast or slow, so each
    has a level in each workload, found together with the means by going to and fro.

    Args:
        latency_secs: (n, S) seconds, NaN where there is none.
        group: (n,) workload of each row.
    """
    is_measured = np.isfinite(latency_secs)
    values = np.where(is_measured, np.log(np.where(is_measured, latency_secs, 1.0)), 0.0)
    count = int(group.max(initial=-1)) + 1
    per_row = is_measured.sum(axis=1)
    per_level = np.zeros((count, is_measured.shape[1]))
    np.add.at(per_level, group, is_measured)
    # Where no candidate ties two source devices together, each one's mean is its level: what a slow device
    # measured must not look slow beside what a fast one did.
    level = np.zeros_like(per_level)
    np.add.at(level, group, values)
    level /= np.maximum(1, per_level)
    shared = np.zeros(len(group))
    for _ in range(_PASSES):
        rest = np.where(is_measured, values - level[group], 0.0)
        shared = rest.sum(axis=1) / np.maximum(1, per_row)
        rest = np.where(is_measured, values - shared[:, None], 0.0)
        total = np.zeros_like(level)
        np.add.at(total, group, rest)
        level = total / np.maximum(1, per_level)
        # Only differences of levels are defined.
        level -= (level * (per_level > 0)).sum(axis=1, keepdims=True) / np.maximum(
            1, (per_level > 0).sum(axis=1, keepdims=True)
        )
    own = np.where(is_measured, values - shared[:, None] - level[group], 0.0)
    return Agreed(np.where(per_row > 0, shared, np.nan), own)


def fast_weights(value: Floats, group: Groups) -> Floats:
    """(n,) weights in (0, 1] that fall with the distance to the best of the workload; 0 where unknown."""
    least = group_min(value[:, None], group, int(group.max(initial=-1)) + 1)[group, 0]
    return np.asarray(np.nan_to_num(np.exp(-(value - least) / _FAST)))


#: Ridge of a source device's linear part, in candidates. On four ISA profiles 30 to 300 did alike.
_RIDGE = 100.0
#: How far hardware is trusted: ridge of the weights by which source devices are mixed, as a share of the
#: spread of their hardware. .1 to 1 did alike.
_HARDWARE_RIDGE = 0.3
#: Share of a source device's own part of a candidate that is carried over (the rest is chance).
_OWN_SHARE = 0.3
#: Most measurements of the target that the Gaussian process holds.
_MOST_MEASURED = 1024
#: Variance of a measurement beside what is modelled, and of the levels of device and workloads.
_NOISE, _LEVEL, _WORKLOAD_LEVEL = 0.1, 1.0, 0.1
#: Variances tried: linear in the features, smooth in them, in the source devices' own parts. The first is
#: "none".
_STRENGTHS = (
    (0.0, 0.0, 0.0),
    (0.0, 0.0, 0.1),
    (0.01, 0.01, 0.1),
    (0.03, 0.03, 0.03),
    (0.1, 0.1, 0.1),
)
#: Standardised features are cut here.
_LIMIT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceModel:
    """A new device's log latency from its source devices'. Arrays are float32, ready to be stored."""

    #: Devices whose latencies are looked at, in the order of the weights.
    sources: tuple[str, ...]
    #: (P,) constants of the features.
    mean: Singles
    std: Singles
    #: (P,) slope over the features, and (S,) over the source devices' own parts.
    slope: Singles
    own_slope: Singles
    #: (m, P) measured candidates and (m,) their weights in the smooth part; empty where it is not used.
    smooth_at: Singles
    smooth_by: Singles
    #: Which of the strengths was chosen; 0 is "none".
    strength: int

    def predict(self, dataset: Dataset, groups: NDArray[np.integer]) -> tuple[Ints, Floats]:
        """Log seconds, up to a constant of the workload, of all candidates of some workloads.

        Args:
            dataset: Shows what source devices measured.
            groups: Workloads.

        Returns:
            Row numbers, and the values: NaN where no source device measured the candidate.
        """
        rows = np.flatnonzero(np.isin(dataset.group, groups))
        group = dataset.group[rows]
        agreed = part_latencies(self._source_secs(dataset, rows), group)
        x = centred(standardised(dataset, rows, self.mean, self.std), group, np.isfinite(agreed.shared))
        value = agreed.shared + x @ self.slope + agreed.own @ self.own_slope
        if len(self.smooth_by):
            value = value + _alike(x, self.smooth_at.astype(np.float64)) @ self.smooth_by
        return rows, value

    def _source_secs(self, dataset: Dataset, rows: Rows) -> Floats:
        """(n, S) what the source devices measured, as far as the dataset shows it."""
        columns = [
            dataset.latency_secs[rows, dataset.column(device_id)]
            if device_id in dataset.device_ids
            else np.full(len(rows), np.nan)
            for device_id in self.sources
        ]
        return np.stack(columns, axis=1)


def fit_source_model(
    part: Dataset, target_device: str, sources: Sequence[str], seed: int
) -> tuple[SourceModel, Floats]:
    """Learn what source devices say of a device.

    Args:
        part: Only what may be seen is present.
        target_device: The new device; may have no measurement at all.
        sources: Devices with measurements, at least one.
        seed: Of which measurements are kept where there are too many.

    Returns:
        The model, and its log seconds of each row of `part`: NaN where no source device measured it.
    """
    rows = np.arange(len(part))
    columns = [part.column(device_id) for device_id in sources]
    group = part.group
    agreed = part_latencies(part.latency_secs[:, columns], group)
    has_shared = np.isfinite(agreed.shared)
    mean, std = _constants(part, rows[has_shared])
    x = centred(standardised(part, rows, mean, std), group, has_shared)
    weight = fast_weights(agreed.shared, group)
    mix = hardware_mix(part.hardware[columns], part.hardware[part.column(target_device)], part.hardware)
    slope = np.zeros(x.shape[1])
    for place, share in enumerate(mix):
        has_own = np.isfinite(part.latency_secs[:, columns[place]])
        slope += share * _ridge_within(
            x[has_own], agreed.own[has_own, place], weight[has_own], group[has_own]
        )
    own_slope = _OWN_SHARE * mix
    value = agreed.shared + x @ slope + agreed.own @ own_slope
    empty = np.zeros((0, x.shape[1]))
    extra = _Extra(np.zeros_like(slope), np.zeros_like(own_slope), empty, np.zeros(0), np.zeros(len(x)), 0)
    latency = part.latency_secs[:, part.column(target_device)]
    usable = np.flatnonzero(np.isfinite(latency) & has_shared)
    if len(usable) >= 2:
        if len(usable) > _MOST_MEASURED:
            usable = np.sort(np.random.default_rng(seed).permutation(usable)[:_MOST_MEASURED])
        extra = _fit_extra(
            x, agreed.own, np.log(latency[usable]) - value[usable], usable, fast_weights(value, group), group
        )
    model = SourceModel(
        sources=tuple(sources),
        mean=mean,
        std=std,
        slope=(slope + extra.slope).astype(np.float32),
        own_slope=(own_slope + extra.own_slope).astype(np.float32),
        smooth_at=extra.smooth_at.astype(np.float32),
        smooth_by=extra.smooth_by.astype(np.float32),
        strength=extra.strength,
    )
    return model, value + extra.value


def hardware_mix(
    sources: NDArray[np.floating], target: NDArray[np.floating], devices: NDArray[np.floating]
) -> Floats:
    """Weights (S,) that make the target's hardware out of what sets each source device apart from their mean.

    They may be negative or above 1: a wider vector unit than any source device's is the trend among them,
    gone on.

    Args:
        sources: (S, H) hardware vectors.
        target: (H,) that of the target.
        devices: (D, H) all there are, which tell how much a slot varies.
    """
    spread = devices.std(axis=0)
    used = spread > 1e-6 * np.maximum(1.0, np.abs(devices).max(axis=0))
    if not used.any() or len(sources) < 2:
        return np.zeros(len(sources))
    scaled = (sources[:, used] / spread[used]).astype(np.float64)
    apart = scaled - scaled.mean(axis=0)
    target_offset = target[used] / spread[used] - scaled.mean(axis=0)
    inner = apart @ apart.T
    ridge = _HARDWARE_RIDGE * max(float(np.trace(inner)) / len(sources), 1e-9)
    return np.asarray(np.linalg.solve(inner + ridge * np.eye(len(sources)), apart @ target_offset))


def standardised(dataset: Dataset, rows: Rows, mean: Singles, std: Singles) -> Floats:
    """(n, P) summaries of candidates in units of their spread."""
    summary = np.asarray(dataset.features.summary[rows], dtype=np.float64)
    return np.clip((summary - mean) / std, -_LIMIT, _LIMIT)


def centred(x: Floats, group: Groups, is_known: Mask) -> Floats:
    """Features less the mean of the workload's known candidates: what sets a candidate apart from them."""
    count = int(group.max(initial=-1)) + 1
    total = np.zeros((count, x.shape[1]))
    np.add.at(total, group[is_known], x[is_known])
    each = np.bincount(group[is_known], minlength=count)
    return np.asarray(x - (total / np.maximum(1, each)[:, None])[group])


def _constants(part: Dataset, rows: Rows) -> tuple[Singles, Singles]:
    summary = np.asarray(part.features.summary[rows], dtype=np.float64)
    std = summary.std(axis=0)
    return summary.mean(axis=0).astype(np.float32), np.where(std > 1e-4, std, 1.0).astype(np.float32)


def _ridge_within(x: Floats, y: Floats, weight: Floats, group: Groups) -> Floats:
    """(P,) weighted ridge regression with a free level for each workload."""
    count = int(group.max(initial=-1)) + 1
    total = np.maximum(np.bincount(group, weight, count), 1e-12)
    means = np.zeros((count, x.shape[1]))
    np.add.at(means, group, x * weight[:, None])
    x = x - (means / total[:, None])[group]
    y = y - (np.bincount(group, weight * y, count) / total)[group]
    inner = (x * weight[:, None]).T @ x + _RIDGE * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(inner, x.T @ (weight * y)))


@dataclass(frozen=True, slots=True, eq=False)
class _Extra:
    """What the target's measurements add."""

    slope: Floats
    own_slope: Floats
    smooth_at: Floats
    smooth_by: Floats
    #: (n,) all of it on the rows of the fit, levels included.
    value: Floats
    strength: int


def _alike(a: Floats, b: Floats) -> Floats:
    """Smooth kernel of (n, P) and (m, P) features; its length is the usual distance inside a workload."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    # Of two candidates of a workload the squared distance is about 2 P in standardised units.
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / max(1, a.shape[1])))


def _fit_extra(x: Floats, own: Floats, rest: Floats, measured: Ints, weight: Floats, group: Groups) -> _Extra:
    """Gaussian process over what source devices leave unexplained of the target's measurements: (m,) `rest`.

    Features `x` (n, P), source devices' `own` parts (n, S), `weight` and `group` (n,) are of all candidates,
    `measured` (m,) are the rows of the measurements.
    """
    slots = x.shape[1]
    at, beside = x[measured], own[measured]
    linear, smooth, source_device = at @ at.T / slots, _alike(at, at), beside @ beside.T
    same = group[measured][:, None] == group[measured][None, :]
    middle = float(np.average(rest, weights=weight[measured]))
    levels = _LEVEL + _WORKLOAD_LEVEL * same + np.diag(_NOISE / np.maximum(weight[measured], 1e-2))
    best: tuple[float, int, Floats] | None = None
    nothing: Floats | None = None
    for place, (a, b, c) in enumerate(_STRENGTHS):
        inverse = np.linalg.inv(levels + a * linear + b * smooth + c * source_device)
        by = inverse @ (rest - middle)
        # Error of each measurement when it is left out, in closed form.
        error = weight[measured] * (by / np.diag(inverse)) ** 2
        nothing = error if nothing is None else nothing
        gain = nothing - error
        # Half a standard error of doubt, so that a handful of measurements changes nothing by luck.
        sure = float(gain.mean() - 0.5 * gain.std() / np.sqrt(len(gain)))
        if best is None or sure > best[0]:
            best = sure, place, by
    assert best is not None
    _, place, by = best
    a, b, c = _STRENGTHS[place]
    slope, own_slope = a * at.T @ by / slots, c * beside.T @ by
    by_workload = np.bincount(group[measured], by, int(group.max()) + 1)
    value = middle + _LEVEL * by.sum() + _WORKLOAD_LEVEL * by_workload[group] + x @ slope + own @ own_slope
    if b:
        value = value + b * _alike(x, at) @ by
    return _Extra(slope, own_slope, at if b else at[:0], b * by if b else by[:0], value, place)
