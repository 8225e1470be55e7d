"""The paths of the dashboard's views: each gives one view as JSON. Called by `fleet.api.server`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse

from fleet.dashboard.dashboard import Dashboard
from fleet.dashboard.pages import PAGE_ROWS, PageError, PageQuery

PREFIX = "/v1/dashboard"
#: Length of a filter.
_MOST_TEXT = 200


def page_query(
    sort: Annotated[str, Query(max_length=40)] = "",
    descending: bool = False,
    text: Annotated[str, Query(max_length=_MOST_TEXT)] = "",
    offset: int = 0,
    size: int = PAGE_ROWS,
) -> PageQuery:
    """Which part of a list, from the query of a request."""
    return PageQuery(sort=sort, is_descending=descending, text=text, offset=offset, size=size)


PageOf = Annotated[PageQuery, Depends(page_query)]


def add_dashboard(app: FastAPI, dashboard: Dashboard) -> None:
    """Add the paths of this module to an application."""

    @app.exception_handler(PageError)
    def refused(_: Request, error: PageError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    @app.get(PREFIX + "/fleet")
    def fleet(query: PageOf) -> dict[str, Any]:
        """The devices, those that need somebody first."""
        return dashboard.fleet(query)


__all__ = ["PREFIX", "add_dashboard", "page_query"]
