"""What a collection tells of its progress and of the time that it took."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from agents.records import CONFIRM, REMEASURE, DeviceId
from fleet.planner.progress import TerminalDisplay
from fleet.planner.settings import PARTS, Ledger, Spent, print_spending
from tests.record_fixtures import make_batch, make_record

ONE = DeviceId("one")


def test_a_ledger_tells_wall_time_and_work_apart_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("fleet.planner.settings.time.monotonic", lambda: clock.now)
    ledger = Ledger()
    with ledger.proposing([ONE]):
        clock.now += 3
    clock.now += 100  # nobody works for the device
    with ledger.measuring([ONE, DeviceId("unused")]):
        records = [
            # Two processes side by side: one builds while the other times.
            make_record(1, build_secs=2.0, wait_secs=1.0, timing_secs=4.0, measured_at=clock.now + 7),
            make_record(2, build_secs=3.0, wait_secs=4.0, timing_secs=2.0, measured_at=clock.now + 9),
        ]
        clock.now += 10
        ledger.stored(ONE, records)
        clock.now += 60  # another device is still at work
    spent, unused = ledger.spent()
    assert (spent.records, unused.records) == (2, 0)
    assert spent.work == {"propose": 3.0, "build": 5.0, "wait": 5.0, "time": 6.0}
    assert spent.wall_secs == pytest.approx(13.0)
    assert Spent(**json.loads(json.dumps(asdict(spent)))) == spent, "it travels with its request"
    print_spending([spent, unused])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    head, total, per_record, *notes = lines
    assert not any("unused" in line for line in notes)
    assert head.split()[-6:] == ["records", *PARTS, "wall"]
    assert total.split() == ["one", "2", "3.0", "5.0", "5.0", "6.0", "13.0"]
    assert per_record.split()[-5:] == ["1.500", "2.500", "2.500", "3.000", "6.500"]
    print_spending([])
    assert capsys.readouterr().out == ""


def test_more_records_than_planned_do_not_pass_the_total() -> None:
    out = StringIO()
    display = TerminalDisplay(Console(file=out, width=100))
    device = DeviceId("dev-a")
    display.phase("measure", 4)
    display.stored(device, [*make_batch(1, 3), *make_batch(1, 2, origin=CONFIRM)])
    display.stored(device, make_batch(5, 1))
    display.phase("remeasure", 3)
    display.stored(device, make_batch(1, 5, origin=REMEASURE))
    display.stored(device, make_batch(1, 1, origin=REMEASURE))
    display.finish()
    said = [line.split(" in ")[0] for line in out.getvalue().splitlines()]
    assert said == ["Measuring: 4/4", "Measuring a sample again: 3/3"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_phase_is_over_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    seconds = iter(range(0, 100_000, 30))
    monkeypatch.setattr("fleet.planner.progress.time.monotonic", lambda: next(seconds))
    out = StringIO()
    display = TerminalDisplay(Console(file=out, width=120, force_terminal=is_terminal))
    with display.live():
        display.phase("tune", 100_000, 150.0)
        display.step(8, "dev-a")
        display.step(8, "dev-a")
    assert " min left" not in out.getvalue() or is_terminal
    assert " s left" in out.getvalue()
    assert "754" not in out.getvalue()
