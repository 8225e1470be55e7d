"""`benchmarks.freshness`: an hour of a small machine, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import freshness
from tests.onboarding_fixtures import NEW, SOURCES, fill


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


def test_something_must_answer_for_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="give --dataset FOLDER, or --up PROFILE"):
        freshness.main(["--json"])
