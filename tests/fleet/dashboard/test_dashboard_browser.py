"""The dashboard in a real browser over a real coordinator with replay devices."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet.core.words import Request
from fleet.drivers.session import DriverChannel
from tests.conftest import until
from tests.dashboard_fixtures import EVIL, LiveFleet, live_fleet, publish
from tests.fleet.dashboard.test_dashboard import settled

CHROMIUM = Path("/usr/bin/chromium")
EVIL_DEVICE = '<img src=x onerror="document.title=1">'
WAIT_MS = 30_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None or not CHROMIUM.exists(),
        reason="needs a browser: apt-get install chromium; pip install playwright",
    ),
]


class OnboardingDriver:
    """Says what a test has it say."""

    def __init__(self) -> None:
        mine, other = socket.socketpair()
        self.channel, self.ours = DriverChannel(mine), DriverChannel(other)

    def progress(self, done: int) -> None:
        message = {"done": done, "of": 32, "left_secs": 5.0, "finding": f"{done} samples are measured"}
        self.ours.send({"op": "progress", "is_measuring": True, **message})

    def end(self) -> None:
        result = {"device": "two", "samples": 32, "strategy": "auto", "taken": "momentum", "served_by": "v9"}
        expected = {"top1": 0.741, "top1_interval": [0.68, 0.8]}
        self.ours.send({"op": "end", "result": result | {"expected": expected}, "reason": ""})

    def stop(self) -> None:
        self.ours.close()

    def close(self) -> None:
        self.channel.close()

    def failure(self) -> str:
        return "it was stopped"


def with_evil_device(view: Mapping[str, Any]) -> Mapping[str, Any]:
    """The view with a device whose name and reason would be markup."""
    devices = dict(view["devices"])
    one = next(iter(devices.values()))
    evil = {**one, "state": "quarantined", "reason": EVIL}
    alarms = [*view["alarms"], {"at": view["now"], "device_id": EVIL_DEVICE, "text": EVIL, "kind": "drift"}]
    return {**view, "devices": {**devices, EVIL_DEVICE: evil}, "alarms": alarms}


class Fleet(NamedTuple):
    """A fleet at work, and the drivers of its requests."""

    live: LiveFleet
    drivers: list[OnboardingDriver]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    drivers: list[OnboardingDriver] = []

    def launch(request: Request) -> OnboardingDriver:
        drivers.append(OnboardingDriver())
        return drivers[-1]

    folder = tmp_path_factory.mktemp("browser")
    with live_fleet(folder, ("one", "two"), launch=launch, change=with_evil_device) as live:
        publish(live.registry, "one", "two")
        until(lambda: settled(live.get("/v1/dashboard/fleet")), 90)
        yield Fleet(live, drivers)
    for one in drivers:
        one.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(fleet: Fleet, browser: Any) -> Iterator[Any]:
    """A page that is logged in; a fault in its console fails the test."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    made.set_default_timeout(WAIT_MS)
    made.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.goto(fleet.live.server.login_url)
    made.wait_for_selector("#live[data-kind=on]")
    yield made
    context.close()
    assert not faults


def go(page: Any, fleet: Fleet, address: str, wait_for: str) -> str:
    page.goto(f"{fleet.live.server.url}/#/{address}")
    page.wait_for_selector(f"main[aria-busy=false] >> text={wait_for}")
    return str(page.inner_text("main"))


def test_every_view_has_the_numbers_of_the_api_and_no_markup_of_others(page: Any, fleet: Fleet) -> None:
    live = fleet.live
    assert "#login" not in page.url
    api = live.get("/v1/devices")
    page.wait_for_selector("tbody tr >> text=two")
    rows = {row.split("\n")[0]: row for row in page.locator("tbody tr").all_inner_texts()}
    for name in ("one", "two"):
        assert f"{api[name]['records']:,}" in rows[name]
        assert "0.710" in rows[name]
    assert EVIL_DEVICE in next(iter(rows)), "what is broken comes first"
    until(lambda: any(row["name"] == EVIL for row in live.get("/v1/dashboard/workloads")["rows"]), 90)
    workloads = live.get("/v1/dashboard/workloads")["rows"]
    evil = next(row for row in workloads if row["name"] == EVIL)
    found = live.get(f"/v1/dashboard/workloads/{evil['workload_id']}")
    candidate_id = found["matrix"]["rows"][-1]["candidate_id"]
    assert EVIL in go(page, fleet, "workloads", "Operator")
    assert EVIL in go(page, fleet, f"workload/{evil['workload_id']}", "Candidates by device")
    seen = go(page, fleet, f"candidate/{evil['workload_id']}%2F{candidate_id}", "Schedule compared")
    assert candidate_id in seen
    # Its last failures come with the next reading of the store.
    until(lambda: EVIL in go(page, fleet, "device/one", "Active model and challengers"), 60)
    assert EVIL in go(page, fleet, "alerts", "Cause")
    compared = live.get("/v1/dashboard/compare", before="one", after="two", all="true")
    seen = go(page, fleet, "compare?before=one&after=two&all=true", "Severity")
    assert f"{compared['summary']['significant']} of {compared['total']} changes are significant" in seen
    assert f"From {compared['summary']['threshold']:.1f} on it is significant" in seen
    for address, text in (
        ("storage", "Logs and waits"),
        ("models", "Active model"),
        ("networks", "No network was tuned"),
        ("requests", "Requests"),
    ):
        go(page, fleet, address, text)
    assert page.title().startswith("Requests ")
    assert page.locator("script").count() == 1, "nothing was injected"
    assert page.locator("main img").count() == 0
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_it_works_on_a_phone_and_by_keyboard(page: Any, fleet: Fleet) -> None:
    page.set_viewport_size({"width": 420, "height": 800})
    go(page, fleet, "", "Per s")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.fill("input[type=search]", "two")
    page.wait_for_selector("text=1 that match, of 3")
    assert page.evaluate("document.activeElement.type") == "search", "typing keeps the focus"
    page.fill("input[type=search]", "nobody")
    page.wait_for_selector("text=None of 3 match")
    page.click("text=Show all")
    page.wait_for_selector("text=All 3")
    page.focus("button.sort >> text=State")
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=descending] >> text=State")
    assert page.locator("nav[aria-label=Views]").count() == page.locator("main").count() == 1


def test_an_onboarding_is_followed_to_its_end(page: Any, fleet: Fleet) -> None:
    asked = {"id": "new-1", "kind": "onboarding", "arguments": {"device": "two", "samples": 32}}
    with fleet.live.client() as client:
        answer = client.post("/v1/requests", json=asked)
        assert answer.status_code == 200, answer.text
    until(lambda: fleet.drivers)
    go(page, fleet, "device/two", "Onboarding")
    for done in (8, 24):
        fleet.drivers[0].progress(done)
        page.wait_for_selector(f"text={done} samples are measured")
        page.wait_for_selector(f"text={done} of 32, 5.0 s left")
    fleet.drivers[0].end()
    page.wait_for_selector("text=Expected top-1 0.741 (0.680 to 0.800).")
    page.wait_for_selector(".lede >> text=succeeded")
    assert "0.741" in go(page, fleet, "requests/new-1", "Result")


def test_a_wrong_token_is_refused_and_a_link_is_good_once(fleet: Fleet, browser: Any) -> None:
    link = fleet.live.server.login_url
    page = browser.new_context().new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(fleet.live.server.url)
    page.fill("input[type=password]", "wrong")
    page.click("button[type=submit]")
    page.wait_for_selector("text=This token is wrong.")
    assert page.locator("tbody").count() == 0
    page.fill("input[type=password]", fleet.live.token)
    page.click("button[type=submit]")
    page.wait_for_selector("tbody tr")
    page.click("text=Log out")
    page.wait_for_selector("text=You are logged out.")
    for selector in ("tbody tr", "text=This link has been used"):
        page = browser.new_context().new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(link)
        page.wait_for_selector(selector)
    page.fill("input[type=password]", fleet.live.token)
    page.click("button[type=submit]")
    page.wait_for_selector("tbody tr")
    page.click("nav >> text=Storage")
    page.wait_for_selector("text=Logs and waits")
