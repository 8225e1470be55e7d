"""The report of a search: `report.json` with everything found, a page for people, and lines for a terminal.

The page is a pure function of the value. Layout of the JSON, version 1: what `tune_device` returns, and
`version`, `created_at`, `command`, `headline`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, starmap
from pathlib import Path

from fleet.json_types import Json
from fleet.page_template import Mark, Plot, page_environment, write_report
from fleet.terminal_text import TerminalConsole, print_rows
from fleet.tuning import journey as picture
from fleet.tuning.journey import Journey, journey

#: Version of the layout of `report.json`.
REPORT_VERSION = 1
#: What people call the ways to run a network.
SIDE_NAMES = {
    "tvm_untuned": "TVM, no schedules",
    "tvm_tuned": "TVM, tuned by fleet",
    "tvm_earlier": "TVM, tuned earlier",
    "torch_eager": "torch eager",
    "torch_compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
#: Names of our libraries beside a line of a picture.
_SHORT_NAMES = {"tvm_tuned": "fleet tune", "tvm_earlier": "earlier library", "tvm_untuned": "no schedules"}
#: Columns of the table of workloads in a terminal.
_COLUMNS = ("workload", "uses", "tried", "failed", "before", "best", "faster", "GFLOP/s")
_MOST_CURVES = 12
_TIMES = "\N{MULTIPLICATION SIGN}"


def report_search(result: Json, folder: Path, created_at_secs: float, command: str) -> Path:
    """Write `report.html` and `report.json` of a search.

    Returns:
        The path of the page.
    """
    report = {
        "version": REPORT_VERSION,
        **result,
        "created_at": created_at_secs,
        "command": command,
        "headline": headline(result),
    }
    return write_report(report, render(report), folder)[1]


def headline(result: Json) -> list[str]:
    """The result in sentences."""
    ran = [workload for workload in result["workloads"] if workload["best_secs"]]
    measured = (
        f"{result['trials']:,} candidates of {len(result['workloads'])} workloads were measured on "
        f"{result['device']}; {result['failed']:,} failed, and {len(ran)} workloads have a schedule."
    )
    return [measured, *starmap(network_sentence, result["whole_networks"].items())]


def network_sentence(name: str, delivery: Json) -> str:
    """One network in one sentence: how fast its library is, compared with other ways to run it."""
    if delivery.get("why_not"):
        return f"{name}: no library ({delivery['why_not']})."
    if delivery["kept"] is None:
        return f"{name}: no library has the output of {SIDE_NAMES[delivery['reference']]}; none is kept."
    secs = delivery["secs"]
    kept_secs = secs[delivery["kept"]]
    others = {side: secs[side] / kept_secs for side in secs if not side.startswith("tvm")}
    faster = [
        f"{SIDE_NAMES[side]} is faster ({millis(secs[side])})" for side, ratio in others.items() if ratio < 1
    ]
    slower = [
        f"{ratio:.2f} times as fast as {SIDE_NAMES[side]}" for side, ratio in others.items() if ratio >= 1
    ]
    parts = [*slower, *faster, f"{delivery['speedup_vs_untuned']:.2f} times as fast as TVM without schedules"]
    return f"{name}: {millis(kept_secs)} per run, {'; '.join(parts)}."


def millis(secs: float | None) -> str:
    """Seconds as milliseconds with three digits or more; a dash for None."""
    if secs is None:
        return "-"
    value = secs * 1e3
    decimals = 1 if value >= 10 else 3 if value >= 0.1 or value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{decimals}f} ms"


def render(report: Json) -> str:
    """Give the page as text: a whole HTML document that loads nothing from anywhere."""
    names = ", ".join(map(short_name, report["whole_networks"] or report["networks"])) or "workloads"
    template = page_environment().get_template("tuning.html")
    return template.render(
        report=report,
        title=f"{names} on {report['device']}",
        tiles=_tiles(report),
        journeys=_journeys(report),
        picture=picture,
        plots=[plot for plot in _plots(report) if plot.rows],
        programs=_programs(report["workloads"]),
        sides=SIDE_NAMES,
        millis=millis,
    )


def short_name(network: str) -> str:
    """A network's name without the settings of its architecture."""
    return network.partition(",")[0]


def _tiles(report: Json) -> list[tuple[str, str]]:
    tiles = [("candidates measured", f"{report['trials']:,}"), ("workloads", f"{len(report['workloads']):,}")]
    for name, delivery in report["whole_networks"].items():
        if kept := delivery.get("kept"):
            short, secs = short_name(name), delivery["secs"]
            others = [side for side in secs if not side.startswith("tvm")] or ["tvm_untuned"]
            rival = min(others, key=secs.__getitem__)
            ratio = f"{secs[rival] / secs[kept]:.2f}{_TIMES}"
            tiles.append((f"one run of {short}", millis(secs[kept])))
            tiles.append((f"{short}: speed compared with {SIDE_NAMES[rival]}", ratio))
    return [*tiles, ("wall time", f"{sum(report['seconds'].values()):.0f} s")]


def _journeys(report: Json) -> list[Journey]:
    """Each network's way to its library, beside what else there is."""
    journeys = []
    for name, delivery in report["whole_networks"].items():
        curve = report["networks"].get(name, {}).get("curve", ())
        if not delivery.get("kept"):
            continue
        sides = {
            _SHORT_NAMES.get(side, SIDE_NAMES[side]): secs
            for side, secs in delivery["secs"].items()
            if not side.startswith("tvm") or side == delivery["kept"]
        }
        if drawn := journey(short_name(name), curve, sides, _SHORT_NAMES[delivery["kept"]]):
            journeys.append(drawn)
    return journeys


def _programs(workloads: Sequence[Json]) -> list[tuple[str, ...]]:
    """Rows of the table of programs, those that take most of the time first."""
    total = sum(row["best_secs"] * row["weight"] for row in workloads if row["best_secs"])
    ranked = sorted(workloads, key=lambda row: -(row["best_secs"] or 0.0) * row["weight"])
    return [_program(row, total) for row in ranked]


def _program(row: Json, total_secs: float) -> tuple[str, ...]:
    best, untuned = row["best_secs"], row.get("untuned_secs")
    return (
        row["name"],
        str(row["weight"]),
        f"{100 * best * row['weight'] / total_secs:.1f} %" if best else "-",
        millis(untuned),
        millis(row["before_secs"]),
        millis(best),
        f"{untuned / best:.1f}{_TIMES}" if untuned and best else "-",
        f"{row['gflops_per_s']:.1f}" if best else "-",
        str(row["trials"]),
        str(row["failed"]),
    )


def _plots(report: Json) -> list[Plot]:
    plots = [
        _latencies(name, delivery)
        for name, delivery in report["whole_networks"].items()
        if delivery.get("secs")
    ]
    return [*plots, _curves(report["workloads"]), _parts(report["seconds"])]


def _latencies(name: str, delivery: Json) -> Plot:
    secs = delivery["secs"]
    # Without schedules a network is so slow that the other bars would be dots.
    shown = [side for side in secs if side != "tvm_untuned"] or list(secs)
    top = max(max(delivery["turns"][side]) for side in shown)
    rows = []
    for side in sorted(secs, key=secs.__getitem__):
        turns = delivery["turns"][side]
        marks = [
            Mark("bar", 0, series=0 if side.startswith("tvm") else 1, end=100 * secs[side] / top),
            Mark("span", 100 * min(turns) / top, series=2, end=100 * max(turns) / top),
        ]
        rows.append((SIDE_NAMES[side], marks if side in shown else [], millis(secs[side])))
    return Plot(
        f"latency-{name}",
        f"One run of {short_name(name)}",
        "Median of the turns, all sides in turn on the same cores with as many threads; the thin line goes "
        "from the fastest turn to the slowest.",
        rows,
        [(0, "0"), (100, millis(top))],
        "time of one run",
    )


def _curves(workloads: Sequence[Json]) -> Plot:
    """How the best program of the heaviest workloads fell while candidates were tried."""
    rows = []
    improved = [
        workload
        for workload in workloads
        if workload["best_secs"] and any(best for _, best in workload["curve"])
    ]
    improved.sort(key=lambda workload: -workload["best_secs"] * workload["weight"])
    for workload in improved[:_MOST_CURVES]:
        points = [(tried, best) for tried, best in workload["curve"] if best]
        last, low = points[-1][0], workload["best_secs"]
        high = max(best for _, best in points)
        spread = math.log(high / low) or 1.0
        # A page counts from its top, where fast is.
        places = [
            (100 * tried / last, 8 + 84 * (math.log(best / low) / spread) if high > low else 50.0)
            for tried, best in points
        ]
        marks = [Mark("dot", *places[-1])]
        for (x, y), (end, end_y) in pairwise(places):
            marks.append(Mark("trend", x, y, 0, end, end_y))
        rows.append((workload["name"], marks, f"{millis(low)} after {last}"))
    return Plot(
        "curves",
        "How the search went",
        "Each row is a workload: candidates tried from left to right, the best latency so far each "
        "on its own log scale, fast at the top. The heaviest workloads come first.",
        rows,
        (),
        "candidates tried; upwards: speed",
    )


def _parts(seconds: Mapping[str, float]) -> Plot:
    longest = max(seconds.values(), default=0) or 1
    rows = [
        (name.replace("_", " "), [Mark("bar", 0, end=100 * secs / longest)], f"{secs:.1f} s")
        for name, secs in seconds.items()
    ]
    ticks = [(0, "0"), (100, f"{longest:.0f} s")]
    return Plot("timing", "Where the time went", "Seconds by part of the search.", rows, ticks, "seconds")


def print_tuning(result: Json) -> None:
    """Print what `fleet.tuning.tuning.tune_device` returns: one line per workload, then the networks."""
    print_line = TerminalConsole().print
    print_rows(_COLUMNS, [_cells(workload) for workload in result["workloads"]])
    for network, secs in result["networks"].items():
        before = secs.get("before_secs")
        was = f", {millis(before)} before ({before / secs['best_secs']:.2f} times)" if before else ""
        print_line(f"{network}: {millis(secs['best_secs'])} for its tuned workloads{was}")
    for name, delivery in result["whole_networks"].items():
        print_line(network_sentence(name, delivery))
        for side, why in delivery.get("absent", {}).items():
            advice = "; pip install 'tensor-fleet[networks]'" if "No module named 'onnx" in why else ""
            print_line(f"{name}: {SIDE_NAMES[side]} was not timed: {why}{advice}")
        if delivery.get("library"):
            print_line(f"library for TVM's Relax: {delivery['library']}")
    who = f"ranked by {result['model']}" if result["model"] else f"not ranked: {result['why_no_model']}"
    parts = ", ".join(
        f"{name.replace('_', ' ')} {secs:.0f} s" for name, secs in result["seconds"].items() if secs >= 0.5
    )
    print_line(f"{result['trials']} candidates measured, {result['failed']} failed; {who}; {parts}")
    print_line(f"ended by: {result['ended']}")
    print_line(f"database for TVM: {result['database']}")
    print_line(f"report: {result['report']}")


def _cells(workload: Json) -> tuple[str, ...]:
    before, best = workload["before_secs"], workload["best_secs"]
    return (
        workload["name"],
        str(workload["weight"]),
        str(workload["trials"]),
        str(workload["failed"]),
        millis(before),
        millis(best),
        f"{before / best:.2f}x" if before and best else "-",
        f"{workload['gflops_per_s']:.1f}" if best else "-",
    )
