"""Results that came too late: kept for people, never counted.

The lease under which they were made had expired, so the job may have been measured again elsewhere. One JSON
line a record, one file a delivery; nothing reads them but people, and the oldest files go
(`fleet.results.kept_files`). `fleet.results.record_sink` writes here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agents.codec import record_to_json
from agents.lease import LeaseTag
from agents.records import DeviceId, Record, content_hash
from fleet.results.kept_files import KeptFiles


def keep_late(files: KeptFiles, device_id: DeviceId, lease: LeaseTag, records: Sequence[Record]) -> bool:
    """Keep late records of one lease; they are on the disk when this returns.

    Returns:
        Whether they are new here: the same delivery makes the same file again.

    Raises:
        StoreFull: No room; none of them was kept.
        StoreError: The disk failed.
    """
    delivery = content_hash(lease.job_id, *(record.record_id for record in records))[:12]
    lines = [
        json.dumps({"job_id": lease.job_id, "epoch": lease.fencing_token, "record": record_to_json(record)})
        for record in records
    ]
    path = files.folder / device_id / f"{lease.fencing_token:08d}-{delivery}.jsonl"
    return files.put("keeping late results", path, lines)


__all__ = ["keep_late"]
