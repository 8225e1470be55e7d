"""Results that came too late, and records that the store refuses: kept for people, never counted.

`fleet.results.record_sink` writes here before it acknowledges. Nothing reads them but people, so the oldest
may go: without a bound a year of them would fill the disk and slow every start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agents.codec import record_to_json
from agents.lease import LeaseTag
from agents.records import DeviceId, Record, content_hash
from agents.row_file import RowFile
from fleet.durable import disk_errors
from fleet.results.refused_records import Refusal, shown

#: Deliveries of either kind, and their bytes. The newest one stays, however long it is.
MOST_ROWS, MOST_BYTES = 10_000, 64 << 20
#: Share of either limit that stays when the oldest go: not one more line in the log for each new delivery.
_LEFT = 0.9
_LATE, _REFUSED = "late", "refused"


class DeadLetters:
    """A file of deliveries: a row has the lines of one, a JSON object a record.

    The key of a row is `late` or `refused`, the device, and a name that the same delivery always has.

    Args:
        path: The file; made if missing. Folders `late` and `refused` beside it are of earlier versions: what
            they hold is moved over.
        most_rows: Deliveries of either kind that are kept.
        most_bytes: Bytes of either kind that are kept.

    Raises:
        StoreFull: No room.
        StoreError: The disk failed.

    Attributes:
        path: The file.
        notes: Damage, and what was deleted, one line each; whoever tells people clears it.
    """

    def __init__(self, path: Path, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._most_rows, self._most_bytes = most_rows, most_bytes
        #: By key: number of the row, its bytes and its lines; oldest first.
        self._known: dict[str, tuple[int, int, int]] = {}
        with disk_errors("opening the results that were set aside", path.parent):
            self._rows = RowFile(path)
            self.notes = self._rows.notes
            for row in self._rows.rows():
                self._known[row.key] = (row.number, len(row.body), row.body.count(b"\n"))
            self._take_over()

    @property
    def refused(self) -> int:
        """How many refused records there are, those of earlier starts included."""
        return sum(lines for key, (_, _, lines) in self._known.items() if key.startswith(_REFUSED))

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
        about = {"job_id": lease.job_id, "epoch": lease.fencing_token}
        lines = [json.dumps({**about, "record": record_to_json(record)}) for record in records]
        with disk_errors("keeping late results", self.path.parent):
            return self._keep(f"{_LATE}/{device_id}/{lease.fencing_token:08d}-{delivery}", lines)

    def keep_refused(self, refusal: Refusal) -> None:
        """Keep refused records with their reasons; they are on the disk when this returns.

        Raises:
            StoreFull: No room; it may be tried again, nothing is counted twice.
            StoreError: The disk failed.
        """
        lease = refusal.arrival.lease
        about = {"job_id": lease.job_id, "epoch": lease.fencing_token} if lease is not None else {}
        lines = [
            json.dumps({**about, "reason": reason, "record": shown(record)})
            for record, reason in zip(refusal.records, refusal.reasons, strict=True)
        ]
        name = content_hash(*(f"{line}\n" for line in lines))[:16]
        with disk_errors("setting refused records aside", self.path.parent):
            self._keep(f"{_REFUSED}/{refusal.arrival.device_id}/{name}", lines)

    def close(self) -> None:
        """Let another one open the file."""
        self._rows.close()

    def _keep(self, key: str, lines: Sequence[str]) -> bool:
        if key in self._known:
            return False
        self._add({key: "".join(f"{line}\n" for line in lines).encode()})
        return True

    def _add(self, bodies: dict[str, bytes]) -> None:
        """Add rows, and delete the oldest of a kind that has too many with them."""
        sizes = {key: (size, lines) for key, (_, size, lines) in self._known.items()}
        sizes |= {key: (len(body), body.count(b"\n")) for key, body in bodies.items()}
        gone: list[str] = []
        notes: list[str] = []
        for kind in (_LATE, _REFUSED):
            ours = [key for key in sizes if key.startswith(kind)]
            rows, size = len(ours), sum(sizes[key][0] for key in ours)
            if rows <= self._most_rows and size <= self._most_bytes:
                continue
            oldest = 0
            while oldest < len(ours) - 1 and (
                rows - oldest > _LEFT * self._most_rows or size > _LEFT * self._most_bytes
            ):
                size -= sizes[ours[oldest]][0]
                oldest += 1
            gone += ours[:oldest]
            notes.append(
                f"the {oldest} oldest deliveries of {kind} results in {self.path} were deleted: at most "
                f"{self._most_rows} and {self._most_bytes / 2**20:g} MiB are kept for people to look at"
            )
        if not bodies and not gone:
            return
        added = [(key, body) for key, body in bodies.items() if key not in gone]
        removed = [self._known[key][0] for key in gone if key in self._known]
        numbers = self._rows.change(added, removed)
        for number, (key, _) in zip(numbers, added, strict=True):
            self._known[key] = (number, *sizes[key])
        for key in gone:
            self._known.pop(key, None)
        self.notes += notes

    def _take_over(self) -> None:
        """Move files of earlier versions over: `KIND/DEVICE/NAME.jsonl`, one a delivery."""
        folders = [self.path.with_name(kind) for kind in (_LATE, _REFUSED)]
        files = [path for folder in folders for path in folder.glob("*/*.jsonl")]
        files.sort(key=lambda path: (path.stat().st_mtime_ns, path))
        bodies = {f"{path.parts[-3]}/{path.parts[-2]}/{path.stem}": path.read_bytes() for path in files}
        # Also without any: what grew beyond a smaller bound is bounded at the start.
        self._add({key: body for key, body in bodies.items() if key not in self._known})
        for path in files:
            path.unlink()
        for emptied in (one for folder in folders for one in (*folder.glob("*"), folder)):
            with suppress(OSError):
                emptied.rmdir()
