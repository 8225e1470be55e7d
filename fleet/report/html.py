"""The page of a report: one HTML file that needs no network and no other file.

`fleet.report.report.write` calls `render`. The page is a pure function of the report: the same report gives
the same bytes. Every foreign text (device names, errors, host facts) is escaped by the template engine; only
the plots of `fleet.report.plots` go in as markup. Nothing here measures or judges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from agents.records import median
from fleet.report.plots import panels
from fleet.report.values import (
    INTERVAL_LEVEL,
    DeviceSummary,
    ModelSummary,
    OnboardingSummary,
    Report,
    ReportedNumber,
)
from fleet.report.words import (
    NOT_MEASURED,
    WarmStartVerdict,
    duration,
    headline,
    known,
    label,
    latency,
    percent,
    score_text,
    signed,
    three_digits,
    verdict_of,
    verdict_title,
)

#: Characters of an error text that the page shows; the cause of a compiler's error is at its end.
ERROR_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Head of one table column."""

    name: str
    #: Numbers are set flush right.
    number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table; the first cell of each row names it."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def render(report: Report) -> str:
    """Give the page as text.

    Returns:
        A whole HTML document that loads nothing from anywhere.
    """
    source = resources.files("fleet").joinpath("templates", "report.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printable, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        title=_title(report),
        made=_made(report),
        sentences=headline(report),
        verdict=WarmStartVerdict.NOT_MEASURED if report.onboarding is None else verdict_of(report.onboarding),
        tiles=_tiles(report),
        caveats=report.caveats,
        panels=[(panel, Markup(panel.svg)) for panel in panels(report)],
        tables=[table for table in _tables(report) if table.rows],
        failed=sum(device.failed for device in report.devices),
        command=report.command,
    )


def _printable(value: Any) -> Any:
    """Keep foreign control characters and lone surrogates out of the page, and numbers with their units."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)
    return re.sub(r"(?<=\d) (?=(%|s|ms|µs|ns|min|h)\b|%)", "\N{NO-BREAK SPACE}", clean)


def _title(report: Report) -> str:
    onboarding = report.onboarding
    if onboarding is None:
        count = len(report.devices)
        return "One device measured" if count == 1 else f"{count or 'No'} devices measured"
    found = verdict_title(onboarding)
    return f"New device {label(onboarding.device)}: {found[0].lower()}{found[1:]}"


def _made(report: Report) -> str:
    if not known(report.created_at):
        return ""
    return datetime.fromtimestamp(report.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _tiles(report: Report) -> list[tuple[str, str]]:
    devices = report.devices
    tiles = [
        ("devices", f"{len(devices):,}"),
        ("measurements", f"{sum(device.records for device in devices):,}"),
    ]
    if report.workloads:
        tiles.append(("workloads", f"{len(report.workloads):,}"))
    onboarding = report.onboarding
    if onboarding is not None:
        tiles += [
            (f"top-1, warm, {onboarding.samples:,} samples", score_text(onboarding.top1.value)),
            (f"top-1, scratch, {onboarding.samples:,} samples", score_text(onboarding.scratch_top1.value)),
        ]
    if report.timing is not None and known(report.timing.wall_secs):
        tiles.append(("wall time", duration(report.timing.wall_secs)))
    return tiles


def _tables(report: Report) -> list[Table]:
    tables = [_devices(report.devices), _best(report.devices)]
    if report.model is not None:
        tables.append(_model(report.model))
    if report.onboarding is not None:
        tables += [_onboarding(report.onboarding), _pairs(report.onboarding), _parts(report.onboarding)]
    tables += [_failures(report.devices), _host(report)]
    return tables


def _columns(*names: str, text: tuple[str, ...] = ()) -> tuple[Column, ...]:
    return tuple(Column(name=name, number=place > 0 and name not in text) for place, name in enumerate(names))


def _devices(devices: tuple[DeviceSummary, ...]) -> Table:
    rows = []
    for device in devices:
        spreads = device.spreads
        spread = f"{three_digits(median(spreads))}\N{MULTIPLICATION SIGN}" if spreads else NOT_MEASURED
        rate = f"{device.records_per_s:.2f}" if known(device.records_per_s) else NOT_MEASURED
        rows.append(
            (
                device.device_id,
                f"{device.records:,}",
                f"{device.ok:,}",
                f"{device.failed:,}",
                rate,
                percent(device.remeasure_median_change),
                spread,
                device.note,
            )
        )
    return Table(
        key="devices",
        title="Devices",
        columns=_columns(
            "device",
            "records",
            "ok",
            "failed",
            "records per s",
            "change when measured again",
            "slowest over fastest",
            "what it is",
            text=("what it is",),
        ),
        rows=tuple(rows),
        note="Change: median over candidates measured twice. Slowest over fastest: median over workloads.",
    )


def _best(devices: tuple[DeviceSummary, ...]) -> Table:
    names = list(dict.fromkeys(entry.workload for device in devices for entry in device.latencies))
    best = {(d.device_id, entry.workload): entry.best_secs for d in devices for entry in d.latencies}
    return Table(
        key="best",
        title="Best latency found",
        columns=(Column(name="workload"), *(Column(name=d.device_id, number=True) for d in devices)),
        rows=tuple((name, *(latency(best.get((d.device_id, name))) for d in devices)) for name in names),
        note="Fastest measured candidate of each workload, by its fastest repeat.",
    )


def _scored(estimate: ReportedNumber) -> str:
    if estimate.interval is None:
        return score_text(estimate.value)
    low, high = estimate.interval
    return f"{score_text(estimate.value)} ({low:.2f} to {high:.2f})"


def _model(model: ModelSummary) -> Table:
    size = "" if model.parameters is None else f", {model.parameters:,} parameters"
    took = "" if model.train_secs is None else f", trained in {duration(model.train_secs)}"
    return Table(
        key="model",
        title="Model",
        columns=_columns("head", "top-1", "random top-1", "top-5", "random top-5", "Kendall tau"),
        rows=tuple(
            (
                score.device_id,
                _scored(score.top1),
                score_text(score.random_top1),
                _scored(score.top5),
                score_text(score.random_top5),
                score_text(score.kendall_tau),
            )
            for score in model.scores
        ),
        note=f"Version {model.version}{size}{took}. On held-out workloads; in brackets: "
        f"{percent(INTERVAL_LEVEL)} interval.",
    )


def _onboarding(onboarding: OnboardingSummary) -> Table:
    few = f"{onboarding.samples:,}"
    full = NOT_MEASURED if onboarding.full_samples is None else f"{onboarding.full_samples:,}"
    return Table(
        key="onboarding",
        title=f"Onboarding of {label(onboarding.device)}",
        columns=_columns("start", "samples", "top-1", "top-5"),
        rows=(
            (f"warm ({onboarding.strategy})", few, _scored(onboarding.top1), _scored(onboarding.top5)),
            ("scratch", few, _scored(onboarding.scratch_top1), _scored(onboarding.scratch_top5)),
            (
                "nearest known head",
                few,
                _scored(onboarding.nearest_top1),
                _scored(onboarding.nearest_top5),
            ),
            ("full", full, _scored(onboarding.full_top1), _scored(onboarding.full_top5)),
            ("random choice", "0", score_text(onboarding.random_top1), score_text(onboarding.random_top5)),
        ),
        note=f"In brackets: {percent(INTERVAL_LEVEL)} interval.",
    )


def _pairs(onboarding: OnboardingSummary) -> Table:
    return Table(
        key="pairs",
        title="Warm and scratch by workload",
        columns=_columns("held-out workload", "warm top-1", "scratch top-1", "difference"),
        rows=tuple(
            (
                pair.workload,
                score_text(pair.warm_top1),
                score_text(pair.scratch_top1),
                signed(pair.difference),
            )
            for pair in onboarding.pairs
        ),
    )


def _parts(onboarding: OnboardingSummary) -> Table:
    parts = [(name, duration(secs)) for name, secs in onboarding.seconds_by_part]
    if parts:
        parts.append(("together", duration(onboarding.seconds)))
    return Table(
        key="parts", title="Onboarding time", columns=_columns("part", "wall time"), rows=tuple(parts)
    )


def _failures(devices: tuple[DeviceSummary, ...]) -> Table:
    return Table(
        key="failures",
        title="Failures",
        columns=_columns("device", "outcome", "count", "first example", text=("outcome", "first example")),
        rows=tuple(
            (
                device.device_id,
                group.outcome.value.replace("_", " "),
                f"{group.count:,}",
                _tail(group.example),
            )
            for device in devices
            for group in device.failures
            if group.count
        ),
        note="A candidate that fails is kept as data; it costs no other candidate its result.",
    )


def _tail(text: str) -> str:
    text = text.strip()
    if len(text) > ERROR_CHARS:
        return f"…{text[-ERROR_CHARS:]}"
    return text or "no message"


def _host(report: Report) -> Table:
    facts = [*report.host, *((f"version of {name}", version) for name, version in report.versions)]
    protocol = report.protocol
    if protocol is not None:
        facts.append(
            (
                "timing protocol",
                f"{protocol.repeat} repeats of at least {protocol.min_repeat_ms:g} ms, "
                f"at most {protocol.max_number:,} runs each; stopped after {protocol.build_timeout_sec:g} s "
                f"of building or {protocol.run_timeout_sec:g} s of running",
            )
        )
    if report.held_out:
        facts.append(("held-out workloads", ", ".join(report.held_out)))
    return Table(
        key="host",
        title="Host, versions, protocol",
        columns=_columns("what", "found", text=("found",)),
        rows=tuple(facts),
    )
