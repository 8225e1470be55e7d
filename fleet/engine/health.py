"""How the coordinator itself does: how long turns and the disk take, what piles up, how much room is left.

Part of the picture that `fleet.engine.fleet_view` draws; `fleet.api.metrics` shows it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fleet.engine.composition import Composition
from fleet.engine.ingest import Ingest
from fleet.histogram import Histogram


def health_of(parts: Composition, ingest: Ingest, turns: Histogram) -> dict[str, Any]:
    """Look at all of it; some microseconds.

    Args:
        parts: What the coordinator consists of.
        ingest: What of it holds results that are not durable yet.
        turns: How long its turns took, without their wait for messages.

    Returns:
        JSON-ready: `turns` and `disk_waits` (of each log) as `Histogram.view`; `journal_bytes`,
        `intake_bytes`; `unacknowledged` records and `unacknowledged_secs`, the age of the oldest;
        `waiting_secs`, the same of those that wait for the table; `training_secs`, the age of the training
        that runs; `free_bytes` of each folder that can be looked at.
    """
    journal, log = parts.event_log.journal, parts.intake.log
    # The state shows its times by the wall clock as it knows it.
    training, wall = parts.state.training(), parts.clock() + parts.state.wall_ahead_secs
    unacknowledged, unacknowledged_secs = ingest.unacknowledged
    folders = {"store": parts.store.path, "daemon": parts.disk.folder}
    return {
        "turns": turns.view,
        "disk_waits": {"journal": journal.waits.view, "intake": log.waits.view},
        "journal_bytes": journal.size_bytes,
        "intake_bytes": log.held_bytes,
        "unacknowledged": unacknowledged,
        "unacknowledged_secs": unacknowledged_secs,
        "waiting_secs": parts.intake.waiting_secs,
        "training_secs": wall - training["since"] if training["state"] == "running" else 0.0,
        "free_bytes": {
            name: free for name, path in folders.items() if (free := _free_bytes(path)) is not None
        },
    }


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
