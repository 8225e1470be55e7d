"""The dashboard's rules (order, pages, digests) and its API: sessions, policy, live events, equal numbers."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import NOISE, Outcome
from fleet.api.access import Access
from fleet.api.client import DaemonClient
from fleet.api.sessions import LOGIN_SECS, MOST_CODES, SESSION_SECS, SESSIONS, Keyring
from fleet.dashboard import table_follower
from fleet.dashboard.device_digest import DIGEST_COLUMNS, SPARK_POINTS, SPARK_SECS, DeviceDigest, spark
from fleet.dashboard.fleet_rows import AttentionLevel, attention, by_attention
from fleet.dashboard.pages import PageError, PageQuery, cut
from fleet.dashboard.table_follower import TableFollower
from fleet.report.status import trust
from fleet.store.noise_columns import READING_COLUMNS
from fleet.store.store import Store
from tests.conftest import until
from tests.dashboard_fixtures import EVIL, LiveFleet, live_fleet, publish
from tests.record_fixtures import make_batch, make_descriptor, make_record, make_spec

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
last_record_at: 1799996400.0                   | waiting  | 60 minutes
closed: its budget of the hour is spent        | waiting  | budget
champion: ""                                   | unserved | no model
state: retired, reason: left, failed_share: 1.0 | gone    | left
"""


def test_attention_by_device() -> None:
    for line in ATTENTION.strip("\n").splitlines():
        changes, level, words = (cell.strip() for cell in line.split("|"))
        found, reason = attention(a_row(**yaml.safe_load(f"{{{changes}}}")), NOW)
        assert found is AttentionLevel[level.upper()], line
        assert words in reason
        assert bool(reason) is (found is not AttentionLevel.HEALTHY)


@given(st.lists(st.tuples(st.sampled_from(AttentionLevel), st.floats(0, 1)), max_size=12))
def test_the_order_is_total_and_worst_first(made: list[tuple[AttentionLevel, float]]) -> None:
    rows = [
        a_row(device_id=f"d{place}", failed_share=share, attention={"level": int(level)})
        for place, (level, share) in enumerate(made)
    ]
    ordered = sorted(rows, key=by_attention)
    rows.reverse()
    assert ordered == sorted(rows, key=by_attention)
    assert [row["attention"]["level"] for row in ordered] == sorted(int(level) for level, _ in made)


# ---- pages ----

KEYS = {"name": lambda row: row["name"], "size": lambda row: row["size"]}
ROWS = [{"name": f"n{number:02}", "size": None if number % 5 == 0 else number} for number in range(23)]


def test_a_page_says_what_it_leaves_out_and_rows_without_a_value_come_last() -> None:
    page = cut(ROWS, PageQuery(size=10, offset=20), KEYS, ["name"])
    assert ([row["name"] for row in page["rows"]], page["is_last"]) == (["n20", "n21", "n22"], True)
    assert (page["total"], page["matched"]) == (23, 23)
    page = cut(ROWS, PageQuery(text="N1", size=4), KEYS, ["name"])
    assert (page["total"], page["matched"], page["is_last"], len(page["rows"])) == (23, 10, False, 4)
    none = cut(ROWS, PageQuery(text="x"), KEYS, ["name"])
    assert (none["total"], none["matched"], none["rows"], none["is_last"]) == (23, 0, [], True)
    for descending in (False, True):
        rows = cut(ROWS, PageQuery(sort="size", is_descending=descending, size=23), KEYS, [])["rows"]
        sizes = [row["size"] for row in rows]
        assert sizes[18:] == [None] * 5
        assert sizes[:18] == sorted(sizes[:18], reverse=descending)


@pytest.mark.parametrize("query", [{"sort": "x"}, {"size": 0}, {"size": 10**6}, {"offset": -1}])
def test_a_page_that_there_is_not(query: dict[str, Any]) -> None:
    with pytest.raises(PageError):
        cut(ROWS, PageQuery(**query), KEYS, [])


# ---- what is read of the store ----


def fill(path: Path, count: int) -> None:
    with Store.open(path) as store:
        for device in ("dev-a", "dev-b"):
            store.put_device(make_spec(device), make_descriptor())
            store.append(make_batch(0, count, device=device))


def digest_of(path: Path, device: str) -> dict[str, Any]:
    digest = DeviceDigest(make_spec(device).device_id)
    for _, batch in Store.read(path).columns(DIGEST_COLUMNS, device_ids=[device]):
        digest.add(batch)
    return digest.to_json()


def test_a_digest_says_what_status_says(tmp_path: Path) -> None:
    fill(tmp_path / "store", 40)
    with Store.open(tmp_path / "store") as store:
        pairs = [
            replace(make_record(number, origin=NOISE), attempt=attempt, measured_at=NOW + number)
            for number in range(1, 30, 2)
            for attempt in (1, 2)
        ]
        slow = [replace(one, run_secs=tuple(1.02 * secs for secs in one.run_secs)) for one in pairs[1::2]]
        store.append([*pairs[::2], *slow])
    found = digest_of(tmp_path / "store", "dev-a")
    columns = Store.read(tmp_path / "store").columns(READING_COLUMNS, device_ids=["dev-a"])
    expected = trust(make_spec().device_id, (batch for _, batch in columns))
    assert found["noise"] == expected["noise"]
    assert (found["noise"]["pairs"], found["records"]) == (15, 70)
    error = found["last_error"]
    assert (error["outcome"], error["text"]) == (Outcome.RUN_TIMEOUT, "no answer in 5 s")


def test_a_spark_counts_the_last_periods() -> None:
    last = int(NOW // SPARK_SECS)
    found = spark({last: 3, last - SPARK_POINTS + 1: 7, last - SPARK_POINTS: 99, last + 1: 99}, NOW)
    assert (len(found), found[0], found[-1], sum(found)) == (SPARK_POINTS, 7, 3, 10)


def test_the_follower_reads_only_what_came_since(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, 12)
    follower = TableFollower(path, pause=lambda _: False)
    follower.follow()
    whole = follower.state
    assert (whole.state, whole.done, whole.of) == ("ready", 24, 24)
    with Store.open(path) as store:
        store.append(make_batch(100, 8, device="dev-b"))
    follower.follow()
    assert follower.state.devices["dev-a"] is whole.devices["dev-a"], "its rows were read once"
    assert follower.state.devices == {one: digest_of(path, one) for one in ("dev-a", "dev-b")}
    assert follower.state.devices["dev-b"]["records"] == 20
    with Store.open(path) as store:
        store.upkeep()
    follower.follow()
    assert follower.state.devices["dev-b"]["records"] == 20, "a merge brings no new rows"


def test_the_follower_lets_go_of_what_it_read_once_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    fill(path, 12)
    now = [1000.0]
    monkeypatch.setattr(table_follower, "time", SimpleNamespace(monotonic=lambda: now[0]))
    follower = TableFollower(path, pause=lambda _: threading.Event().wait(0.01))
    follower.look()
    until(lambda: follower.state.state == "ready")
    thread = follower._thread
    assert thread is not None
    now[0] += 600.0
    assert follower.look().devices, "who comes back soon need not wait"
    now[0] += 3601.0
    thread.join(30)
    assert not thread.is_alive()
    assert (follower.cells(), follower.state.devices, follower.reader()) == ({}, {}, None)
    follower.look()
    until(lambda: follower.state.state == "ready")
    assert follower.cells()
    now[0] += 3601.0
    follower.close()


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    follower = TableFollower(tmp_path / "none")
    try:
        follower.look()
        until(lambda: follower.state.state == "failed")
        assert "none" in follower.state.reason
    finally:
        follower.close()


# ---- sessions ----


def asked(keyring: Keyring, headers: dict[str, str], method: str = "GET", path: str = "/v1/status") -> bool:
    scope = {"method": method, "path": path, "server": ("127.0.0.1", 8640)}
    given = {key.encode(): value.encode() for key, value in headers.items()}
    return keyring.access(scope, given) is Access.OWNER


def test_a_code_opens_one_session_in_time() -> None:
    now = NOW
    keyring = Keyring("t" * 20, wall=lambda: now)
    code = keyring.new_code()
    login = {"authorization": f"Login {code}"}
    assert not asked(keyring, login), "a code is for the path of sessions only"
    assert not asked(keyring, login, "GET", "/v1/session")
    assert not asked(keyring, {"authorization": "Login x"}, "POST", "/v1/session")
    assert asked(keyring, login, "POST", "/v1/session")
    assert not asked(keyring, login, "POST", "/v1/session"), "it was redeemed"
    late = {"authorization": f"Login {keyring.new_code()}"}
    now += LOGIN_SECS
    assert not asked(keyring, late, "POST", "/v1/session")
    first = keyring.new_code()
    for _ in range(MOST_CODES):
        keyring.new_code()
    assert not asked(keyring, {"authorization": f"Login {first}"}, "POST", "/v1/session")


def test_a_cookie_is_good_for_its_server_its_page_and_its_time() -> None:
    now = NOW
    keyring = Keyring("t" * 20, wall=lambda: now)
    header = keyring.cookie(8640)
    assert "HttpOnly; SameSite=Strict" in header
    cookie = header.split(";")[0]
    assert asked(keyring, {"cookie": f"other=1; {cookie}"})
    for other in ('prefs={"dark": true}', "alone", "path=/", "a=b c"):
        assert asked(keyring, {"cookie": f"{other}; {cookie}; {other}"}), "it is of another server"
    assert asked(keyring, {"cookie": cookie, "sec-fetch-site": "same-origin"})
    for site in ("cross-site", "same-site"):
        assert not asked(keyring, {"cookie": cookie, "sec-fetch-site": site})
    for changed in (cookie[:-1], cookie.replace("=", "=9"), cookie.replace("8640", "8641"), "a=\x01", ""):
        assert not asked(keyring, {"cookie": changed})
    writes = {"cookie": cookie, "host": "127.0.0.1:8640"}
    assert not asked(keyring, writes, "DELETE")
    assert not asked(keyring, {**writes, "origin": "http://127.0.0.1:9999"}, "DELETE")
    assert not asked(keyring, {**writes, "origin": "null"}, "DELETE")
    assert asked(keyring, {**writes, "origin": "http://127.0.0.1:8640"}, "DELETE")
    now += SESSION_SECS
    assert not asked(keyring, {"cookie": cookie})


def test_a_session_outlives_the_daemon_but_neither_its_end_nor_its_token(tmp_path: Path) -> None:
    path = tmp_path / SESSIONS
    keyring = Keyring("t" * 20, sessions=path)
    first, second = ({"cookie": keyring.cookie(8640).split(";")[0]} for _ in range(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first["cookie"].partition("=")[2] not in path.read_text()
    again = Keyring("t" * 20, sessions=path)
    assert asked(again, first)
    again.end_session({b"cookie": first["cookie"].encode()}, 8640)
    assert not asked(again, first), "a copy of the cookie opens nothing"
    restarted = Keyring("t" * 20, sessions=path)
    assert (asked(restarted, first), asked(restarted, second)) == (False, True)
    assert not asked(Keyring("u" * 20, sessions=path), second), "another token ends all sessions"
    for damaged in ("{", "[]", "null", '{"a": null}', "[" * 100_000):
        path.write_text(damaged)
        assert not asked(Keyring("t" * 20, sessions=path), second)


def test_a_full_disk_keeps_nobody_out_and_no_ended_session_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / SESSIONS
    keyring = Keyring("t" * 20, sessions=path)
    stolen = {"cookie": keyring.cookie(8640).split(";")[0]}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("fleet.api.sessions.write_private", Mock(side_effect=full))
    assert asked(keyring, {"cookie": keyring.cookie(8640).split(";")[0]})
    keyring.end_session({b"cookie": stolen["cookie"].encode()}, 8640)
    assert not asked(keyring, stolen)
    assert not asked(Keyring("t" * 20, sessions=path), stolen)


# ---- the API of a fleet at work ----


def settled(fleet: dict[str, Any]) -> bool:
    """Whether all records that there are have been read from the table."""
    return bool(fleet["digest"]["done"] == fleet["store"]["records"] and not fleet["jobs"]["leased"])


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
        for path in ("/v1/dashboard/fleet", "/v1/dashboard/live"):
            assert stranger.get(path).status_code == 401
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
        assert browser.post("/v1/session", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert browser.post("/v1/session", headers=login).status_code == 204
        assert browser.get("/v1/status").status_code == 200
        assert browser.post("/v1/session/code").status_code == 401, "no origin, so no page of this server"
        copied = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        assert browser.delete("/v1/session", headers={"Origin": live.server.url}).status_code == 204
        assert browser.get("/v1/status").status_code == 401
        assert browser.get("/v1/status", headers=copied).status_code == 401, "logged out is logged out"
        assert browser.post("/v1/session", headers=login).status_code == 401


def test_the_fleet_view_has_the_numbers_of_the_api(live: LiveFleet) -> None:
    until(lambda: settled(live.get("/v1/dashboard/fleet")))
    fleet, devices = live.get("/v1/dashboard/fleet"), live.get("/v1/devices")
    assert fleet["counts"]["devices"] == fleet["total"] == 3
    for row in fleet["rows"]:
        same = ("state", "records", "failed", "kind", "family", "environment_id")
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


def test_live_events_say_when_something_changed(live: LiveFleet) -> None:
    with live.client() as client, client.stream("GET", "/v1/dashboard/live") as answer:
        lines = answer.iter_lines()
        events = []
        for line in lines:
            events += [line] if line.startswith("event:") else []
            if len(events) == 3:
                break
    assert set(events) == {"event: change"}
    assert json.dumps(live.get("/v1/status")).count(live.token) == 0
