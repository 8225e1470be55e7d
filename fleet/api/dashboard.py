"""The dashboard over HTTP: its views as JSON, and its files.

Called by `fleet.api.server`. The files hold no data. A page asks again every second for what it shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from agents.records import CandidateId, DeviceId
from fleet.api.access import Access, needs
from fleet.api.score_service import ScoreBusyError, ScoreService
from fleet.api.scores import ScoreQuestion
from fleet.api.webhook import Webhook
from fleet.comparison.compared import CompareError
from fleet.dashboard.dashboard import Dashboard, DashboardMissing
from fleet.dashboard.store_view import PAGE_ROWS, PageError, PageQuery
from fleet.dashboard.workload_view import CandidateError
from fleet.errors import FleetError, StoreError
from fleet.json_types import JsonDict
from fleet.store.trace_lookup import find_candidates

PREFIX = "/v1/dashboard"
#: Candidates that are scored at a time.
MOST_SCORED = 64
#: Length of a filter, and of a name.
_MOST_TEXT = 200
#: Status of an answer by the error that stands behind it.
_STATUSES: dict[type[FleetError], int] = {
    PageError: 400,
    CompareError: 400,
    DashboardMissing: 404,
    CandidateError: 404,
    StoreError: 503,
}

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
Name = Annotated[str, Query(max_length=_MOST_TEXT)]


def page_query(
    sort: Annotated[str, Query(max_length=40)] = "",
    descending: bool = False,
    text: Name = "",
    offset: int = 0,
    size: int = PAGE_ROWS,
) -> PageQuery:
    """Which part of a list, from the query of a request."""
    return PageQuery(sort=sort, is_descending=descending, text=text, offset=offset, size=size)


PageOf = Annotated[PageQuery, Depends(page_query)]


def _view(app: FastAPI, path: str) -> Callable[[_Endpoint], _Endpoint]:
    """Declare a view of the dashboard; all of them are the owner's."""

    def declare(endpoint: _Endpoint) -> _Endpoint:
        return app.get(PREFIX + path)(needs(Access.OWNER)(endpoint))

    return declare


def add_dashboard(app: FastAPI, dashboard: Dashboard, scores: ScoreService, webhook: Webhook | None) -> None:
    """Add the paths of the views to an application."""
    for error, status in _STATUSES.items():

        def refused(_: Request, error: Exception, status: int = status) -> JSONResponse:
            return JSONResponse({"detail": str(error)}, status)

        app.add_exception_handler(error, refused)

    @_view(app, "/fleet")
    def fleet(query: PageOf) -> JsonDict:
        """The devices, those that need somebody first."""
        return dashboard.fleet(query)

    @_view(app, "/devices/{device_id}")
    def device(device_id: str) -> JsonDict:
        """One device: environments with canaries and A/A runs, champions and challengers, onboarding."""
        return dashboard.device(device_id)

    @_view(app, "/models")
    def models() -> JsonDict:
        """The versions, and the champion of each device with its figures."""
        return dashboard.models()

    @_view(app, "/tunings")
    def tunings() -> JsonDict:
        """How fast networks are: the latest tunings with their curves."""
        return dashboard.tunings()

    @_view(app, "/tunings/{request_id}/report")
    def report(request_id: str) -> Response:
        """The page that a tuning wrote."""
        return Response(dashboard.report(request_id), media_type=_TYPES[".html"], headers=_REPORT_HEADERS)

    @_view(app, "/comparable")
    def comparable() -> JsonDict:
        """Names of devices and versions that may be compared."""
        return dashboard.comparable()

    @_view(app, "/compare")
    def compared(query: PageOf, before: Name, after: Name, all: bool = False) -> JsonDict:
        """Two devices, days (`DEVICE@YYYY-MM-DD`) or versions; insignificant rows with `all` only."""
        return dashboard.compare((before, after), query, shows_all=all)

    @_view(app, "/workloads")
    def workloads(query: PageOf) -> JsonDict:
        """The workloads with records."""
        return dashboard.workloads(query)

    @_view(app, "/workloads/{workload_id}")
    def workload(workload_id: str, query: PageOf, candidates_from: int = 0) -> JsonDict:
        """One workload: spread of latencies by device, and the matrix of candidates and devices."""
        return dashboard.workload(workload_id, query, max(0, candidates_from))

    @_view(app, "/workloads/{workload_id}/candidates/{candidate_id}")
    def candidate(workload_id: str, candidate_id: str, best_on: Name = "") -> JsonDict:
        """One candidate: raw repeats, its schedule beside the best one's, a script to build it again."""
        return dashboard.candidate(workload_id, candidate_id, best_on)

    _add_daemon_views(app, dashboard, webhook)
    _add_predictions(app, dashboard, scores)


def _add_daemon_views(app: FastAPI, dashboard: Dashboard, webhook: Webhook | None) -> None:
    @_view(app, "/alerts")
    def alerts(query: PageOf) -> JsonDict:
        """Alarms and changes of models, with whose fault each is."""
        return {**dashboard.alerts(query), "webhook": None if webhook is None else webhook.view}

    @_view(app, "/requests")
    def requests(query: PageOf) -> JsonDict:
        """The requests without their results, those that have not ended first."""
        return dashboard.requests(query)


def _add_predictions(app: FastAPI, dashboard: Dashboard, scores: ScoreService) -> None:
    """Add the path of predictions to an application."""

    @_view(app, "/workloads/{workload_id}/predictions")
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


#: Where the files are, beside the page itself.
STATIC_PATH = "/static/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
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


#: Content, media type and entity tag of a file.
StaticFile = tuple[bytes, str, str]


def static_files() -> dict[str, StaticFile]:
    """The files by path."""
    files: dict[str, StaticFile] = {}
    for file in resources.files("fleet").joinpath("dashboard", "static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in _TYPES:
            path = "/" if file.name == "index.html" else STATIC_PATH + file.name
            content = file.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[path] = content, _TYPES[suffix], tag
    return files


def add_pages(app: FastAPI, files: Mapping[str, StaticFile]) -> None:
    """Add the paths of the files."""

    @app.get("/", include_in_schema=False)
    @needs(Access.OPEN)
    def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        return _answer(files["/"], if_none_match)

    @app.get(STATIC_PATH + "{name}", include_in_schema=False)
    @needs(Access.OPEN)
    def file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if STATIC_PATH + name not in files:
            raise HTTPException(404, f"no file {name!r:.80} belongs to the dashboard")
        return _answer(files[STATIC_PATH + name], if_none_match)


def _answer(file: StaticFile, client_tags: str) -> Response:
    content, kind, tag = file
    headers = {**SAFE_HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
    if tag in (client_tag.strip() for client_tag in client_tags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
