from __future__ import annotations

import json
import math
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agents.host.process_control import ProcessName
from fleet.api.app import ApiSources
from fleet.api.client import ADDRESS, READ_TOKEN, TOKEN, DaemonRefused, ask, find_daemon
from fleet.api.score_service import ScoreSettings
from fleet.api.server import ApiServer, read_or_make_token
from fleet.core.events import CoordinatorStarted, DeviceAdded
from fleet.core.state import FleetState
from fleet.dashboard.dashboard import Dashboard
from fleet.engine.fleet_clock import FleetClock
from fleet.engine.fleet_view import make_view
from fleet.errors import FleetError
from fleet.histogram import Histogram
from fleet.models.registry import Registry
from fleet.models.registry_reader import RegistryReader
from fleet.private_files import write_private
from fleet.requests.kinds import RequestDesk
from tests.cli_fixtures import said
from tests.model_fixtures import SIZES, SPEC
from tests.record_fixtures import make_spec
from tests.scenario_fixtures import check_facts, is_so, place_in
from tests.table_fixtures import cells
from transfer.model.fleet_tlp import FleetTLP, model_config

BOARD = "board-7"


def a_histogram(*secs: float) -> dict[str, Any]:
    made = Histogram()
    for one in secs:
        made.add(one)
    return made.view


#: As `fleet.engine.fleet_view.health_of` gives it.
HEALTH = {
    "turns": a_histogram(0.002, 0.3),
    "disk_waits": {"state": a_histogram(20.0)},
    "event_bytes": 4096,
    "unacknowledged": 3,
    "unacknowledged_secs": 1.5,
    "waiting_secs": 2.5,
    "training_secs": 12.5,
    "free_bytes": {"store": 10**9, "daemon": 10**8},
}


def a_view() -> dict[str, Any]:
    """What a coordinator that knows one device shows."""
    state = FleetState()
    spec = make_spec(BOARD)
    state.apply(CoordinatorStarted(at_secs=10.0))
    state.apply(DeviceAdded(at_secs=10.0, device_id=spec.device_id, family="cpu"))
    sums = {spec.device_id: (7, 6, 19.0)}
    clock = FleetClock(lambda: 20.0, lambda: 0.0)
    clock.gaps = 2
    parts: Any = SimpleNamespace(
        state=state,
        store=SimpleNamespace(
            path="runs/store",
            version=3,
            waiting_count=5,
            state=SimpleNamespace(device_sums=lambda: sums),
        ),
        clock=clock,
        disk=SimpleNamespace(is_full=False),
        roster=SimpleNamespace(all_specs={spec.device_id: spec}),
        record_sink=SimpleNamespace(letters=SimpleNamespace(refused=0)),
        imports=SimpleNamespace(refused=Counter()),
        trainer=None,
        notices=SimpleNamespace(alarms=[{"at": 15.0, "device_id": BOARD, "text": "it drifts"}]),
    )
    rates: Any = SimpleNamespace(add=lambda now, records: {spec.device_id: 1.5})
    return make_view(parts, rates, HEALTH, started_at=10.0, is_stopping=False)


def sources_of(models: Path, **sources: Any) -> ApiSources:
    """What a server shows: one device, and the models of a folder."""
    shown = {"view": a_view, "registry": RegistryReader(models), "desk": RequestDesk(), **sources}
    store = models.parent / "store"
    return ApiSources(
        scoring=shown.pop("scoring", ScoreSettings(models=models, store=store)),
        dashboard=shown.pop("dashboard", Dashboard(shown["view"], shown["registry"], store)),
        **shown,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    registry = Registry(tmp_path_factory.mktemp("models"))
    for _ in range(2):
        version = registry.add(FleetTLP(model_config(SPEC, SIZES), (BOARD,)), {"table_version": 3})
        registry.publish(version, {BOARD: {}})
    return registry.folder


@pytest.fixture
def server(tmp_path: Path, models: Path) -> Iterator[ApiServer]:
    with closing(ApiServer(sources_of(models), tmp_path)) as made:
        yield made


def client_of(server: ApiServer, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)


def get(server: ApiServer, path: str, root: Path, **headers: str) -> httpx.Response:
    with client_of(server, (root / TOKEN).read_text().strip()) as client:
        return client.get(path, headers=headers)


def connect(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 30)


def request_head(root: Path, path: str, *lines: str, method: str = "GET") -> bytes:
    """The head of a request with the token, as it is sent."""
    token = (root / TOKEN).read_text().strip()
    head = (f"{method} {path} HTTP/1.1", "Host: h", f"Authorization: Bearer {token}", *lines, "")
    return "".join(f"{line}\r\n" for line in head).encode()


def samples(server: ApiServer, root: Path) -> list[Sample]:
    families = text_string_to_metric_families(get(server, "/metrics", root).text)
    return [one for family in families for one in family.samples]


def metrics(server: ApiServer, root: Path) -> dict[str, float]:
    """Values by name and labels."""
    return {" ".join([one.name, *one.labels.values()]): one.value for one in samples(server, root)}


def test_a_token_that_is_none_and_a_path_that_is_none_are_refused(server: ApiServer, tmp_path: Path) -> None:
    with httpx.Client(trust_env=False) as client:
        assert client.get(server.url + "/healthz").json() == {"state": "running"}
        for given in ("Bearer wrong", "Bearer gr\u00fcn", "Basic x"):
            header = {"Authorization": given.encode("latin-1")}
            assert client.get(server.url + "/v1/status", headers=header).status_code == 401
        for path, known in (("/docs", 404), ("/v1/nothing", 404), ("/healthz/", 307), ("/v1//status", 404)):
            assert client.get(server.url + path).status_code == 401
            assert get(server, path, tmp_path).status_code == known


def test_the_token_is_for_its_owner_only_and_stays(server: ApiServer, tmp_path: Path, models: Path) -> None:
    token = tmp_path / TOKEN
    for name in (TOKEN, READ_TOKEN):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    first = token.read_text()
    assert first != (tmp_path / READ_TOKEN).read_text()
    server.close()
    ApiServer(sources_of(models), tmp_path).close()
    assert token.read_text() == first
    assert first.strip() not in json.dumps(a_view())
    token.chmod(0o644)
    with pytest.raises(FleetError, match="chmod 600"):
        read_or_make_token(token)
    token.write_text("short\n")
    token.chmod(0o600)
    with pytest.raises(FleetError, match="delete it"):
        read_or_make_token(token)


#: A path, the status of its answer, and what is so of the answer.
ANSWERS = f"""
/v1/devices                              | 200 | {BOARD}.records = 7
/v1/devices/{BOARD}                      | 200 | records_per_s = 1.5
/v1/devices/other                        | 404 | detail has {BOARD}
/v1/models                               | 200 | versions = [v000001, v000002]
/v1/models                               | 200 | champions.{BOARD}.version = v000002
/v1/models/{BOARD}                       | 200 | version = v000002
/v1/models/{BOARD}                       | 200 | manifest.heads = [{BOARD}]
/v1/models/{BOARD}?version=v000001       | 200 | version = v000001
/v1/models/{BOARD}?version=v000009       | 404 | detail has v000002
/v1/models/{BOARD}?version=../v000001    | 404 | detail has no model version
/v1/models/{BOARD}?version=..%2Fv000001  | 404 | detail has no model version
/v1/models/{BOARD}?version=%2Fetc        | 404 | detail has no model version
/v1/models/other                         | 404 | detail has {BOARD}
"""


def test_status_devices_and_models_are_those_of_the_view_and_the_registry(
    server: ApiServer, tmp_path: Path
) -> None:
    expected = json.loads(json.dumps(a_view()))
    expected["devices"][BOARD] |= {
        "pinned": False,
        "retained": "",
        "model_kind": "fleet_tlp",
        "shipped": "",
        "score": None,
    }
    assert get(server, "/v1/status", tmp_path).json() == expected
    for path, status, relation in cells(ANSWERS):
        answer = get(server, path, tmp_path)
        assert answer.status_code == int(status), path
        assert is_so(relation, lambda key, answer=answer: place_in(answer.json(), key)), (path, answer.text)


def test_a_file_name_that_is_no_text_takes_the_view_from_nobody(tmp_path: Path, models: Path) -> None:
    name = os.fsdecode(b"f\xfcr.yaml")
    alarm = {"at": 15.0, "device_id": name, "text": f"{name}: cannot be used", "kind": "device_file"}
    view = {**a_view(), "alarms": [alarm], "clock": {"gap_secs": math.nan}}
    with closing(ApiServer(sources_of(models, view=lambda: view), tmp_path)) as server:
        answer = get(server, "/v1/status", tmp_path)
    assert answer.status_code == 200
    assert answer.json()["alarms"][0]["device_id"] == "f\\udcfcr.yaml"
    assert answer.json()["clock"] == {"gap_secs": None}
    assert answer.json()["devices"][BOARD]["records"] == 7


def test_tensors_come_whole_and_once(server: ApiServer, tmp_path: Path, models: Path) -> None:
    path = f"/v1/models/{BOARD}/model.safetensors"
    answer = get(server, path, tmp_path)
    assert answer.content == (models / "v000002" / "model.safetensors").read_bytes()
    assert answer.headers["X-Model-Version"] == "v000002"
    known = get(server, path, tmp_path, **{"If-None-Match": answer.headers["ETag"]})
    assert known.status_code == 304
    assert not known.content
    other = get(server, path + "?version=v000001", tmp_path, **{"If-None-Match": '"something else"'})
    assert other.status_code == 200


def test_champions_pins_and_why_one_stays_show_at_once_and_damage_hides_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "models")
    model = FleetTLP(model_config(SPEC, SIZES), (BOARD,))
    with closing(ApiServer(sources_of(registry.folder), tmp_path)) as server:

        def show(path: str) -> Any:
            return get(server, f"/v1/{path}", tmp_path).json()

        assert get(server, f"/v1/models/{BOARD}", tmp_path).status_code == 404
        registry.publish(registry.add(model, {}), {BOARD: {}})
        assert show(f"models/{BOARD}")["version"] == "v000001"
        registry.use(BOARD, "v000001", reason="for the release", pins=True)
        registry.publish(registry.add(model, {}), {BOARD: {}})
        shown = show(f"devices/{BOARD}")
        assert shown["pinned"] is True
        assert shown["retained"].startswith(f"v000002: {BOARD} is pinned to v000001")
        assert show("status")["devices"] == show("devices") == {BOARD: shown}
        check_facts(show("models")["champions"][BOARD], "version = v000001\npinned_at > 0")
        monkeypatch.setenv("FLEET_DAEMON__ROOT", str(tmp_path))
        printed = said("status")
        stays = f"stays; challenger v000002: {BOARD} is pinned to v000001"
        for words in ("(pinned)", stays, "it drifts", "7 records, 5 on their way there"):
            assert words in printed
        (registry.folder / "registry.sqlite").write_text("{")
        assert show(f"devices/{BOARD}")["pinned"] is False


EXPORTED = f"""
fleet_records_total {BOARD} = 7
fleet_lease_expiries_total {BOARD} = 0
fleet_table_version = 3
fleet_event_log_size_bytes = 4096
fleet_oldest_unacknowledged_record_age_seconds = 1.5
fleet_training_age_seconds = 12.5
fleet_clock_gaps_total = 2
fleet_api_connections >= 1
fleet_disk_free_bytes store = 1000000000
fleet_disk_free_bytes daemon = 100000000
process_open_fds > 0
"""


def test_metrics_are_what_prometheus_reads(server: ApiServer, tmp_path: Path) -> None:
    values = metrics(server, tmp_path)
    check_facts(values, EXPORTED)
    assert values["process_open_fds"] < values["process_max_fds"]
    states = [value for name, value in values.items() if name.startswith("fleet_device_state ")]
    assert sum(states) == 1


def test_a_taken_port_and_a_bad_host_are_one_clear_line(tmp_path: Path, models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FleetError, match=f"port {port}: .*daemon.api_port"):
            ApiServer(sources_of(models), tmp_path, port=port)
    with pytest.raises(FleetError, match="expected an IP address"):
        ApiServer(sources_of(models), tmp_path, host="localhost")


def test_a_client_finds_the_daemon_or_nothing(server: ApiServer, tmp_path: Path) -> None:
    assert ask(tmp_path, "/v1/status")["jobs"] == a_view()["jobs"]
    with pytest.raises(FleetError, match="gives no answer"):
        ask(tmp_path, "/v1/devices/other")
    address, token = (tmp_path / ADDRESS).read_text(), (tmp_path / TOKEN).read_text()
    (tmp_path / TOKEN).write_text("another\n")
    stranger = find_daemon(tmp_path)
    for ask_it in (lambda: stranger.get("/v1/status"), lambda: stranger.cancel("any"), stranger.login_url):
        with pytest.raises(
            DaemonRefused, match=r"^the daemon at \S+ refuses the token .*start the daemon again$"
        ):
            ask_it()
    (tmp_path / TOKEN).write_text(token)
    server.close()
    assert not (tmp_path / ADDRESS).exists()
    assert ask(tmp_path, "/v1/status") is None
    # As a daemon leaves it that ends just now.
    (tmp_path / ADDRESS).write_text(address)
    assert ask(tmp_path, "/v1/status") is None
    (tmp_path / ADDRESS).write_text("{")
    with pytest.raises(FleetError, match="cannot be read"):
        ask(tmp_path, "/v1/status")


def test_whoever_listens_where_a_killed_daemon_did_hears_nothing(tmp_path: Path) -> None:
    """Its number went to another process; `test_process_control.py` has one that ended."""
    daemon = replace(ProcessName.of(os.getpid()), started=1)
    write_private(tmp_path / TOKEN, "the-secret-of-the-daemon")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (tmp_path / ADDRESS).write_text(json.dumps({"url": url, **asdict(daemon)}))
        assert ask(tmp_path, "/v1/status") is None
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
