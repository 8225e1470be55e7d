from __future__ import annotations

import errno
import io
from typing import Any

from rich.console import Console

from agents.records import DeviceId
from fleet.engine.notices import SUMMARY_SECS, Notices

A = DeviceId("dev-a")
SUSPECT = '{"suspect":true}'


def test_lines_of_one_kind_do_not_flood_and_are_counted() -> None:
    now = 1_800_000_000.0
    text = io.StringIO()
    notices = Notices(Console(file=text, width=200), clock=lambda: now, wall=lambda: now)
    for number in range(50):
        notices.alarm("dev-a", f"alarm [{number}]")
    notices.log("something else")
    lines = text.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[0].endswith("dev-a: alarm [0]")
    assert len(notices.alarms) == 50
    assert notices.alarms[-1] == {"at": now, "device_id": "dev-a", "text": "alarm [49]", "kind": "note"}
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


class Disk(io.RawIOBase):
    """A file on a disk that may be full."""

    def __init__(self) -> None:
        self.is_full = False
        self.kept = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.kept += bytes(data)
        return len(data)


def test_a_full_disk_under_the_output_ends_nothing_and_repeats_nothing() -> None:
    disk = Disk()
    output = io.TextIOWrapper(io.BufferedWriter(disk, buffer_size=64))
    notices = Notices(Console(file=output, width=200))
    notices.log("before")
    disk.is_full = True
    for number in range(8):
        notices.alarm("", f"alarm {number}")
    assert [one["text"] for one in notices.alarms] == [f"alarm {number}" for number in range(8)]
    disk.is_full = False
    notices.log("after")
    notices.log("later")
    words = [line.split(" ", 1)[1] for line in disk.kept.decode().splitlines()]
    assert words[0] == "before"
    assert words[-2:] == ["after", "later"]
    assert len(words) == len(set(words)), "a line was written twice"
