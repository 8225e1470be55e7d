"""Spool, journal, pools and dead letters of the version before they were SQLite files are moved over."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agents.row_file import read_rows
from agents.spool.disk_spool import Spool
from fleet.core.events import JobState
from fleet.core.limits import Limits
from fleet.journal.event_log import EventLog
from fleet.planner.candidate_pools import CandidatePools
from fleet.results.dead_letters import DeadLetters

FROZEN = Path(__file__).parents[2] / "fleets" / "files_1"
EXPECTED: dict[str, Any] = json.loads((FROZEN / "expected.json").read_text())
EXPECTED["late"] = len(EXPECTED["late"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FROZEN, tmp_path / "files")


def all_in(folder: Path) -> dict[str, Any]:
    """What this version finds."""
    with Spool(folder / "spool") as spool:
        pending = list(spool.pending_tagged())
    with closing(EventLog(folder / "journal", Limits())) as event_log:
        events = list(event_log.journal.events())
    with closing(CandidatePools(folder / "pools")) as pools:
        candidates = [
            [*key, [[one.dialect, one.origin, one.trace] for one in pools.get(*key, ids).values()]]
            for key, ids in pools.waiting().items()
        ]
    with closing(DeadLetters(folder / "dead_letters.sqlite")) as letters:
        refused = letters.refused
    told = [
        json.loads(line)["record"]
        for row in read_rows(folder / "dead_letters.sqlite")
        if row.key.startswith("late/one/")
        for line in row.body.splitlines()
    ]
    return {
        "spool": [[tag and tag.as_json(), record.record_id] for tag, record in pending],
        "state": {
            "devices": list(event_log.state.device_ids()),
            "leased": event_log.state.job_counts()[JobState.LEASED],
            "submitted": event_log.state.jobs_submitted,
        },
        "jobs": [job.job_id for job in event_log.jobs],
        "events": len(events),
        "pools": candidates,
        "refused": refused,
        "late": len(told),
    }


def test_all_of_it_is_there_and_the_old_files_are_gone(folder: Path) -> None:
    assert all_in(folder) == EXPECTED
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == [
        "dead_letters.sqlite",
        "expected.json",
        "journal/journal.sqlite",
        "pools/pools.sqlite",
        "spool/lock",
        "spool/spool.sqlite",
    ]
    assert all_in(folder) == EXPECTED


def test_a_kill_before_the_old_files_were_deleted_counts_nothing_twice(folder: Path) -> None:
    all_in(folder)
    shutil.copytree(FROZEN, folder, dirs_exist_ok=True)
    assert all_in(folder) == EXPECTED
