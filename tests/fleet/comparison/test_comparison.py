"""Two devices, days or versions side by side, by functions and by the verb; schedules side by side."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.records import NOISE, Outcome, Record, canonical_json
from fleet.comparison.compared import CompareError, compare, parse_side
from fleet.comparison.schedules import schedule_lines, side_by_side
from fleet.comparison.series import THRESHOLD
from fleet.errors import StoreError
from fleet.models.registry import Registry
from fleet.store.store import Store
from tests.cli_fixtures import json_of, said
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.refresh_fixtures import small_model
from tests.scenario_fixtures import check_facts

DAY = 86_400.0


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
    return compare(lambda: Store.read(path), registry, (before, after), shows_all=shows_all)


#: A change of 20 %, beside 1.4826 times the median of changes of 1 %.
SIGNIFICANT = """
change about 0.2
noise about 0.014826
severity about 13.48981519
is_significant = true
name = GMM_1
pairs = 30
"""


def test_a_change_beyond_the_noise_is_shown_and_one_within_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, {"one": 1.0, "two": 1.2, "three": 1.02})
    [row] = compared(path, "one", "two")["rows"]
    check_facts(row, SIGNIFICANT)
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
    # Devices may have names like those of versions.
    with pytest.raises(StoreError):
        compared(tmp_path / "no store", "v1", "v2")


def judged(pairs: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    return {"judged": {"pairs": list(pairs), "top1": [0.7, 0.6, 0.8], **more}, "reason": "", "serves": True}


def test_versions_are_judged_by_their_intervals(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    for pairs in ((0.80, 0.78, 0.82), (0.90, 0.88, 0.92)):
        registry.add(small_model("one"), {"verdicts": {"one": judged(pairs)}})
    versions = ("v000001", "v000002")
    found = compare(lambda: pytest.fail("versions need no store"), registry, versions)
    [row] = found["rows"]
    assert row["name"] == "one: pairs in the right order"
    assert row["change"] == pytest.approx(0.125)
    assert row["severity"] == pytest.approx(0.125 / (math.hypot(0.02, 0.02) / 1.645 / 0.8))
    assert found["hidden"] == 1, "top-1 did not change"


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


def test_a_step_more_does_not_make_the_steps_behind_it_differ() -> None:
    mine = ["b0 = GetSBlock(main)", "l1, l2 = GetLoops(b0)", "Unroll(l2)"]
    other = ["b0 = GetSBlock(main)", "v1 = Sample()", "l2, l3 = GetLoops(b0)", "Vectorize(l3)"]
    found = side_by_side(mine, other)
    assert [row for row in found["rows"] if row[2]] == [
        [None, "v1 = Sample()", True],
        ["Unroll(l2)", "Vectorize(l3)", True],
    ]
