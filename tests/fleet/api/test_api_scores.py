"""Scores over HTTP: those of the model to the last bit, for those who may ask, as long as there is room."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import asdict, replace

from fleet.api import score_service
from fleet.api.client import TOKEN
from fleet.api.score_service import ScoreBusyError, ScoreService, ScoreSettings
from fleet.api.scores import MOST_TRACES, score
from fleet.api.server import ApiServer
from fleet.errors import FleetError
from fleet.models.registry import Registry
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.conftest import run_code
from tests.dataset_fixtures import cpu_device
from tests.fleet.api.test_api import client_of, get, metrics, sources_of
from tests.fleet.api.test_api_connections import answer as answer_on
from tests.refresh_fixtures import DEVICES, candidates_of, make_store, small_model, some_workloads
from transfer.adapt.kept import head_of
from transfer.evaluate.rankers import KeptRanker
from transfer.features.extractor import Extractor
from transfer.train.config import TrainConfig
from transfer.train.training import train

WORKLOADS = some_workloads(3, 0)
ONE = WORKLOADS[0]
A, B = DEVICES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two devices and a third without a model, a trained version and one more."""
    folder = tmp_path_factory.mktemp("scores")
    make_store(folder / "store", WORKLOADS)
    snapshot = load_snapshot(Store.read(folder / "store"))
    rows = np.arange(len(snapshot.dataset))
    model = train(snapshot.dataset, rows, config=TrainConfig(epochs=1, trees=5), seed=0).model
    with Store.open(folder / "store") as store:
        store.put_device(*cpu_device("new.c"))
    registry = Registry(folder / "models")
    registry.publish(registry.add(model, {}), {A: {}, B: {}})
    registry.add(small_model(A), {})
    return folder


@pytest.fixture(scope="module")
def server(made: Path) -> Iterator[ApiServer]:
    scoring = ScoreSettings(models=made / "models", store=made / "store", body_bytes=1 << 20, body_secs=0.5)
    with closing(ApiServer(sources_of(made / "models", scoring=scoring), made)) as served:
        yield served


def post(server: ApiServer, root: Path, content: bytes, **headers: str) -> httpx.Response:
    with client_of(server, (root / TOKEN).read_text().strip()) as client:
        return client.post("/v1/score", headers=headers, content=content)


def asked(**changes: Any) -> bytes:
    traces = [one.trace for one in candidates_of(ONE, 2)]
    found = {"device": A, "workload": ONE.workload_id, "traces": traces, **changes}
    return json.dumps({key: value for key, value in found.items() if value is not ...}).encode()


@pytest.mark.parametrize("device", DEVICES)
def test_scores_are_those_that_a_judge_sees_to_the_last_bit(
    device: str, server: ApiServer, made: Path
) -> None:
    snapshot = load_snapshot(Store.read(made / "store"))
    registry = Registry(made / "models")
    ref = registry.champion(device)
    model, manifest = registry.load(ref)
    head = head_of(model, registry.path(ref.version), manifest, device)
    ranker = KeptRanker(name=ref.version, model=model, heads={device: head})
    for workload in WORKLOADS:
        candidates = candidates_of(workload, 12)
        places = {one: place for place, one in enumerate(snapshot.dataset.candidate_ids)}
        rows = np.array([places[one.candidate_id] for one in candidates])
        direct = ranker.score(snapshot.dataset, rows, device)
        found = score(made, device, workload.workload_id, [one.trace for one in candidates])
        assert (found.device_id, found.version, found.refused) == (device, "v000001", {})
        assert found.scores == tuple(direct.tolist())
        assert len(set(found.scores)) > 4
        assert [found.scores[place] for place in found.order] == sorted(direct.tolist(), reverse=True)
        # As a whole, under whatever id.
        whole = replace(workload, workload_id=WORKLOADS[1].workload_id)
        again = score(made, device, whole, [one.trace for one in candidates])
        assert again.scores == found.scores


def test_another_version_scores_where_it_is_asked_for(server: ApiServer, made: Path) -> None:
    candidates = candidates_of(ONE, 5)
    traces = [one.trace for one in candidates]
    found = score(made, A, ONE.workload_id, traces, version="v000002")
    block = Extractor().extract({ONE.workload_id: ONE}, candidates)
    assert found.version == "v000002"
    assert found.scores == tuple(small_model(A).score(block, A).tolist())
    assert found.scores != score(made, A, ONE.workload_id, traces).scores


def test_a_trace_that_cannot_be_read_has_no_score_and_a_reason(server: ApiServer, made: Path) -> None:
    good = [one.trace for one in candidates_of(ONE, 2)]
    deep = "[" * 5000 + "]" * 5000
    found = score(made, A, ONE.workload_id, [good[0], '[["no"', good[1], deep, "x" * (100 << 10)])
    assert [one is None for one in found.scores] == [False, True, False, True, True]
    assert sorted(found.refused) == [1, 3, 4]
    assert all(found.refused.values())
    assert (found.scores[0], found.scores[2]) == score(made, A, ONE.workload_id, good).scores
    assert score(made, A, ONE.workload_id, []).scores == ()


def test_a_client_needs_neither_torch_nor_tvm(server: ApiServer, made: Path) -> None:
    trace = candidates_of(ONE, 1)[0].trace
    code = """
import json, sys
for name in ("torch", "tvm", "numpy", "pydantic", "fastapi", "pyarrow"):
    sys.modules[name] = None
from pathlib import Path
from fleet.api.scores import score
root, device, workload, trace = json.loads(sys.stdin.read())
print(json.dumps(score(Path(root), device, workload, [trace]).scores))
"""
    given = json.dumps([str(made), A, ONE.workload_id, trace])
    assert tuple(json.loads(run_code(code, input=given))) == score(made, A, ONE.workload_id, [trace]).scores


@pytest.mark.parametrize(
    ("changes", "status", "line"),
    [
        ({"device": "box.z"}, 404, "unknown device 'box.z'; known: box.a, box.b, new.c"),
        ({"device": "new.c"}, 404, "no model serves device 'new.c'; served: box.a, box.b"),
        ({"workload": "0" * 16}, 404, f"unknown workload '{'0' * 16}'; give an id"),
        ({"workload": "../../etc/passwd"}, 404, "unknown workload '../../etc/passwd'"),
        ({"workload": {"name": "half"}}, 422, "workload: Object missing required field `workload_id`"),
        ({"version": "v000009"}, 404, "no model version 'v000009' in "),
        ({"version": "../models"}, 404, "no model version '../models' in "),
        ({"version": "v000002", "device": B}, 404, "v000002 has no head for box.b; it has: box.a"),
        ({"traces": ["[]"] * (MOST_TRACES + 1)}, 413, "traces: got 4097, at most 4096; send them in parts"),
        ({"traces": "[]"}, 422, "Expected `array`, got `str` - at `$.traces`"),
        ({"traces": ["[]", 1]}, 422, "Expected `str`, got `int` - at `$.traces[1]`"),
        ({"device": ...}, 422, "Object missing required field `device`"),
        (
            {"dialect": "latin"},
            422,
            "dialect: got 'latin', expected one of ansor, autotvm, knobs, meta_schedule",
        ),
        ({"speed": 1}, 422, "Object contains unknown field `speed`"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"[]", 422, "Expected `object`, got `array`"),
    ],
)
def test_a_refusal_is_one_clear_line(
    changes: dict[str, Any] | bytes, status: int, line: str, server: ApiServer, made: Path
) -> None:
    answer = post(server, made, changes if isinstance(changes, bytes) else asked(**changes))
    assert (answer.status_code, line in answer.json()["detail"]) == (status, True), answer.text
    assert len(answer.json()["detail"].splitlines()) == 1


def process_of(server: ApiServer) -> int:
    return server._scores._process.pid


def test_numbers_that_no_score_comes_from_are_said(server: ApiServer, made: Path) -> None:
    assert post(server, made, asked()).status_code == 200
    before = process_of(server)
    for hostile in (
        replace(ONE, arg_dtypes=()),
        replace(ONE, flops=-1e300),
        replace(ONE, arg_shapes=((-5, 0), *ONE.arg_shapes[1:])),
    ):
        answer = post(server, made, asked(workload=asdict(hostile)))
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code == 422:
            assert re.search("says what cannot be|3 arg_shapes, but 0 arg_dtypes", answer.json()["detail"])
        else:
            assert all(one is None or 0 <= one <= 1 for one in answer.json()["scores"])
    assert post(server, made, asked(workload=asdict(replace(ONE, arg_dtypes=())))).status_code == 422
    assert process_of(server) == before, "a stranger's workload ends no process"


def raw(server: ApiServer, head: str, body: bytes = b"") -> str:
    """Status line and the rest of the answer to a request that is sent by hand, until the end."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(head.encode() + b"\r\n\r\n" + body)
        return answer_on(line).decode()


def head(root: Path, path: str, *lines: str, method: str = "POST") -> str:
    token = (root / TOKEN).read_text().strip()
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *lines])


def test_a_body_is_bounded_in_length_and_time(server: ApiServer, made: Path) -> None:
    # Said to be too long: not a byte of it is read.
    told = raw(server, head(made, "/v1/score", f"Content-Length: {2 << 20}"))
    assert told.startswith("HTTP/1.1 413 ")
    assert f"got {2 << 20} bytes at least, at most {1 << 20}" in told
    # Found to be too long.
    chunk = b"%x\r\n" % (1 << 20) + b"[" * (1 << 20) + b"\r\n"
    told = raw(server, head(made, "/v1/score", "Transfer-Encoding: chunked"), chunk + b"1\r\n[\r\n")
    assert told.startswith("HTTP/1.1 413 ")
    # Too slow.
    told = raw(server, head(made, "/v1/score", "Content-Length: 10"), b"{")
    assert told.startswith("HTTP/1.1 408 ")
    assert "got 1 bytes; send it at once" in told


def test_nobody_else_may_send_a_body(server: ApiServer, made: Path) -> None:
    for path, method in (("/v1/status", "POST"), ("/healthz", "POST"), ("/v1/score", "PUT")):
        assert raw(server, head(made, path, "Content-Length: 1", method=method)).startswith("HTTP/1.1 413 ")
    stranger = "POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 9"
    assert raw(server, stranger).startswith("HTTP/1.1 401 ")
    assert post(server, made, b"").status_code == 400


def test_the_openapi_description_needs_the_token_and_tells_the_body(server: ApiServer, made: Path) -> None:
    with httpx.Client(trust_env=False) as client:
        assert client.get(server.url + "/openapi.json").status_code == 401
    found = get(server, "/openapi.json", made).json()
    body = found["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["device", "workload", "traces"]
    assert body["properties"]["traces"]["maxItems"] == MOST_TRACES
    assert {"/v1/status", "/v1/models", "/metrics"} <= set(found["paths"])


def test_metrics_tell_how_many_and_how_long(made: Path, tmp_path: Path) -> None:
    scoring = ScoreSettings(models=made / "models", store=made / "store")
    with closing(ApiServer(sources_of(made / "models", scoring=scoring), tmp_path)) as server:
        assert post(server, tmp_path, asked()).status_code == 200
        assert post(server, tmp_path, asked(device="box.z")).status_code == 404
        families = metrics(server, tmp_path)
    secs = {one.name: one.value for one in families["fleet_score_seconds"].samples if not one.labels}
    assert secs["fleet_score_seconds_count"] == 2
    assert secs["fleet_score_seconds_sum"] > 0
    assert families["fleet_scored_candidates"].samples[0].value == 2
    refused = {one.labels["why"]: one.value for one in families["fleet_score_refused"].samples}
    assert refused == {"busy": 0, "request": 1, "failed": 0}
    assert families["fleet_score_requests"].samples[0].value == 0


def test_without_what_to_score_from_there_is_no_such_path(made: Path, tmp_path: Path) -> None:
    with closing(ApiServer(sources_of(made / "models"), tmp_path)) as server:
        assert post(server, tmp_path, b"{}").status_code == 413
        assert post(server, tmp_path, b"").status_code == 404
    with pytest.raises(FleetError, match="no daemon runs on"):
        score(tmp_path, A, ONE.workload_id, [])


# ---- the process, and who waits for it ----


async def _body() -> bytes:
    return asked()


async def _stays() -> bool:
    return False


def a_service(made: Path, tmp_path: Path, **changes: Any) -> ScoreService:
    return ScoreService(ScoreSettings(models=made / "models", store=made / "store", **changes), tmp_path)


def test_the_process_is_nice_has_one_thread_and_stays_on_its_cores(made: Path, tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with closing(a_service(made, tmp_path, cores=(core,))) as service:
        status, found = asyncio.run(service.answer(_body, _stays))
        assert (status, len(json.loads(found)["scores"])) == (200, 2)
        pid = service._process.pid
        assert pid != os.getpid()
        assert os.sched_getaffinity(pid) == {core}
        assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_request_that_takes_too_long_is_ended_and_the_next_is_answered(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service(made, tmp_path, score_secs=0.3)
    with monkeypatch.context() as slow:
        (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
        slow.setenv("PYTHONPATH", str(tmp_path))
        slow.setattr(score_service, "_MODULE", "endless")
        status, found = asyncio.run(service.answer(_body, _stays))
    assert status == 503
    detail = json.loads(found)["detail"]
    assert detail.startswith("the process that scores gave no answer: it was not done after 0 s (see ")
    assert service.view["refused"]["failed"] == 1
    service.settings = dataclasses.replace(service.settings, score_secs=600.0)
    # A lock belongs to the loop that used it.
    service._turn = asyncio.Lock()
    with closing(service):
        assert asyncio.run(service.answer(_body, _stays))[0] == 200
        # Killed by whoever wants memory: the answer says so, and the next one is whole.
        os.kill(service._process.pid, signal.SIGKILL)
        assert service._process.wait(60)
        assert asyncio.run(service.answer(_body, _stays))[0] == 200
    status, found = asyncio.run(service.answer(_body, _stays))
    assert status == 503
    assert "the API is closed" in json.loads(found)["detail"]


def test_requests_wait_in_order_and_those_that_are_too_many_are_sent_away(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service(made, tmp_path, most=3)
    go_on, done = threading.Event(), []

    def ask(body: bytes) -> tuple[int, int, bytes]:
        go_on.wait(30)
        done.append(body)
        return 200, 1, b"{}"

    monkeypatch.setattr(service, "_ask", ask)

    def body_of(number: int) -> Any:
        async def body() -> bytes:
            return b"%d" % number

        return body

    async def gone() -> bool:
        return True

    async def run() -> list[tuple[int, bytes]]:
        waiting = [asyncio.create_task(service.answer(body_of(number), _stays)) for number in range(2)]
        waiting.append(asyncio.create_task(service.answer(body_of(2), gone)))
        await asyncio.sleep(0)
        with pytest.raises(ScoreBusyError):
            await service.answer(body_of(3), _stays)
        assert service.view["inside"] == 3
        go_on.set()
        return await asyncio.gather(*waiting)

    found = asyncio.run(run())
    assert [status for status, _ in found] == [200, 200, 499]
    # Nobody waits for the third any more, so it costs nothing.
    assert done == [b"0", b"1"]
    assert service.view["refused"] == {"busy": 1, "request": 0, "failed": 0}
    assert service.view["inside"] == 0


def test_too_many_requests_are_told_when_to_try_again(made: Path, tmp_path: Path) -> None:
    scoring = ScoreSettings(models=made / "models", store=made / "store", most=0)
    with closing(ApiServer(sources_of(made / "models", scoring=scoring), tmp_path)) as server:
        answer = post(server, tmp_path, asked())
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["detail"] == "0 requests for scores are here already; try again in 5 s"


def test_a_damaged_champion_is_said(made: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.publish(registry.add(small_model(A), {}), {A: {}})
    (registry.path("v000001") / "model.safetensors").write_bytes(b"torn")
    scoring = ScoreSettings(models=registry.folder, store=made / "store")
    with closing(ScoreService(scoring, tmp_path)) as service:
        status, found = asyncio.run(service.answer(_body, _stays))
    assert status == 503
    assert "torn or changed" in json.loads(found)["detail"]
