"""What `Spool` promises, without a disk: for records that can be had again when the process has died."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agents.lease import LeaseTag
from agents.records import Record


class MemorySpool:
    """Records kept until acknowledged, or until the process ends."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[LeaseTag | None, Record]] = {}

    def put(self, records: Sequence[Record], tag: LeaseTag | None = None) -> None:
        """See `Spool.put`."""
        for record in records:
            record_id = record.record_id
            if record_id in self._pending:
                if self._pending[record_id][0] == tag:
                    continue
                del self._pending[record_id]  # its place is now at the end
            self._pending[record_id] = (tag, record)

    def pending_tagged(self) -> Iterator[tuple[LeaseTag | None, Record]]:
        """See `Spool.pending_tagged`."""
        return iter(self._pending.values())

    def acknowledge(self, record_ids: Iterable[str]) -> None:
        """See `Spool.acknowledge`."""
        for record_id in record_ids:
            self._pending.pop(record_id, None)

    def close(self) -> None:
        """Nothing is open."""
