"""The report of the main job: its published JSON form, and writing both of its files.

`to_json` gives format version 1 that other people's scripts read, `write` puts `report.json` and
`report.html` in a folder. The demo calls both with the values of `fleet.report.values`, which are named here
too. Sentences are made in `fleet.report.words`, the page in `fleet.report.html`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.records import as_json_dict, median
from fleet.durable import write_durably
from fleet.errors import FleetError
from fleet.report import words as report_words
from fleet.report.values import (
    INTERVAL_LEVEL,
    DeviceSummary,
    FailureGroup,
    HeadScore,
    ModelSummary,
    OnboardingSummary,
    PairedWorkload,
    Report,
    ReportedNumber,
    ScoredCandidate,
    Similarity,
    WallTime,
    WorkloadLatencies,
)

#: Version of the layout of `report.json`. 1: first published layout.
REPORT_VERSION = 1


def to_json(report: Report) -> dict[str, Any]:
    """Give the report in format version 1: the published keys and, beside them, extra ones.

    Returns:
        JSON-ready values only; a number that is missing, NaN or infinite is `None`.
    """
    raw = {
        "version": REPORT_VERSION,
        "devices": {device.device_id: _device_json(device) for device in report.devices},
        "model": None if report.model is None else _model_json(report.model),
        "onboarding": None if report.onboarding is None else _onboarding_json(report.onboarding),
        "headline": list(report_words.headline(report)),
        "interval_level": INTERVAL_LEVEL,
        "workloads": list(report.workloads),
        "held_out": list(report.held_out),
        "similarity": None if report.similarity is None else _similarity_json(report.similarity),
        "timing": None
        if report.timing is None
        else {"wall_seconds": report.timing.wall_secs, "seconds_by_part": dict(report.timing.parts)},
        "protocol": None if report.protocol is None else as_json_dict(report.protocol),
        "host": dict(report.host),
        "versions": dict(report.versions),
        "caveats": list(report.caveats),
        "command": report.command,
        "created_at": report.created_at,
    }
    finite = _finite(raw)
    assert isinstance(finite, dict)
    return finite


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.json`; each file is the old one or the new one, never a part.

    `report.json` is put in place last, so a reader who finds a new one also finds its page.

    Returns:
        The paths of the JSON file and of the page.

    Raises:
        FleetError: The folder cannot be written (no space, no permission).
    """
    # Drawing takes half a second to import; readers of the values alone should not pay for it.
    from fleet.report import html as report_html

    page = report_html.render(report)
    text = json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
    json_path, html_path = folder / "report.json", folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(html_path, page.encode())
        write_durably(json_path, text.encode())
    except OSError as error:
        reason = error.strerror or error
        raise FleetError(
            f"cannot write the report to {folder}: {reason}; free space or choose another folder"
        ) from error
    return json_path, html_path


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _device_json(device: DeviceSummary) -> dict[str, Any]:
    return {
        "records": device.records,
        "ok": device.ok,
        "failed": device.failed,
        "records_per_s": device.records_per_s,
        "remeasure_median_change": device.remeasure_median_change,
        "failures": {
            group.outcome.value: {"count": group.count, "example": group.example} for group in device.failures
        },
        "workloads": [
            {
                "workload": entry.workload,
                "candidates": len(entry.latency_secs),
                "best_latency_seconds": entry.best_secs,
                "slowest_over_fastest": entry.spread,
            }
            for entry in device.latencies
        ],
        "slowest_over_fastest_median": median(device.spreads) if device.spreads else None,
        "note": device.note,
    }


def _model_json(model: ModelSummary) -> dict[str, Any]:
    scores = model.scores
    return {
        "version": model.version,
        "heads": list(model.heads),
        "top1": {score.device_id: score.top1.value for score in scores},
        "top5": {score.device_id: score.top5.value for score in scores},
        "top1_interval": {score.device_id: _interval(score.top1) for score in scores},
        "top5_interval": {score.device_id: _interval(score.top5) for score in scores},
        "random_top1": {score.device_id: score.random_top1 for score in scores},
        "random_top5": {score.device_id: score.random_top5 for score in scores},
        "kendall_tau": {score.device_id: score.kendall_tau for score in scores},
        "parameters": model.parameters,
        "train_seconds": model.train_secs,
    }


def _onboarding_json(onboarding: OnboardingSummary) -> dict[str, Any]:
    estimates = {
        name: getattr(onboarding, name)
        for start in ("", "scratch_", "nearest_", "full_")
        for name in (f"{start}top1", f"{start}top5")
    }
    return {
        "device": onboarding.device,
        "samples": onboarding.samples,
        "strategy": onboarding.strategy,
        "seconds": onboarding.seconds,
        **{name: estimate.value for name, estimate in estimates.items()},
        **{f"{name}_interval": _interval(estimate) for name, estimate in estimates.items()},
        "full_samples": onboarding.full_samples,
        "random_top1": onboarding.random_top1,
        "random_top5": onboarding.random_top5,
        "seconds_by_part": dict(onboarding.seconds_by_part),
        "workloads": [
            {"workload": pair.workload, "warm_top1": pair.warm_top1, "scratch_top1": pair.scratch_top1}
            for pair in onboarding.pairs
        ],
        "difference": onboarding.difference.value,
        "difference_interval": _interval(onboarding.difference),
        "verdict": report_words.verdict_of(onboarding).value,
        "verdict_text": report_words.verdict_text(onboarding),
    }


def _similarity_json(similarity: Similarity) -> dict[str, Any]:
    return {
        "kendall_tau": {
            row_id: dict(zip(similarity.device_ids, row, strict=True))
            for row_id, row in zip(similarity.device_ids, similarity.tau, strict=True)
        },
        "shared_candidates": similarity.shared_candidates,
    }


def _interval(estimate: ReportedNumber) -> list[float] | None:
    return None if estimate.interval is None else list(estimate.interval)


__all__ = [
    "INTERVAL_LEVEL",
    "REPORT_VERSION",
    "DeviceSummary",
    "FailureGroup",
    "HeadScore",
    "ModelSummary",
    "OnboardingSummary",
    "PairedWorkload",
    "Report",
    "ReportedNumber",
    "ScoredCandidate",
    "Similarity",
    "WallTime",
    "WorkloadLatencies",
    "to_json",
    "write",
]
