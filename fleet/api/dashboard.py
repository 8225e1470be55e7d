"""The dashboard over HTTP: its views as JSON, and its files.

Called by `fleet.api.server`. The files hold no data. A page asks again every second for what it shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles

from agents.records import CandidateId, DeviceId
from fleet.api.access import Access, needs
from fleet.api.score_service import ScoreBusyError, ScoreService
from fleet.api.scores import ScoreQuestion
from fleet.api.webhook import Webhook
from fleet.comparison.compared import CompareError
from fleet.dashboard.dashboard import Dashboard, Name, PageOf
from fleet.dashboard.store_view import DashboardMissing, PageError
from fleet.errors import FleetError, StoreError
from fleet.json_types import JsonDict
from fleet.store.trace_lookup import find_candidates

PREFIX = "/v1/dashboard"
#: Candidates that are scored at a time.
MOST_SCORED = 64
#: Status of an answer by the error that stands behind it.
_STATUSES: dict[type[FleetError], int] = {
    PageError: 400,
    CompareError: 400,
    DashboardMissing: 404,
    StoreError: 503,
}


class OwnerRoute(APIRoute):
    """A route of the dashboard; all of them are the owner's."""

    access = Access.OWNER


def add_dashboard(app: FastAPI, dashboard: Dashboard, scores: ScoreService, webhook: Webhook | None) -> None:
    """Add the paths of the views to an application."""
    for error, status in _STATUSES.items():

        def refused(_: Request, error: Exception, status: int = status) -> JSONResponse:
            return JSONResponse({"detail": str(error)}, status)

        app.add_exception_handler(error, refused)

    def report(request_id: str) -> Response:
        """The page that a tuning wrote."""
        return HTMLResponse(dashboard.report(request_id), headers=_REPORT_HEADERS)

    def alerts(query: PageOf) -> JsonDict:
        """Alarms and changes of models, with whose fault each is."""
        return {**dashboard.alerts(query), "webhook": None if webhook is None else webhook.view}

    views: dict[str, Callable[..., Any]] = {
        "/fleet": dashboard.fleet,
        "/devices/{device_id}": dashboard.device,
        "/models": dashboard.models,
        "/tunings": dashboard.tunings,
        "/tunings/{request_id}/report": report,
        "/compare": dashboard.compare,
        "/workloads": dashboard.workloads,
        "/workloads/{workload_id}": dashboard.workload,
        "/workloads/{workload_id}/candidates/{candidate_id}": dashboard.candidate,
        "/workloads/{workload_id}/predictions": _predictions(dashboard, scores),
        "/alerts": alerts,
        "/requests": dashboard.requests,
    }
    for path, endpoint in views.items():
        app.router.add_api_route(PREFIX + path, endpoint, route_class_override=OwnerRoute)


def _predictions(dashboard: Dashboard, scores: ScoreService) -> Callable[..., Any]:
    """The view of predictions."""

    async def predictions(request: Request, workload_id: str, device: Name) -> JsonDict:
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

    return predictions


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
    question = ScoreQuestion(
        device=device,
        workload=workload_id,
        traces=[traces[candidate_id].trace for candidate_id in chosen],
        dialect=candidates[0].dialect if candidates else "meta_schedule",
    )
    return latencies, chosen, msgspec.json.encode(question)


def sample(latencies: Mapping[str, float]) -> list[str]:
    """Candidates to score: evenly over the latencies in seconds, the fastest and the slowest among them."""
    ordered = sorted(latencies, key=lambda candidate: (latencies[candidate], candidate))
    places = np.linspace(0, len(ordered) - 1, min(MOST_SCORED, len(ordered))).round().astype(int)
    return [ordered[place] for place in sorted(set(places.tolist()))]


def predicted(
    candidates: Sequence[str], latencies: Mapping[str, float], scores: Sequence[float | None]
) -> JsonDict:
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


_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A script cannot turn a text into markup, whoever wrote the text.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SAFE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: A report has its styles in it, and needs nothing else.
_REPORT_HEADERS = {
    **SAFE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}


class PageFiles(StaticFiles):
    """The files of the page. A browser asks each time whether they are the same."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """See `StaticFiles`."""
        response = super().file_response(*args, **options)
        response.headers.update({**SAFE_HEADERS, "Cache-Control": "no-cache"})
        return response


def add_pages(app: FastAPI) -> None:
    """Add the paths of the files."""
    files = PageFiles(packages=[("fleet", "dashboard/static")])

    @app.get("/", include_in_schema=False)
    @needs(Access.OPEN)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/static/{name}", include_in_schema=False)
    @needs(Access.OPEN)
    async def file(name: str, request: Request) -> Response:
        return await files.get_response(name, request.scope)
