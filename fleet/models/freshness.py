"""Whether a champion still orders what is measured now: a sliding window of fresh records. Pure.

Called by `fleet.refresh.freshness_look` with what the champion, and the one before it, make of records that
neither has learnt from. Two questions are kept apart. *Has it fallen?* compares the window with held-out
workloads of the day of publication; a fall may also come from harder candidates or another driver, so it asks
for a training and no more. *Would the one before do better?* compares both on the very same records; only
that takes a champion back.

Legend: n records, G workloads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from fleet.json_types import Json, JsonDict
from fleet.models.standings import Standing, mean_of
from transfer.arrays import Floats, Groups, Rows
from transfer.data.intervals import Estimate

# The curve of each device's onboardings, beside the models: what they came to, by number of samples.
#
# Written by `fleet.onboarding`, read by it and by `fleet.dashboard`.

#: Folder of the curves beside the models.
CURVES = "onboarding"


def history(folder: Path, device: str) -> list[JsonDict]:
    """What earlier onboardings of a device came to, fewest samples first; the last of each number counts."""
    points: dict[int, JsonDict] = {}
    try:
        lines = (folder / f"{device}.jsonl").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            point = json.loads(line)
            points[int(point["samples"])] = point
        except (ValueError, KeyError, TypeError):
            continue  # a line that a kill cut short
    return [points[samples] for samples in sorted(points)]


def remember(folder: Path, device: str, point: Json) -> None:
    """Add a point to the curve so far."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{device}.jsonl"
    # A line that a kill cut short ends here, so that it does not take this one along.
    is_cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * is_cut + json.dumps(point) + "\n")


#: Origins of records that no model chose and that are first measurements: what a model likes is a narrow
#: range of candidates, in which any order looks bad. What a search learns is such a model as well. Mutants
#: that an agent draws, the `evolved` ones, nobody has put in an order.
NOT_RANKED = frozenset({"random", "paired", "evolved", "imported", "derived"})
#: Newest fresh records of a device that make its window.
WINDOW = 768
#: Workloads with `fleet.models.standings.LEAST_RANKED` of them that tell something at least.
LEAST_WORKLOADS = 6
#: Share of the resamples inside the intervals: a window is looked at again and again, and each look may err.
LEVEL = 0.99
#: A fall below this is none, however sure it is.
_LEAST_FALL = 0.05
#: By so much of tau the one before must be ahead where the champion has not fallen.
_CLEARLY = 0.05


class Freshness(StrEnum):
    """What the window says."""

    TOO_FEW = "too_few"
    GOOD = "good"
    #: Worse than when it was published, and nothing before it would do better: train.
    STALE = "stale"
    #: The one before does better: go back.
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a device's window found."""

    device_id: str
    version: str
    freshness: Freshness
    #: Why, in one sentence for people.
    text: str
    #: Kendall's tau inside workloads as [value, low, high]: `champion`, and where known `previous`, `ahead`
    #: (the previous less the champion) and `published`.
    figures: Json


def window(measured_at: Floats, workload: Groups, least: int) -> Rows:
    """Places of the newest fresh records, without those of workloads with fewer than `least` of them.

    `measured_at` (n,) is in Unix seconds, `workload` (n,) the number of each one's workload.
    """
    newest = np.argsort(-measured_at, kind="stable")[:WINDOW]
    counts = np.bincount(workload[newest])
    chosen: Rows = np.sort(newest[counts[workload[newest]] >= least])
    return chosen


def look(
    device_id: str,
    version: str,
    champion: Standing | None,
    *,
    previous_version: str = "",
    previous: Standing | None = None,
    published: Json | None = None,
) -> Look:
    """Judge a champion by its window.

    Args:
        device_id: The device.
        version: Its champion.
        champion: How the champion orders the window; None where no workload has enough records.
        previous_version: The champion before; empty where there is none to go back to.
        previous: How that one orders the same records; None where it cannot be asked.
        published: `judged` of the champion: what it had when it was published.
    """
    count = 0 if champion is None else len(champion.groups)
    if champion is None or count < LEAST_WORKLOADS:
        text = f"{count} workloads have enough fresh records, {LEAST_WORKLOADS} are needed"
        return Look(device_id=device_id, version=version, freshness=Freshness.TOO_FEW, text=text, figures={})
    now = mean_of(champion.tau)
    estimate = now.estimate(LEVEL)
    figures: JsonDict = {
        "workloads": count,
        "records": int(champion.counts.sum()),
        "level": LEVEL,
        "champion": estimate.listed(),
    }
    text = f"tau {estimate.value:.3f} on {figures['records']} fresh records of {count} workloads"
    before = _published_tau(published)
    fallen = False
    if before is not None:
        figures["published"] = before.listed()
        fallen = estimate.high < before.value and estimate.value < before.low - _LEAST_FALL
        text += f", {before.value:.3f} when published"
    freshness = Freshness.STALE if fallen else Freshness.GOOD
    if previous is not None and previous_version:
        ahead = mean_of(previous.tau).minus(now).estimate(LEVEL)
        figures |= {"previous": mean_of(previous.tau).estimate(LEVEL).listed(), "ahead": ahead.listed()}
        text += (
            f"; {previous_version} gives {figures['previous'][0]:.3f} on the same "
            f"({ahead.value:+.3f}, {ahead.low:+.3f} to {ahead.high:+.3f})"
        )
        if ahead.low > (0.0 if fallen else _CLEARLY):
            freshness = Freshness.ROLL_BACK
    return Look(device_id=device_id, version=version, freshness=freshness, text=text, figures=figures)


def _published_tau(published: Json | None) -> Estimate | None:
    if not published or "tau" not in published:
        return None
    value, low, high = published["tau"]
    return Estimate(float(value), float(low), float(high))
