"""What `fleet eval` prints: a table of devices and rankers, how they differ, and what the words mean.

Fits into 80 columns, so shares are written without their 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.json_types import Json
from fleet.terminal_text import print_rows

_COLUMNS = ("device", "top-1 90 %", "top-5 90 %", "sum-1", "sum-5", "pairs", "tau", "regret")
_SHARES = ("weighted_top1", "weighted_top5", "pairwise", "tau")

#: A value and its interval: value, low, high.
_Estimate = Sequence[float]


def print_evaluation(evaluation: Json) -> None:
    """Print all of a `fleet.models.evaluation.Evaluation` on standard output."""
    from fleet.terminal_text import TerminalConsole

    print_line = TerminalConsole().print
    first, *others = evaluation["rankers"]
    if not evaluation["devices"]:
        print_line("Nothing to judge: no device has enough held-out candidates.")
        for line in _left_out(evaluation):
            print_line(line, highlight=False, markup=False)
        return
    print_rows(
        _COLUMNS, [row for device_id in evaluation["devices"] for row in _device_rows(evaluation, device_id)]
    )
    if others:
        print_line()
        print_rows((f"{first} minus", "top-1 90 %", "top-5 90 %", "by top-1"), _differences(evaluation))
    print_line()
    for line in _notes(evaluation):
        print_line(line, style="dim", highlight=False, markup=False)


def _device_rows(evaluation: Json, device_id: str) -> list[tuple[str, ...]]:
    """Lines of one device: its rankers, then chance, then the ceiling."""
    device = evaluation["devices"][device_id]
    rows = [(device_id, *[""] * (len(_COLUMNS) - 1))]
    regret = "noise_regret" if device_id in evaluation["noise"] else "regret"
    for ranker, measured in device["rankers"].items():
        shares = (_share(measured[name][0]) for name in _SHARES)
        spans = _spanned(measured["top1"]), _spanned(measured["top5"])
        rows.append((f" {ranker}", *spans, *shares, f"{measured[regret][0]:.1%}"))
    chance = device["rankers"][evaluation["rankers"][0]]
    shares = (
        _share(chance[f"random_{name}"][0]) for name in ("top1", "top5", "weighted_top1", "weighted_top5")
    )
    rows.append((" random", *shares, _share(0.5), _share(0.0), f"{device['random_regret']:.0%}"))
    if ceiling := evaluation["ceilings"].get(device_id):
        shares = (_share(ceiling[name]) for name in ("top1", "top5", *_SHARES))
        rows.append((" ceiling", *shares, f"{ceiling['regret']:.1%}"))
    return rows


def _differences(evaluation: Json) -> list[tuple[str, ...]]:
    """The first ranker minus each other one, by a paired bootstrap."""
    _, *others = evaluation["rankers"]
    rows: list[tuple[str, ...]] = []
    for device_id, device in evaluation["devices"].items():
        rows.append((device_id, "", "", ""))
        for other in others:
            minus = device["differences"][other]
            rows.append(
                (f" {other}", _signed(minus["top1"]), _signed(minus["top5"]), _verdict(minus["top1"]))
            )
    return rows


def _verdict(difference: _Estimate) -> str:
    _, low, high = difference
    if low > 0:
        return "better"
    return "worse" if high < 0 else "unclear"


def _share(value: float, digits: int = 3, sign: str = "") -> str:
    """A number that is seldom 1 or more: .694, -.12, 1.000."""
    return (
        f"{value:{sign}.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.{digits}f}"
    )


def _spanned(estimate: _Estimate) -> str:
    value, *ends = estimate
    low, high = (_share(end, 2).replace("1.00", "1.0") for end in ends)
    return f"{_share(value)} {low}-{high}"


def _signed(estimate: _Estimate) -> str:
    value, *ends = estimate
    low, high = (_share(end, 2, "+") for end in ends)
    return f"{_share(value, 3, '+')} ({low} to {high})"


def _fewer_parts(evaluation: Json) -> str:
    """Why the workloads were held out in fewer parts than asked; nothing if they were not."""
    parts, folds_asked = len(evaluation["splits"]), evaluation["folds_asked"]
    if folds_asked is None or parts >= folds_asked:
        return ""
    return f" ({folds_asked} were asked for, and there are {parts} workloads)"


def _left_out(evaluation: Json) -> list[str]:
    """Candidates and devices that were not judged, each with the reason."""
    lines = [
        f"{device_id}: {count} candidates left out: a model chose them, or they were measured again."
        for device_id, count in evaluation.get("not_judged", {}).items()
    ]
    return lines + [f"{device_id}: left out, {why}." for device_id, why in evaluation["left_out"].items()]


def _notes(evaluation: Json) -> list[str]:
    """What was done, and how to read the table."""
    seeds, splits = len(evaluation["seeds"]), evaluation["splits"]
    done = {
        "by-workload": f"{len(splits)} parts of the workloads, each held out once{_fewer_parts(evaluation)}",
        "within-workload": "a share of each workload's candidates held out",
        "by-network": f"networks held out one after another: {', '.join(splits)}",
        "by-device": "each device held out once, judged on candidates that the others measured",
    }.get(evaluation["split"], f"candidates {evaluation['split']}")
    version = evaluation["table_version"]
    lines = [f"Split: {done}; {seeds} {'seed' if seeds == 1 else 'seeds'}; table version {version}."]
    for device_id, device in evaluation["devices"].items():
        candidates = sum(device["candidates"])
        line = f"{device_id}: {len(device['workloads'])} workloads, {candidates} held-out candidates"
        if noise := evaluation["noise"].get(device_id):
            line += f"; noise {noise['median_change']:.1%}, no regret below it"
        if ceiling := evaluation["ceilings"].get(device_id):
            line += f"; ceiling from {ceiling['candidates']} candidates of {ceiling['workloads']} workloads"
        lines.append(f"{line}.")
    lines += _left_out(evaluation)
    if evaluation["near_copies"]:
        lines.append(
            f"{evaluation['near_copies']} held-out workloads have a near-copy (same operator and shapes) "
            "among those learnt from."
        )
    lines.append(
        "top-k: speed of the best of k tries, as a share of the best speed, mean over workloads; sum-k: from "
        "sums of time by weight instead. pairs: pairwise accuracy. tau: Kendall's. regret: extra time of the "
        "first choice. ceiling: candidates ranked by an earlier measurement, not by a model."
    )
    return lines
