"""A device that leaves the fleet."""

from __future__ import annotations

from typing import ClassVar

from fleet.core.words import RequestKind
from fleet.requests.request_kind import Name, RequestArguments


class Retire(RequestArguments, frozen=True, kw_only=True):
    """Take a device out of the fleet; its records and its model stay."""

    kind: ClassVar = RequestKind.RETIREMENT

    device: Name
