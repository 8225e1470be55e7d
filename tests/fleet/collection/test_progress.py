"""What a collection without a terminal prints."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from agents.records import CONFIRM, REMEASURE, DeviceId
from fleet.collection.progress import TerminalDisplay
from tests.record_fixtures import make_batch


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
