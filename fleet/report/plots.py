"""The plots of a report: one function a question, each with a caption that says how to read it.

`panels` is called by `fleet.report.html`. How a plot looks is in `fleet.report.svg`; nothing here knows the
page around a plot.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.stats import rankdata

from fleet.report.svg import (
    INK,
    SERIES,
    STYLE,
    WIDTH,
    Panel,
    chance,
    dot,
    legend,
    panel,
    row_plot,
    score_axis,
)
from fleet.report.values import (
    INTERVAL_LEVEL,
    DeviceSummary,
    ModelSummary,
    OnboardingSummary,
    Report,
    ScoredCandidate,
    Similarity,
    WallTime,
)
from fleet.report.words import duration, known, label, labels, percent, score_text, signed, three_digits

#: Most points drawn in one scatter: more add megabytes, not insight.
MAX_POINTS = 400

TIMES = "\N{MULTIPLICATION SIGN}"


def panels(report: Report) -> tuple[Panel, ...]:
    """Draw every plot for which the report has data, in reading order."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A name in a script that the layout font lacks is still shown by the reader's own font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        onboarding = report.onboarding
        drawn = (
            onboarding and _levels(onboarding),
            onboarding and _pairs(onboarding),
            report.model and _scores(report.model),
            _points(report.points),
            _spread(report.devices),
            report.similarity and _similarity(report.similarity),
            report.timing and _timing(report.timing),
        )
        return tuple(drawing for drawing in drawn if drawing)


def _spread(devices: Sequence[DeviceSummary]) -> Panel | None:
    found = [
        (d.device_id, [x for w in d.latencies for x in w.slowdowns if math.isfinite(x)]) for d in devices
    ]
    found = [(name, values) for name, values in found if values]
    if not found:
        return None
    top = max(2.0, *(max(values) for _, values in found))
    bins = np.geomspace(1, top, 49)
    shares = [np.histogram(values, bins)[0] / len(values) for _, values in found]
    highest = max(float(share.max()) for share in shares)
    figure, axes = row_plot(len(found), row=0.5, extra=0.65)
    for row, ((_, values), share) in enumerate(zip(found, shares, strict=True)):
        heights = row - 0.78 * np.append(share, share[-1]) / highest
        axes.fill_between(bins, row, heights, step="post", color=SERIES[0], alpha=0.45, linewidth=0)
        middle, high = np.quantile(values, (0.5, 0.95))
        axes.plot([middle, middle], [row, row - 0.85], color=INK, linewidth=1.4)
        text = f"median {three_digits(middle)}{TIMES}\n95 % below {three_digits(high)}{TIMES}"
        axes.text(1.015, row - 0.3, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
    axes.set_xscale("log")
    axes.set_xlim(1, top * 1.02)
    steps = [m * 10**e for e in range(6) for m in (1, 2, 5) if m * 10**e <= top]
    axes.xaxis.set_major_locator(FixedLocator(steps))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}{TIMES}"))
    axes.set_xlabel("latency over the best of the same workload (log scale)")
    names = labels([name for name, _ in found])
    axes.set_yticks([row - 0.3 for row in range(len(found))], names)
    axes.set_ylim(len(found) - 0.8, -0.95)
    medians = (
        f"{name} median {three_digits(float(np.median(v)))}"
        for name, (_, v) in zip(names, found, strict=True)
    )
    return panel(
        figure,
        key="spread",
        title="How much a schedule matters on each device",
        caption="Height: share of candidates with this slowdown; the line marks the median. "
        "A wide shape means that choosing well pays; a narrow one leaves little to win.",
        alt=f"Distribution of latency relative to the best candidate: {'; '.join(medians)}.",
    )


def _scores(model: ModelSummary) -> Panel | None:
    scores = [score for score in model.scores if known(score.top1.value) or known(score.top5.value)]
    if not scores:
        return None
    figure, axes = row_plot(len(scores), row=0.55, extra=1.0)
    for row, score in enumerate(scores):
        dot(axes, score.top1, row - 0.16, series=0, marker="o")
        dot(axes, score.top5, row + 0.16, series=1, marker="s")
        chance(axes, score.random_top1, row - 0.16)
        chance(axes, score.random_top5, row + 0.16)
    score_axis(axes, labels([score.device_id for score in scores]), "score on held-out workloads (1 = best)")
    legend(axes, {"top-1": (0, "o"), "top-5": (1, "s"), "random choice of as many": None})
    said = (
        f"{label(s.device_id)} top-1 {score_text(s.top1.value)}, top-5 {score_text(s.top5.value)}, "
        f"random {score_text(s.random_top1)} and {score_text(s.random_top5)}"
        for s in scores
    )
    return panel(
        figure,
        key="scores",
        title="How well each head picks programs",
        caption="Each dot: best measured latency over the best among the model's first 1 or 5 choices, on "
        f"workloads that it never saw, with a {percent(INTERVAL_LEVEL)} interval. The further right of the "
        "grey mark, the more it learned.",
        alt=f"Scores by device: {'; '.join(said)}.",
    )


def _levels(onboarding: OnboardingSummary) -> Panel | None:
    full = "full" if onboarding.full_samples is None else f"full ({onboarding.full_samples:,} samples)"
    few = f"({onboarding.samples:,} samples)"
    rows = [
        (f"warm {few}", onboarding.top1, onboarding.top5),
        (f"scratch {few}", onboarding.scratch_top1, onboarding.scratch_top5),
        ("nearest known head", onboarding.nearest_top1, onboarding.nearest_top5),
        (full, onboarding.full_top1, onboarding.full_top5),
    ]
    rows = [row for row in rows if known(row[1].value) or known(row[2].value)]
    if not rows:
        return None
    figure, axes = row_plot(len(rows), row=0.5, extra=1.0)
    for row, (_, top1, top5) in enumerate(rows):
        dot(axes, top1, row - 0.15, series=0, marker="o")
        dot(axes, top5, row + 0.15, series=1, marker="s")
        chance(axes, onboarding.random_top1, row - 0.15)
        chance(axes, onboarding.random_top5, row + 0.15)
    name = label(onboarding.device)
    score_axis(axes, [row[0] for row in rows], f"score on held-out workloads of {name} (1 = best)")
    legend(axes, {"top-1": (0, "o"), "top-5": (1, "s"), "random choice of as many": None})
    said = (f"{text}: top-1 {score_text(a.value)}, top-5 {score_text(b.value)}" for text, a, b in rows)
    return panel(
        figure,
        key="onboarding",
        title="A new device from few samples",
        caption="Warm starts from the other devices' model, scratch from nothing; both saw the same samples. "
        f"Full saw every training record of the device. Bars are {percent(INTERVAL_LEVEL)} intervals.",
        alt=f"Onboarding of {name}: {'; '.join(said)}.",
    )


def _pairs(onboarding: OnboardingSummary) -> Panel | None:
    usable = (p for p in onboarding.pairs if known(p.warm_top1) and known(p.scratch_top1))
    pairs = sorted(usable, key=lambda pair: (-pair.difference, pair.workload))
    if not pairs:
        return None
    figure, axes = row_plot(len(pairs), row=0.26, extra=1.0)
    for row, pair in enumerate(pairs):
        ends = [pair.scratch_top1, pair.warm_top1]
        axes.plot(ends, [row, row], color=SERIES[0 if pair.difference >= 0 else 2], linewidth=2.2, alpha=0.6)
        axes.plot(ends[0], row, "D", color=SERIES[2], markersize=5, fillstyle="none", markeredgewidth=1.3)
        axes.plot(ends[1], row, "o", color=SERIES[0], markersize=5.5)
        axes.text(
            1.015,
            row,
            signed(pair.difference, 2),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
        )
    score_axis(axes, labels([pair.workload for pair in pairs], 34), "top-1 score (1 = best)")
    axes.tick_params(axis="y", labelsize=7.5)
    legend(axes, {"warm": (0, "o"), "scratch": (2, "D")}, hollow="scratch")
    said = (f"{label(pair.workload, 34)} {signed(pair.difference, 2)}" for pair in pairs)
    return panel(
        figure,
        key="pairs",
        title="Warm against scratch, workload by workload",
        caption="Each row is one held-out workload; the number is warm minus scratch. "
        f"Mean difference: {signed(onboarding.difference.value)}.",
        alt=f"Warm minus scratch top-1 by workload: {'; '.join(said)}.",
    )


def _points(points: Sequence[ScoredCandidate]) -> Panel | None:
    usable = [p for p in points if known(p.score) and known(p.relative_speed)]
    devices = list(dict.fromkeys(point.device_id for point in usable))
    if not devices:
        return None
    columns = 2 if len(devices) in (2, 4) else min(3, len(devices))
    lines = math.ceil(len(devices) / columns)
    # Room for "100 %" of one plot beside "0 %" of the next.
    figure = Figure(figsize=(WIDTH, 0.45 + 2.0 * lines), layout=ConstrainedLayoutEngine(wspace=0.06))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    names = labels(devices, 24)
    for place, (device, name) in enumerate(zip(devices, names, strict=True)):
        axes = grid[place // columns][place % columns]
        ahead, speed = _ranked([point for point in usable if point.device_id == device])
        shown = slice(None, None, math.ceil(len(ahead) / MAX_POINTS))
        axes.plot(
            ahead[shown], speed[shown], "o", color=SERIES[0], markersize=2.6, alpha=0.4, markeredgewidth=0
        )
        middle, medians = _trend(ahead, speed)
        axes.plot(middle, medians, color=SERIES[1], linewidth=2)
        axes.set_title(name)
        axes.tick_params(labelbottom=place + columns >= len(devices))
        axes.grid(True, axis="both")
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(0, 1.04)
    for place in range(len(devices), lines * columns):
        grid[place // columns][place % columns].set_visible(False)
    shares = FuncFormatter(lambda x, _: f"{x * 100:.0f} %")
    grid[0][0].xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    grid[0][0].xaxis.set_major_formatter(shares)
    grid[0][0].yaxis.set_major_formatter(shares)
    figure.supxlabel("candidates of the same workload that the model puts ahead", fontsize=8.5)
    figure.supylabel("speed, of the best measured", fontsize=8.5)
    thinned = " Every point counts for the line; only some are drawn." if len(usable) > MAX_POINTS else ""
    return panel(
        figure,
        key="points",
        title="What the model predicted, and what the device did",
        caption="One point a held-out candidate; the line is the median. A head that ranks well falls from "
        f"top left (put first, fast) to bottom right (put last, slow); a flat line is guessing.{thinned}",
        alt=f"Measured relative speed against predicted place for {', '.join(names)}.",
    )


def _ranked(points: Sequence[ScoredCandidate]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores of a ranking loss mean nothing across workloads, so places inside a workload are compared."""
    ahead: list[float] = []
    speed: list[float] = []
    for workload in dict.fromkeys(point.workload for point in points):
        group = [point for point in points if point.workload == workload]
        places = rankdata([-point.score for point in group]) - 1
        ahead.extend(places / max(1, len(group) - 1))
        speed.extend(point.relative_speed for point in group)
    return np.array(ahead), np.array(speed)


def _trend(ahead: np.ndarray[Any, Any], speed: np.ndarray[Any, Any]) -> tuple[list[float], list[float]]:
    edges = np.linspace(0, 1, 9)
    bins = np.clip(np.digitize(ahead, edges) - 1, 0, 7)
    filled = [b for b in range(8) if (bins == b).any()]
    return (
        [float((edges[b] + edges[b + 1]) / 2) for b in filled],
        [float(np.median(speed[bins == b])) for b in filled],
    )


def _similarity(similarity: Similarity) -> Panel | None:
    size = len(similarity.device_ids)
    if size < 2:
        return None
    cell = min(0.8, 5.0 / size)
    figure = Figure(figsize=(WIDTH, 0.5 + 0.6 * cell * size), layout="constrained")
    axes = figure.subplots()
    for row, values in enumerate(similarity.tau):
        for column, tau in enumerate(values):
            # At most 0.55, so that the page's ink stays readable on the fill in light and dark.
            strength = 0.55 * min(1.0, max(0.0, tau)) ** 2 if known(tau) else 0.0
            box = Rectangle(
                (column - 0.48, row - 0.48), 0.96, 0.96, color=SERIES[0], alpha=strength, linewidth=0
            )
            axes.add_patch(box)
            text = f"{tau:.2f}" if known(tau) else "n/a"
            axes.text(column, row, text, ha="center", va="center")
    names = labels(similarity.device_ids, 18)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.set_xticks(range(size), names, rotation=0 if size <= 5 else 40, ha="center" if size <= 5 else "left")
    axes.set_yticks(range(size), names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    shared = similarity.shared_candidates
    basis = "the candidates that both measured" if shared is None else f"{shared:,} shared candidates"
    said = (
        f"{names[i]} and {names[j]} {score_text(similarity.tau[i][j])}" for i in range(size) for j in range(i)
    )
    return panel(
        figure,
        key="similarity",
        title="How alike the devices are",
        caption=f"Kendall's tau on {basis}: 1 means the same order from fast to slow, 0 no relation. "
        "The lower the number, the more a device needs a head of its own.",
        alt=f"Kendall's tau between devices: {'; '.join(said)}.",
    )


def _timing(timing: WallTime) -> Panel | None:
    parts = [(name, secs) for name, secs in timing.parts if known(secs)]
    if not parts:
        return None
    total = timing.wall_secs if known(timing.wall_secs) else None
    figure, axes = row_plot(len(parts), row=0.27, extra=0.3)
    axes.barh(range(len(parts)), [secs for _, secs in parts], height=0.62, color=SERIES[0], alpha=0.85)
    texts = [duration(secs) + (f" · {percent(secs / total)}" if total else "") for _, secs in parts]
    for row, ((_, secs), text) in enumerate(zip(parts, texts, strict=True)):
        axes.annotate(text, (secs, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    names = labels([name for name, _ in parts])
    axes.set_yticks(range(len(parts)), names)
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(0, max(secs for _, secs in parts) * 1.22 or 1)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.grid(False)
    whole = f" of {duration(total)} wall time" if total else ""
    overlap = total is not None and sum(secs for _, secs in parts) > total * 1.01
    return panel(
        figure,
        key="timing",
        title="Where the time went",
        caption=f"Seconds by part{whole}."
        + (" Parts run side by side, so they add up to more than the whole." if overlap else ""),
        alt=f"Time by part: {'; '.join(f'{n} {t}' for n, t in zip(names, texts, strict=True))}.",
    )
