"""Results that came too late: kept for people, never counted.

The lease under which they were made had expired, so the job may have been measured again elsewhere. One JSON
line a record, one file a delivery; nothing reads them but people. `fleet.daemon.coordinator` writes here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agents.lease import LeaseTag
from agents.record_json import record_to_json
from agents.records import DeviceId, Record, content_hash
from agents.spool_frames import make_folder
from fleet.durable import disk_errors, fsync, write_durably


def keep_late(folder: Path, device_id: DeviceId, lease: LeaseTag, records: Sequence[Record]) -> bool:
    """Keep late records of one lease; they are on the disk when this returns.

    Returns:
        Whether they are new here: the same delivery makes the same file again.

    Raises:
        StoreFull: No room; none of them was kept.
        StoreError: The disk failed.
    """
    delivery = content_hash(lease.job_id, *(record.record_id for record in records))[:12]
    path = folder / device_id / f"{lease.epoch:08d}-{delivery}.jsonl"
    lines = [
        json.dumps({"job_id": lease.job_id, "epoch": lease.epoch, "record": record_to_json(record)})
        for record in records
    ]
    with disk_errors("keeping late results", folder):
        if path.exists():
            # A kill may have come between its name and this.
            fsync(path.parent)
            return False
        make_folder(path.parent)
        write_durably(path, ("\n".join(lines) + "\n").encode())
    return True


__all__ = ["keep_late"]
