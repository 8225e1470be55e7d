"""What the views of the dashboard say: timelines, ladders, onboardings, candidates, predictions, alerts."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from agents.records import CONFIRM, Candidate, Outcome, Protocol, canonical_json
from fleet.api.dashboard import MOST_SCORED, predicted, sample
from fleet.comparison.device_rows import device_rows
from fleet.coverage.lookup import script
from fleet.dashboard.alerts import BEFORE_SECS, alert_list
from fleet.dashboard.dashboard import Dashboard
from fleet.dashboard.device_timeline import (
    MOST_POINTS,
    TIMELINE_COLUMNS,
    champion_ladder,
    device_timeline,
    model_alerts,
    onboardings,
)
from fleet.dashboard.store_view import DashboardMissing
from fleet.dashboard.workload_view import MATRIX_COLUMNS, CandidateMatrix, candidate_view
from fleet.models.registry import Registry
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.conftest import run_code
from tests.dashboard_fixtures import EVIL, alarm
from tests.dataset_fixtures import cpu_device
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.refresh_fixtures import records_for, small_model, some_workloads
from tests.scenario_fixtures import check_facts

NOW = 1_800_000_000.0
DAY = 86_400.0


# ---- a device over time ----


def test_a_new_environment_starts_a_new_series(tmp_path: Path) -> None:
    first = canonical_json({"versions": {"tvm": "0.26"}, "kernel": "6.1", "load": [3.0]})
    second = canonical_json({"versions": {"tvm": "0.27"}, "kernel": "6.1", "load": [1.0]})
    records = [
        make_record(
            1 + 4 * number,
            device="one",
            environment=environment,
            environment_id=str(place) * 32,
            measured_at=NOW + DAY * place + number,
            quality=canonical_json({"canary": {"compute": 1.0 + 0.001 * (number // 2)}}),
        )
        for place, environment in enumerate((first, second))
        for number in range(1000)
    ]
    with Store.open(tmp_path / "store") as store:
        store.put_device(make_spec("one"), make_descriptor())
        store.append(records)
        store.flush()
        [(name, batch)] = device_rows(store, TIMELINE_COLUMNS, ["one"]).items()
    old, new = device_timeline(name, batch)
    assert (old["records"], old["first_at"], old["changed"]) == (1000, NOW, [])
    assert new["changed"] == [["versions.tvm", "0.26", "0.27"]], "the load is of the moment"
    assert new["canaries_of"] == 500, "two records share a reading"
    points = new["canaries"]["compute"]
    assert len(points) <= MOST_POINTS
    assert points == sorted(points)
    assert all(NOW + DAY <= at < NOW + DAY + 1000 for at, _ in points)


# ---- champions ----


LOST = {"one": {"serves": False, "reason": "worse: 70 % of the pairs", "judged": None}}


def test_the_ladder_says_why_promoted_why_rolled_back_and_who_lost(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    model = small_model("one", "two")
    first = registry.add(model, {"created_at": 1.0})
    registry.publish(first, {"one": {"reason": "first head", "judged": {"pairs": [0.8, 0.7, 0.9]}}})
    registry.add(model, {"created_at": 2.0, "verdicts": LOST})
    third = registry.add(model, {"created_at": 3.0})
    registry.publish(third, {"one": {"reason": "better", "judged": {"pairs": [0.9, 0.8, 1.0]}}, "two": {}})
    registry.use("one", registry.before("one"), reason="it got worse", by_hand=True)
    facts = """
        champion.version = v000001
        of = 4
        steps.0.kind = rolled_back
        steps.0.version = v000001
        steps.1.kind = published
        steps.1.version = v000003
        steps.1.challenger = [0.9, 0.8, 1.0]
        steps.2.kind = published
        steps.2.version = v000001
        steps.3.kind = kept
        steps.3.version = v000002
    """
    check_facts(champion_ladder(registry, "one"), facts)
    assert champion_ladder(registry, "nobody") == {"champion": None, "steps": [], "of": 0}
    kinds = {(one["kind"], one["device_id"]) for one in model_alerts(registry)}
    assert kinds == {("rollback", "one"), ("regression", "one")}
    # An alert of a version goes with it, and a new one comes.
    shown = Dashboard(lambda: {"now": NOW, "alarms": []}, registry, tmp_path / "no store")
    for number in (4, 5):
        registry.add(model, {"created_at": float(number), "verdicts": LOST})
        registry.prune(1)
        names = [one["text"].split()[0] for one in shown.all_alerts() if one["kind"] == "regression"]
        assert names == [registry.versions()[-1]]
    shown.close()


# ---- onboarding ----


def test_the_onboardings_of_a_device(tmp_path: Path) -> None:
    assert onboardings("new", [], tmp_path) is None
    points = [{"samples": samples, "top1": 0.5 + samples / 1000, "taken": "momentum"} for samples in (32, 64)]
    (tmp_path / "onboarding").mkdir()
    (tmp_path / "onboarding" / "new.jsonl").write_text("\n".join([*map(json.dumps, points), '{"samples": 9']))
    assert onboardings("new", [], tmp_path) == {"request": None, "points": points}
    request = {"id": "r", "kind": "onboarding", "arguments": {"device": "new"}, "submitted_at": 1.0}
    others = [{**request, "id": "older", "submitted_at": 0.5}, {**request, "arguments": {"device": "old"}}]
    assert onboardings("new", [*others, request], tmp_path) == {"request": request, "points": points}


# ---- workloads and candidates ----


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    workloads = [replace(some_workloads(1, 0)[0], name=EVIL)]
    with Store.open(folder / "store") as store:
        for device in ("box.a", "box.b"):
            store.put_device(*cpu_device(device))
        store.put_workloads(workloads, own=True)
        records = records_for(workloads, 6)
        records[1] = replace(records[1], outcome=Outcome.RUN_FAILED, run_secs=(), error="it broke")
        store.append([*records, replace(records[0], origin=CONFIRM, attempt=1)])
    return folder / "store"


def matrix(reader: StoreReader, *devices: str) -> CandidateMatrix:
    return CandidateMatrix(devices, device_rows(reader, MATRIX_COLUMNS, devices))


def test_the_matrix_shows_what_is_measured_what_failed_and_what_is_missing(measured: Path) -> None:
    made = matrix(Store.read(measured), "box.b", "box.a", "none")
    page = made.page(0, 4)
    assert (page["total"], page["filled"], page["of"], page["is_last"]) == (6, 12, 18, False)
    cells = [row["cells"] for row in [*page["rows"], *made.page(4, 4)["rows"]]]
    assert all(row[2] is None for row in cells)
    assert [row[0] for row in cells].count("run_failed") == 1
    speeds = [row["speed"] for row in page["rows"]]
    assert speeds == sorted(speeds, reverse=True)
    spread = made.spreads()
    assert spread["none"] is None
    secs = sorted(made.latencies("box.a").values())
    assert (spread["box.a"][0], spread["box.a"][4]) == (secs[0], secs[-1])


def test_a_candidate_measured_again_counts_with_its_fastest_latency() -> None:
    rows = [("a", 4e-3), ("b", 2e-3), ("a", 1e-3)]
    found = [{"candidate_id": name, "latency_secs": secs, "outcome": "ok"} for name, secs in rows]
    made = CandidateMatrix(["box"], {"box": pa.RecordBatch.from_pylist(found)})
    assert made.spreads()["box"] == pytest.approx([1e-3, 1.25e-3, 1.5e-3, 1.75e-3, 2e-3])
    speeds = {row["candidate_id"]: row["speed"] for row in made.page(0, 9)["rows"]}
    assert speeds == {"a": 1.0, "b": 0.5}, "no candidate is faster than the best one"


def test_a_candidate_stands_beside_the_best_one(measured: Path) -> None:
    """`test_cli_lookup.py` has who gets no script."""
    reader = Store.read(measured)
    workload_id = next(iter(reader.workloads()))
    made = matrix(reader, "box.a")
    best, *_, last = (row["candidate_id"] for row in made.page(0, 9)["rows"])
    found = candidate_view(reader, workload_id, last, ["box.a", "box.b"], "box.a")
    assert found["best"]["candidate_id"] == best
    assert found["best"]["mine_secs"] > found["best"]["secs"]
    assert 0 < found["schedules"]["different"] < found["schedules"]["of"]
    marked = [row for row in found["schedules"]["rows"] if row[2]]
    assert all("decision" in (row[0] or row[1]) for row in marked), "only decisions differ"
    assert {one["device_id"] for one in found["records"]} == {"box.a", "box.b"}
    assert found["why_no_script"] == ""
    assert found["script"]
    with pytest.raises(DashboardMissing, match="no record of candidate"):
        candidate_view(reader, workload_id, "nothing", ["box.a"])


def test_nothing_in_a_script_becomes_code() -> None:
    evil = '"""\nimport os\n\\\'"'
    workload = replace(make_workload(1), name=evil, module_json=evil)
    candidate = Candidate(workload_id=workload.workload_id, trace=evil)
    text = script(workload, candidate, evil, evil, Protocol())
    assert [line for line in text.splitlines() if line.startswith("import os")] == []
    names: dict[str, Any] = {}
    lines = [line for line in text.splitlines() if line.startswith(("SHAPES", "DTYPES"))]
    exec("\n".join(lines), names)
    assert names["SHAPES"] == [tuple(shape) for shape in workload.arg_shapes]
    compile(text, "script", "exec")


@pytest.mark.tvm
def test_a_script_builds_and_times_its_candidate(matmul: Any, matmul_candidates: Any) -> None:
    one = matmul_candidates[0]
    target = '{"kind":"llvm","num-cores":1}'
    text = script(matmul, one, "here", target, Protocol(repeat=2, min_repeat_ms=1.0))
    assert re.search(r"seconds of one run, one value a repeat: [(\[]", run_code(text))


def test_predictions_stand_beside_speeds() -> None:
    latencies = {f"c{number:03}": 1e-3 * (1 + number) for number in range(200)}
    chosen = sample(latencies)
    assert (len(chosen), chosen[0], chosen[-1]) == (MOST_SCORED, "c000", "c199")
    right = predicted(chosen, latencies, [1 / latencies[one] for one in chosen])
    assert (right["kendall_tau"], right["top1"], right["of"]) == (pytest.approx(1.0), 1.0, 200)
    wrong = predicted(chosen, latencies, [latencies[one] if one != "c000" else None for one in chosen])
    assert (wrong["kendall_tau"], wrong["refused"]) == (pytest.approx(-1.0), 1)
    assert predicted(["c000"], latencies, [None])["top1"] is None
    tied = predicted(["c000", "c001", "c003"], latencies, [0.5, 0.5, 0.25])
    assert tied["top1"] == pytest.approx((1 + 1 / 2) / 2), "the fastest one is not taken by its place"


# ---- networks ----


def test_tunings_show_who_is_fastest_and_their_reports(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<p>fast</p>")
    net = {"kept": "tvm_tuned", "secs": {"tvm_untuned": 9.0, "tvm_tuned": 1.0, "onnxruntime": 2.0}}
    result = {
        "networks": {
            "net": {"best_secs": 0.9, "curve": [(5.0, 3.0), (9.0, 0.9)]},
            "list": {"best_secs": 4.0},
        },
        "whole_networks": {"net": net},
        "report": str(page),
    }
    one = {"id": "t", "kind": "tuning", "arguments": {"device": "one"}, "result": result, "submitted_at": 1.0}
    later = one | {"id": "later", "result": {}, "submitted_at": 2.0}
    requests = [one, later, {"kind": "training"}]
    shown = Dashboard(
        lambda: {"now": NOW}, Registry(tmp_path / "models"), tmp_path / "store", lambda: requests
    )
    facts = """
        0.request.id = later
        0.has_report = false
        0.networks = []
        1.networks.0.sides.0.name = TVM, tuned by fleet
        1.networks.0.sides.0.is_kept = true
        1.networks.0.sides.1.name = ONNX Runtime
        1.networks.0.sides.1.is_kept = false
        1.networks.0.sides.2.name = TVM, no schedules
        1.networks.0.sides.2.is_kept = false
        1.networks.1.sides = []
    """
    check_facts(shown.tunings()["tunings"], facts)
    assert shown.report("t") == b"<p>fast</p>"
    page.unlink()
    for request_id in ("t", "later", "none"):
        with pytest.raises(DashboardMissing):
            shown.report(request_id)
    assert shown.models() == {"damaged": "", "versions": [], "notes": {}}


# ---- alerts ----


def test_the_fault_of_a_device_is_told_apart_from_the_models() -> None:
    nameless = os.fsdecode(b"f\xfcr")
    found = alert_list(
        [
            *(
                alarm("drift", NOW),
                alarm("drift", NOW),
                alarm("disk", NOW + 1, ""),
                alarm("strange", NOW + 2),
            ),
            alarm("device_file", NOW, nameless),
        ],
        [
            *(alarm("rollback", NOW + 60), alarm("rollback", NOW + 60, "two")),
            alarm("regression", NOW + BEFORE_SECS + 61),
        ],
    )
    faults = {f"{one['kind']} {one['device_id']}": one["fault"] for one in found}
    assert faults.pop("device_file f\\udcfcr") is not None, "whose name is no text hides no other"
    assert faults == {
        "drift one": "device",
        "disk ": "host",
        "strange one": "",
        "rollback one": "device",
        "rollback two": "model",
        "regression one": "model",
    }
    blamed = next(one for one in found if one["fault"] == "device" and one["kind"] == "rollback")
    assert blamed["because"] == f"shortly before: drift at {NOW}"
    assert [one["at"] for one in found] == sorted((one["at"] for one in found), reverse=True)
    assert len({one["id"] for one in found}) == len(found) == 7
    assert json.dumps(found, ensure_ascii=False).encode()
