"""The curve of a device's onboardings."""

from __future__ import annotations

from pathlib import Path

from fleet.models.freshness import history, remember


def test_a_line_that_a_kill_cut_short_takes_no_other_along(tmp_path: Path) -> None:
    remember(tmp_path, "board", {"samples": 64, "top1": 0.8})
    with (tmp_path / "board.jsonl").open("a") as file:
        file.write('{"samples": 12')
    assert history(tmp_path, "board") == [{"samples": 64, "top1": 0.8}]
    remember(tmp_path, "board", {"samples": 32, "top1": 0.7})
    remember(tmp_path, "board", {"samples": 64, "top1": 0.9})
    assert [(one["samples"], one["top1"]) for one in history(tmp_path, "board")] == [(32, 0.7), (64, 0.9)]
    assert history(tmp_path, "other") == []
