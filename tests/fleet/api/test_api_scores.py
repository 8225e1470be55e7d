"""Scores over HTTP: those of the model to the last bit, for those who may ask, as long as there is room."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from msgspec.structs import asdict, replace

from fleet.api import score_service
from fleet.api.client import TOKEN
from fleet.api.score_service import ScoreService, ScoreSettings
from fleet.api.scores import MOST_TRACES, score
from fleet.api.server import ApiServer
from fleet.models.registry import Registry
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.conftest import run_code
from tests.dataset_fixtures import cpu_device
from tests.fleet.api.test_api import client_of, connect, get, metrics, request_head, sources_of
from tests.fleet.api.test_api_connections import answer as answer_on
from tests.refresh_fixtures import DEVICES, candidates_of, make_store, small_model, some_workloads
from tests.scenario_fixtures import check_facts
from tests.table_fixtures import rows
from transfer.adapt.kept import head_of
from transfer.evaluate.rankers import KeptRanker
from transfer.features.extractor import Extractor
from transfer.train.rows import TrainConfig
from transfer.train.training import train

WORKLOADS = some_workloads(3, 0)
ONE = WORKLOADS[0]
A, B = DEVICES
#: Where the process that scores may run.
CORE = max(os.sched_getaffinity(0))


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
    bounds = {"body_bytes": 1 << 20, "body_secs": 0.5, "cores": (CORE,)}
    scoring = ScoreSettings(models=made / "models", store=made / "store", **bounds)
    with closing(ApiServer(sources_of(made / "models", scoring=scoring), made)) as served:
        yield served


def post(server: ApiServer, root: Path, content: bytes, **headers: str) -> httpx.Response:
    with client_of(server, (root / TOKEN).read_text().strip()) as client:
        return client.post("/v1/score", headers=headers, content=content)


def asked(**changes: Any) -> bytes:
    traces = [one.trace for one in candidates_of(ONE, 2)]
    found = {"device": A, "workload": ONE.workload_id, "traces": traces, **changes}
    return json.dumps({key: value for key, value in found.items() if value is not None}).encode()


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
    block = Extractor().extract(ONE, candidates)
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


#: What is changed in a good question, the status of the answer, and words of it.
REFUSALS = """
device: box.z                      -> 404 unknown device 'box.z'; known: box.a, box.b, new.c
device: new.c                      -> 404 no model serves device 'new.c'; served: box.a, box.b
device:                            -> 422 Object missing required field `device`
workload: "0000000000000000"       -> 404 unknown workload '0000000000000000'; give an id
workload: ../../etc/passwd         -> 404 unknown workload '../../etc/passwd'
workload: {name: half}             -> 422 workload: Object missing required field `workload_id`
version: v000009                   -> 404 no model version 'v000009' in
version: ../models                 -> 404 no model version '../models' in
version: v000002, device: box.b    -> 404 v000002 has no head for box.b; it has: box.a
traces: "[]"                       -> 422 Expected `array`, got `str` - at `$.traces`
traces: ["[]", 1]                  -> 422 Expected `str`, got `int` - at `$.traces[1]`
dialect: latin                     -> 422 dialect: got 'latin', expected one of ansor, autotvm, knobs, meta
speed: 1                           -> 422 Object contains unknown field `speed`
"""


def test_a_refusal_is_one_clear_line(server: ApiServer, made: Path) -> None:
    questions = [
        (asked(traces=["[]"] * (MOST_TRACES + 1)), "413 traces: got 4097, at most 4096; send them in parts"),
        *((body, "400 the body is not JSON") for body in (b"{", b"\xff")),
        (b"[]", "422 Expected `object`, got `array`"),
        *((asked(**yaml.safe_load(f"{{{change}}}")), told) for change, told in rows(REFUSALS)),
    ]
    for question, told in questions:
        status, words = told.split(" ", 1)
        answer = post(server, made, question)
        detail = answer.json()["detail"]
        assert answer.status_code == int(status), detail
        assert words in detail
        assert len(detail.splitlines()) == 1


def process_of(server: ApiServer) -> int:
    return server._scores._process.pid


def test_numbers_that_no_score_comes_from_are_said(server: ApiServer, made: Path) -> None:
    assert post(server, made, asked()).status_code == 200
    before = process_of(server)
    for changes in ({"arg_dtypes": ()}, {"flops": -1e300}, {"arg_shapes": ((-5, 0), *ONE.arg_shapes[1:])}):
        answer = post(server, made, asked(workload=asdict(replace(ONE, **changes))))
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code == 422:
            assert re.search("says what cannot be|3 arg_shapes, but 0 arg_dtypes", answer.json()["detail"])
        else:
            assert "arg_dtypes" not in changes
            assert all(one is None or 0 <= one <= 1 for one in answer.json()["scores"])
    assert process_of(server) == before, "a stranger's workload ends no process"


CHUNK = b"%x\r\n" % (1 << 20) + b"[" * (1 << 20) + b"\r\n"


@pytest.mark.parametrize(
    ("length", "body", "status", "words"),
    [
        # Said to be too long, of which not a byte is read, and found to be.
        (f"Content-Length: {2 << 20}", b"", 413, f"got {2 << 20} bytes at least, at most {1 << 20}"),
        ("Transfer-Encoding: chunked", CHUNK + b"1\r\n[\r\n", 413, ""),
        ("Content-Length: 10", b"{", 408, "got 1 bytes; send it at once"),
    ],
    ids=["long", "endless", "slow"],
)
def test_a_body_is_bounded_in_length_and_time(
    server: ApiServer, made: Path, length: str, body: bytes, status: int, words: str
) -> None:
    with connect(server) as line:
        line.sendall(request_head(made, "/v1/score", length, method="POST") + body)
        printed = answer_on(line).decode()
    assert printed.startswith(f"HTTP/1.1 {status} ")
    assert words in printed


def test_the_openapi_description_tells_the_body(server: ApiServer, made: Path) -> None:
    paths = get(server, "/openapi.json", made).json()["paths"]
    body = paths["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    check_facts(body, f"required = [device, workload, traces]\nproperties.traces.maxItems = {MOST_TRACES}")
    assert {"/v1/status", "/v1/models", "/metrics"} <= paths.keys()


#: What two questions add, one of which is refused.
COUNTED = """
fleet_score_seconds_sum > 0
fleet_score_seconds_count = 2
fleet_scored_candidates_total = 2
fleet_score_requests = 0
fleet_score_refused_total busy = 0
fleet_score_refused_total request = 1
fleet_score_refused_total failed = 0
"""


def test_metrics_tell_how_many_and_how_long(server: ApiServer, made: Path) -> None:
    before = metrics(server, made)
    assert post(server, made, asked()).status_code == 200
    assert post(server, made, asked(device="box.z")).status_code == 404
    added = {
        name: value - before[name] for name, value in metrics(server, made).items() if "fleet_score" in name
    }
    check_facts(added, COUNTED)


# ---- the process, and who waits for it ----


async def _body() -> bytes:
    return asked()


async def _stays() -> bool:
    return False


def test_the_process_is_nice_stays_on_its_cores_and_is_started_again_after_a_kill(
    server: ApiServer, made: Path
) -> None:
    assert post(server, made, asked()).status_code == 200
    before = process_of(server)
    assert before != os.getpid()
    assert os.sched_getaffinity(before) == {CORE}
    assert os.getpriority(os.PRIO_PROCESS, before) >= 10
    # By whoever wants memory.
    os.kill(before, signal.SIGKILL)
    assert server._scores._process.wait(60)
    assert len(post(server, made, asked()).json()["scores"]) == 2
    assert process_of(server) != before


def test_a_request_that_takes_too_long_is_ended(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(score_service, "_MODULE", "endless")
    settings = ScoreSettings(models=made / "models", store=made / "store", score_secs=0.3)
    with closing(ScoreService(settings, tmp_path)) as service:
        status, found = asyncio.run(service.answer(_body, _stays))
    assert status == 503
    detail = json.loads(found)["detail"]
    assert detail.startswith("the process that scores gave no answer: it was not done after 0 s (see ")
    assert service.view["refused"]["failed"] == 1


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
