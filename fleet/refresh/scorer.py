"""Keeps leave-one-device-out scores ready, in a process that gives way to everybody.

Called by `fleet.refresh.refresher`, once a turn; waits for nothing. What is made:
`fleet.refresh.device_scores`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from fleet.refresh.request import RefreshRequest
from fleet.refresh.trainer_process import RefreshChild

_LOG = logging.getLogger(__name__)

#: Niceness of what nobody waits for.
_LAST = 19


class StrategyScorer:
    """One family at a time; trainings and looks go on beside it.

    `request` makes the one for a family. What takes longer than `deadline_secs` on `clock` is ended: a hung
    process would keep every family from being scored.
    """

    def __init__(
        self, request: Callable[[str], RefreshRequest], *, deadline_secs: float, clock: Callable[[], float]
    ) -> None:
        self._request = request
        self._deadline_secs, self._clock = deadline_secs, clock
        self._since = 0.0
        self._child: RefreshChild | None = None
        self._wanted: dict[str, None] = {}

    @property
    def family(self) -> str:
        """The family that it is at work for; empty while it rests."""
        return "" if self._child is None else self._child.request.family

    def want(self, family: str) -> None:
        """Have the scores of a family made again where its records have grown much."""
        self._wanted[family] = None

    def poll(self, *, may_start: bool) -> None:
        """Look after the process, and start the next; what failed is not tried again before it is wanted."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None
            if child.answer() is None:
                _LOG.warning("leave-one-device-out scores of %s: %s", child.request.family, child.failure())
            child.forget()
        elif child is not None:
            child.end_if_late(self._clock() - self._since, self._deadline_secs)
        if self._child is not None or not self._wanted or not may_start:
            return
        family = next(iter(self._wanted))
        del self._wanted[family]
        try:
            self._child = RefreshChild(replace(self._request(family), nice=_LAST))
            self._since = self._clock()
        except OSError as error:
            _LOG.warning("leave-one-device-out scores of %s: %s", family, error)

    def close(self) -> None:
        """End the process; its scores are made from the beginning the next time."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(1.0)
