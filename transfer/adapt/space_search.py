"""Which candidate of a known space a new device measures next, to find its fastest one soon.

Other devices have measured the space, or most of it, but which of them is like the new device is not known.
The time of a candidate (its logarithm over the fastest) is taken for the mean of the sources' plus Gaussian
processes. The mean is weighted by the devices' kinship (`_source_weights`). Of the processes one is linear
in the sources' times, which moves weight to the right sources; one is over those times; one over the
candidate's own numbers, which learns what no source knows; one over both. How much devices
differ, and how fast along each number, is read off the sources: of each one, what the others do not explain
is a sample of what the new device will differ by. The kernel over the numbers is the product of
(1 + Matern) / 2 along each: effects of single numbers and of all their combinations (additive Gaussian
processes, Duvenaud et al. 2011). A fixed set of scales around those is averaged by the
likelihood of what was measured (Bayesian model averaging), and the candidate with the greatest expected
improvement is next (Jones et al. 1998). Failures count as slow.

Called by the selector `search` and by the benchmark of GPUs; knows nothing of devices and records.

Legend: N candidates, S sources, F numbers, n measured ones.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.linalg import solve_triangular
from scipy.stats import norm

from transfer.arrays import Floats, Ints, Mask, Rows, Singles

#: Slower than the fastest by more than this factor is all the same.
_SLOWEST = 8.0
#: Numbers of a candidate that the kernel takes; more are replaced by their principal components.
_MOST_NUMBERS = 12
_COMPONENTS = 8
#: Variance of one measurement's logarithm, and of the unknown level of the new device.
_NOISE, _LEVEL = 0.003, 1.0
#: Shares of the three processes (over times, numbers, both) in what devices differ by.
_SHARES = (0.25, 0.5, 0.25)
#: A step of kinship makes two devices so many times as unlike, as far as the sources do not say otherwise.
_PER_STEP = 2.0
#: Length over the sources' logarithms.
_SOURCE_LENGTH = 0.7
#: The set of scales: factors of the lengths over the numbers, variances of the weight of a source, factors of
#: the variance.
_LENGTHS = (0.5, 1.0)
_WEIGHTS = (0.03, 0.3)
_FACTORS = (0.5, 2.0)
#: Variance, and length over a number from 0 to 1, where the sources do not tell; bounds of a length.
_VARIANCE, _LENGTH = 0.1, 0.5
_LEAST_LENGTH, _MOST_LENGTH = 0.05, 20.0
#: Neighbours along a number that lengths are read off.
_LAGS = (1, 2, 3)
#: Members with less weight than this are not asked.
_LEAST_WEIGHT = 1e-3


class _Member:
    """The Gaussian process of one setting of the scales, extended by one measurement at a time.

    Attributes:
        length: Factor of the lengths over the numbers.
        weight: Variance of the weight of a source.
        factor: Of the variance.
        variance: (N,) of each candidate given what was measured.
    """

    def __init__(self, length: float, weight: float, factor: float, prior: Singles) -> None:
        self.length, self.weight, self.factor = length, weight, factor
        self._room = np.zeros((16, len(prior)), dtype=np.float32)
        self.variance = prior.copy()
        self._factor = np.zeros((0, 0))

    @property
    def basis(self) -> Singles:
        """(n, N) rows of the inverse Cholesky factor times the covariance with all candidates."""
        return self._room[: len(self._factor)]

    def extend(self, row: int, covariance: Singles) -> None:
        """Take up a measured row; `covariance` is that of all candidates with it."""
        count = len(self._factor)
        if count == len(self._room):
            self._room = np.concatenate([self._room, np.zeros_like(self._room)])
        line = self.basis[:, row].copy()
        pivot = float(np.sqrt(max(1e-8, float(covariance[row] + _NOISE - line @ line))))
        fresh = (covariance - line @ self.basis) / np.float32(pivot)
        self._room[count] = fresh
        self.variance = np.maximum(np.float32(1e-8), self.variance - fresh * fresh)
        factor = np.zeros((count + 1, count + 1))
        factor[:count, :count], factor[count, :count], factor[count, count] = self._factor, line, pivot
        self._factor = factor

    def shrink(self, count: int, variance: Singles) -> None:
        """Go back to the first `count` measurements."""
        self._factor = self._factor[:count, :count]
        self.variance = variance

    def explain(self, residual: Floats) -> tuple[Singles, float]:
        """(n,) weights of `basis` in what the prior mean lacks, and the log likelihood of the residuals."""
        solved = solve_triangular(self._factor, residual, lower=True)
        likelihood = -0.5 * float(solved @ solved) - float(np.log(np.diag(self._factor)).sum())
        return solved.astype(np.float32), likelihood


class SpaceSearch:
    """Chooses among N candidates of one workload, one measurement after the other.

    Args:
        secs: (N, S) seconds on the sources; NaN where a source does not know, infinite where it failed.
        numbers: (N, F) numbers of the candidates; sizes as logarithms.
        seed: Decides between equals.
        steps: (S + 1, S + 1) kinship of the sources and, last, of the new device; all alike by default.
    """

    def __init__(self, secs: Floats, numbers: Floats, seed: int = 0, steps: Ints | None = None) -> None:
        times = _relative(secs)
        count = times.shape[1]
        steps = np.zeros((count + 1, count + 1), dtype=np.int64) if steps is None else steps
        apart = np.array([[((one - other) ** 2).mean() for other in times.T] for one in times.T])
        self._mean: Floats = times @ _source_weights(apart, steps) if count else np.zeros(len(secs))
        self._times = times.astype(np.float32)
        units = _unit_numbers(numbers)
        lengths, self._variance = _differences(times, units)
        self._numbers = (units / lengths).astype(np.float32)
        self._ties = 1e-9 * np.random.default_rng(seed).random(len(secs))
        spread = (self._times**2).sum(axis=1)
        level = np.float32(_LEVEL)
        self._members = [
            _Member(length, weight, factor, weight * spread + np.float32(factor * self._variance) + level)
            for length, weight, factor in itertools.product(_LENGTHS, _WEIGHTS, _FACTORS)
        ]
        self._rows: list[int] = []
        self._logs: list[float] = []

    @property
    def measured(self) -> Rows:
        """(n,) rows that were observed, in their order."""
        return np.array(self._rows, dtype=np.int64)

    def observe(self, row: int, secs: float) -> None:
        """Take up a measurement; `secs` is NaN or infinite where the candidate failed."""
        self._extend(row)
        self._logs.append(float(np.log(secs)) if np.isfinite(secs) and secs > 0 else np.inf)

    def choose(self, count: int, allowed: Mask | None = None) -> Rows:
        """Rows to measure next, best first.

        Several at once are chosen as if each had come out as expected.

        Args:
            count: How many; fewer where fewer are left.
            allowed: (N,) rows that may be chosen; all by default.
        """
        is_free = np.ones(len(self._mean), dtype=np.bool_) if allowed is None else allowed.copy()
        is_free[self._rows] = False
        count = min(count, int(is_free.sum()))
        measured_count, logs = len(self._rows), list(self._logs)
        variances = [member.variance for member in self._members]
        chosen: list[int] = []
        while len(chosen) < count:
            gain, mean = self._gain(is_free)
            row = int(np.argmax(gain))
            chosen.append(row)
            is_free[row] = False
            if len(chosen) < count:
                self._extend(row)
                base = min(self._logs, default=0.0)
                self._logs.append(float(mean[row]) + (base if np.isfinite(base) else 0.0))
        if len(self._rows) > measured_count:
            for member, variance in zip(self._members, variances, strict=True):
                member.shrink(measured_count, variance)
            self._rows, self._logs = self._rows[:measured_count], logs
        return np.array(chosen, dtype=np.int64)

    def _gain(self, is_free: Mask) -> tuple[Floats, Floats]:
        """(N,) expected improvement of each row, and its expected logarithm."""
        if not self._rows:
            return np.where(is_free, -self._mean - self._ties, -np.inf), self._mean
        rows = self.measured
        logs = np.array(self._logs)
        fastest = logs.min()
        relative_logs = np.minimum(logs - (fastest if np.isfinite(fastest) else 0.0), np.log(_SLOWEST))
        posteriors = [member.explain(relative_logs - self._mean[rows]) for member in self._members]
        likelihood = np.array([value for _, value in posteriors])
        shares = np.exp(likelihood - likelihood.max())
        shares /= shares.sum()
        gain, mean = np.zeros(len(is_free)), np.zeros(len(is_free))
        for member, (weights, _), share in zip(self._members, posteriors, shares, strict=True):
            if share < _LEAST_WEIGHT:
                continue
            expected, spread = self._mean + weights @ member.basis, np.sqrt(member.variance)
            depth = -expected / spread
            gain += share * spread * (depth * norm.cdf(depth) + norm.pdf(depth))
            mean += share * expected
        return np.where(is_free, gain + self._ties, -np.inf), mean

    def _extend(self, row: int) -> None:
        """Extend every member by a row."""
        own = self._times[row]
        linear = self._times @ own
        times = _matern(((self._times - own) ** 2).sum(axis=1) / np.float32(_SOURCE_LENGTH**2))
        apart = (self._numbers - self._numbers[row]) ** 2
        of_times, of_numbers, of_both = (np.float32(self._variance * share) for share in _SHARES)
        kernels = {}
        for length in _LENGTHS:
            numbers = ((1 + _matern(apart / np.float32(length**2))) / 2).prod(axis=1)
            kernels[length] = of_times * times + of_numbers * numbers + of_both * times * numbers
        for member in self._members:
            covariance = np.float32(member.weight) * linear
            covariance += np.float32(member.factor) * kernels[member.length]
            member.extend(row, covariance + np.float32(_LEVEL))
        self._rows.append(row)


def _matern(square: Singles) -> Singles:
    """Matern's kernel of smoothness 5/2 at squared distances."""
    far = np.sqrt(5 * square + np.float32(1e-12))
    kernel: Singles = (1 + far + far * far / 3) * np.exp(-far)
    return kernel


def _relative(secs: Floats) -> Floats:
    """(N, S) logarithm of time over the source's fastest, cut; unknown times are the other sources' mean."""
    if not secs.size:
        return np.zeros(secs.shape)
    is_known = ~np.isnan(secs)
    ran = np.where(np.isfinite(secs), secs, np.inf)
    with np.errstate(all="ignore"):
        times = np.log(ran / ran.min(axis=0))
    # NaN where nothing ran on a source at all.
    times = np.where(is_known, np.minimum(np.nan_to_num(times, nan=np.inf), np.log(_SLOWEST)), 0.0)
    counts = is_known.sum(axis=1)
    mean = times.sum(axis=1) / np.maximum(1, counts)
    mean[counts == 0] = np.log(_SLOWEST) / 2
    return np.where(is_known, times, mean[:, None])


def _source_weights(apart: Floats, steps: Ints) -> Floats:
    """Weights (S,), none negative, with which source devices' times add up to what a new device's will be.

    Ordinary kriging over devices. How unlike two devices are is a function of their kinship, read off the
    pairs of sources: the mean of a step's pairs and of one more pair that follows `_PER_STEP`; more steps are
    never less unlike. So a lone relative weighs much, and two alike sources share one's weight.

    Args:
        apart: (S, S) mean squared differences of the sources' log times.
        steps: (S + 1, S + 1) `kinship_steps`; the last row is the new device's.
    """
    count = len(apart)
    pairs = np.triu_indices(count, 1)
    unlike, step = apart[pairs], steps[pairs]
    if not unlike.any():
        return np.full(count, 1 / max(1, count))
    usual = float((unlike / _PER_STEP**step).mean())
    by_step = [
        (usual * _PER_STEP**each + unlike[step == each].sum()) / (1 + (step == each).sum())
        for each in range(int(steps.max()) + 1)
    ]
    variogram = np.maximum.accumulate(by_step)[steps]
    system = np.ones((count + 1, count + 1))
    system[:count, :count] = variogram[:count, :count] * (1 - np.eye(count))
    system[count, count] = 0
    weights = np.maximum(0.0, np.linalg.solve(system, np.append(variogram[count, :count], 1.0))[:count])
    return np.asarray(weights / weights.sum())


def _unit_numbers(numbers: Floats) -> Floats:
    """Columns that vary, scaled to 0 to 1; of many columns their first principal components."""
    low, high = numbers.min(axis=0, initial=np.inf), numbers.max(axis=0, initial=-np.inf)
    varied = high > low
    units: Floats = (numbers[:, varied] - low[varied]) / (high[varied] - low[varied])
    if units.shape[1] <= _MOST_NUMBERS:
        return units
    centred = units - units.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return _unit_numbers(centred @ vectors[:, ::-1][:, :_COMPONENTS])


def _differences(times: Floats, units: Floats) -> tuple[Floats, float]:
    """How devices differ, read off the sources.

    Returns:
        (F,) lengths along each number, and the variance: those of what a linear mixture of the other sources
        leaves of each source. A length makes the kernel's drop between neighbours that differ in this number
        alone the mean one that is seen (a semivariogram).
    """
    lengths = np.full(units.shape[1], _LENGTH)
    if times.shape[1] < 2:
        return lengths, _VARIANCE
    rest = []
    for place in range(times.shape[1]):
        others = np.column_stack([np.delete(times, place, axis=1), np.ones(len(times))])
        rest.append(times[:, place] - others @ np.linalg.lstsq(others, times[:, place], rcond=None)[0])
    residuals = np.column_stack(rest)
    variances = residuals.var(axis=0)
    if not variances.all():
        return lengths, _VARIANCE
    for place in range(units.shape[1]):
        apart, drop = _neighbours(
            np.delete(units, place, axis=1), units[:, place], residuals / np.sqrt(variances)
        )
        if len(apart):
            lengths[place] = _length_of(apart, float(drop.mean()))
    return lengths, float(variances.mean())


def _neighbours(others: Floats, number: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Distances along one number of rows that are equal in all others, and half their squared differences."""
    _, group = np.unique(np.round(others, 6), axis=0, return_inverse=True)
    order = np.lexsort((number, group.ravel()))
    groups, number, values = group.ravel()[order], number[order], values[order]
    apart: list[Floats] = []
    drops: list[Floats] = []
    for lag in _LAGS:
        same = groups[lag:] == groups[:-lag]
        apart.append((number[lag:] - number[:-lag])[same])
        drops.append(((values[lag:] - values[:-lag])[same] ** 2).mean(axis=1) / 2)
    return np.concatenate(apart), np.concatenate(drops)


def _length_of(apart: Floats, drop: float) -> float:
    """The length at which Matern's kernel drops by this much in the mean, by bisection."""
    low, high = _LEAST_LENGTH, _MOST_LENGTH
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        fall = float((1 - _matern((apart / middle).astype(np.float32) ** 2)).mean())
        low, high = (middle, high) if fall > drop else (low, middle)
    return low
