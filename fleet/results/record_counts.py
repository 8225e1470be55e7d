"""How many records the store has of each device: read once as a coordinator starts, then kept up."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import DeviceId, Outcome
from agents.trust import IMPORTED, is_imported
from fleet.state.questions import Questions


@dataclass(slots=True)
class RecordCounts:
    """What the store has of one device."""

    records: int = 0
    ok: int = 0
    #: Unix seconds of the last measurement; 0 for none.
    last_at: float = 0.0
    #: Records of workloads that came with a log.
    imported: int = 0

    def add(self, records: int, ok: int, last_at: float) -> None:
        """Count more records, of our own agents."""
        self.records += records
        self.ok += ok
        self.last_at = max(self.last_at, last_at)

    def add_rows(self, table: pa.Table) -> None:
        """Count rows with the columns outcome, measured_at and workload_id."""
        ok = pc.sum(pc.equal(table.column("outcome"), Outcome.OK.value)).as_py() or 0
        self.add(table.num_rows, ok, pc.max(table.column("measured_at")).as_py() or 0.0)
        self.imported += pc.sum(pc.starts_with(table.column("workload_id"), f"{IMPORTED}-")).as_py() or 0


def record_counts(state: Questions) -> dict[DeviceId, RecordCounts]:
    """The counts of all devices."""
    counts: dict[DeviceId, RecordCounts] = {}
    for device_id, workload_id, records, ok, last_at in state.record_sums():
        of_device = counts.setdefault(device_id, RecordCounts())
        of_device.add(records, ok, last_at)
        if is_imported(workload_id):
            of_device.imported += records
    return counts
