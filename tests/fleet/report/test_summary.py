from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fleet.report.report import complete
from fleet.report.summary import print_summary
from tests.report_fixtures import device, full_report


def printed(report: dict[str, Any], width: int = 80, page: Path | None = None) -> str:
    file = io.StringIO()
    print_summary(report, page, Console(file=file, width=width, highlight=False))
    return file.getvalue()


def row(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return line.split()


def test_a_row_has_the_numbers_of_its_device_and_those_of_a_warm_start_are_named() -> None:
    text = printed(full_report())
    assert row(text, "first ") == ["first", "10", "3", "2.50", "0.4", "%", "0.80", "0.50", "0.95", "0.60"]
    assert row(text, "new ")[6:] == ["0.90", "0.40", "0.97", "-"]
    assert "new: scores of the warm start" in " ".join(text.split())


def test_numbers_that_were_not_measured_are_dashes() -> None:
    only = device(records_per_s=None, remeasure_median_change=float("nan"))
    text = printed(complete({"devices": {"only": only}}))
    assert row(text, "only ") == ["only", "10", "3", *"------"]
    assert "No model was trained." in text
    assert "No new device was onboarded." in text
    assert printed(complete({})).startswith("Measured: Nothing was measured.")


@pytest.mark.parametrize("name", ["d", "a-board-with-a-very-long-name", "[red]x[/red]", "\x1b[31m"])
def test_it_fits_80_columns_without_colour_or_cut_numbers(name: str) -> None:
    names = (name, "second", "new")
    big = {one: device(one, records=1_234_570, records_per_s=1234.5) for one in names}
    text = printed(full_report(names, devices=big))
    assert ("[red]x[/red]" in text) == ("red" in name), "markup is shown as it is"
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert text.count("1,234,570") == 3
    assert text.count("1234.50") == 3


def test_it_ends_with_the_three_lines_and_the_page() -> None:
    lines = printed(full_report(), width=400, page=Path("runs/demo/report.html")).splitlines()
    assert [line.split(":")[0] for line in lines[-4:]] == ["Measured", "Learned", "New device", "Report"]
    assert "warm start is better" in lines[-2]
    assert lines[-1] == "Report: runs/demo/report.html"
