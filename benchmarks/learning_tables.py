"""The tables of `benchmarks.learning` as Markdown: rankers, training on less, joint and single heads.

Everything is read from one comparison, so all figures are of the same held-out candidates. Nothing is fitted
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.harness import cell, markdown_table
from benchmarks.learning_parts import NETWORK, OURS, THINNED, thinned_name
from transfer.data.intervals import Estimate
from transfer.evaluate.comparison import Comparison

#: Rankers that are told latencies of the judged candidates on other devices: no cost model has those.
TOLD = ("nearest-device", "mean-rank")
_JUDGED = (("top1", "top-1"), ("top5", "top-5"))
_MORE = (("weighted_top1", "network top-1"), ("pairwise", "pairs"), ("tau", "tau"))
_TRANSFER = (("top1", "top-1"), ("top5", "top-5"), ("pairwise", "pairs"))


def document(comparison: Comparison, shares: Sequence[float], head: Sequence[str]) -> list[str]:
    """All tables, below some lines that say what was run.

    Args:
        comparison: With the thinned rankers of `shares` in it.
        shares: Of the pruning curve; no curve where empty.
        head: Lines of Markdown.
    """
    named = [one for one in comparison.rankers if not _is_thinned(one)]
    parts = [list(head), ["## Rankers", "", *ranker_table(comparison, named)]]
    parts.append(["## More of the same", "", *more_table(comparison, named)])
    if shares:
        parts.append(["## Training on less", "", *pruning_table(comparison, shares)])
    if set(OURS) <= set(comparison.rankers) and len(comparison.device_ids) > 1:
        parts.append(["## One model for all devices, or one for each", "", *transfer_table(comparison)])
    return [line for part in parts for line in (*part, "")][:-1]


def ranker_table(comparison: Comparison, rankers: Sequence[str]) -> list[str]:
    """Top-1 and top-5 of each ranker on each device, and the first ranker against the best baseline."""
    columns = [(device_id, measure) for device_id in comparison.device_ids for measure, _ in _JUDGED]
    first = rankers[0]

    def estimate(ranker: str, column: tuple[str, str]) -> Estimate:
        return comparison.estimate(ranker, *column)

    against, apart = [], []
    for column in columns:
        best = best_baseline(comparison, rankers, *column)
        if best is None:
            against.append("")
            apart.append("")
            continue
        against.append(f"{cell(comparison.difference(first, best, *column), '+')} {best}")
        apart.append("yes" if estimate(first, column).low > estimate(best, column).high else "no")
    chances = [
        cell(comparison.estimate(first, device, f"random_{measure}").value) for device, measure in columns
    ]
    return markdown_table(
        ["ranker", *(f"{device} {title}" for device in comparison.device_ids for _, title in _JUDGED)],
        [
            *((ranker, *(cell(estimate(ranker, column)) for column in columns)) for ranker in rankers),
            ("random choice", *chances),
            (f"**{first} less the best baseline**", *against),
            ("above the interval of the best baseline", *apart),
        ],
    )


def best_baseline(comparison: Comparison, rankers: Sequence[str], device_id: str, measure: str) -> str | None:
    """The ranker of somebody else with the highest value; those that are told latencies do not count."""
    others = [one for one in rankers if one not in (*OURS, NETWORK, *TOLD)]
    values = {one: comparison.estimate(one, device_id, measure).value for one in others}
    return max(others, key=lambda one: values[one]) if others else None


def more_table(comparison: Comparison, rankers: Sequence[str]) -> list[str]:
    """Other measures of the same rankers, and seconds of one fit."""
    columns = [(device_id, *named) for device_id in comparison.device_ids for named in _MORE]
    return markdown_table(
        ["ranker", *(f"{device} {title}" for device, _, title in columns), "seconds of a fit"],
        [
            (
                ranker,
                *(cell(comparison.estimate(ranker, device, measure).value) for device, measure, _ in columns),
                f"{comparison.seconds[ranker]:.0f}",
            )
            for ranker in rankers
        ],
    )


def pruning_table(comparison: Comparison, shares: Sequence[float]) -> list[str]:
    """Pairs in the right order when less is learnt from: differences to the model that learns from all."""
    columns = [(device_id, by) for device_id in comparison.device_ids for by in THINNED]

    def less(device_id: str, by: str, share: float) -> Estimate:
        return comparison.difference(thinned_name(by, share), OURS[0], device_id, "pairwise")

    whole = [
        cell(comparison.estimate(OURS[0], device, "pairwise").value) if by == THINNED[0] else ""
        for device, by in columns
    ]
    return markdown_table(
        ["share kept", *(f"{device}, {by}" for device, by in columns)],
        [
            ("1", *whole),
            *(
                (f"{share:g}", *(cell(less(*column, share), "+") for column in columns))
                for share in sorted(shares, reverse=True)
            ),
        ],
    )


def transfer_table(comparison: Comparison) -> list[str]:
    """What a head gains from sharing its backbone with the other devices."""
    rows = []
    for device_id in comparison.device_ids:
        found = {name: comparison.difference(*OURS, device_id, name) for name, _ in _TRANSFER}
        rows.append((device_id, *(cell(one, "+") for one in found.values()), _verdict(found)))
    titles = [f"{title}, joint less single" for _, title in _TRANSFER]
    return markdown_table(["head", *titles, "verdict"], rows)


def _verdict(found: Mapping[str, Estimate]) -> str:
    """What the measures say whose interval does not touch zero."""
    better = [name for name, one in found.items() if one.low > 0]
    worse = [name for name, one in found.items() if one.high < 0]
    if better and worse:
        return f"better by {', '.join(better)}, worse by {', '.join(worse)}"
    return "helps" if better else "hurts" if worse else "no clear difference"


def _is_thinned(ranker: str) -> bool:
    return any(ranker.startswith(f"{by}-0") for by in THINNED)


def judged(comparison: Comparison) -> str:
    """How many workloads and candidates each device was judged on."""
    found = []
    for device_id in comparison.device_ids:
        first = comparison.metrics[comparison.rankers[0], device_id][0]
        found.append(f"{device_id} {len(first.groups)} ({int(np.sum(first.counts))})")
    return ", ".join(found)
