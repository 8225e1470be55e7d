"""The dashboard's rules (order, pages, what it reads of a store) and its API over a fleet at work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec.structs import replace

from agents.records import NOISE
from fleet.api.client import DaemonClient
from fleet.dashboard.fleet_rows import AttentionLevel, attention
from fleet.dashboard.store_view import DashboardStore, Listing, PageError, PageQuery
from fleet.report.status import read_status
from fleet.store.store import Store
from tests.conftest import until
from tests.dashboard_fixtures import EVIL, LiveFleet, live_fleet, publish
from tests.record_fixtures import make_batch, make_descriptor, make_record, make_spec
from tests.scenario_fixtures import check_facts, fields_of
from tests.table_fixtures import cells

NOW = 1_800_000_000.0


def a_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        **{"device_id": "one", "state": "leased", "reason": "", "closed": "", "drift": "", "champion": "v1"},
        **{"failed_share": 0.1, "suspect_share": 0.0, "last_record_at": NOW - 5.0},
    }
    return row | changes


# ---- what needs attention ----


#: What a row says, the level of attention, and a word of the reason. What a device never had says nothing.
ATTENTION = """
                                               | healthy  |
failed_share: , suspect_share: , last_record_at: | healthy |
state: quarantined, reason: it died five times | broken   | five times
state: quarantined                             | broken   | quarantined
failed_share: 0.6                              | broken   | 60%
drift: "drifts: its canaries"                  | doubtful | canaries
suspect_share: 0.9                             | doubtful | 90%
state: lost, reason: host out of reach         | waiting  | out of reach
state: absent, suspect_share: 0.9              | gone     | absent
last_record_at: 1799996400.0                   | waiting  | 60 minutes
closed: its budget of the hour is spent        | waiting  | budget
champion: ""                                   | unserved | no model
state: retired, reason: left, failed_share: 1.0 | gone    | left
"""


def test_attention_by_device() -> None:
    for changes, level, words in cells(ATTENTION):
        found, reason = attention(a_row(**fields_of(changes)), NOW)
        assert found is AttentionLevel[level.upper()], changes
        assert words in reason
        assert bool(reason) is (found is not AttentionLevel.HEALTHY)


# ---- pages ----

KEYS = {"name": lambda row: row["name"], "size": lambda row: row["size"]}
ROWS = [{"name": f"n{number:02}", "size": None if number % 5 == 0 else number} for number in range(23)]


#: What is asked for, and the page that comes.
PAGES = """
size: 10, offset: 20 | {total: 23, matched: 23, is_last: true, rows: [n20, n21, n22]}
size: 4, text: N1    | {total: 23, matched: 10, is_last: false, rows: [n10, n11, n12, n13]}
text: x              | {total: 23, matched: 0, is_last: true, rows: []}
"""


def page_of(**query: Any) -> dict[str, Any]:
    return Listing(keys=KEYS, texts=["name"]).page(ROWS, PageQuery(**query))


def test_a_page_says_what_it_leaves_out_and_rows_without_a_value_come_last() -> None:
    for query, expected in cells(PAGES):
        page = page_of(**fields_of(query))
        page["rows"] = [row["name"] for row in page["rows"]]
        assert page | yaml.safe_load(expected) == page
    for descending in (False, True):
        rows = page_of(sort="size", descending=descending, size=23)["rows"]
        sizes = [row["size"] for row in rows]
        assert sizes[18:] == [None] * 5
        assert sizes[:18] == sorted(sizes[:18], reverse=descending)


@pytest.mark.parametrize("query", ["sort: x", "size: 0", "size: 1000000", "offset: -1"])
def test_a_page_that_there_is_not(query: str) -> None:
    with pytest.raises(PageError):
        page_of(**fields_of(query))


# ---- what is read of the store ----


def fill(path: Path, count: int) -> None:
    with Store.open(path) as store:
        for device in ("dev-a", "dev-b"):
            store.put_device(make_spec(device), make_descriptor())
            store.append(make_batch(0, count, device=device))


def test_a_summary_says_what_status_says_of_rows_that_wait_and_rows_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, 40)
    view = DashboardStore(path)
    view.refresh()
    with Store.open(path) as store:
        pairs = [
            replace(make_record(number, origin=NOISE), attempt=attempt, measured_at=NOW + number)
            for number in range(1, 30, 2)
            for attempt in (1, 2)
        ]
        slow = [replace(one, run_secs=tuple(1.02 * secs for secs in one.run_secs)) for one in pairs[1::2]]
        store.append([*pairs[::2], *slow])
        view.forget()
        view.refresh()
    summary, status = view.summary(), read_status(path, tmp_path / "models")["devices"]
    view.close()
    assert summary.state == "ready"
    for name, device in summary.devices.items():
        assert [device[key] for key in ("records", "noise")] == [
            status[name][key] for key in ("records", "noise")
        ]
        for key in ("records", "ok"):
            assert sum(getattr(cells[name], key) for cells in summary.cells.values()) == status[name][key]
    facts = """
        dev-a.noise.pairs = 15
        dev-b.last_error.outcome = run_timeout
        dev-b.last_error.text = no answer in 5 s
    """
    check_facts(summary.devices, facts)
    secs = [min(one.run_secs) for one in Store.read(path).records("dev-b") if one.run_secs]
    assert min(cells["dev-b"].best_secs or 9 for cells in summary.cells.values()) == min(secs)


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    view = DashboardStore(tmp_path / "none")
    assert view.summary().state == "loading"
    until(lambda: view.summary().state == "failed")
    assert "none" in view.summary().reason
    view.close()


# ---- the API of a fleet at work ----


def settled(fleet: dict[str, Any]) -> bool:
    """Whether all records that there are have been read from the store."""
    sparks = [sum(row["spark"] or ()) == row["records"] for row in fleet["rows"]]
    return all(sparks) and not fleet["jobs"]["leased"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    with live_fleet(tmp_path_factory.mktemp("live"), ("one", "two", "three")) as made:
        publish(made.registry, "one", "two")
        until(lambda: all(row["records"] >= 100 for row in made.get("/v1/devices").values()))
        until(lambda: made.get("/v1/dashboard/fleet")["digest"]["state"] == "ready")
        yield made


def test_the_page_and_its_files_need_no_session_and_hold_no_data(live: LiveFleet) -> None:
    with httpx.Client(base_url=live.server.url, trust_env=False) as stranger:
        page = stranger.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        names = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
        assert len(names) > 8
        for name in names:
            file = stranger.get(name)
            assert (file.status_code, file.headers["content-security-policy"]) == (200, policy), name
            known = {"If-None-Match": file.headers["etag"]}
            assert stranger.get(name, headers=known).status_code == 304
            markup = r"innerHTML|outerHTML|document\.write|eval\(|https?://(?!www\.w3\.org)"
            assert not re.search(markup, file.text)
        assert stranger.get("/v1/dashboard/fleet").status_code == 401
        assert stranger.post("/").status_code == 405
    with live.client() as client:
        assert client.get("/static/nothing.js").status_code == 404
        assert client.get("/static/..%2Fdashboard.py").status_code == 404


def test_a_browser_logs_in_once_with_a_link(live: LiveFleet) -> None:
    link = DaemonClient(live.server.url, live.token, 1).login_url()
    assert live.token not in link
    login = {"Authorization": f"Login {link.partition('#login=')[2]}"}
    with httpx.Client(base_url=live.server.url, trust_env=False) as browser:
        assert browser.get("/v1/status").status_code == 401
        assert browser.post("/v1/session", headers=login).status_code == 204
        assert browser.get("/v1/status").status_code == 200
        assert browser.post("/v1/session/code").status_code == 401, "no origin, so no page of this server"
        assert browser.delete("/v1/session", headers={"Origin": live.server.url}).status_code == 204
        assert browser.get("/v1/status").status_code == 401, "logged out is logged out"
        assert browser.post("/v1/session", headers=login).status_code == 401


def test_the_fleet_view_has_the_numbers_of_the_api(live: LiveFleet) -> None:
    until(lambda: settled(live.get("/v1/dashboard/fleet")))
    fleet, devices = live.get("/v1/dashboard/fleet"), live.get("/v1/devices")
    assert fleet["counts"]["devices"] == fleet["total"] == 3
    for row in fleet["rows"]:
        same = ("state", "records", "failed", "kind", "family")
        assert {name: row[name] for name in same} == {name: devices[row["device_id"]][name] for name in same}
        assert row["digest"] == "ready"
        assert sum(row["spark"]) == row["records"]
        assert EVIL[:40] in row["last_error"]["text"]
    served = {row["device_id"]: row["score"] for row in fleet["rows"]}
    assert (served["one"]["name"], served["one"]["value"]) == ("top1", 0.71)
    assert served["three"] is None
    page = live.get("/v1/dashboard/fleet", sort="device", descending=True, size=1, text="o")
    assert [row["device_id"] for row in page["rows"]] == ["two"]
    with live.client() as client:
        refused = client.get("/v1/dashboard/fleet", params={"sort": "x"})
        assert (refused.status_code, "no order 'x'" in refused.json()["detail"]) == (400, True)
