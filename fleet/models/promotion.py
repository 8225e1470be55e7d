"""Who serves a device from now on: challenger against champion on held-out workloads. Pure decisions.

Called by `fleet.models.judge` with scores and latencies; it knows neither models nor stores nor time.
Champion and challenger are always judged anew, on the same rows of one snapshot: figures of another day are
never compared.

Legend: n candidates, G workloads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.models.pairs import Floats, decided_pairs, pair_width
from transfer.data.intervals import LEVEL, Estimate, Resampled, is_beyond_luck, resample_ratio
from transfer.data.metrics import evaluate_ranking

#: Held-out workloads that judge a head at least, and their measured candidates: fewer are an anecdote.
LEAST_JUDGED = 3
LEAST_RANKED = 4
#: What a head is trained from at least: ok candidates, and workloads with two of them to compare.
LEAST_CANDIDATES = 32
LEAST_WORKLOADS = 3
#: Refreshes that start from the champion before one starts from nothing: what a first, small dataset gave the
#: backbone and the scaling of its inputs should not stay for ever.
MOST_WARM = 8
_SEED = 0


class DecisionKind(StrEnum):
    """What came of a device in a refresh."""

    FIRST = "first"
    BETTER = "better"
    AS_GOOD = "as_good"
    WORSE = "worse"
    UNJUDGED = "unjudged"
    REFUSED = "refused"
    #: A person does not want it: the device is pinned, or was taken back from a newer version.
    HELD = "held"
    #: It may take the place, but another model of the same training takes it.
    OUTDONE = "outdone"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """How a head orders the candidates of G workloads; arrays are (G,), in the order of `groups`."""

    groups: NDArray[np.int32]
    #: Candidates measured.
    counts: NDArray[np.int64]
    #: Pairs whose latencies differ by more than the noise floor, and how many of them are in the right order.
    decided: Floats
    right: Floats
    #: Kendall's tau-b.
    tau: Floats
    #: Speed of the first choice, and best one of the first five, over the best; 1 within the noise floor.
    top1: Floats
    top5: Floats
    #: Width of the 90 % interval of the share of pairs in the right order (`pair_width`).
    width: Floats

    def shares(self) -> Floats:
        """(G,) share of the decided pairs of a workload in the right order."""
        return np.asarray(self.right / np.maximum(self.decided, 1))

    def pairs(self) -> Resampled:
        """The mean of `shares`."""
        return mean_of(self.shares())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDecision:
    """What came of one device, and why."""

    device_id: str
    kind: DecisionKind
    #: Why, in one sentence for people.
    reason: str
    #: Figures behind it (`figures`); None where nothing was judged.
    judged: Mapping[str, Any] | None = None
    #: Kind of the challenger (`transfer.model.kinds`).
    model_kind: str = ""
    #: Version that served the device when it was decided; empty for none.
    instead_of: str = ""

    @property
    def moves_on(self) -> bool:
        """Whether the challenger takes the place."""
        return self.kind in {DecisionKind.FIRST, DecisionKind.BETTER, DecisionKind.AS_GOOD}


def standing(scores: Floats, latency_secs: Floats, group: NDArray[np.int32], floor: float) -> Standing | None:
    """How scores order measured candidates, workload by workload.

    Args:
        scores: (n,) higher is faster.
        latency_secs: (n,) seconds, NaN where there is no ok measurement.
        group: (n,) number of each candidate's workload.
        floor: Relative difference of two measurements of one program on this device.

    Returns:
        Over the workloads with `LEAST_RANKED` measured candidates and a pair that noise does not blur; None
        where no workload has them.
    """
    measured = np.isfinite(latency_secs)
    scores, latency, group = scores[measured], latency_secs[measured], group[measured]
    if not len(group) or np.bincount(group).max() < LEAST_RANKED:
        return None
    weight = np.ones(int(group.max()) + 1)
    metrics = evaluate_ranking(scores, latency, group, weight, noise_floor=floor, least=LEAST_RANKED)
    counted = [
        decided_pairs(scores[group == number], latency[group == number], floor)
        for number in metrics.groups.tolist()
    ]
    decided, right = np.array(counted, dtype=np.float64).reshape(-1, 2).T
    is_decided = decided > 0
    if not is_decided.any():
        return None
    top1, top5 = (
        np.where(speed * (1 + floor) >= 1, 1.0, speed)
        for speed in (metrics.top1_by_workload[is_decided], metrics.top5_by_workload[is_decided])
    )
    widths = [
        pair_width(scores[group == number], latency[group == number], floor)
        for number in metrics.groups[is_decided]
    ]
    return Standing(
        groups=metrics.groups[is_decided],
        counts=metrics.counts[is_decided],
        decided=decided[is_decided],
        right=right[is_decided],
        tau=metrics.tau_by_workload[is_decided],
        top1=top1,
        top5=top5,
        width=np.array(widths),
    )


def judge(
    device_id: str,
    challenger: Standing | None,
    champion: Standing | None,
    *,
    served_by: str = "",
    floor: float = 0.0,
    why_not: str = "",
    gone: str = "",
    learnt: tuple[int, int] = (0, 0),
) -> DeviceDecision:
    """Decide about one device. A champion that can serve stays where nothing can be judged.

    Of two that noise cannot tell apart, the challenger takes the place, because it has seen more. Where it
    learnt from fewer workloads than the champion, it has not, and has to be better.

    Args:
        device_id: The device.
        challenger: The new head on clean held-out workloads; None where there are none.
        champion: The present head on the same candidates; None where there is none, or it cannot be asked.
        served_by: Version of the present champion; empty where there is none that can serve.
        floor: The noise floor that both were judged with.
        why_not: Why nothing could be judged, where that is known.
        gone: Why a champion that was there cannot serve any more; empty where none was.
        learnt: Workloads that challenger and champion learnt from.
    """
    decided = partial(DeviceDecision, device_id=device_id)
    gone = gone and f"{gone}; "
    count = 0 if challenger is None else len(challenger.groups)
    if challenger is None or count < LEAST_JUDGED:
        reason = why_not or f"{count} held-out workloads can judge, {LEAST_JUDGED} are needed"
        if served_by:
            reason += f"; {served_by} stays, for nobody has judged the new head"
        kind = DecisionKind.UNJUDGED if served_by else DecisionKind.FIRST
        return decided(kind=kind, reason=gone + reason)
    mine = challenger.pairs().estimate()
    on = f"on {count} held-out workloads"
    if champion is None:
        judged = figures(challenger, None, floor)
        if mine.low <= 0.5:
            reason = f"no better than chance: {_share(mine)} of the pairs right {on} ({_range(mine)})"
            return decided(kind=DecisionKind.REFUSED, reason=gone + reason, judged=judged)
        reason = f"{gone or 'first head: '}{_share(mine)} of the pairs right {on}"
        return decided(kind=DecisionKind.FIRST, reason=reason, judged=judged)
    if not np.array_equal(challenger.groups, champion.groups):
        raise ValueError(f"{device_id}: champion and challenger were judged on unlike workloads")
    pairs = challenger.pairs().minus(champion.pairs()).estimate()
    top5 = mean_of(challenger.top5).minus(mean_of(champion.top5)).estimate()
    judged = figures(challenger, champion, floor)
    evidence = (
        f"{_share(mine)} of the pairs right {on}, {_points(pairs.value)} against {served_by} "
        f"({_points(pairs.low)} to {_points(pairs.high)})"
    )
    if pairs.high < 0:
        return decided(kind=DecisionKind.WORSE, reason=f"worse: {evidence}", judged=judged)
    if top5.high < 0 and pairs.low <= 0:
        slower = (
            f"its first five choices reach {_points(top5.value)} of the best speed ({_points(top5.low)} to"
        )
        reason = f"worse: {slower} {_points(top5.high)}); {evidence}"
        return decided(kind=DecisionKind.WORSE, reason=reason, judged=judged)
    # A bootstrap of three workloads knows nothing of a fourth one.
    if pairs.is_above_zero and is_beyond_luck(challenger.shares() - champion.shares()):
        return decided(kind=DecisionKind.BETTER, reason=f"better: {evidence}", judged=judged)
    if learnt[0] < learnt[1]:
        reason = f"not clearly better, and it learnt from {learnt[0]} workloads, {served_by} from {learnt[1]}"
        return decided(kind=DecisionKind.UNJUDGED, reason=f"{reason}: {evidence}", judged=judged)
    return decided(kind=DecisionKind.AS_GOOD, reason=f"no worse beyond noise: {evidence}", judged=judged)


def held_back(verdict: DeviceDecision, *, pinned_to: str = "", rolled_back_from: str = "") -> DeviceDecision:
    """The verdict of `judge`, or that a person does not want it: by a pin, or by a rollback by hand."""
    if verdict.moves_on and pinned_to:
        why = f"the device is pinned to {pinned_to}"
    elif verdict.kind is DecisionKind.AS_GOOD and rolled_back_from:
        why = f"only a better head takes the place since {rolled_back_from} was rolled back by hand"
    else:
        return verdict
    return replace(verdict, kind=DecisionKind.HELD, reason=f"{why}; {verdict.reason}")


def figures(challenger: Standing, champion: Standing | None, floor: float) -> dict[str, Any]:
    """What a verdict rests on, JSON-ready: estimates as [value, low, high]."""
    mine = _means(challenger)
    judged: dict[str, Any] = {
        "level": LEVEL,
        "noise_floor": floor,
        "workloads": len(challenger.groups),
        "candidates": int(challenger.counts.sum()),
        **{name: listed(resampled.estimate()) for name, resampled in mine.items()},
    }
    if champion is not None:
        theirs = _means(champion)
        del theirs["top1"]
        judged["champion"] = {name: listed(resampled.estimate()) for name, resampled in theirs.items()}
        judged["difference"] = {
            name: listed(mine[name].minus(resampled).estimate()) for name, resampled in theirs.items()
        }
    return judged


def _means(head_standing: Standing) -> dict[str, Resampled]:
    return {
        "pairs": head_standing.pairs(),
        "tau": mean_of(head_standing.tau),
        "top1": mean_of(head_standing.top1),
        "top5": mean_of(head_standing.top5),
    }


def refusal(device_id: str, candidates: int, workloads: int) -> DeviceDecision | None:
    """Why a device gets no head for want of data; None where it has enough.

    `candidates` are the ok ones in workloads that may be learnt from, `workloads` those with two of them.
    """
    if candidates >= LEAST_CANDIDATES and workloads >= LEAST_WORKLOADS:
        return None
    reason = (
        f"{candidates} ok candidates in {workloads} workloads that may be learnt from; a head needs "
        f"{LEAST_CANDIDATES} in {LEAST_WORKLOADS}: measure more"
    )
    return DeviceDecision(device_id=device_id, kind=DecisionKind.REFUSED, reason=reason)


def start_from(
    serving: Mapping[str, str],
    manifests: Mapping[str, Mapping[str, Any]],
    spec_hash: str,
    contaminated: Collection[str] = (),
) -> tuple[str, str]:
    """The version that a refresh starts from, of those that serve devices of the family.

    Args:
        serving: Version by device.
        manifests: Of these versions.
        spec_hash: Of the features that the data have.
        contaminated: Versions that have learnt from so many of the held-out workloads that nobody could judge
            what goes on from them, not even for the devices of other champions.

    Returns:
        Version (empty: from nothing) and why. Heads of several versions cannot be joined, because each
        belongs to its own backbone: the version that serves most devices is taken, of several the newest.
    """
    able = [version for version in serving.values() if manifests[version].get("spec_hash") == spec_hash]
    if not serving:
        return "", "there is no champion yet"
    if not able:
        return "", "the champions read other features"
    able = [version for version in able if version not in contaminated]
    if not able:
        return "", "the champions have learnt from the held-out workloads, which could not judge then"
    chosen = max(set(able), key=lambda version: (able.count(version), version))
    warm = int(manifests[chosen].get("warm_starts", 0))
    if warm >= MOST_WARM:
        return "", f"{chosen} is {warm} warm starts away from the last training from nothing"
    return chosen, f"{chosen} serves {able.count(chosen)} of {len(serving)} devices"


def mean_of(values: Floats) -> Resampled:
    """Mean over workloads, resampled as everything here is, so that differences are paired."""
    return resample_ratio(values, np.ones_like(values), _SEED)


def listed(estimate: Estimate) -> list[float]:
    """An estimate as JSON has it."""
    return [estimate.value, estimate.low, estimate.high]


def summary(verdicts: Sequence[DeviceDecision]) -> str:
    """One line for people: how many devices went where."""
    counts = {kind: sum(verdict.kind is kind for verdict in verdicts) for kind in DecisionKind}
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)


def _share(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} %"


def _range(estimate: Estimate) -> str:
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"
