"""The dashboard over HTTP: its views as JSON, and its files.

Called by `fleet.api.server`. The files hold no data. A page asks again every second for what it shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from fleet.api.access import Access, needs
from fleet.api.predictions import add_predictions
from fleet.api.score_service import ScoreService
from fleet.api.webhook import Webhook
from fleet.comparison.compared import CompareError
from fleet.dashboard.candidate_view import CandidateError
from fleet.dashboard.dashboard import Dashboard, DashboardMissing
from fleet.dashboard.pages import PAGE_ROWS, PageError, PageQuery
from fleet.errors import FleetError, StoreError

PREFIX = "/v1/dashboard"
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
    app: FastAPI, dashboard: Dashboard, scores: ScoreService | None, webhook: Webhook | None
) -> None:
    """Add the paths of the views to an application; those of predictions need a scorer."""
    for error, status in _STATUSES.items():

        def refused(_: Request, error: Exception, status: int = status) -> JSONResponse:
            return JSONResponse({"detail": str(error)}, status)

        app.add_exception_handler(error, refused)

    @app.get(PREFIX + "/fleet")
    @needs(Access.OWNER)
    def fleet(query: PageOf) -> dict[str, Any]:
        """The devices, those that need somebody first."""
        return dashboard.fleet(query)

    @app.get(PREFIX + "/devices/{device_id}")
    @needs(Access.OWNER)
    def device(device_id: str) -> dict[str, Any]:
        """One device: environments with canaries and A/A runs, champions and challengers, onboarding."""
        return dashboard.device(device_id)

    @app.get(PREFIX + "/comparable")
    @needs(Access.OWNER)
    def comparable() -> dict[str, Any]:
        """Names of devices and versions that may be compared."""
        return dashboard.comparable()

    @app.get(PREFIX + "/compare")
    @needs(Access.OWNER)
    def compared(query: PageOf, before: Name, after: Name, all: bool = False) -> dict[str, Any]:
        """Two devices, days (`DEVICE@YYYY-MM-DD`) or versions; insignificant rows with `all` only."""
        return dashboard.compare((before, after), query, shows_all=all)

    @app.get(PREFIX + "/workloads")
    @needs(Access.OWNER)
    def workloads(query: PageOf) -> dict[str, Any]:
        """The workloads with records."""
        return dashboard.workloads(query)

    @app.get(PREFIX + "/workloads/{workload_id}")
    @needs(Access.OWNER)
    def workload(workload_id: str, query: PageOf, candidates_from: int = 0) -> dict[str, Any]:
        """One workload: spread of latencies by device, and the matrix of candidates and devices."""
        return dashboard.workload(workload_id, query, max(0, candidates_from))

    @app.get(PREFIX + "/workloads/{workload_id}/candidates/{candidate_id}")
    @needs(Access.OWNER)
    def candidate(workload_id: str, candidate_id: str, best_on: Name = "") -> dict[str, Any]:
        """One candidate: raw repeats, its schedule beside the best one's, a script to build it again."""
        return dashboard.candidate(workload_id, candidate_id, best_on)

    _add_daemon_views(app, dashboard, webhook)
    if scores is not None:
        add_predictions(app, dashboard, scores)


def _add_daemon_views(app: FastAPI, dashboard: Dashboard, webhook: Webhook | None) -> None:
    @app.get(PREFIX + "/alerts")
    @needs(Access.OWNER)
    def alerts(query: PageOf) -> dict[str, Any]:
        """Alarms and changes of models, with whose fault each is."""
        return {**dashboard.alerts(query), "webhook": None if webhook is None else webhook.view}

    @app.get(PREFIX + "/requests")
    @needs(Access.OWNER)
    def requests(query: PageOf) -> dict[str, Any]:
        """The requests without their results, those that have not ended first."""
        return dashboard.requests(query)

    @app.get(PREFIX + "/storage")
    @needs(Access.OWNER)
    def storage() -> dict[str, Any]:
        """Records on their way, room, logs, budgets."""
        return dashboard.storage()


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
