"""Alerts that are posted to an address of the settings."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from fleet.api.webhook import LOOK_SECS, MOST_AT_ONCE, MOST_PAUSE_SECS, MOST_WAITING, Webhook
from fleet.config.sections import DaemonSection
from fleet.dashboard.alerts import alert_list
from tests.dashboard_fixtures import alarm

NOW = 1_800_000_000.0


class Receiver:
    """Takes messages, or fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.messages = failures, list[dict[str, Any]]()

    def __call__(self, message: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise httpx.ConnectError("https://chat.example/secret cannot be reached")
        self.messages.append(message)


def test_a_webhook_sends_each_new_alert_once_and_tries_again() -> None:
    shown = alert_list([alarm("drift", NOW - 1), alarm("disk", NOW + 1)], [])
    receiver = Receiver(failures=12)
    hook = Webhook("https://chat.example/secret", lambda: shown, receiver, lambda: NOW)
    pauses = [hook.look() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * LOOK_SECS, MOST_PAUSE_SECS)
    error = "it cannot be reached (ConnectError)"
    counts = {"sent": 0, "waiting": 1, "dropped": 0}
    assert hook.view == {"host": "chat.example", **counts, "last_error": error}
    assert hook.look() == LOOK_SECS
    shown = alert_list([alarm("quarantine", NOW + 2), alarm("disk", NOW + 1)], [])
    assert [hook.look(), hook.look()] == [LOOK_SECS] * 2
    kinds = [[one["kind"] for one in message["alerts"]] for message in receiver.messages]
    assert kinds == [["disk"], ["quarantine"]], "older than its start: not sent; known: not sent again"
    assert json.loads(json.dumps(receiver.messages[0]))["version"] == 1
    assert (hook.view["sent"], hook.view["last_error"]) == (2, "")
    # Of very many the newest are kept.
    many = [alarm("drift", NOW + 9 + number, f"d{number}") for number in range(MOST_WAITING + 7)]
    shown = alert_list(many, [])
    hook.look()
    sizes = [len(message["alerts"]) for message in receiver.messages[2:]]
    assert (sum(sizes), max(sizes), hook.dropped) == (MOST_WAITING, MOST_AT_ONCE, 7)
    assert receiver.messages[-1]["alerts"][-1]["device_id"] == f"d{MOST_WAITING + 6}"


def test_a_webhook_over_http() -> None:
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(500 if len(seen) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = alert_list([alarm("drift", NOW)], [])
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/hook", lambda: shown, wall=lambda: NOW)
        assert (hook.look(), hook.last_error) == (2 * LOOK_SECS, "it answers 500")
        assert (hook.look(), hook.last_error) == (LOOK_SECS, "")
        server.shutdown()
    assert [one["alerts"] for one in seen] == [shown, shown]


@pytest.mark.parametrize("url", ["chat.example", "file:///etc/passwd", "https://", "javascript:x"])
def test_a_webhook_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        DaemonSection(webhook_url=url)
    assert DaemonSection(webhook_url="https://chat.example/x").webhook_url
