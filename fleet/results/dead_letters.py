"""Results that came too late, and records that the store refuses: kept for people, never counted.

`fleet.results.record_sink` keeps them here before it acknowledges. Nothing reads them but people, so the
oldest may go: without a bound a year of them would fill the disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agents.codec import record_to_json
from agents.lease import LeaseTag
from agents.records import DeviceId, Record, content_hash
from fleet.results.refused_records import Refusal, printable
from fleet.state.contents import LATE, REFUSED
from fleet.state.state_file import StateFile

#: Deliveries of either kind, and their bytes. The newest one stays, however long it is.
MOST_ROWS, MOST_BYTES = 10_000, 64 << 20


class DeadLetters:
    """Deliveries that were set aside: the lines of each, a JSON object a record.

    Args:
        file: Keeps them.
        most_rows: Deliveries of either kind that are kept.
        most_bytes: Bytes of either kind that are kept.

    Attributes:
        path: The file.
        refused: How many refused records there are, those of earlier starts included.
        notes: What was deleted, one line each; whoever tells people clears it.
    """

    def __init__(self, file: StateFile, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> None:
        self._file, self.path = file, file.path
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self.refused = file.letter_rows(REFUSED)
        self.notes: list[str] = []

    def keep_late(self, device_id: DeviceId, lease: LeaseTag, records: Sequence[Record]) -> bool:
        """Keep late records of one lease; they are on the disk when this returns.

        The lease had expired, so the job may have been measured again elsewhere.

        Returns:
            Whether they are new here.

        Raises:
            StoreFull: No room; none of them was kept.
            StoreError: The disk failed.
        """
        delivery = content_hash(lease.job_id, *(record.record_id for record in records))[:12]
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token}
        lines = [json.dumps({**about, "record": record_to_json(record)}) for record in records]
        return self._keep(LATE, f"{device_id}/{lease.fencing_token:08d}-{delivery}", lines)

    def keep_refused(self, refusal: Refusal) -> None:
        """Keep refused records with their reasons; they are on the disk when this returns.

        Raises:
            StoreFull: No room; it may be tried again, nothing is counted twice.
            StoreError: The disk failed.
        """
        lease = refusal.arrival.lease
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token} if lease is not None else {}
        lines = [
            json.dumps({**about, "reason": reason, "record": printable(record)})
            for record, reason in zip(refusal.records, refusal.reasons, strict=True)
        ]
        name = content_hash(*(f"{line}\n" for line in lines))[:16]
        self._keep(REFUSED, f"{refusal.arrival.device_id}/{name}", lines)
        self.refused = self._file.letter_rows(REFUSED)

    def _keep(self, kind: str, name: str, lines: Sequence[str]) -> bool:
        with self._file.turn() as turn:
            is_new, gone = turn.keep_letter(
                *(kind, name, len(lines), "".join(f"{line}\n" for line in lines).encode()),
                most_rows=self._most_rows,
                most_bytes=self._most_bytes,
            )
        if gone:
            self.notes.append(
                f"the {gone} oldest deliveries of {kind} results in {self.path} were deleted: at most "
                f"{self._most_rows} and {self._most_bytes / 2**20:g} MiB are kept for people to look at"
            )
        return is_new
