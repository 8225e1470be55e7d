"""What `fleet eval` prints: a table of devices and rankers, how they differ, and what the words mean.

Fits into 80 columns, so shares are written without their 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.terminal_table import print_rows

if TYPE_CHECKING:
    from fleet.models.evaluation import Evaluation
    from transfer.data.intervals import Estimate
    from transfer.data.metrics import Metrics

_COLUMNS = ("device", "top-1 90 %", "top-5 90 %", "sum-1", "sum-5", "pairs", "tau", "regret")


def print_evaluation(found: Evaluation) -> None:
    """Print it on standard output."""
    from fleet.terminal_console import TerminalConsole

    say = TerminalConsole().print
    comparison = found.comparison
    rows: list[tuple[str, ...]] = []
    for device_id in comparison.device_ids:
        rows += _device_rows(found, device_id)
    print_rows(_COLUMNS, rows)
    if len(comparison.rankers) > 1:
        say()
        print_rows(
            (f"{comparison.rankers[0]} less", "top-1 90 %", "top-5 90 %", "by top-1"), _differences(found)
        )
    say()
    for line in _notes(found):
        say(line, style="dim", highlight=False, markup=False)


def _device_rows(found: Evaluation, device_id: str) -> list[tuple[str, ...]]:
    """Lines of one device: its rankers, then chance, then the ceiling."""
    comparison = found.comparison
    first = comparison.metrics[comparison.rankers[0], device_id][0]
    rows = [(device_id, *[""] * (len(_COLUMNS) - 1))]
    regret = "noise_regret" if device_id in found.noise else "regret"
    for ranker in comparison.rankers:

        def value(measure: str, ranker: str = ranker) -> Estimate:
            return comparison.estimate(ranker, device_id, measure)

        rows.append(
            (
                f" {ranker}",
                _spanned(value("top1")),
                _spanned(value("top5")),
                *(
                    _share(value(name).value)
                    for name in ("weighted_top1", "weighted_top5", "pairwise", "tau")
                ),
                f"{value(regret).value:.1%}",
            )
        )
    by_chance = float((first.random_of_1_secs / first.best_secs - 1).mean())
    rows.append(
        (
            " random",
            _share(first.random_top1),
            _share(first.random_top5),
            _share(first.random_weighted_top1),
            _share(first.random_weighted_top5),
            _share(0.5),
            _share(0.0),
            f"{by_chance:.0%}",
        )
    )
    if device_id in found.ceilings:
        rows.append(_ceiling_row(found.ceilings[device_id]))
    return rows


def _ceiling_row(ceiling: Metrics) -> tuple[str, ...]:
    return (
        " ceiling",
        _share(ceiling.top1),
        _share(ceiling.top5),
        _share(ceiling.weighted_top1),
        _share(ceiling.weighted_top5),
        _share(ceiling.pairwise),
        _share(ceiling.tau),
        f"{ceiling.regret:.1%}",
    )


def _differences(found: Evaluation) -> list[tuple[str, ...]]:
    """The first ranker less each other one, by a paired bootstrap."""
    comparison = found.comparison
    mine = comparison.rankers[0]
    rows: list[tuple[str, ...]] = []
    for device_id in comparison.device_ids:
        rows.append((device_id, "", "", ""))
        for other in comparison.rankers[1:]:
            top1, top5 = (comparison.difference(mine, other, device_id, name) for name in ("top1", "top5"))
            rows.append((f" {other}", _signed(top1), _signed(top5), _verdict(top1)))
    return rows


def _verdict(difference: Estimate) -> str:
    if difference.is_above_zero:
        return "better"
    return "worse" if difference.high < 0 else "not told apart"


def _share(value: float, digits: int = 3, sign: str = "") -> str:
    """A number that is seldom 1 or more: .694, -.12, 1.000."""
    return (
        f"{value:{sign}.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.{digits}f}"
    )


def _spanned(estimate: Estimate) -> str:
    low, high = (_share(end, 2).replace("1.00", "1.0") for end in (estimate.low, estimate.high))
    return f"{_share(estimate.value)} {low}-{high}"


def _signed(estimate: Estimate) -> str:
    low, high = (_share(end, 2, "+") for end in (estimate.low, estimate.high))
    return f"{_share(estimate.value, 3, '+')} ({low} to {high})"


def _notes(found: Evaluation) -> list[str]:
    """What was done, and how to read the table."""
    comparison = found.comparison
    seeds = len(comparison.seeds)
    done = {
        "by-workload": f"{len(comparison.splits)} parts of the workloads, each held out once",
        "within-workload": "a share of each workload's candidates held out",
        "by-network": f"networks held out one after another: {', '.join(comparison.splits)}",
        "by-device": "each device held out once, judged on candidates that the others measured",
    }.get(found.split, f"candidates {found.split}")
    lines = [
        f"Split: {done}; {seeds} {'seed' if seeds == 1 else 'seeds'}; table version {found.table_version}."
    ]
    for device_id in comparison.device_ids:
        first = comparison.metrics[comparison.rankers[0], device_id][0]
        line = f"{device_id}: {len(first.groups)} workloads, {int(first.counts.sum())} held-out candidates"
        if device_id in found.noise:
            line += f"; noise {found.noise[device_id].median_change:.1%}, no regret below it"
        if device_id in found.ceilings:
            ceiling = found.ceilings[device_id]
            line += (
                f"; ceiling from {int(ceiling.counts.sum())} candidates of {len(ceiling.groups)} workloads"
            )
        lines.append(f"{line}.")
    lines += [f"{device_id}: left out, {why}." for device_id, why in comparison.left_out.items()]
    if found.near_copies:
        lines.append(
            f"{found.near_copies} held-out workloads have a near-copy (same operator and shapes) among those "
            "learnt from."
        )
    lines.append(
        "top-k: speed of the best of k tries over the best there is, mean over workloads; sum-k: the same of "
        "sums of time by weight. pairs: pairwise accuracy. tau: Kendall's. regret: extra time of the first "
        "choice. ceiling: the candidates are ranked by a measurement before, not by a model."
    )
    return lines
