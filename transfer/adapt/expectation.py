"""What a head is worth, told from the device's own few samples: expected top-1 and top-5 with an interval.

Samples are held back in turn, so that every one is scored by a head that did not see it. Their errors say how
far scores can be trusted; the head's scores of all candidates say how much it has to choose among. So: draw
what the true latencies may be (score plus an error like those of the samples), see what the head's first
choices would reach, and repeat with other samples. Called by onboarding. Knows nothing of strategies.

Legend: N candidates that the head will rank, n samples scored by heads that did not see them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer.arrays import Floats, Groups
from transfer.data.intervals import LEVEL, Estimate
from transfer.errors import TransferError

#: Draws of what may be; more change the third digit.
_DRAWS = 400
#: Samples that can be compared with another of their workload, at least.
LEAST_SAMPLES = 12
#: Workloads of the samples, at least: errors of one workload say little of others.
LEAST_WORKLOADS = 3
#: Degrees of freedom of the size of the errors, for each workload of the samples beyond the first. Between 1
#: (errors of a workload are all alike) and the samples' own number (none is like another). Chosen, with the
#: two below, by replayed onboardings of ISA profiles and AutoTVM devices (`docs/onboarding.md`).
_FREEDOM = 3.0
#: How many places away, among the samples of a workload, an error may be taken from.
_NEAR = 1.5
#: How far expectations were off beyond what the draws explain, by replayed onboardings: mean and spread of
#: truth less expectation, of top-1 and top-5. Devices differ in how alike errors of alike candidates are.
_OFF_TOP1 = 0.0, 0.02
_OFF_TOP5 = 0.005, 0.005
#: Mean and spread where nobody has measured the workloads: a network is less like others than its workloads
#: are like each other, and samples cannot tell by how much.
_UNSEEN_OFF_TOP1 = -0.05, 0.1
_UNSEEN_OFF_TOP5 = -0.015, 0.05
#: Of what lies beyond an interval of top-5, the share above it: the end at 1 leaves little room there.
_TOP5_ABOVE = 0.2
#: Share of a workload's candidates that err as those of one workload of the samples, the same few errors
#: again and again: candidates that are alike err alike, which leaves fewer chances to be surprised.
_SHARED = 0.8
#: Errors smaller than this are none.
_LEAST_SCALE = 1e-9
#: Scores are relative speeds; below this all are equally slow.
_LEAST_SCORE = 1e-3
#: Choices that top-5 is told of.
_FIRST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the head's first choices reach, as shares of the best speed."""

    top1: Estimate
    top5: Estimate
    #: Samples and workloads that this is made of.
    samples: int
    workloads: int


def expect(
    scores: Floats,
    group: Groups,
    sample_scores: Floats,
    sample_secs: Floats,
    sample_group: Groups,
    *,
    seed: int,
    unseen: bool = False,
) -> Expectation:
    """Estimate the mean top-1 and top-5 over the workloads of some candidates.

    Args:
        scores: (N,) the head's scores of the candidates that it will rank, higher is faster.
        group: (N,) their workloads.
        sample_scores: (n,) scores of measured samples by heads that did not learn from them.
        sample_secs: (n,) what was measured, NaN where a sample failed.
        sample_group: (n,) their workloads.
        seed: Of the draws.
        unseen: Nobody has measured the candidates that the head will rank, nor others of their workloads.

    Raises:
        TransferError: There are too few samples to say anything.
    """
    samples = _samples_of(sample_scores, sample_secs, sample_group)
    count = sum(len(one.said) for one in samples)
    if len(samples) < LEAST_WORKLOADS or count < LEAST_SAMPLES:
        raise TransferError(
            f"{count} samples of {len(samples)} workloads can be compared with others of their workload; "
            f"an expectation needs {LEAST_SAMPLES} of {LEAST_WORKLOADS}: measure more"
        )
    random = np.random.default_rng(seed)
    table = _table(scores, group)
    if not len(table):
        raise TransferError("no workload has two candidates to choose between: there is nothing to expect")
    choices, freedom = _Choices(table), _FREEDOM * (len(samples) - 1)
    top1, top5 = np.zeros(_DRAWS), np.zeros(_DRAWS)
    for draw in range(_DRAWS):
        # Other samples would have told other errors: workloads of the samples are drawn with replacement.
        donors = [samples[place] for place in random.integers(len(samples), size=len(samples))]
        slope = _slope(donors)
        # Few workloads leave open how large errors are: their size is drawn too, from what so many can tell.
        size = np.sqrt(freedom / random.chisquare(freedom))
        errors = [size * donor.errors(slope) for donor in donors]
        top1[draw], top5[draw] = choices.reached(slope, errors, random)
    off_top1, off_top5 = (_UNSEEN_OFF_TOP1, _UNSEEN_OFF_TOP5) if unseen else (_OFF_TOP1, _OFF_TOP5)
    return Expectation(
        top1=_estimate(top1, off_top1, 0.5, random),
        top5=_estimate(top5, off_top5, _TOP5_ABOVE, random),
        samples=count,
        workloads=len(samples),
    )


class _Samples:
    """What was said and measured of one workload of the samples, the slowest by score first.

    Args:
        said: (m,) logarithms of scores, m >= 2.
        true: (m,) logarithms of measured speeds.
    """

    def __init__(self, said: Floats, true: Floats) -> None:
        said, true = said - said.mean(), true - true.mean()
        #: What a slope over several workloads is made of.
        self.product, self.square = float((said * true).sum()), float((said**2).sum())
        order = np.argsort(said, kind="stable")
        self.said, self._true = said[order], true[order]
        # One degree of freedom went into the mean of the workload: unscaled, few errors would look too small.
        self._factor = np.sqrt(len(true) / (len(true) - 1))

    def errors(self, slope: float) -> Floats:
        """(m,) what the scores got wrong if so much of their differences is found in speeds."""
        wrong: Floats = (self._true - slope * self.said) * self._factor
        return wrong


def _samples_of(scores: Floats, secs: Floats, group: Groups) -> list[_Samples]:
    """The workloads with two or more samples that ran."""
    has_secs = np.isfinite(secs)
    found = []
    for workload in np.unique(group[has_secs]):
        mine = has_secs & (group == workload)
        if mine.sum() > 1:
            found.append(_Samples(_logits(scores[mine]), -np.log(secs[mine])))
    return found


def _logits(scores: Floats) -> Floats:
    """Logarithm of relative speed as a head means it."""
    logits: Floats = np.log(np.maximum(scores, _LEAST_SCORE))
    return logits


def _slope(samples: list[_Samples]) -> float:
    """How much of a difference in scores is found in speeds; never negative."""
    below = sum(one.square for one in samples)
    return max(0.0, sum(one.product for one in samples) / below) if below else 0.0


def _table(scores: Floats, group: Groups) -> Floats:
    """(workloads, most candidates) logarithms of scores, NaN beyond the end; workloads of two or more."""
    order = np.argsort(group, kind="stable")
    lists = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    lists = [rows for rows in lists if len(rows) > 1]
    table = np.full((len(lists), max(map(len, lists), default=0)), np.nan)
    for place, rows in enumerate(lists):
        table[place, : len(rows)] = _logits(scores[rows])
    return table


class _Choices:
    """Candidates to choose among, with what is the same in every draw.

    Args:
        said: (workloads, most candidates) logarithms of scores, NaN beyond the end.
    """

    def __init__(self, said: Floats) -> None:
        self.said = said
        order = np.argsort(np.argsort(np.nan_to_num(said, nan=np.inf), axis=1), axis=1)
        #: How far each is from the slowest by score, as a share of its workload's candidates.
        self._place = (order + 0.5) / np.isfinite(said).sum(axis=1, keepdims=True)
        worse = -np.nan_to_num(said, nan=-np.inf)
        fifth = np.sort(worse, axis=1)[:, :_FIRST][:, -1:]
        # All that may be among the first: the fifth may have the score of many others.
        width = int((worse <= fifth).sum(axis=1).max())
        self._front = np.argsort(worse, axis=1, kind="stable")[:, :width]
        self._worse = np.take_along_axis(worse, self._front, axis=1)

    def reached(self, slope: float, errors: list[Floats], random: np.random.Generator) -> tuple[float, float]:
        """Mean top-1 and top-5 over the workloads in one draw."""
        said = self.said
        sizes = np.array([len(workload_errors) for workload_errors in errors])
        starts, pool = np.cumsum(sizes) - sizes, np.concatenate(errors)
        scales = np.maximum(np.sqrt(np.add.reduceat(pool**2, starts) / sizes), _LEAST_SCALE)
        pool /= np.repeat(scales, sizes)
        # A workload errs as much as one of the samples' did: some are predicted far better than others.
        model = random.integers(len(errors), size=len(said))[:, None]
        # And its fast candidates as their fast ones: errors among slow ones are larger, and matter to nobody.
        donor = random.integers(len(errors), size=said.shape)
        donor = np.where(random.random(said.shape) < _SHARED, model, donor)
        near = self._place * sizes[donor] + random.uniform(-_NEAR, _NEAR, said.shape)
        drawn = starts[donor] + np.clip(near.astype(np.int64), 0, sizes[donor] - 1)
        true = slope * said + scales[model] * pool[drawn]
        best = np.nanmax(true, axis=1)
        # Ties among the scores are broken at random; what is beyond the end comes last.
        turn = np.take_along_axis(random.random(said.shape), self._front, axis=1)
        first = np.lexsort((turn, self._worse), axis=1)[:, :_FIRST]
        chosen = np.take_along_axis(true, np.take_along_axis(self._front, first, axis=1), axis=1)
        top1, top5 = chosen[:, 0], np.nanmax(chosen, axis=1)
        return float(np.exp(top1 - best).mean()), float(np.exp(top5 - best).mean())


def _estimate(draws: Floats, off: tuple[float, float], above: float, random: np.random.Generator) -> Estimate:
    """Mean and 90 % interval; of what lies outside of the interval `above` is the share above it."""
    mean, spread = off
    widened = np.minimum(1.0, draws + random.normal(mean, spread, len(draws)))
    low, high = np.quantile(widened, [(1 - LEVEL) * (1 - above), 1 - (1 - LEVEL) * above])
    return Estimate(min(1.0, float(draws.mean()) + mean), max(0.0, float(low)), float(high))
