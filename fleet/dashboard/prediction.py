"""Scores of a device's champion for measured candidates, beside what was measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import kendalltau

#: Candidates that are scored at a time.
MOST_SCORED = 64


def sample(latencies: Mapping[str, float]) -> list[str]:
    """Candidates to score: evenly over the latencies, the fastest and the slowest among them.

    Args:
        latencies: Seconds by candidate.
    """
    ordered = sorted(latencies, key=lambda one: (latencies[one], one))
    places = np.linspace(0, len(ordered) - 1, min(MOST_SCORED, len(ordered))).round().astype(int)
    return [ordered[place] for place in sorted(set(places.tolist()))]


def predicted(
    candidates: Sequence[str], latencies: Mapping[str, float], scores: Sequence[float | None]
) -> dict[str, Any]:
    """Scores and speeds side by side.

    Args:
        candidates: Those that were scored.
        latencies: Seconds of all measured ones.
        scores: One each, higher is faster; None where a schedule cannot be read.

    Returns:
        `points` of [score, speed over the best one's, candidate], `of` (measured candidates), `kendall_tau`
        (None for fewer than two), `top1` (speed of the highest score among them), `refused`.
    """
    best = min(latencies.values())
    points: list[tuple[float, float, str]] = [
        (float(score), best / latencies[one], one)
        for one, score in zip(candidates, scores, strict=True)
        if score is not None
    ]
    tau = None
    if len(points) > 1:
        found = float(kendalltau([one[0] for one in points], [one[1] for one in points]).statistic)
        tau = None if np.isnan(found) else found
    first = max(points, key=lambda one: one[0], default=None)
    return {
        "points": points,
        "of": len(latencies),
        "kendall_tau": tau,
        "top1": None if first is None else first[1],
        "refused": len(candidates) - len(points),
    }


__all__ = ["MOST_SCORED", "predicted", "sample"]
