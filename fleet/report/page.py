"""The page of a report: one HTML file that needs no network and no other file.

`fleet.report.page.write` calls `render`. The page is a pure function of the report: the same report gives
the same bytes. Every foreign text (device names, errors, host facts) is escaped by the template engine. How
plots and tables look is in `fleet/templates/parts.html`; here is which numbers they show.
"""

from __future__ import annotations

from pathlib import Path

from fleet.json_types import Json, JsonDict
from fleet.page_template import Mark, Plot, page_environment, write_report
from fleet.report import words
from fleet.report.words import duration, is_finite, label, labels, percent, score_text, signed
from fleet.terminal_text import print_rows, print_text

# The report of the main job: one JSON value, and both of its files.
#
# `fleet.report.demo_report` makes the value. `complete` adds the sentences, `write` puts `report.json` and
# `report.html` in a folder. The page is drawn from the value alone.
#
# Layout, version 1. Scripts of users read the first three keys; there are more:
#
# - `devices`: by id `records`, `ok`, `failed`, `records_per_s`, `remeasure_median_change`.
# - `model`: `version`, `heads`, and by device `top1` and `top5`.
# - `onboarding`: `device`, `samples`, `strategy`, `seconds`, `top1`, `top5`, `scratch_top1`, `scratch_top5`,
#   `full_top1`. `top1` and `top5` are of the head that serves in the end (`served_by`), `warm_top1` of the
#   head that `strategy` made.
#
# Every key that ends in `_interval` is [low, high] at `interval_level`. Scores are in (0, 1].

#: Version of the layout of `report.json`.
REPORT_VERSION = 1


def complete(findings: Json) -> JsonDict:
    """Add the sentences to what a report is about, which is JSON-ready."""
    report = {"version": REPORT_VERSION, **findings, "interval_level": words.INTERVAL_LEVEL}
    onboarding = report["onboarding"]
    onboarding["verdict"] = words.rivals(onboarding)[0].verdict.value
    onboarding["verdict_text"] = words.verdict_text(onboarding)
    return {**report, "headline": list(words.headline(report))}


def write(report: Json, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.json`; see `fleet.page_template.write_report`."""
    return write_report(report, render(report), folder)


_LEGEND = (("dot", 0, "top-1"), ("square", 1, "top-5"), ("tick", 2, "random choice of as many"))
_CHOICES = "speed of the first 1 or 5 choices, divided by the best speed"
_LINES = f"Lines are {percent(words.INTERVAL_LEVEL)} intervals."


def render(report: Json) -> str:
    """Give the page as text: a whole HTML document that loads nothing from anywhere."""
    template = page_environment().get_template("report.html")
    return template.render(
        report=report,
        title=words.title(report["onboarding"]),
        tiles=_tiles(report),
        plots=[_levels(report["onboarding"]), _pairs(report["onboarding"]), _heads(report["model"])],
        starts=_starts(report["onboarding"]),
        words=words,
    )


def _tiles(report: Json) -> list[tuple[str, str]]:
    devices, onboarding = report["devices"], report["onboarding"]
    tiles = [
        ("devices", f"{len(devices):,}"),
        ("measurements", f"{sum(device['records'] for device in devices.values()):,}"),
        ("workloads", f"{len(report['workloads']):,}"),
    ]
    if "shipped_top1" in onboarding:
        tiles.append(("top-1, shipped model", score_text(onboarding["shipped_top1"])))
    return [
        *tiles,
        (f"top-1, warm, {onboarding['samples']:,} samples", score_text(onboarding["warm_top1"])),
        *(
            (f"top-1, {rival.name.removeprefix('training from ')}", score_text(rival.top1))
            for rival in words.rivals(onboarding)
        ),
        ("wall time", duration(report["timing"]["wall_seconds"])),
    ]


def _heads(model: Json) -> Plot:
    rows = [
        _score_row(name, {key: model[key][device] for key in _SCORE_KEYS})
        for device, name in zip(model["top1"], labels(list(model["top1"])), strict=True)
    ]
    caption = (
        "Each mark: best measured latency, divided by the best latency among the head's first 1 or 5 "
        f"choices, on workloads that it never saw. {_LINES} The further right of the grey mark, the "
        "more the head learned."
    )
    title = "How well each head picks programs"
    return Plot("scores", title, caption, rows, axis=_CHOICES, legend=_LEGEND)


_SCORE_KEYS = ("top1", "top5", "top1_interval", "top5_interval", "random_top1", "random_top5")


def _score_row(name: str, scores: Json) -> tuple[str, list[Mark], str]:
    marks = []
    for key, shape, series, y in (("top1", "dot", 0, 32), ("top5", "square", 1, 68)):
        low, high = scores[f"{key}_interval"]
        marks += [
            Mark("tick", scores[f"random_{key}"] * 100, y, 2),
            Mark("span", low * 100, y, series, high * 100),
            Mark(shape, scores[key] * 100, y, series),
        ]
    return name, marks, f"{scores['top1']:.2f} · {scores['top5']:.2f}"


def _levels(onboarding: Json) -> Plot:
    rows = [
        _score_row(
            name,
            {key: onboarding[key if key.startswith("random") else start + key] for key in _SCORE_KEYS},
        )
        for start, name in _starts(onboarding)
    ]
    return Plot(
        "onboarding",
        "A new device from few samples",
        "Warm starts from the other devices' model, scratch from nothing; both saw the same samples. The "
        "nearest known head is another device's, unchanged. The shipped model comes with the program and saw "
        "none of these measurements. Full saw every training record of the device. "
        f"{_LINES}",
        rows,
        axis=_CHOICES,
        legend=_LEGEND,
    )


def _starts(onboarding: Json) -> list[tuple[str, str]]:
    """Prefix of the keys of each way to get a head, and its name."""
    few = f"{onboarding['samples']:,} samples"
    # There is one of some families only.
    shipped = [("shipped_", "shipped model, no sample")] if "shipped_top1" in onboarding else []
    return [
        ("warm_", f"warm, {few}"),
        ("scratch_", f"scratch, {few}"),
        ("nearest_", "nearest known head"),
        *shipped,
        ("full_", f"full, {onboarding['full_samples']:,} samples"),
    ]


def _pairs(onboarding: Json) -> Plot:
    pairs = sorted(
        onboarding["workloads"], key=lambda pair: (pair["scratch_top1"] - pair["warm_top1"], pair["workload"])
    )
    rows = []
    for pair, name in zip(pairs, labels([pair["workload"] for pair in pairs], 34), strict=True):
        warm, scratch = pair["warm_top1"] * 100, pair["scratch_top1"] * 100
        line = Mark("span", min(warm, scratch), series=0 if warm >= scratch else 1, end=max(warm, scratch))
        marks = [line, Mark("ring", scratch, series=1), Mark("dot", warm)]
        rows.append((name, marks, signed((warm - scratch) / 100, 2)))
    return Plot(
        "pairs",
        "Warm against scratch, workload by workload",
        "Each row is one held-out workload; the number is warm minus scratch, in top-1. "
        f"Mean difference: {signed(onboarding['difference'])}.",
        rows,
        axis="top-1",
        legend=(("dot", 0, "warm"), ("ring", 1, "scratch")),
    )


# The printout at the end of the main job: one table and some lines, with the sentences of the page.

#: Most characters of a device name, so that every number fits beside it at 80 columns.
NAME_CHARS = 14
#: Headings, and the keys of a head's figures among them.
_COLUMNS = ("device", "records", "failed", "per s", "again", "top-1", "chance", "top-5", "tau")
_FIGURES = ("top1", "random_top1", "top5", "tau")
LEGEND = (
    "again: median change when measured again. top-1, top-5: score on held-out workloads, "
    "1 = best. chance: top-1 of random choice. tau: Kendall's."
)


def print_summary(report: Json, page: Path) -> None:
    """Print a row for each device, then what was measured, what was learned, the verdict, and the page."""
    devices, model = report["devices"], report["model"]
    rows = []
    for (device, summary), name in zip(devices.items(), labels(list(devices), NAME_CHARS), strict=True):
        change = summary["remeasure_median_change"]
        again = percent(change) if is_finite(change) else "-"
        counts = (f"{summary[key]:,}" for key in ("records", "failed"))
        numbers = [summary["records_per_s"], *(model[key][device] for key in _FIGURES)]
        speed, *figures = (f"{number:.2f}" if is_finite(number) else "-" for number in numbers)
        rows.append((name, *counts, speed, again, *figures))
    print_rows(_COLUMNS, rows)
    new = label(report["onboarding"]["device"], NAME_CHARS)
    print_text(f"{LEGEND} {new}: scores of the warm start.")
    for title, sentence in zip(("Measured", "Learned", "New device"), report["headline"], strict=True):
        print_text(f"{title}: {sentence}")
    print_text(f"Report: {page}")
