"""Requests over HTTP: accepted when durable, listed, followed, cancelled; strangers and floods bounded."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from fleet.api.client import TOKEN, DaemonClient, DaemonRefused, find_daemon
from fleet.api.connections import ConnectionLimits
from fleet.api.requests import MOST_FOLLOWERS
from fleet.api.server import ApiServer
from fleet.cli.app import run
from fleet.cli.options import load_settings
from fleet.cli.output import Interrupted
from fleet.cli.requests import follow_request
from fleet.cli.training import request_trainings
from fleet.core import events as ev
from fleet.core.state import FleetState
from fleet.core.words import RequestId
from fleet.daemon.engine_options import daemon_of
from fleet.errors import FleetError
from fleet.requests.kinds import MOST_BYTES, RequestDesk
from fleet.requests.request_kind import KnownFleet
from fleet.store.reader import HOLDER
from tests.cli_fixtures import play_session
from tests.conftest import until
from tests.fleet.api.test_api import a_view, client_of, connect, get, metrics, request_head, sources_of
from tests.scenario_fixtures import place_in, play, read_scenarios

FLEET = KnownFleet(families={"one": "cpu", "two": "gpu"}, trains=True)
TRAINING = {"id": "t1", "kind": "training", "arguments": {"family": "cpu"}}


class Daemon:
    """A server, and a thread that does with its requests what a coordinator does."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        answer_secs = limits.pop("answer_secs", 15.0)
        self.folder, self.desk, self.state = folder, RequestDesk(), FleetState()
        self.view: dict[str, Any] = a_view()
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.server = ApiServer(
            sources_of(folder / "models", view=lambda: self.view, desk=self.desk),
            folder,
            limits=ConnectionLimits(**limits),
            answer_secs=answer_secs,
        )
        self.token = (folder / TOKEN).read_text().strip()
        self.thread = threading.Thread(target=self._turn)

    def tell(self, *events: ev.Event) -> None:
        with self.lock:
            for event in events:
                for one in self.state.apply(event):
                    if isinstance(one, ev.ShowRequest):
                        self.desk.show(self.state, one.request_id)

    def client(self) -> httpx.Client:
        return client_of(self.server, self.token)

    def found(self) -> DaemonClient:
        """The client that a command finds."""
        return find_daemon(self.folder)

    def close(self) -> None:
        self.server.close()
        self.is_over.set()
        if self.thread.is_alive():
            self.thread.join(30)

    def _turn(self) -> None:
        while not self.is_over.wait(0.01):
            told: list[ev.Event] = []
            self.desk.serve(self.state, lambda: FLEET, told.append)
            self.tell(*(replace(event, at_secs=100.0) for event in told))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    with contextlib.ExitStack() as stack:

        def begin(*, turns: bool = True, **limits: Any) -> Daemon:
            made = Daemon(tmp_path, **limits)
            stack.callback(made.close)
            if turns:
                made.thread.start()
            return made

        yield begin


def submit(daemon: Daemon, **changes: Any) -> httpx.Response:
    with daemon.client() as client:
        return client.post("/v1/requests", content=json.dumps(TRAINING | changes))


SESSIONS = read_scenarios(Path(__file__).with_name("http_sessions.txt"))


@pytest.mark.parametrize("title", SESSIONS)
def test_a_session(title: str, start: Callable[..., Daemon]) -> None:
    shown: dict[str, Any] = {}
    with start().client() as client:

        def ask(line: str) -> None:
            question, _, status = line.rpartition(" -> ")
            method, path, *body = question.split(" ", 2)
            answer = client.request(method, path, content="".join(body))
            assert answer.status_code == int(status), (line, answer.text)
            shown["answer"] = answer.json()

        play(SESSIONS[title], ask, lambda path: place_in(shown, path))


def test_a_body_is_bounded(start: Callable[..., Daemon]) -> None:
    """`test_api_scores.py` has bodies without end, `test_access.py` those without the token."""
    with start().client() as client:
        for size, status in ((MOST_BYTES + 1, 413), (MOST_BYTES, 400)):
            assert client.post("/v1/requests", content=b" " * size).status_code == status
        assert client.get("/v1/requests").json() == []


def test_an_answer_that_does_not_come_says_what_is_not_known(start: Callable[..., Daemon]) -> None:
    daemon = start(turns=False, answer_secs=0.3)
    answer = submit(daemon)
    assert answer.status_code == 503
    assert "send it again with the id t1: it will exist once" in answer.json()["detail"]
    # The coordinator takes it up when it can, and the second one finds the first.
    daemon.thread.start()
    assert submit(daemon).json()["state"] == "queued"
    assert daemon.state.request_ids() == ["t1"]


def test_a_follower_hears_of_every_state_up_to_the_end(start: Callable[..., Daemon]) -> None:
    daemon = start()
    submit(daemon)
    events = daemon.found().follow("t1")
    assert next(events)["state"] == "queued"
    daemon.tell(ev.TrainingStarted(at_secs=110.0, family="cpu"))
    assert next(events)["state"] == "running"
    daemon.tell(ev.RequestProgressed(at_secs=120.0, request_id=RequestId("t1"), done=1, of=9))
    assert next(events)["done"] == 1
    daemon.tell(ev.TrainingFinished(at_secs=130.0, family="cpu", version="v1", serves={"one": "first"}))
    assert [one["result"]["version"] for one in events] == ["v1"], "it ends with the request"
    # And whoever comes later hears of the end at once.
    answer = get(daemon.server, "/v1/requests/t1/events", daemon.folder)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith("id: 4\nevent: succeeded\ndata: {")


def test_followers_are_bounded_and_those_who_leave_make_room(start: Callable[..., Daemon]) -> None:
    daemon = start(most=64)
    submit(daemon)
    followers = [connect(daemon.server) for _ in range(MOST_FOLLOWERS)]
    for one in followers:
        one.sendall(request_head(daemon.folder, "/v1/requests/t1/events"))
        assert one.recv(12) == b"HTTP/1.1 200", "and it reads no more"
    with daemon.client() as client:
        refused = client.get("/v1/requests/t1/events")
        assert refused.status_code == 503
        assert "ask /v1/requests/ID instead" in refused.json()["detail"]
        assert client.get("/v1/requests/t1").status_code == 200
        for one in followers:
            one.close()
        submit(daemon, id="t2", arguments={"family": "gpu"})
        client.delete("/v1/requests/t2")
        until(lambda: client.get("/v1/requests/t2/events").status_code == 200)


def test_the_end_of_the_server_ends_those_who_follow(start: Callable[..., Daemon]) -> None:
    daemon = start()
    submit(daemon)
    followed = daemon.found().follow("t1")
    assert next(followed)["state"] == "queued"
    daemon.close()
    with pytest.raises(FleetError, match="is gone; it continues with request t1"):
        next(followed)


def test_a_client_follows_beyond_the_time_of_a_connection(start: Callable[..., Daemon]) -> None:
    daemon = start(request_secs=3.0)
    submit(daemon)
    followed = daemon.found().follow("t1")
    assert next(followed)["state"] == "queued"
    later = threading.Timer(2.5, daemon.tell, [ev.TrainingStarted(at_secs=110.0, family="cpu")])
    later.start()
    assert next(followed)["state"] == "running"
    later.join()
    refused = metrics(daemon.server, daemon.folder)["fleet_api_connections_refused_total time"]
    assert refused == 0, "sent away in order"
    with pytest.raises(DaemonRefused, match="no request 't9'"):
        next(daemon.found().follow("t9"))


#: A session of commands beside a daemon that has the request t1.
VERBS = """
$ fleet requests list
    t1
$ fleet requests show t1 --json
    "state": "queued"
$ fleet requests show t9   # 1
    err:fleet: no request 't9'; `fleet requests list` shows the known ones
$ fleet requests cancel t9   # 1
    err:no request 't9'
$ fleet requests cancel t1
    request t1 is cancelled
$ fleet requests list --json
    "id": "t1"
"""


def test_the_verbs_show_follow_and_cancel(
    start: Callable[..., Daemon],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLEET_DAEMON__ROOT", str(tmp_path))
    daemon = start()
    play_session("$ fleet requests list\n    no requests", capsys)
    submit(daemon)
    play_session(VERBS, capsys)
    assert run(["requests", "follow", "t1", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["state"] == "cancelled"
    assert "request t1 cancelled: cancelled by a user" in printed.err


def test_a_verb_asks_the_daemon_of_its_store_and_models_only(
    start: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, models = tmp_path / "store", tmp_path / "models"
    monkeypatch.setenv("FLEET_DAEMON__ROOT", str(tmp_path))
    config = load_settings(None, {"store.path": str(store)})
    assert daemon_of(config, models) is None, "none runs"
    daemon = start()
    assert daemon_of(config, models) is None, "it writes no store that is there"
    store.mkdir()
    (store / HOLDER).write_text(f"{os.getpid()}\n")
    daemon.view["training"]["models"] = str(models)
    with pytest.raises(FleetError, match=r"the daemon of .* uses the models .*: give --models"):
        daemon_of(config, tmp_path / "others")
    monkeypatch.chdir(tmp_path)
    assert daemon_of(config, Path("models")) is not None
    assert daemon_of(config) is not None
    (store / HOLDER).write_text(f"{os.getppid()}\n")
    assert daemon_of(config, models) is None, "another process writes the store"


def test_fleet_train_sends_a_request_for_each_family(
    start: Callable[..., Daemon], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start()
    daemon.view["devices"] = {"one": {"family": "cpu"}, "two": {"family": "gpu"}}
    found = daemon.found()
    version = re.escape(importlib.metadata.version("tensor-fleet"))
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda _: "7.0")
        with pytest.raises(FleetError, match=rf"is version {version}, this command is 7\.0; stop it"):
            request_trainings(found, [], is_detached=True, as_json=True)
    assert daemon.state.request_ids() == []
    with pytest.raises(FleetError, match="knows no device 'three'; it has: one, two"):
        request_trainings(found, ["one", "three"], is_detached=True, as_json=True)
    request_trainings(found, [], is_detached=True, as_json=True)
    accepted = json.loads(capsys.readouterr().out)
    assert [one["arguments"] for one in accepted] == [{"family": "cpu"}, {"family": "gpu"}]
    with pytest.raises(DaemonRefused, match=f"request {accepted[0]['id']} asks for family cpu already"):
        request_trainings(found, ["one"], is_detached=True, as_json=True)


@pytest.mark.parametrize(
    ("answer", "state", "told"),
    [("c\n", "cancelled", "request t1 is cancelled"), ("\n", "queued", "request t1 continues")],
)
def test_whoever_presses_ctrl_c_says_what_becomes_of_the_request(
    start: Callable[..., Daemon],
    answer: str,
    state: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = start()
    submit(daemon)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def interrupted(*_: Any) -> Iterator[dict[str, Any]]:
        yield dict(daemon.desk.listed()[0])
        raise Interrupted

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(DaemonClient, "follow", interrupted)
    with pytest.raises(Interrupted):
        follow_request(daemon.found(), "t1")
    assert told in capsys.readouterr().err
    assert daemon.desk.listed()[0]["state"] == state
