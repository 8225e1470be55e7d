"""Sessions of browsers: opened by a code or the token, ended for good by logging out."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from fleet.api.access import Access
from fleet.api.sessions import LOGIN_SECS, MOST_CODES, SESSION_SECS, SESSIONS, Keyring
from tests.scenario_fixtures import fields_of
from tests.table_fixtures import cells

NOW = 1_800_000_000.0


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
    assert asked(keyring, login, "POST", "/v1/session")
    assert not asked(keyring, login, "POST", "/v1/session"), "it was redeemed"
    late = {"authorization": f"Login {keyring.new_code()}"}
    now += LOGIN_SECS
    assert not asked(keyring, late, "POST", "/v1/session")
    first = keyring.new_code()
    for _ in range(MOST_CODES):
        keyring.new_code()
    assert not asked(keyring, {"authorization": f"Login {first}"}, "POST", "/v1/session")


#: Headers beside a good cookie, some of which other servers have set, and whether that opens anything.
HEADERS = """
GET    | cookie: other=1; COOKIE                                   | yes
GET    | cookie: 'prefs={"dark": true}; COOKIE; prefs={"dark": 1}' | yes
GET    | cookie: alone; COOKIE; alone                              | yes
GET    | cookie: path=/; COOKIE; path=/                            | yes
GET    | cookie: a=b c; COOKIE; a=b c                              | yes
GET    | cookie: COOKIE, sec-fetch-site: same-origin               | yes
GET    | cookie: COOKIE, sec-fetch-site: cross-site                | no
GET    | cookie: COOKIE, sec-fetch-site: same-site                 | no
DELETE | cookie: COOKIE, host: '127.0.0.1:8640'                    | no
DELETE | cookie: COOKIE, host: '127.0.0.1:8640', origin: 'null'    | no
DELETE | cookie: COOKIE, host: '127.0.0.1:8640', origin: 'http://127.0.0.1:9999' | no
DELETE | cookie: COOKIE, host: '127.0.0.1:8640', origin: 'http://127.0.0.1:8640' | yes
"""


def test_a_cookie_is_good_for_its_server_its_page_and_its_time() -> None:
    now = NOW
    keyring = Keyring("t" * 20, wall=lambda: now)
    header = keyring.cookie(8640)
    assert "HttpOnly; SameSite=Strict" in header
    cookie = header.split(";")[0]
    for changed in (cookie[:-1], cookie.replace("=", "=9"), cookie.replace("8640", "8641"), "a=\x01", ""):
        assert not asked(keyring, {"cookie": changed})
    for method, text, may in cells(HEADERS):
        headers = {key: value.replace("COOKIE", cookie) for key, value in fields_of(text).items()}
        assert asked(keyring, headers, method) is (may == "yes"), (method, text)
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
