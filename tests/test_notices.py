from __future__ import annotations

import io

from rich.console import Console

from agents.records import DeviceId
from fleet.daemon.notices import SUMMARY_SECS, Notices, Steadiness
from tests.record_fixtures import make_record

A = DeviceId("dev-a")
SUSPECT = '{"suspect":true}'


def test_lines_of_one_kind_do_not_flood_and_are_counted() -> None:
    now = 1_800_000_000.0
    text = io.StringIO()
    notices = Notices(Console(file=text, width=200), clock=lambda: now)
    for number in range(50):
        notices.alarm("dev-a", f"alarm [{number}]")
    notices.say("something else")
    lines = text.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[0].endswith("dev-a: alarm [0]")
    assert len(notices.alarms) == 50
    assert notices.alarms[-1] == {"at": now, "device_id": "dev-a", "text": "alarm [49]"}
    view = {
        "devices": {"dev-a": {"records": 7, "state": "idle"}},
        "jobs": {"leased": 1, "queued": 2, "done": 3},
        "store": {"records": 7},
    }
    notices.summarize(view)
    assert len(text.getvalue().splitlines()) == 9, "it is not time yet"
    now += SUMMARY_SECS
    notices.summarize(view)
    assert "42 more lines like the last alarm" in text.getvalue()
    assert "7 records (+0); devices: 1 idle; jobs: 1 leased, 2 queued, 3 done" in text.getvalue()


def test_a_device_drifts_when_most_of_its_last_records_are_suspect() -> None:
    steadiness = Steadiness()
    assert steadiness.add(A, [make_record(1, quality=SUSPECT)] * 100) == "", "too few to say"
    assert "drifts" in steadiness.add(A, [make_record(1)] * 28)
    assert steadiness.is_drifting(A)
    assert steadiness.add(A, [make_record(1)] * 60) == ""
    assert steadiness.add(A, [make_record(1)] * 30) == "is steady again"
    assert not steadiness.is_drifting(A)
