"""Posts new alerts as JSON to an address of the settings, and tries again where it does not answer.

`fleet up` starts it where `daemon.webhook_url` is set. A thread of its own looks for alerts every few
seconds, so a slow receiver holds up nobody. The address may hold a secret, so only its host is ever shown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import httpx

from fleet.json_types import Json, JsonDict

_LOG = logging.getLogger(__name__)

#: Seconds between two looks for alerts, and the longest pause after failures in a row.
LOOK_SECS, MOST_PAUSE_SECS = 5.0, 300.0
#: Alerts that wait at a time, that go into one message, and whose ids are remembered.
MOST_WAITING, MOST_AT_ONCE, MOST_KNOWN = 200, 50, 5_000
_TIMEOUT_SECS = 10.0

Alerts = Callable[[], Iterable[Json]]


class Webhook:
    """Sends alerts that are newer than its start.

    Args:
        url: Where they go, `http` or `https`.
        alerts: Gives all alerts, the newest first (`fleet.dashboard.alerts`).
        wall: Gives Unix seconds.

    Attributes:
        sent: Alerts that were accepted.
        dropped: Alerts that found no room while the receiver did not answer.
        last_error: Why the last message was not accepted; empty where it was.
    """

    def __init__(self, url: str, alerts: Alerts, wall: Callable[[], float] = time.time) -> None:
        self._url, self._alerts = url, alerts
        self._since = wall()
        self._queued_ids: dict[str, None] = {}
        self._waiting: deque[Json] = deque()
        self._failures = 0
        self.sent = self.dropped = 0
        self.last_error = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to look for alerts."""
        self._thread.start()

    def close(self) -> None:
        """End; what waits is not sent any more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_SECS + 1.0)

    @property
    def view(self) -> JsonDict:
        """How it does, JSON-ready."""
        return {
            "host": urlsplit(self._url).hostname or "",
            "sent": self.sent,
            "waiting": len(self._waiting),
            "dropped": self.dropped,
            "last_error": self.last_error,
        }

    def look(self) -> float:
        """Send what is new.

        Returns:
            Seconds until the next look.
        """
        self._collect()
        while self._waiting:
            some = list(self._waiting)[:MOST_AT_ONCE]
            try:
                self._post({"version": 1, "alerts": some, "dropped": self.dropped})
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                self._failures += 1
                # The message of an error may repeat the address.
                self.last_error = _reason(error)
                return float(min(MOST_PAUSE_SECS, LOOK_SECS * 2.0 ** min(self._failures, 10)))
            for _ in some:
                self._waiting.popleft()
            self.sent += len(some)
            self._failures, self.last_error = 0, ""
        return LOOK_SECS

    def _collect(self) -> None:
        for alert in reversed(list(self._alerts())):
            if alert["id"] in self._queued_ids or float(alert["at"]) < self._since:
                continue
            self._queued_ids[str(alert["id"])] = None
            self._waiting.append(alert)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        while len(self._queued_ids) > MOST_KNOWN:
            del self._queued_ids[next(iter(self._queued_ids))]

    def _run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            try:
                pause = self.look()
            except Exception:  # alerts that cannot be sent must not end the daemon
                _LOG.exception("the webhook failed")
                pause = MOST_PAUSE_SECS

    def _post(self, message: JsonDict) -> None:
        with httpx.Client(timeout=_TIMEOUT_SECS, follow_redirects=False) as client:
            client.post(self._url, json=message).raise_for_status()


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answers {error.response.status_code}"
    return f"it cannot be reached ({type(error).__name__})"
