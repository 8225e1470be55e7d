from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import FleetError
from fleet.report import html as report_html
from fleet.report.report import PairedWorkload, Report, ReportedNumber, Similarity, WallTime, to_json, write
from fleet.report.words import (
    MIN_PAIRS,
    NOT_MEASURED,
    WarmStartVerdict,
    beats_random,
    duration,
    headline,
    label,
    labels,
    latency,
    percent,
    signed,
    three_digits,
    verdict,
    verdict_text,
)
from tests.report_fixtures import WORKLOADS, device, full_report, head, onboarding

BETTER = ReportedNumber(value=0.1, low=0.01, high=0.2)
WORSE = ReportedNumber(value=-0.1, low=-0.2, high=-0.01)
UNCLEAR = ReportedNumber(value=0.1, low=-0.01, high=0.2)


def test_json_has_the_contract_of_version_1() -> None:
    got = to_json(full_report())
    assert got["version"] == 1
    assert set(got["devices"]) == {"first", "second", "new"}
    first = got["devices"]["first"]
    assert {k: first[k] for k in ("records", "ok", "failed", "records_per_s", "remeasure_median_change")} == {
        "records": 10,
        "ok": 7,
        "failed": 3,
        "records_per_s": 2.5,
        "remeasure_median_change": 0.004,
    }
    assert got["model"]["version"] == "v1-abc"
    assert got["model"]["heads"] == ["first", "second"]
    assert got["model"]["top1"] == {"first": 0.8, "second": 0.8}
    assert got["model"]["top5"] == {"first": 0.95, "second": 0.95}
    contract = {
        "device": "new",
        "samples": 64,
        "strategy": "finetune",
        "seconds": 25.0,
        "top1": 0.9,
        "top5": 0.97,
        "scratch_top1": 0.7,
        "scratch_top5": 0.85,
        "full_top1": 0.93,
    }
    assert {key: got["onboarding"][key] for key in contract} == contract


def test_json_carries_intervals_verdict_and_failures_beside_the_contract() -> None:
    got = to_json(full_report())
    assert got["onboarding"]["top1_interval"] == [0.85, 0.95]
    assert got["onboarding"]["full_top5_interval"] is None
    assert got["onboarding"]["difference_interval"] == [0.08, 0.3]
    assert got["onboarding"]["verdict"] == "better"
    assert got["devices"]["first"]["failures"]["build_failed"]["count"] == 2
    assert got["devices"]["first"]["slowest_over_fastest_median"] == pytest.approx(9)
    assert got["similarity"]["kendall_tau"]["first"]["second"] == 0.7
    assert got["timing"]["wall_seconds"] == 200.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null_and_not_measured(bad: float, tmp_path: Path) -> None:
    broken = ReportedNumber(value=bad, low=bad, high=bad)
    report = full_report(
        devices=(device("first", records_per_s=bad, remeasure_median_change=bad),),
        onboarding=onboarding(
            top1=broken,
            difference=broken,
            random_top1=bad,
            pairs=(PairedWorkload(workload="a", warm_top1=bad, scratch_top1=0.5),),
        ),
        timing=WallTime(parts=(("build", bad),), wall_secs=bad),
        similarity=Similarity(device_ids=("a", "b"), tau=((1.0, bad), (bad, 1.0))),
    )
    json_path, html_path = write(report, tmp_path)
    got = json.loads(json_path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert got["devices"]["first"]["records_per_s"] is None
    assert got["onboarding"]["top1"] is None
    assert got["onboarding"]["top1_interval"] is None
    assert got["onboarding"]["verdict"] == "not_measured"
    assert got["similarity"]["kendall_tau"]["a"]["b"] is None
    page = html_path.read_text()
    assert NOT_MEASURED in page
    assert ">nan<" not in page
    assert ">inf<" not in page


def test_an_empty_report_is_written_with_nulls(tmp_path: Path) -> None:
    json_path, html_path = write(Report(devices=()), tmp_path / "deep" / "demo")
    got = json.loads(json_path.read_text())
    assert got["devices"] == {}
    assert got["model"] is None
    assert got["onboarding"] is None
    assert "No devices measured" in html_path.read_text()


def test_writing_again_replaces_both_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(Report(devices=()), tmp_path)
    write(full_report(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["command"] == "fleet demo --seed 7"


def test_a_page_that_cannot_be_made_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(full_report(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(report: Report) -> str:
        raise ValueError("no page")

    monkeypatch.setattr(report_html, "render", fail)
    with pytest.raises(ValueError, match="no page"):
        write(full_report(command="other"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_the_old_files_and_no_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(full_report(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FleetError, match="No space left on device"):
        write(full_report(command="other"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_is_a_file_is_refused_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(FleetError, match="cannot write the report to"):
        write(full_report(), tmp_path / "demo")


def test_a_device_that_appears_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="more of first"):
        Report(devices=(device("first"), device("second"), device("first")))


def test_a_similarity_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 rows of 2"):
        Similarity(device_ids=("a", "b"), tau=((1.0,), (1.0,)))


@pytest.mark.parametrize(
    ("difference", "pairs", "expected"),
    [
        (BETTER, 12, WarmStartVerdict.BETTER),
        (WORSE, 12, WarmStartVerdict.WORSE),
        (UNCLEAR, 12, WarmStartVerdict.UNCLEAR),
        (ReportedNumber(value=0.1, low=0.0, high=0.2), 12, WarmStartVerdict.UNCLEAR),
        (BETTER, MIN_PAIRS, WarmStartVerdict.BETTER),
        (BETTER, MIN_PAIRS - 1, WarmStartVerdict.UNCLEAR),
        (WORSE, 0, WarmStartVerdict.UNCLEAR),
        (ReportedNumber(value=0.5), 12, WarmStartVerdict.UNCLEAR),
        (ReportedNumber(), 12, WarmStartVerdict.NOT_MEASURED),
        (ReportedNumber(value=math.nan, low=0.1, high=0.2), 12, WarmStartVerdict.NOT_MEASURED),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_and_enough_workloads(
    difference: ReportedNumber, pairs: int, expected: WarmStartVerdict
) -> None:
    assert verdict(difference, pairs) is expected


finite = st.floats(-1, 1)


@given(finite, finite, finite, st.integers(0, 30))
def test_swapping_warm_and_scratch_swaps_the_verdict(a: float, b: float, c: float, pairs: int) -> None:
    low, value, high = sorted((a, b, c))
    swapped = {
        WarmStartVerdict.BETTER: WarmStartVerdict.WORSE,
        WarmStartVerdict.WORSE: WarmStartVerdict.BETTER,
    }
    found = verdict(ReportedNumber(value=value, low=low, high=high), pairs)
    mirrored = verdict(ReportedNumber(value=-value, low=-high, high=-low), pairs)
    assert mirrored is swapped.get(found, found)


def test_each_verdict_is_said_plainly() -> None:
    assert verdict_text(onboarding()) == (
        "The warm start is better than training from scratch: top-1 +0.190 with 64 samples "
        "(90 % interval +0.080 to +0.300). It is ahead on 5 of 6 held-out workloads."
    )
    assert verdict_text(onboarding(difference=WORSE)).startswith("The warm start is worse than")
    assert "cannot tell which is better" in verdict_text(onboarding(difference=UNCLEAR))
    assert "too few to call a winner" in verdict_text(onboarding(pairs=onboarding().pairs[:4]))
    assert "Without an interval" in verdict_text(onboarding(difference=ReportedNumber(value=0.3)))
    assert "was not compared" in verdict_text(onboarding(difference=ReportedNumber()))


def test_pairs_without_a_number_do_not_count_towards_a_claim() -> None:
    unknown = tuple(PairedWorkload(workload=f"w{i}", warm_top1=math.nan, scratch_top1=0.1) for i in range(9))
    assert "too few" in verdict_text(onboarding(pairs=unknown))


def test_the_headline_counts_only_heads_whose_interval_lies_above_random() -> None:
    report = full_report()
    assert report.model is not None
    lucky = head("second", random_top1=0.75)
    assert "better than random choice on 2 of 2 devices" in headline(report)[1]
    assert beats_random(lucky.top1, lucky.random_top1) is False
    assert beats_random(lucky.top1, None) is None


def test_the_headline_claims_nothing_from_few_held_out_workloads() -> None:
    learned = headline(full_report(held_out=WORKLOADS[:3]))[1]
    assert "3 held-out workloads cannot show that this is more than luck" in learned
    assert "clearly" not in learned


def test_the_headline_says_when_the_warm_start_is_no_better_than_random() -> None:
    said = headline(full_report(onboarding=onboarding(random_top1=0.88)))[2]
    assert said.endswith("The warm start is not clearly better than random choice.")


def test_the_headline_says_what_is_missing() -> None:
    assert headline(full_report(model=None, onboarding=None))[1:] == (
        "No model was trained.",
        "No new device was onboarded.",
    )
    assert headline(Report(devices=()))[0] == "Nothing was measured."


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (1.5, "1.50 s"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (0.0123, "12.3 ms"),
        (94.4e-6, "94.4 µs"),
        (3e-9, "3.00 ns"),
        (None, NOT_MEASURED),
        (math.inf, NOT_MEASURED),
    ],
)
def test_latencies_have_three_digits_and_a_fitting_unit(secs: float | None, text: str) -> None:
    assert latency(secs) == text


@given(st.floats(1e-9, 1e5))
def test_a_latency_reads_back_within_half_a_percent(secs: float) -> None:
    number, unit = latency(secs).split()
    size = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(secs, rel=0.0051)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (duration, 0.25, "250 ms"),
        (duration, 99.94, "99.9 s"),
        (duration, 431.4, "7 min 11 s"),
        (duration, 7260, "2 h 01 min"),
        (percent, 0.0031, "0.3 %"),
        (percent, 0.859, "86 %"),
        (signed, -0.0001, "+0.000"),
        (signed, -0.25, "-0.250"),
        (three_digits, 9.996, "10.0"),
        (three_digits, 1234, "1,234"),
    ],
)
def test_numbers_are_said_as_people_say_them(show: Any, value: float, text: str) -> None:
    assert show(value) == text


@given(st.text(), st.integers(2, 40))
def test_a_label_is_printable_and_short(text: str, limit: int) -> None:
    got = label(text, limit)
    assert got.isprintable()
    assert len(got) <= limit


def test_cut_names_stay_apart() -> None:
    assert labels(["board-alpha-1", "board-alpha-2", "x"], 8) == ["boar…a-1", "boar…a-2", "x"]
    assert labels(["board-1-alpha", "board-2-alpha", "x"], 8) == ["boar…pha", "boar…pha #2", "x"]
