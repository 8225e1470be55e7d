"""What a path of the API asks of whoever uses it: nothing, one of the tokens, or the owner's.

Every path declares it, with `needs` or by the class of its route; one that does not is the owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, TypeVar

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

_MARK = "fleet_access"
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


class Access(IntEnum):
    """What a request may use; each level has those before it."""

    #: Whether the daemon runs, and files without data.
    OPEN = 0
    #: The fleet, models and metrics to read, and scores to ask for.
    READER = 1
    #: Everything: requests, the dashboard, sessions.
    OWNER = 2


def needs(access: Access) -> Callable[[_Endpoint], _Endpoint]:
    """Declare what the endpoint of a path asks for."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _MARK, access)
        return endpoint

    return mark


def declared(route: BaseRoute) -> Access | None:
    """What a route declares; None where it declares nothing."""
    of_endpoint = getattr(getattr(route, "endpoint", None), _MARK, None)
    access: Access | None = getattr(route, "access", of_endpoint)
    return access


def needed(routes: Iterable[BaseRoute], scope: Scope) -> Access:
    """What a request needs: that of its route; a token of either kind where there is no such route."""
    matches = [(route.matches(scope)[0], route) for route in routes]
    # As the router has it: the first whole match, else the first of another method, whose answer is 405.
    for match_kind in (Match.FULL, Match.PARTIAL):
        for match, route in matches:
            if match is match_kind:
                access = declared(route)
                return Access.OWNER if access is None else access
    return Access.READER
