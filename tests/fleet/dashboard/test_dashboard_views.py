"""What the views of the dashboard say: significance, comparisons, timelines, ladders, candidates, alerts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from msgspec.structs import replace

from agents.records import CONFIRM, NOISE, Candidate, DeviceId, Outcome, Protocol, Record, canonical_json
from fleet.config.sections import DaemonSection
from fleet.coverage.reproducer import script
from fleet.dashboard.alerts import BEFORE_SECS, alert_list
from fleet.dashboard.candidate_view import CandidateError, candidate_view
from fleet.dashboard.champion_ladder import champion_ladder, model_alerts
from fleet.dashboard.compared import CompareError, compare, parse_side
from fleet.dashboard.comparison import THRESHOLD, judge, of_series
from fleet.dashboard.dashboard import Dashboard, DashboardWaits
from fleet.dashboard.device_timeline import MOST_POINTS, TIMELINE_COLUMNS, DeviceTimeline, canary_ratios
from fleet.dashboard.onboarding_curve import onboarding_curve
from fleet.dashboard.pages import PageQuery
from fleet.dashboard.schedule_lines import schedule_lines, side_by_side
from fleet.dashboard.webhook import LOOK_SECS, MOST_AT_ONCE, MOST_PAUSE_SECS, MOST_WAITING, Webhook
from fleet.dashboard.workload_view import MATRIX_COLUMNS, MOST_SCORED, CandidateMatrix, predicted, sample
from fleet.models.registry import Registry
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.cli_fixtures import json_of, refusal, said
from tests.dashboard_fixtures import EVIL
from tests.dataset_fixtures import cpu_device
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.refresh_fixtures import records_for, small_model, some_workloads

NOW = 1_800_000_000.0
DAY = 86_400.0


# ---- one definition of significant ----


def test_without_a_noise_nothing_is_said() -> None:
    for noise in (None, math.nan, math.inf):
        assert judge(0.5, noise)["is_significant"] is None
    assert of_series([1.0, 1.0, 1.0]) is None
    assert of_series([0.0] * 5) is None
    assert of_series([1.0, 1.02, 0.98, 1.01]) == pytest.approx(math.sqrt(2) * 1.4826 * 0.01 / 1.005)


# ---- comparisons ----


def fill(path: Path, factors: dict[str, float]) -> None:
    """Devices that differ by a factor, each with an A/A run whose second half is 1 % slower."""
    with Store.open(path) as store:
        store.put_workloads([make_workload(1)], own=True)
        for device, factor in factors.items():
            store.put_device(make_spec(device), make_descriptor())
            records = []
            for number in (place for place in range(1, 40) if place % 4):
                one = make_record(number, device=device, workload=make_workload(1).workload_id)
                one = replace(one, run_secs=tuple(factor * secs for secs in one.run_secs))
                again = replace(one, origin=NOISE, attempt=1)
                slower = tuple(1.01 * secs for secs in one.run_secs)
                records += [one, again, replace(again, attempt=2, run_secs=slower)]
            store.append(records)


def put(path: Path, records: list[Record], *devices: str) -> Path:
    """Put devices and their records into a store; returns its folder."""
    with Store.open(path) as store:
        for device in devices:
            store.put_device(make_spec(device), make_descriptor())
        store.append(records)
    return path


def compared(path: Path, before: str, after: str, *, shows_all: bool = False) -> dict[str, Any]:
    registry = Registry(path.parent / "models")
    return compare(lambda: Store.read(path), registry, (before, after), PageQuery(), shows_all=shows_all)


def test_a_change_beyond_the_noise_is_shown_and_one_within_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, {"one": 1.0, "two": 1.2, "three": 1.02})
    [row] = compared(path, "one", "two")["rows"]
    assert row["change"] == pytest.approx(0.2, abs=1e-6)
    assert row["noise"] == pytest.approx(1.4826 * 0.01, rel=1e-6)
    assert row["severity"] == pytest.approx(0.2 / 0.014826, rel=1e-6)
    assert (row["is_significant"], row["name"], row["pairs"]) == (True, "GMM_1", 30)
    hidden = compared(path, "one", "three")
    assert (hidden["rows"], hidden["hidden"], hidden["summary"]["insignificant"]) == ([], 1, 1)
    assert hidden["summary"]["threshold"] == THRESHOLD
    [small] = compared(path, "one", "three", shows_all=True)["rows"]
    assert small["is_significant"] is False
    # The verb says the same.
    where = ("--store", str(path), "--models", str(tmp_path / "models"))
    assert json_of("compare", "one", "two", *where)["rows"] == [row]
    out = said("compare", "one", "three", *where)
    assert "0 significant changes (severity of 3 or more), 1 within the noise" in out
    assert "1 changes within the noise are hidden; --all shows them" in out
    assert "are unlike" in refusal("compare", "one", "v000001", *where)


def test_what_nobody_can_judge_stays_in_sight_and_environments_are_told(tmp_path: Path) -> None:
    records = [make_record(number, device=device) for device in ("one", "two") for number in range(1, 4)]
    found = compared(put(tmp_path / "store", records, "one", "two"), "one", "two")
    assert found["summary"]["unknown"] == 1
    assert [row["severity"] for row in found["rows"]] == [None]
    some = [make_record(number, device="one", environment_id="f" * 32) for number in (1, 2)]
    notes = compared(put(tmp_path / "store", some), "one", "one")["notes"]
    assert notes[0] == "one has measured in 2 environments; the one with most records counts."


def test_shared_candidates_that_are_not_compared_are_counted_by_reason(tmp_path: Path) -> None:
    def both(*numbers: int, **changes: Any) -> list[Record]:
        return [
            replace(make_record(one, device=name), **changes) for name in ("one", "two") for one in numbers
        ]

    path, suspect = tmp_path / "store", canonical_json({"suspect": True})
    put(path, [make_record(1, device="one"), make_record(2, device="two")], "one", "two")
    assert compared(path, "one", "two")["notes"] == ["No candidate was measured on both sides."]
    put(path, both(5, 6, 7, quality=suspect))
    again = "`fleet collect --remeasure 50` measures those again."
    [note] = compared(path, "one", "two")["notes"]
    counted = "3 candidates were measured on both sides, and none can be compared: "
    assert note == f"{counted}all measured while the host was busy. {again}"
    failed, good = both(9)
    put(path, [replace(failed, outcome=Outcome.RUN_FAILED, run_secs=(), error="it broke"), good, *both(10)])
    note, noise = compared(path, "one", "two")["notes"]
    counted = "5 candidates were measured on both sides, and 1 can be compared: "
    assert note == f"{counted}3 measured while the host was busy, 1 failed on a side. {again}"
    assert "The noise of latencies is not known, as neither side has an A/A run on a quiet host" in noise


def test_both_sides_of_a_row_agree_with_its_change(tmp_path: Path) -> None:
    """The medians of 77 and 80 us stood beside a change of -41 %: they were of two candidates."""
    latencies = {"one": (10e-6, 77e-6, 900e-6), "two": (80e-6, 45e-6, 70e-6)}
    records = [
        make_record(number, device=device, run_secs=(secs,))
        for device, every in latencies.items()
        for number, secs in zip((1, 2, 3), every, strict=True)
    ]
    path = put(tmp_path / "store", records, "one", "two")
    [row] = compared(path, "one", "two")["rows"]
    assert (row["before"], row["after"], row["pairs"]) == (77e-6, 45e-6, 3)
    assert row["change"] == pytest.approx(row["after"] / row["before"] - 1)
    out = said("compare", "one", "two", "--store", str(path), "--models", str(tmp_path / "models"))
    assert all(words in out for words in ("77.0 µs", "45.0 µs", "-41.6%"))
    assert out.count("not known") == 1, "it is said once, not in each row"


def test_days_of_one_device_are_two_sides(tmp_path: Path) -> None:
    day = 1_700_000_000.0
    first = [make_record(number, device="one", run_secs=(1e-3,)) for number in range(1, 40, 2)]
    # The next day the same programs are slower; some of them in a quality that says so.
    later = [replace(one, attempt=3, measured_at=one.measured_at + DAY, run_secs=(1.3e-3,)) for one in first]
    busy = [replace(one, quality=canonical_json({"suspect": True})) for one in later[::4]]
    path = put(tmp_path / "store", [*first, *busy, *later], "one")
    sides = [f"one@{datetime.fromtimestamp(day + offset).date()}" for offset in (0.0, DAY)]
    [row] = compared(path, *sides)["rows"]
    assert row["change"] == pytest.approx(0.3, abs=0.01)
    assert row["pairs"] == 15, "suspect ones are left out"
    assert compared(path, sides[0], "one@1999-01-01")["notes"] == ["one has no record there."]


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    fill(tmp_path / "store", {"one": 1.0})
    for before, after, words in (
        ("one", "v000001", "unlike"),
        ("", "one", "a side is missing"),
        ("one@2026-02-31", "one", "there is no day"),
        ("one@9999-12-31", "one", "there is no day"),
    ):
        with pytest.raises(CompareError, match=words):
            compared(tmp_path / "store", before, after)
    assert parse_side("a@b").device_id == "a@b"
    shown = Dashboard(lambda: {}, Registry(tmp_path / "models"), tmp_path / "no store")
    # Devices may have names like those of versions.
    with pytest.raises(DashboardWaits):
        shown.compare(("v1", "v2"), PageQuery(), shows_all=False)
    shown.close()


def judged(pairs: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    return {"judged": {"pairs": list(pairs), "top1": [0.7, 0.6, 0.8], **more}, "reason": "", "serves": True}


def test_versions_are_judged_by_their_intervals(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    for pairs in ((0.80, 0.78, 0.82), (0.90, 0.88, 0.92)):
        registry.add(small_model("one"), {"verdicts": {"one": judged(pairs)}})
    versions = ("v000001", "v000002")
    found = compare(lambda: pytest.fail("versions need no store"), registry, versions, PageQuery())
    [row] = found["rows"]
    assert row["name"] == "one: pairs in the right order"
    assert row["change"] == pytest.approx(0.125)
    assert row["severity"] == pytest.approx(0.125 / (math.hypot(0.02, 0.02) / 1.645 / 0.8))
    assert found["hidden"] == 1, "top-1 did not change"


# ---- a device over time ----


def timeline(path: Path, device: str) -> list[dict[str, Any]]:
    made = DeviceTimeline(DeviceId(device))
    for _, batch in Store.read(path).columns(TIMELINE_COLUMNS, device_ids=[device]):
        made.add(batch)
    return made.to_json()


def test_a_new_environment_starts_a_new_series(tmp_path: Path) -> None:
    first = canonical_json({"versions": {"tvm": "0.26"}, "kernel": "6.1", "load": [3.0]})
    second = canonical_json({"versions": {"tvm": "0.27"}, "kernel": "6.1", "load": [1.0]})
    for place, environment in enumerate((first, second)):
        records = [
            make_record(
                1 + 4 * number,
                device="one",
                environment=environment,
                environment_id=str(place) * 32,
                measured_at=NOW + DAY * place + number,
                quality=canonical_json({"canary": {"compute": 1.0 + 0.001 * (number // 2)}}),
            )
            for number in range(1000)
        ]
        put(tmp_path / "store", records, "one")
    old, new = timeline(tmp_path / "store", "one")
    assert (old["records"], old["first_at"], old["changed"]) == (1000, NOW, [])
    assert new["changed"] == [["versions.tvm", "0.26", "0.27"]], "the load is of the moment"
    assert new["canaries_of"] == 500, "two records share a reading"
    points = new["canaries"]["compute"]
    assert len(points) <= MOST_POINTS
    assert points == sorted(points)
    assert all(NOW + DAY <= at < NOW + DAY + 1000 for at, _ in points)


def test_a_reading_of_canaries_counts_once_and_what_is_none_never() -> None:
    ratios = [1.01, 1.01, 1.02, "x", None, 0.0, 10**400, math.nan, 1.02]
    texts = [
        json.dumps({"interval": 0.001 * place, "canary": {"a": one}}) for place, one in enumerate(ratios)
    ]
    texts += ['["canary"]', '"canary"', '{"canary": 1}', "[" * 100_000 + '"canary"']
    rows = [{"measured_at": float(place), "quality": text} for place, text in enumerate(texts)]
    found = list(canary_ratios(pa.RecordBatch.from_pylist(rows)))
    assert found == [(0.0, {"a": 1.01}), (2.0, {"a": 1.02})]


def test_runs_far_apart_are_runs_of_their_own(tmp_path: Path) -> None:
    for place, change in enumerate((1.01, 1.03)):
        records = [
            replace(
                make_record(1 + 4 * number, device="one", origin=NOISE),
                attempt=2 * place + attempt,
                measured_at=NOW + DAY * place + number,
                run_secs=(1e-3 * (change if attempt == 2 else 1.0),),
            )
            for number in range(5)
            for attempt in (1, 2)
        ]
        put(tmp_path / "store", records, "one")
    [found] = timeline(tmp_path / "store", "one")
    assert [round(run["median_change"], 3) for run in found["noise"]] == [0.01, 0.03]


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
    registry.rollback("one", reason="it got worse", by_hand=True)
    found = champion_ladder(registry, "one")
    assert (found["champion"]["version"], found["of"]) == (first, 4)
    steps = [("rolled_back", first), ("published", third), ("published", first), ("kept", "v000002")]
    assert [(step["kind"], step["version"]) for step in found["steps"]] == steps
    assert found["steps"][1]["challenger"] == [0.9, 0.8, 1.0]
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


def test_the_curve_of_a_device_has_its_newest_request(tmp_path: Path) -> None:
    assert onboarding_curve("new", [], tmp_path) is None
    points = [{"samples": k, "top1": 0.5 + k / 1000, "taken": "momentum"} for k in (32, 64)]
    (tmp_path / "onboarding").mkdir()
    text = "\n".join([*map(json.dumps, points), '{"samples": 9'])
    (tmp_path / "onboarding" / "new.jsonl").write_text(text)
    assert onboarding_curve("new", [], tmp_path) == {"request": None, "points": points}
    request = {"id": "r", "kind": "onboarding", "arguments": {"device": "new"}, "submitted_at": 1.0}
    older = {**request, "id": "older", "submitted_at": 0.5}
    curve = onboarding_curve("new", [older, request], tmp_path)
    assert curve is not None
    assert curve["request"] is request


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


def matrix(reader: StoreReader, workload_id: str, *devices: str) -> CandidateMatrix:
    made = CandidateMatrix(workload_id, list(devices))
    for device, batch in reader.columns(MATRIX_COLUMNS):
        if device in devices:
            made.add(device, batch)
    return made


def test_the_matrix_shows_what_is_measured_what_failed_and_what_is_missing(measured: Path) -> None:
    reader = Store.read(measured)
    workload_id = next(iter(reader.workloads()))
    made = matrix(reader, workload_id, "box.b", "box.a", "none")
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
    same = {"workload_id": "w", "outcome": "ok", "origin": ""}
    found = [{"candidate_id": name, "latency_secs": secs, **same} for name, secs in rows]
    made = CandidateMatrix("w", ["box"])
    made.add("box", pa.RecordBatch.from_pylist(found))
    assert made.spreads()["box"] == pytest.approx([1e-3, 1.25e-3, 1.5e-3, 1.75e-3, 2e-3])
    speeds = {row["candidate_id"]: row["speed"] for row in made.page(0, 9)["rows"]}
    assert speeds == {"a": 1.0, "b": 0.5}, "no candidate is faster than the best one"


def test_a_candidate_stands_beside_the_best_one(measured: Path, tmp_path: Path) -> None:
    reader = Store.read(measured)
    workload_id = next(iter(reader.workloads()))
    made = matrix(reader, workload_id, "box.a")
    best, *_, last = (row["candidate_id"] for row in made.page(0, 9)["rows"])
    found = candidate_view(reader, workload_id, last, ["box.a", "box.b"], "box.a")
    assert found["best"]["candidate_id"] == best
    assert found["best"]["mine_secs"] > found["best"]["secs"]
    assert 0 < found["schedules"]["different"] < found["schedules"]["of"]
    marked = [row for row in found["schedules"]["rows"] if row[2]]
    assert all("decision" in (row[0] or row[1]) for row in marked), "only decisions differ"
    assert {one["device_id"] for one in found["records"]} == {"box.a", "box.b"}
    assert found["why_no_script"] == ""
    compile(found["script"], "script", "exec")
    with pytest.raises(CandidateError, match="no record of candidate"):
        candidate_view(reader, workload_id, "nothing", ["box.a"])
    # A stranger's program gets no script.
    with Store.open(tmp_path / "store") as store:
        store.put_workloads(list(reader.workloads().values()))
        store.append(list(reader.records("box.a")))
    found = candidate_view(Store.read(tmp_path / "store"), workload_id, last, ["box.a"])
    assert found["script"] == ""
    assert "modules of others are not run" in found["why_no_script"]


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
def test_a_script_builds_and_times_its_candidate(matmul: Any, matmul_candidates: Any, tmp_path: Path) -> None:
    one = matmul_candidates[0]
    target = '{"kind":"llvm","num-cores":1}'
    protocol = Protocol(repeat=2, min_repeat_ms=1.0)
    text = script(matmul, one, "here", target, protocol)
    (tmp_path / "again.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "again.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "seconds of one run, one value a repeat: (" in done.stdout.replace("[", "(")


@pytest.mark.parametrize(
    "trace",
    [
        *("", "{", '"x"', "[1, [2]]", '{"a": 1}', "[[], []]", '[[["A",[],[],[]]],[[]]]'),
        *('[[["A",[],[],[]]],[[[],1]]]', '[[["A",1,null,{}]],[]]', '[[["\\ud800",["\\ud800"],[],[]]],[]]'),
    ],
)
def test_any_trace_gives_lines(trace: str) -> None:
    lines = schedule_lines(trace)
    "".join(lines).encode()  # half a surrogate pair would raise
    found = side_by_side(lines, [*lines, "more"])
    assert found["different"] == 1


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


# ---- alerts ----


def alarm(kind: str, at: float, device: str = "one") -> dict[str, Any]:
    return {"at": at, "device_id": device, "text": f"{kind} at {at}", "kind": kind}


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


# ---- the webhook ----


class Receiver:
    """Takes messages, or fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.messages = failures, list[dict[str, Any]]()

    def __call__(self, message: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise httpx.ConnectError("https://chat.example/secret cannot be reached")
        self.messages.append(message)


def test_a_webhook_sends_each_new_alert_once_and_tries_again() -> None:
    shown = alert_list([alarm("drift", NOW - 1), alarm("disk", NOW + 1)], [])
    receiver = Receiver(failures=12)
    hook = Webhook("https://chat.example/secret", lambda: shown, receiver, lambda: NOW)
    pauses = [hook.look() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * LOOK_SECS, MOST_PAUSE_SECS)
    error = "it cannot be reached (ConnectError)"
    counts = {"sent": 0, "waiting": 1, "dropped": 0}
    assert hook.view == {"host": "chat.example", **counts, "last_error": error}
    assert hook.look() == LOOK_SECS
    shown = alert_list([alarm("quarantine", NOW + 2), alarm("disk", NOW + 1)], [])
    assert [hook.look(), hook.look()] == [LOOK_SECS] * 2
    kinds = [[one["kind"] for one in message["alerts"]] for message in receiver.messages]
    assert kinds == [["disk"], ["quarantine"]], "older than its start: not sent; known: not sent again"
    assert json.loads(json.dumps(receiver.messages[0]))["version"] == 1
    assert (hook.view["sent"], hook.view["last_error"]) == (2, "")
    # Of very many the newest are kept.
    many = [alarm("drift", NOW + 9 + number, f"d{number}") for number in range(MOST_WAITING + 7)]
    shown = alert_list(many, [])
    hook.look()
    sizes = [len(message["alerts"]) for message in receiver.messages[2:]]
    assert (sum(sizes), max(sizes), hook.dropped) == (MOST_WAITING, MOST_AT_ONCE, 7)
    assert receiver.messages[-1]["alerts"][-1]["device_id"] == f"d{MOST_WAITING + 6}"


def test_a_webhook_over_http() -> None:
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(500 if len(seen) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = alert_list([alarm("drift", NOW)], [])
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/hook", lambda: shown, wall=lambda: NOW)
        assert (hook.look(), hook.last_error) == (2 * LOOK_SECS, "it answers 500")
        assert (hook.look(), hook.last_error) == (LOOK_SECS, "")
        server.shutdown()
    assert [one["alerts"] for one in seen] == [shown, shown]


@pytest.mark.parametrize("url", ["chat.example", "file:///etc/passwd", "https://", "javascript:x"])
def test_a_webhook_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        DaemonSection(webhook_url=url)
    assert DaemonSection(webhook_url="https://chat.example/x").webhook_url


# ---- the command line ----
