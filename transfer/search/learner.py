"""What a search learns of one workload while it goes on: a process on the errors of the head, and trees.

With no measurement the order is the head's, with a handful that of a process on its errors, and from two
rounds on that of the process and of trees together: the mean of both, for each is wrong elsewhere. The
process also says how sure it is of each candidate: choosing a diverse batch, and stopping, are made of that.

A guard keeps it from harm: of every measured candidate it is asked what both say without having seen it;
where the head alone orders all of them better, its order counts. All of them, and not the last rounds: those
are candidates that look alike, so of what the head is wrong about they show nothing.

Legend: N candidates, n measured ones, P features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from transfer.arrays import Floats, Singles
from transfer.data.ranking import rank_agreement
from transfer.search.process import Process, fit_process

#: Small steps and shallow trees: of a few dozen candidates each leaf should hold some.
_SETTINGS = {
    "max_depth": 4,
    "eta": 0.1,
    "min_child_weight": 2,
    "subsample": 0.7,
    "colsample_bynode": 0.5,
    "nthread": 1,
    "verbosity": 0,
}
_TREES = 80
#: Weight of a candidate: its speed over the best, to this power. Order among the fast ones is what counts.
_WEIGHT = 0.5
#: Parts of the measured ones, each judged by trees of the others: of few ones most must teach.
_PARTS, _PARTS_OF_MANY = 4, 2
_MANY = 64


class GrownTrees:
    """Trees of (n, P) features, (n,) opinions of the head and (n,) values, higher for faster ones.

    A process knows the neighbours of what was measured. Far from all of them it expects the mean of
    everything, which is slow, so a search that followed it alone stayed where it began. Trees learn that a
    tile is good wherever it stands. XGBoost is imported at the first fit.
    """

    def __init__(self, features: Singles, head: Floats, values: Floats) -> None:
        import xgboost

        # In one workload three features in five are the same for all candidates.
        self._used = np.ptp(features, axis=0) > 0
        rows = xgboost.DMatrix(
            self._inputs(features, head), label=values, weight=np.exp(_WEIGHT * (values - values.max()))
        )
        settings: dict[str, Any] = _SETTINGS | {"base_score": float(values.mean())}
        self._booster = xgboost.train(settings, rows, num_boost_round=_TREES)

    def mean(self, features: Singles, head: Floats) -> Floats:
        """(N,) expected values of candidates with (N, P) features."""
        inputs = self._inputs(features, head)
        means: Floats = np.asarray(self._booster.inplace_predict(inputs), dtype=np.float64)
        return means

    def _inputs(self, features: Singles, head: Floats) -> Singles:
        return np.concatenate([features[:, self._used], head[:, None].astype(np.float32)], axis=1)


def left_out_means(features: Singles, head: Floats, values: Floats) -> Floats:
    """(n,) expected values of measured candidates, each by trees that do not know it."""
    parts = _PARTS if len(values) < _MANY else _PARTS_OF_MANY
    part = np.random.default_rng(0).permutation(len(values)) % parts
    means = np.empty(len(values))
    for fold in range(parts):
        out = part == fold
        means[out] = GrownTrees(features[~out], head[~out], values[~out]).mean(features[out], head[out])
    return means


#: Measured candidates that a fit takes at most: the best half of them, and the newest. Bounds its time.
_MOST = 320
#: Measured candidates from which on trees have a say, and the guard judges what was learnt.
_LEAST = 16
#: The guard is asked again once so many times as many are measured: it takes as long as two fits.
_JUDGED_AGAIN = 1.25
#: Candidates slower than the best by more than this factor, as a logarithm, count as this slow.
_SLOWEST = 2.0
#: Of a round's gain: its quantile, and the draws that it is taken from.
_QUANTILE, _DRAWS = 0.9, 512


def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@dataclass(slots=True, eq=False)
class Learner:
    """Learns one workload; not safe between threads.

    Linear algebra has one thread here. A search runs beside the cores that time: threads that wait for each
    other on one core took forty times as long.
    """

    #: Whether what was learnt orders what was measured as well as the head alone, as of the last question.
    is_trusted: bool = True
    #: Measured candidates that the guard had then.
    _judged: int = 0
    _features: list[Singles] = field(default_factory=list)
    _head: list[Floats] = field(default_factory=list)
    _speed: list[Floats] = field(default_factory=list)
    _process: Process | None = None
    _trees: GrownTrees | None = None
    _blas: ThreadpoolController = field(default_factory=_blas)

    @property
    def count(self) -> int:
        """Measured candidates that it knows."""
        return sum(map(len, self._speed))

    @property
    def best(self) -> float:
        """Highest logarithm of a speed that was measured; -infinity before."""
        return max((float(speeds.max()) for speeds in self._speed), default=-np.inf)

    def learn(self, features: Singles, head: Floats, latency_secs: Floats) -> None:
        """Take in a round.

        Args:
            features: (n, P) flat features.
            head: (n,) logarithms of the head's scores; zeros where there is no head.
            latency_secs: (n,) of candidates that ran.
        """
        speed = -np.log(np.asarray(latency_secs, dtype=np.float64))
        if len(speed):
            self._features.append(np.asarray(features, dtype=np.float32))
            self._head.append(np.asarray(head, dtype=np.float64))
            self._speed.append(speed)
            self._process = None

    def retime(self, latency_secs: Floats) -> None:
        """Take in better latencies: (n,) of all that it knows, in the order in which it learnt them."""
        speed = -np.log(np.asarray(latency_secs, dtype=np.float64))
        if len(speed) and not np.array_equal(speed, np.concatenate(self._speed)):
            self._speed = [speed]
            self._process = None

    def log_speeds(self, features: Singles, head: Floats) -> Floats:
        """(N,) expected logarithms of speeds up to a constant; the head's where the guard says so."""
        if not self.count:
            return head
        with self._blas.limit(limits=1):
            self._fitted(features)
            return self._mean(features, head) if self.is_trusted else head

    def choose(self, features: Singles, head: Floats, count: int, boldness: float) -> list[int]:
        """Choose a batch: promising candidates that do not repeat each other.

        One after the other, the candidate with the highest mean + boldness * spread is taken; the spread of
        the others falls by what its measurement would tell of them (GP-BUCB; Desautels et al. 2014).

        Args:
            features: (N, P) flat features.
            head: (N,) logarithms of the head's scores.
            count: Of the batch.
            boldness: Standard deviations that a candidate gets as credit.

        Returns:
            Places in the order chosen, fewer where there are fewer candidates.
        """
        mean = self.log_speeds(features, head)
        with self._blas.limit(limits=1):
            process = self._fitted(features)
            covariance = process.covariance(features, head)
        chosen: list[int] = []
        open_ = np.ones(len(mean), dtype=np.bool_)
        for _ in range(min(count, len(mean))):
            spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
            place = int(np.argmax(np.where(open_, mean + boldness * spread, -np.inf)))
            chosen.append(place)
            open_[place] = False
            column = covariance[:, place]
            covariance = covariance - np.outer(column, column) / (column[place] + process.noise**2)
        return chosen

    def gain(self, features: Singles, head: Floats, seed: int) -> float:
        """What the measurement of a batch may gain: by this share the best latency falls in 1 of 10 cases.

        Args:
            features: (N, P) flat features of the batch.
            head: (N,) logarithms of the head's scores.
            seed: Of the draws.
        """
        if not self.count or not len(head):
            return 1.0
        noise = np.random.default_rng(seed).standard_normal((_DRAWS, len(head)))
        with self._blas.limit(limits=1):
            process = self._fitted(features)
            covariance = process.covariance(features, head)
            # Far from what was measured a process expects little of everything, and near it trees flatten
            # what they know: the more hopeful of both counts.
            mean = process.mean(features, head)
            if self._trees is not None:
                mean = np.maximum(mean, self._trees.mean(features, head))
            values, vectors = np.linalg.eigh(covariance)
            drawn = mean + (noise * np.sqrt(np.maximum(values, 0))) @ vectors.T
        highest = float(np.quantile(drawn.max(axis=1), _QUANTILE))
        return float(-np.expm1(min(0.0, self.best - highest)))

    def _mean(self, features: Singles, head: Floats) -> Floats:
        """(N,) expected logarithms of speeds, of what is fitted."""
        assert self._process is not None
        mean = self._process.mean(features, head)
        return mean if self._trees is None else (mean + self._trees.mean(features, head)) / 2

    def _fitted(self, features: Singles) -> Process:
        if self._process is None:
            self._process = self._fit(features)
        return self._process

    def _fit(self, others: Singles) -> Process:
        if not self._speed:
            nothing = np.zeros(0)
            return fit_process(others[:0], nothing, nothing, others)
        features = np.concatenate(self._features)
        head, speed = np.concatenate(self._head), np.concatenate(self._speed)
        if len(speed) > _MOST:
            best = np.argsort(-speed, kind="stable")[: _MOST // 2]
            newest = np.setdiff1d(np.arange(len(speed)), best)[-(_MOST - len(best)) :]
            fitted = np.sort(np.concatenate([best, newest]))
            features, head, speed = features[fitted], head[fitted], speed[fitted]
        # How slow the slow ones are exactly is nothing to learn from.
        speed = np.maximum(speed, speed.max() - _SLOWEST)
        process = fit_process(features, head, speed, others)
        if len(speed) >= _LEAST:
            self._trees = GrownTrees(features, head, speed)
            if np.ptp(head) > 0 and self.count >= _JUDGED_AGAIN * self._judged:
                self._judged = self.count
                one_group = np.zeros(len(speed), dtype=np.int32)
                without = (process.left_out_means(speed) + left_out_means(features, head, speed)) / 2
                self.is_trusted = rank_agreement(without, speed, one_group) >= rank_agreement(
                    head, speed, one_group
                )
        return process
