"""`benchmarks.freshness`: an hour of a small machine, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import freshness
from fleet.errors import FleetError
from tests.onboarding_fixtures import NEW, SOURCES, fill
from tests.refresh_fixtures import DEVICES, make_store, some_workloads


def test_the_shipped_head_serves_until_another_is_judged_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path / "store", *SOURCES, NEW)
    monkeypatch.setattr(freshness, "opened_store", lambda *_: ([], store))
    options = freshness.Options(
        dataset=(tmp_path,), target=NEW, group="group-1", minutes=(0, 60), keep=tmp_path / "kept", epochs=1
    )
    hour = freshness.measure(options)
    start, end = hour["by_minute"]["0"], hour["by_minute"]["60"]
    assert (start["records"], start["minus_shipped"]) == (0, [0.0, 0.0, 0.0])
    assert end["records"] > 0
    assert "more measured workloads to be judged" in end["lacks"]
    assert end["top1"] == end["top1_shipped"] == start["top1"]
    assert hour["worst_minus_shipped"] == hour["gain_60min"] == [0.0, 0.0, 0.0]
    # A second run trains no shipped model.
    [box] = (tmp_path / "kept").glob("shipped-*")
    made = (box / "manifest.json").stat().st_mtime_ns
    assert freshness.measure(options)["by_minute"]["0"] == start
    assert (box / "manifest.json").stat().st_mtime_ns == made


def test_a_measured_hour_is_refreshed_anew(tmp_path: Path) -> None:
    store, [box, _] = tmp_path / "store", DEVICES
    make_store(store, some_workloads(14, 8))
    hour = freshness.measure(
        freshness.Options(again=store, target=box, minutes=(0, 600), keep=tmp_path / "again", epochs=1)
    )
    assert (hour["target"], hour["judged_workloads"], hour["by_minute"]["0"]["records"]) == (box, 8, 0)
    assert hour["by_minute"]["600"]["records"] == hour["records"] == 22 * 12
    assert (tmp_path / "again/models").is_dir()
    with pytest.raises(FleetError, match="has no held-out workload that judges"):
        freshness.measure(freshness.Options(again=fill(tmp_path / "few", NEW), target=NEW))
    with pytest.raises(FleetError, match="has no records of ghost; it has: "):
        freshness.measure(freshness.Options(again=store, target="ghost"))


def test_something_must_answer_for_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="give --dataset FOLDER, or --up PROFILE"):
        freshness.main(["--json"])
