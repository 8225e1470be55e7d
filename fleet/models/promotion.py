"""Who serves a device from now on: one rule, by held-out workloads. Pure decisions.

No head takes a place that is not better than, or clearly as good as, what serves now and the head of the
shipped model, on enough held-out workloads to judge (`docs/decisions/0078-the-shipped-head-is-the-floor.md`).
Else it is a challenger, and says what it lacks. A champion that is clearly worse than the shipped head gives
its place to that.

Called by `fleet.models.judge` and by `fleet.onboarding.head_version` with standings; it knows neither models
nor stores nor time. All are judged anew, on the same rows of one snapshot: figures of another day are never
compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from fleet.json_types import Json, JsonDict
from fleet.models.standings import Standing, mean_of
from fleet.models.versions import FLOOR_WORKLOADS, LEAST_HELD, SHARE
from transfer.arrays import Floats
from transfer.data.intervals import LEVEL, Estimate, student_interval, t_quantile

#: Held-out workloads that judge a head at least: an interval of fewer is wider than any head is better
#: (`docs/decisions/0078-the-shipped-head-is-the-floor.md`).
LEAST_JUDGED = 8
#: Share of the pairs by which a head may be behind another one, at the low end of the interval, and still be
#: clearly as good.
MARGIN = 0.02
#: What a head is trained from at least: ok candidates, and workloads with two of them to compare.
LEAST_CANDIDATES = 32
LEAST_WORKLOADS = 3
#: Refreshes that start from the champion before one starts from nothing: what a first, small dataset gave the
#: backbone and the scaling of its inputs should not stay for ever.
MOST_WARM = 8


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDecision:
    """What came of one device, and why."""

    device_id: str
    kind: DecisionKind
    #: Why, in one sentence for people.
    reason: str
    #: Figures behind it (`figures`); None where nothing was judged.
    judged: Json | None = None
    #: Kind of the challenger (`transfer.model.kinds`).
    model_kind: str = ""
    #: Version that served the device when it was decided; empty for none.
    instead_of: str = ""

    @property
    def moves_on(self) -> bool:
        """Whether the challenger takes the place."""
        return self.kind in {DecisionKind.FIRST, DecisionKind.BETTER, DecisionKind.AS_GOOD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """A head that a challenger must not be worse than."""

    #: What it is called in sentences, such as `v000003`.
    name: str
    #: How it orders what judges the challenger; None where it cannot be asked.
    standing: Standing | None


class Rank(StrEnum):
    """How a head compares with another one."""

    BETTER = "better"
    AS_GOOD = "as_good"
    #: Neither is worse for sure, nor clearly as good.
    UNCLEAR = "unclear"
    WORSE = "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadComparison:
    """A head against another one, on the same workloads."""

    rank: Rank
    #: The difference in words.
    evidence: str
    #: Further held-out workloads that would make it clearly as good if they say what these say; 0 where none
    #: would.
    lacks: int = 0


def compared(mine: Standing, other: Standing, name: str) -> HeadComparison:
    """Compare a head with another one, called `name`, that was asked about the same candidates."""
    gains = mine.shares() - other.shares()
    pairs, top5 = student_interval(gains), student_interval(mine.top5 - other.top5)
    evidence = f"{_points(pairs.value)} against {name} ({_points(pairs.low)} to {_points(pairs.high)})"
    if pairs.high < 0:
        return HeadComparison(rank=Rank.WORSE, evidence=evidence)
    if top5.high < 0 and pairs.low <= 0:
        slower = f"its first five choices reach {_points(top5.value)} of the best speed"
        evidence = f"{slower} ({_points(top5.low)} to {_points(top5.high)}); {evidence}"
        return HeadComparison(rank=Rank.WORSE, evidence=evidence)
    if pairs.is_above_zero:
        return HeadComparison(rank=Rank.BETTER, evidence=evidence)
    if pairs.low > -MARGIN:
        return HeadComparison(rank=Rank.AS_GOOD, evidence=evidence)
    return HeadComparison(rank=Rank.UNCLEAR, evidence=evidence, lacks=_further(gains))


def _further(gains: Floats) -> int:
    """Further workloads that bring the low end of the interval above the margin, if they are like these."""
    ahead = float(gains.mean()) + MARGIN
    if ahead <= 0:
        return 0
    needed = (t_quantile(len(gains)) * float(gains.std(ddof=1)) / ahead) ** 2
    return max(1, math.ceil(needed) - len(gains))


def lacking(count: int, further: int) -> str:
    """What a head that `count` held-out workloads can judge lacks, if it takes `further` ones."""
    return (
        f"needs {math.ceil(further / SHARE)} more measured workloads to be judged: {count} held-out ones can "
        f"judge it, {count + further} must, and one of {round(1 / SHARE)} is held out (of {FLOOR_WORKLOADS} "
        f"or more at least {LEAST_HELD})"
    )


def judge(
    device_id: str,
    challenger: Standing | None,
    rivals: Sequence[Incumbent],
    *,
    served_by: str = "",
    floor: float = 0.0,
    why_not: str = "",
    gone: str = "",
) -> DeviceDecision:
    """Decide about one device: the challenger takes the place only from rivals that it is not worse than.

    Args:
        device_id: The device.
        challenger: The new head on clean held-out workloads; None where there are none.
        rivals: What it must not be worse than, on the same candidates: the champion first, and the shipped
            head. None where nothing serves and no model is shipped.
        served_by: Version that serves on, as long as no other takes its place; empty for none.
        floor: The noise floor that all were judged with.
        why_not: Why nothing could be judged, or what it lacks for that, where that is known.
        gone: Why a champion that was there cannot serve any more; empty where none was.
    """
    decided = partial(DeviceDecision, device_id=device_id)
    gone = gone and f"{gone}; "
    count = 0 if challenger is None else len(challenger.groups)
    standings = [rival.standing for rival in rivals if rival.standing is not None]
    if challenger is None or count < LEAST_JUDGED or len(standings) < len(rivals):
        reason = why_not or lacking(count, max(1, LEAST_JUDGED - count))
        if rivals:
            stays = f"; {served_by} stays" if served_by else ""
            return decided(kind=DecisionKind.UNJUDGED, reason=f"{gone}{reason}{stays}")
        return decided(kind=DecisionKind.FIRST, reason=f"{gone}first head, unjudged: it {reason}")
    mine = student_interval(challenger.shares())
    on = f"{_share(mine)} of the pairs right on {count} held-out workloads"
    if not rivals:
        judged = figures(challenger, None, floor)
        if mine.low <= 0.5:
            reason = f"{gone}no better than chance: {on} ({_range(mine)})"
            return decided(kind=DecisionKind.REFUSED, reason=reason, judged=judged)
        return decided(kind=DecisionKind.FIRST, reason=f"{gone or 'first head: '}{on}", judged=judged)
    comparisons = [
        compared(challenger, standing, rival.name) for rival, standing in zip(rivals, standings, strict=True)
    ]
    judged = figures(challenger, standings[0], floor)
    judged["rivals"] = {
        rival.name: float(standing.top1.mean()) for rival, standing in zip(rivals, standings, strict=True)
    }
    evidence = ", ".join((on, *(comparison.evidence for comparison in comparisons)))
    ranks = {comparison.rank for comparison in comparisons}
    if Rank.WORSE in ranks:
        return decided(kind=DecisionKind.WORSE, reason=f"{gone}worse: {evidence}", judged=judged)
    if Rank.UNCLEAR in ranks:
        unclear = [comparison.lacks for comparison in comparisons if comparison.rank is Rank.UNCLEAR]
        needs = "; more workloads like these would not make it so"
        if min(unclear):
            needs = f"; it {lacking(count, max(unclear))}"
        reason = f"{gone}not clearly as good: {evidence}{needs}"
        return decided(kind=DecisionKind.UNJUDGED, reason=reason, judged=judged)
    if comparisons[0].rank is Rank.BETTER:
        return decided(kind=DecisionKind.BETTER, reason=f"{gone}better: {evidence}", judged=judged)
    return decided(kind=DecisionKind.AS_GOOD, reason=f"{gone}clearly as good: {evidence}", judged=judged)


def shipped_takes(
    device_id: str, champion: Incumbent, shipped: Incumbent, floor: float = 0.0
) -> DeviceDecision | None:
    """The decision that the shipped head takes the place of a champion that is clearly worse; else None."""
    mine, other = shipped.standing, champion.standing
    if mine is None or other is None or len(mine.groups) < LEAST_JUDGED:
        return None
    if compared(other, mine, shipped.name).rank is not Rank.WORSE:
        return None
    comparison = compared(mine, other, champion.name)
    share = _share(student_interval(mine.shares()))
    on = f"{share} of the pairs right on {len(mine.groups)} held-out workloads"
    return DeviceDecision(
        device_id=device_id,
        kind=DecisionKind.BETTER,
        reason=f"the shipped head is better: {on}, {comparison.evidence}",
        judged=figures(mine, other, floor),
    )


def held_back(verdict: DeviceDecision, *, pinned_to: str = "", rolled_back_from: str = "") -> DeviceDecision:
    """The verdict of `judge`, or that a person does not want it: by a pin, or by a rollback by hand."""
    if verdict.moves_on and pinned_to:
        why = f"the device is pinned to {pinned_to}"
    elif verdict.kind is DecisionKind.AS_GOOD and rolled_back_from:
        why = f"only a better head takes the place since {rolled_back_from} was rolled back by hand"
    else:
        return verdict
    return replace(verdict, kind=DecisionKind.HELD, reason=f"{why}; {verdict.reason}")


def figures(challenger: Standing, champion: Standing | None, floor: float) -> JsonDict:
    """What a verdict rests on, JSON-ready: estimates as [value, low, high]."""
    mine = _by_workload(challenger)
    judged: JsonDict = {
        "level": LEVEL,
        "noise_floor": floor,
        "workloads": len(challenger.groups),
        "candidates": int(challenger.counts.sum()),
        **{name: mean_of(values).estimate().listed() for name, values in mine.items()},
        "random_top1": float(challenger.random_top1.mean()),
    }
    if champion is not None:
        theirs = _by_workload(champion)
        del theirs["top1"]
        judged["champion"] = {name: mean_of(values).estimate().listed() for name, values in theirs.items()}
        judged["difference"] = {
            name: student_interval(mine[name] - values).listed() for name, values in theirs.items()
        }
    return judged


def _by_workload(head_standing: Standing) -> dict[str, Floats]:
    return {
        "pairs": head_standing.shares(),
        "tau": head_standing.tau,
        "top1": head_standing.top1,
        "top5": head_standing.top5,
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
    manifests: Mapping[str, Json],
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
