"""The dashboard over a large fleet: `python -m benchmarks.dashboard --json`.

A real coordinator with 1,000 replay devices works on a store of 1 million records, and a real browser looks
at it. `--quick` does the same with 50 devices and 20,000 records. The rows of the store are made up
(`benchmarks.made_up`), because only their number and size matter.

- `first_paint_secs`: from the start of the navigation until the rows of the fleet are there, median of
  several new browsers.
- `api_p95_ms`: of requests to all views, for devices and workloads that were not asked before, while the
  fleet works and the page is open.
- `page_bytes`: all that a first visit loads, data included.
- `live_lag_secs`: how old the number of records on the page is at most before the next one appears, 95th
  percentile.

There is no other side to compare with: the bounds are those of the project.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fleet_up import wait_until
from benchmarks.harness import Figures, benchmark, option, stopwatch, working_folder
from benchmarks.made_up import device_name
from benchmarks.scale import fill
from benchmarks.scale_fleet import devices_up, recorded_fleet, records_of
from fleet.api.app import ApiSources
from fleet.api.client import DaemonClient, find_daemon
from fleet.api.score_service import ScoreSettings
from fleet.api.server import ApiServer
from fleet.daemon.launch import seldom_collected
from fleet.dashboard.dashboard import Dashboard
from fleet.engine.coordinator import Coordinator
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader

CHROMIUM = Path("/usr/bin/chromium")
#: What must be reached.
BOUNDS = {"first_paint_secs": 1.0, "api_p95_ms": 200.0, "page_bytes": 500_000, "live_lag_secs": 2.0}
#: Requests to each view, new browsers, and seconds in which the page is watched.
_REQUESTS, _VISITS, _WATCH_SECS = 30, 7, 60.0
#: Seconds that the fleet works before it is looked at.
_WARM_SECS = 20.0
#: Longest wait for what must come once.
_MOST_SECS = 240.0
_VIEWPORT = {"width": 1280, "height": 900}

#: Notes in the page when the number of records on it changes.
_WATCH = """
() => {
  window.seen = [];
  const find = () => [...document.querySelectorAll(".tiles div")]
    .find((one) => one.querySelector("dt").textContent === "records");
  const note = () => {
    const value = Number(find().querySelector("dd").textContent.replaceAll(",", ""));
    const last = window.seen[window.seen.length - 1];
    if (!last || last[1] !== value) window.seen.push([Date.now() / 1000, value]);
  };
  const parts = { subtree: true, childList: true, characterData: true };
  new MutationObserver(note).observe(document.getElementById("main"), parts);
  note();
}
"""
#: Notes when the first row is there.
_ROWS = """
new MutationObserver((_, me) => {
  if (!document.querySelector("tbody tr")) return;
  window.rows = performance.now() / 1000;
  me.disconnect();
}).observe(document, { subtree: true, childList: true });
"""
_LOADED = """
() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .map((one) => one.decodedBodySize).reduce((sum, one) => sum + one, 0)
"""


@dataclass
class _Fleet:
    """What works while it is measured."""

    daemon: DaemonClient
    devices: list[str]
    #: Moments (Unix seconds) and how many records the coordinator had then.
    totals: list[tuple[float, int]] = field(default_factory=list)


@contextmanager
def _working(folder: Path, devices: int) -> Iterator[_Fleet]:
    """A coordinator at work in a thread, with its API, until the block ends."""
    over, registry = threading.Event(), RegistryReader(folder / "models")
    with recorded_fleet(folder, devices) as (coordinator, _):
        dashboard = Dashboard(coordinator.view, registry, folder / "store", coordinator.desk.listed)
        sources = ApiSources(
            view=coordinator.view,
            registry=registry,
            desk=coordinator.desk,
            scoring=ScoreSettings(models=registry.folder, store=folder / "store"),
            dashboard=dashboard,
        )
        server = ApiServer(sources, folder / "root")
        daemon = find_daemon(folder / "root")
        assert daemon is not None
        fleet = _Fleet(daemon, [device_name(number) for number in range(devices)])
        thread = threading.Thread(target=_turn, args=(coordinator, over, fleet))
        thread.start()
        try:
            what = "all devices; try a smaller fleet"
            wait_until(lambda: devices_up(coordinator.view()) >= devices, what, _MOST_SECS)
            yield fleet
        finally:
            server.close()
            over.set()
            thread.join()


def _turn(coordinator: Coordinator, over: threading.Event, fleet: _Fleet) -> None:
    while not over.is_set():
        coordinator.turn(0.25)
        fleet.totals.append((time.time(), records_of(coordinator)))


def _look(browser: Any, fleet: _Fleet) -> Figures:
    """What a browser sees, and what the API takes meanwhile."""
    secs, loaded = zip(*(_visit(browser, fleet) for _ in range(_VISITS)), strict=True)
    context, page = _opened(browser, fleet)
    page.evaluate(_WATCH)
    elapsed = stopwatch()
    times = _ask(fleet)
    page.wait_for_timeout(max(0.0, 1e3 * (_WATCH_SECS - elapsed())))
    lags = _lags(page.evaluate("() => window.seen"), fleet.totals)
    context.close()
    return {
        "first_paint_secs": statistics.median(secs),
        "page_bytes": max(loaded),
        "api_p95_ms": 1e3 * _p95(times),
        "live_lag_secs": _p95(lags),
    }


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium, without a window.

    Raises:
        FleetError: It is not installed.
    """
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        raise FleetError(f"{CHROMIUM} is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def _p95(secs: list[float]) -> float:
    return sorted(secs)[int(0.95 * len(secs))]


def _opened(browser: Any, fleet: _Fleet) -> tuple[Any, Any]:
    """A new browser that is logged in, and its page with the fleet on it."""
    context = browser.new_context(viewport=_VIEWPORT)
    page = context.new_page()
    page.goto(fleet.daemon.login_url())
    page.wait_for_selector("tbody tr", timeout=60_000)
    return context, page


def _visit(browser: Any, fleet: _Fleet) -> tuple[float, int]:
    """Seconds until the rows, and bytes of a first visit: a session, but nothing in the browser's cache."""
    context, page = _opened(browser, fleet)
    cookies = context.cookies()
    context.close()
    context = browser.new_context(viewport=_VIEWPORT)
    context.add_cookies(cookies)
    page = context.new_page()
    page.add_init_script(_ROWS)
    page.goto(fleet.daemon.url + "/")
    page.wait_for_function("() => window.rows !== undefined", timeout=60_000)
    found = float(page.evaluate("() => window.rows")), int(page.evaluate(_LOADED))
    context.close()
    return found


def _ask(fleet: _Fleet) -> list[float]:
    """Seconds of requests to all views."""
    draws = random.Random(1)
    times: list[float] = []
    headers = {"Authorization": f"Bearer {fleet.daemon.token}"}
    with httpx.Client(base_url=fleet.daemon.url, headers=headers, trust_env=False, timeout=60) as client:
        workloads = [one["workload_id"] for one in client.get("/v1/dashboard/workloads").json()["rows"]]

        def asked(path: str, **query: Any) -> Any:
            elapsed = stopwatch()
            answer = client.get(f"/v1/dashboard/{path}", params=query)
            times.append(elapsed())
            answer.raise_for_status()
            return answer.json()

        for number in range(_REQUESTS):
            some = draws.sample(fleet.devices, 2)
            workload_id = draws.choice(workloads)
            asked("fleet", sort=draws.choice(["attention", "rate", "noise"]), text=f"{number:02}")
            asked(f"devices/{some[0]}")
            asked("compare", before=some[0], after=some[1], all=True)
            asked("workloads", sort="best")
            matrix = asked(f"workloads/{workload_id}", offset=8 * draws.randrange(5))["matrix"]
            row = draws.choice(matrix["rows"])
            cells = zip(matrix["devices"], row["cells"], strict=True)
            device = next(name for name, cell in cells if cell is not None)
            candidate = f"workloads/{workload_id}/candidates/{row['candidate_id']}"
            asked(candidate, best_on=device)
            for name in ("alerts", "storage", "requests"):
                asked(name)
    return times


def _lags(seen: list[tuple[float, int]], totals: list[tuple[float, int]]) -> list[float]:
    """How old each number on the page was when the next one took its place.

    Args:
        seen: Moments at which a number came, and the number.
        totals: Moments, and how many records there were.
    """
    lags = []
    for (_, value), (until, _) in itertools.pairwise(seen):
        outdated = next((at for at, total in totals if total > value), until)
        lags.append(max(0.0, until - outdated))
    if not lags:
        raise FleetError("the number of records on the page did not change")
    return lags


@dataclass(frozen=True)
class Options:
    """How large the fleet is."""

    quick: bool = option(False, "50 devices and 20,000 records")


def measure(options: Options) -> Figures:
    """Do all of it in a temporary folder.

    Raises:
        FleetError: There is no browser.
    """
    devices, records = (50, 20_000) if options.quick else (1000, 1_000_000)
    with working_folder() as folder, open_browser() as browser:
        fill(folder / "store", records=records, devices=devices)
        with seldom_collected(), _working(folder, devices) as fleet:
            time.sleep(_WARM_SECS)  # all devices begin at once
            wait_until(
                lambda: fleet.daemon.get("/v1/dashboard/fleet")["digest"]["state"] == "ready",
                "the digest of the store; try a smaller fleet",
                _MOST_SECS,
            )
            looks = _look(browser, fleet)
    (began, first), *_, (ended, last) = fleet.totals
    return {
        "devices": devices,
        **looks,
        "records_per_s": (last - first) / (ended - began),
        "reached": {name: looks[name] <= bound for name, bound in BOUNDS.items()},
    }


main = benchmark("dashboard", __doc__, Options, measure)

if __name__ == "__main__":
    main()
