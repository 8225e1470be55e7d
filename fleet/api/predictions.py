"""Scores of a device's champion beside the speeds that were measured: a view of the dashboard.

Called by `fleet.api.dashboard`. A child process scores (`fleet.api.score_service`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from agents.records import CandidateId, DeviceId
from fleet.api.access import Access, needs
from fleet.api.score_service import ScoreBusyError, ScoreService
from fleet.dashboard.dashboard import Dashboard, DashboardMissing
from fleet.store.trace_lookup import find_candidates

#: Candidates that are scored at a time.
MOST_SCORED = 64

Device = Annotated[str, Query(max_length=200)]


def add_predictions(app: FastAPI, dashboard: Dashboard, scores: ScoreService) -> None:
    """Add the path of predictions to an application."""

    @app.get("/v1/dashboard/workloads/{workload_id}/predictions")
    @needs(Access.OWNER)
    async def predictions(request: Request, workload_id: str, device: Device) -> dict[str, Any]:
        """Scores of a device's champion for candidates that it has measured, beside their speeds."""
        latencies, chosen, body = await run_in_threadpool(_score_question, dashboard, workload_id, device)

        async def whole() -> bytes:
            return body

        try:
            status, score_body = await scores.answer(whole, request.is_disconnected)
        except ScoreBusyError:
            raise HTTPException(503, "the scorer is busy; try again in a moment") from None
        answer = json.loads(score_body)
        if status != 200:
            raise HTTPException(status, str(answer.get("detail", "no scores")))
        return {"version": answer["version"], **predicted(chosen, latencies, answer["scores"])}


def _score_question(
    dashboard: Dashboard, workload_id: str, device: str
) -> tuple[dict[str, float], list[str], bytes]:
    """Latencies of a device, the candidates to be scored, and the question for the scorer."""
    reader = dashboard.store.reader()
    latencies = dashboard.matrix(reader, workload_id, [device]).latencies(device)
    if not latencies:
        raise DashboardMissing(f"{device!r:.80} has no latency of workload {workload_id!r:.80}")
    chosen = sample(latencies)
    candidates = find_candidates(reader, {DeviceId(device)}, set(map(CandidateId, chosen)))
    traces = {str(candidate.candidate_id): candidate for candidate in candidates}
    chosen = [candidate_id for candidate_id in chosen if candidate_id in traces]
    question = {
        "device": device,
        "workload": workload_id,
        "traces": [traces[candidate_id].trace for candidate_id in chosen],
        "dialect": candidates[0].dialect if candidates else "meta_schedule",
    }
    return latencies, chosen, json.dumps(question).encode()


def sample(latencies: Mapping[str, float]) -> list[str]:
    """Candidates to score: evenly over the latencies in seconds, the fastest and the slowest among them."""
    ordered = sorted(latencies, key=lambda candidate: (latencies[candidate], candidate))
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
        (None for fewer than two), `top1` (speed of the highest score among them, the mean where several tie),
        `refused`.
    """
    best = min(latencies.values())
    points: list[tuple[float, float, str]] = [
        (float(score), best / latencies[candidate], candidate)
        for candidate, score in zip(candidates, scores, strict=True)
        if score is not None
    ]
    tau = None
    if len(points) > 1:
        from scipy.stats import kendalltau  # half a second that the start of a daemon need not wait

        statistic = float(
            kendalltau(*zip(*((point[0], point[1]) for point in points), strict=True)).statistic
        )
        tau = None if np.isnan(statistic) else statistic
    highest = max((point[0] for point in points), default=None)
    first_choices = [point[1] for point in points if point[0] == highest]
    return {
        "points": points,
        "of": len(latencies),
        "kendall_tau": tau,
        # Of several with the same score nobody knows which would be taken, as in `transfer.data.ranking`.
        "top1": sum(first_choices) / len(first_choices) if first_choices else None,
        "refused": len(candidates) - len(points),
    }
