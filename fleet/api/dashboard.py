"""The paths of the dashboard's views: each gives one view as JSON. Called by `fleet.api.server`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from agents.records import CandidateId, DeviceId
from fleet.api.score_service import ScoreBusyError, ScoreService
from fleet.dashboard.candidate_view import CandidateError
from fleet.dashboard.compared import CompareError
from fleet.dashboard.dashboard import Dashboard, DashboardMissing, DashboardWaits
from fleet.dashboard.pages import PAGE_ROWS, PageError, PageQuery
from fleet.dashboard.webhook import Webhook
from fleet.dashboard.workload_view import predicted, sample
from fleet.errors import FleetError
from fleet.store.trace_lookup import find_candidates

PREFIX = "/v1/dashboard"
#: Length of a filter, and of a name.
_MOST_TEXT = 200
#: Status of an answer by the error that stands behind it.
_STATUSES: dict[type[FleetError], int] = {
    PageError: 400,
    CompareError: 400,
    DashboardMissing: 404,
    CandidateError: 404,
    DashboardWaits: 503,
}

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


def add_dashboard(
    app: FastAPI,
    dashboard: Dashboard,
    scores: ScoreService | None = None,
    webhook: Webhook | None = None,
) -> None:
    """Add the paths of this module to an application.

    Args:
        app: The application.
        dashboard: Makes the views.
        scores: Scores candidates for predictions; without it there are none.
        webhook: Posts alerts; the list of these says how it does.
    """
    for error, status in _STATUSES.items():

        def refused(_: Request, error: Exception, status: int = status) -> JSONResponse:
            return JSONResponse({"detail": str(error)}, status)

        app.add_exception_handler(error, refused)

    @app.get(PREFIX + "/fleet")
    def fleet(query: PageOf) -> dict[str, Any]:
        """The devices, those that need somebody first."""
        return dashboard.fleet(query)

    @app.get(PREFIX + "/devices/{device_id}")
    def device(device_id: str) -> dict[str, Any]:
        """One device: environments with canaries and A/A runs, champions and challengers, onboarding."""
        return dashboard.device(device_id)

    @app.get(PREFIX + "/comparable")
    def comparable() -> dict[str, Any]:
        """Names of devices and versions that may be compared."""
        return dashboard.comparable()

    @app.get(PREFIX + "/compare")
    def compared(query: PageOf, before: Name, after: Name, all: bool = False) -> dict[str, Any]:
        """Two devices, days (`DEVICE@YYYY-MM-DD`) or versions; insignificant rows with `all` only."""
        return dashboard.compare((before, after), query, shows_all=all)

    @app.get(PREFIX + "/workloads")
    def workloads(query: PageOf) -> dict[str, Any]:
        """The workloads with records."""
        return dashboard.workloads(query)

    @app.get(PREFIX + "/workloads/{workload_id}")
    def workload(workload_id: str, query: PageOf, candidates_from: int = 0) -> dict[str, Any]:
        """One workload: spread of latencies by device, and the matrix of candidates and devices."""
        return dashboard.workload(workload_id, query, max(0, candidates_from))

    @app.get(PREFIX + "/workloads/{workload_id}/candidates/{candidate_id}")
    def candidate(workload_id: str, candidate_id: str, best_on: Name = "") -> dict[str, Any]:
        """One candidate: raw repeats, its schedule beside the best one's, a script to build it again."""
        return dashboard.candidate(workload_id, candidate_id, best_on)

    @app.get(PREFIX + "/alerts")
    def alerts(query: PageOf) -> dict[str, Any]:
        """Alarms and changes of models, with whose fault each is."""
        return {**dashboard.alerts(query), "webhook": None if webhook is None else webhook.view}

    @app.get(PREFIX + "/requests")
    def requests(query: PageOf) -> dict[str, Any]:
        """The requests without their results, those that have not ended first."""
        return dashboard.requests(query)

    @app.get(PREFIX + "/storage")
    def storage() -> dict[str, Any]:
        """Records on their way, room, logs, budgets."""
        return dashboard.storage()

    if scores is not None:
        _add_predictions(app, dashboard, scores)


def _add_predictions(app: FastAPI, dashboard: Dashboard, scores: ScoreService) -> None:
    @app.get(PREFIX + "/workloads/{workload_id}/predictions")
    async def predictions(request: Request, workload_id: str, device: Name) -> dict[str, Any]:
        """Scores of a device's champion for candidates that it has measured, beside their speeds."""
        latencies, chosen, body = await run_in_threadpool(_asked, dashboard, workload_id, device)

        async def whole() -> bytes:
            return body

        try:
            status, found = await scores.answer(whole, request.is_disconnected)
        except ScoreBusyError:
            raise HTTPException(503, "the scorer is busy; try again in a moment") from None
        answer = json.loads(found)
        if status != 200:
            raise HTTPException(status, str(answer.get("detail", "no scores")))
        return {"version": answer["version"], **predicted(chosen, latencies, answer["scores"])}


def _asked(dashboard: Dashboard, workload_id: str, device: str) -> tuple[dict[str, float], list[str], bytes]:
    """Latencies of a device, the candidates to be scored, and the question for the scorer."""
    reader = dashboard.reader()
    latencies = dashboard.matrix(reader, workload_id, [device]).latencies(device)
    if not latencies:
        raise DashboardMissing(f"{device!r:.80} has no latency of workload {workload_id!r:.80}")
    chosen = sample(latencies)
    found = find_candidates(reader, {DeviceId(device)}, set(map(CandidateId, chosen))).candidates
    traces = {str(one.candidate_id): one for one in found}
    chosen = [one for one in chosen if one in traces]
    asked = {
        "device": device,
        "workload": workload_id,
        "traces": [traces[one].trace for one in chosen],
        "dialect": found[0].dialect if found else "meta_schedule",
    }
    return latencies, chosen, json.dumps(asked).encode()
