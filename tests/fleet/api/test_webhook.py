"""Alerts that are posted to an address of the settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fleet.api.webhook import LOOK_SECS, MOST_AT_ONCE, MOST_PAUSE_SECS, MOST_WAITING, Webhook
from fleet.config.sections import DaemonSection
from fleet.dashboard.alerts import alert_list
from tests.dashboard_fixtures import alarm

NOW = 1_800_000_000.0


class Chat(HTTPServer):
    """Takes messages, or fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures, self.messages = 12, list[dict[str, Any]]()


class Handler(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_failing = self.server.failures > 0
        self.server.failures -= 1
        if not is_failing:
            self.server.messages.append(message)
        self.send_response(500 if is_failing else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def chat() -> Iterator[Chat]:
    with Chat() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_webhook_sends_each_new_alert_once_and_tries_again(chat: Chat) -> None:
    shown = alert_list([alarm("drift", NOW - 1), alarm("disk", NOW + 1)], [])
    hook = Webhook(f"http://127.0.0.1:{chat.server_port}/secret", lambda: shown, lambda: NOW)
    pauses = [hook.look() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * LOOK_SECS, MOST_PAUSE_SECS)
    counts = {"sent": 0, "waiting": 1, "dropped": 0}
    assert hook.view == {"host": "127.0.0.1", **counts, "last_error": "it answers 500"}
    assert hook.look() == LOOK_SECS
    shown = alert_list([alarm("quarantine", NOW + 2), alarm("disk", NOW + 1)], [])
    assert [hook.look(), hook.look()] == [LOOK_SECS] * 2
    kinds = [[one["kind"] for one in message["alerts"]] for message in chat.messages]
    assert kinds == [["disk"], ["quarantine"]], "older than its start: not sent; known: not sent again"
    assert chat.messages[0]["version"] == 1
    assert (hook.view["sent"], hook.view["last_error"]) == (2, "")
    # Of very many the newest are kept.
    many = [alarm("drift", NOW + 9 + number, f"d{number}") for number in range(MOST_WAITING + 7)]
    shown = alert_list(many, [])
    hook.look()
    sizes = [len(message["alerts"]) for message in chat.messages[2:]]
    assert (sum(sizes), max(sizes), hook.dropped) == (MOST_WAITING, MOST_AT_ONCE, 7)
    assert chat.messages[-1]["alerts"][-1]["device_id"] == f"d{MOST_WAITING + 6}"


def test_who_cannot_be_reached_is_told_without_the_address() -> None:
    hook = Webhook("http://127.0.0.1:9/secret", lambda: [alarm("drift", NOW) | {"id": "a"}], lambda: NOW)
    hook.look()
    assert hook.last_error == "it cannot be reached (ConnectError)"


@pytest.mark.parametrize("url", ["chat.example", "file:///etc/passwd", "https://", "javascript:x"])
def test_a_webhook_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        DaemonSection(webhook_url=url)
    assert DaemonSection(webhook_url="https://chat.example/x").webhook_url
