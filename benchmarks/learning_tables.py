"""The tables of `benchmarks.learning` as Markdown: rankers, training on less, joint and single heads.

Everything is read from one comparison, so all figures are of the same held-out candidates. Nothing is fitted
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.learning_parts import NETWORK, OURS, THINNED, thinned_name
from transfer.data.intervals import Estimate
from transfer.evaluate.comparison import Comparison

#: Rankers that are told latencies of the judged candidates on other devices: no cost model has those.
TOLD = ("nearest-device", "mean-rank")
_JUDGED = (("top1", "top-1"), ("top5", "top-5"))
_MORE = (("weighted_top1", "network top-1"), ("pairwise", "pairs"), ("tau", "tau"))
_TRANSFER = (("top1", "top-1"), ("top5", "top-5"), ("pairwise", "pairs"))


def document(comparison: Comparison, shares: Sequence[float], head: Sequence[str]) -> str:
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
    return "\n".join("\n".join([*part, ""]) for part in parts)


def ranker_table(comparison: Comparison, rankers: Sequence[str]) -> list[str]:
    """Top-1 and top-5 of each ranker on each device, and the first ranker against the best baseline."""
    devices = comparison.device_ids
    titles = [f"{device_id} {title}" for device_id in devices for _, title in _JUDGED]
    lines = [f"| ranker | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for ranker in rankers:
        cells = [
            spanned(comparison.estimate(ranker, device_id, measure))
            for device_id in devices
            for measure, _ in _JUDGED
        ]
        lines.append(f"| {ranker} | {' | '.join(cells)} |")
    chances = [
        f"{comparison.estimate(rankers[0], device_id, f'random_{measure}').value:.3f}"
        for device_id in devices
        for measure, _ in _JUDGED
    ]
    lines.append(f"| random choice | {' | '.join(chances)} |")
    against: list[str] = []
    apart: list[str] = []
    for device_id in devices:
        for measure, _ in _JUDGED:
            best = best_baseline(comparison, rankers, device_id, measure)
            if best is None:
                against.append("")
                apart.append("")
                continue
            difference = comparison.difference(rankers[0], best, device_id, measure)
            against.append(f"{spanned(difference, '+')} {best}")
            ours, theirs = (comparison.estimate(one, device_id, measure) for one in (rankers[0], best))
            apart.append("yes" if ours.low > theirs.high else "no")
    lines += [
        f"| **{rankers[0]} less the best baseline** | {' | '.join(against)} |",
        f"| above the interval of the best baseline | {' | '.join(apart)} |",
    ]
    return lines


def best_baseline(comparison: Comparison, rankers: Sequence[str], device_id: str, measure: str) -> str | None:
    """The ranker of somebody else with the highest value; those that are told latencies do not count."""
    others = [one for one in rankers if one not in (*OURS, NETWORK, *TOLD)]
    values = {one: comparison.estimate(one, device_id, measure).value for one in others}
    return max(others, key=lambda one: values[one]) if others else None


def more_table(comparison: Comparison, rankers: Sequence[str]) -> list[str]:
    """Other measures of the same rankers, and seconds of one fit."""
    titles = [f"{device_id} {title}" for device_id in comparison.device_ids for _, title in _MORE]
    lines = [f"| ranker | {' | '.join(titles)} | seconds of a fit |", "|---" * (len(titles) + 2) + "|"]
    for ranker in rankers:
        cells = [
            f"{comparison.estimate(ranker, device_id, measure).value:.3f}"
            for device_id in comparison.device_ids
            for measure, _ in _MORE
        ]
        lines.append(f"| {ranker} | {' | '.join(cells)} | {comparison.seconds[ranker]:.0f} |")
    return lines


def pruning_table(comparison: Comparison, shares: Sequence[float]) -> list[str]:
    """Pairs in the right order when less is learnt from: differences to the model that learns from all."""
    devices = comparison.device_ids
    titles = [f"{device_id}, {by}" for device_id in devices for by in THINNED]
    lines = [f"| share kept | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    whole = [
        f"{comparison.estimate(OURS[0], device_id, 'pairwise').value:.3f}" if by == THINNED[0] else ""
        for device_id in devices
        for by in THINNED
    ]
    lines.append(f"| 1 | {' | '.join(whole)} |")
    for share in sorted(shares, reverse=True):
        cells = [
            spanned(comparison.difference(thinned_name(by, share), OURS[0], device_id, "pairwise"), "+")
            for device_id in devices
            for by in THINNED
        ]
        lines.append(f"| {share:g} | {' | '.join(cells)} |")
    return lines


def transfer_table(comparison: Comparison) -> list[str]:
    """What a head gains from sharing its backbone with the other devices."""
    joint, single = OURS
    titles = [f"{title}, joint less single" for _, title in _TRANSFER]
    lines = [f"| head | {' | '.join(titles)} | verdict |", "|---" * (len(titles) + 2) + "|"]
    for device_id in comparison.device_ids:
        found = {name: comparison.difference(joint, single, device_id, name) for name, _ in _TRANSFER}
        cells = [spanned(found[name], "+") for name, _ in _TRANSFER]
        lines.append(f"| {device_id} | {' | '.join(cells)} | {_verdict(found)} |")
    return lines


def spanned(estimate: Estimate, sign: str = "") -> str:
    """A value with its interval."""
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


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
