"""Who watches a fleet of two hosts from outside: its store's table, and the agents' spools on the disk.

For `benchmarks.hosts`. It reads files only, and asks nothing of the fleet. What it has seen must be there
ever after (`benchmarks.chaos_history.check`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from agents.row_file import read_rows
from agents.spool.disk_spool import FILE
from benchmarks.chaos_history import Event, HistoryLog
from benchmarks.chaos_watch import late_records
from fleet.errors import FleetError
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.store import Store

#: Between two looks: a look reads ids of the whole table.
_LOOK_SECS = 0.5


class Witness:
    """Looks every half second.

    Args:
        log: Where to write what is seen.
        disk: Folder of the fleet, with its store.
        spools: Folder of the spool of each device.

    Attributes:
        stored: Records seen in the table, by device.
        spooled: Records seen in the spools, by device.
        twice: Records seen more than once in the table.
        last_stored_at: When a record of a device was first seen in the table, monotonic, by device.
    """

    def __init__(self, log: HistoryLog, disk: Path, spools: Mapping[str, Path]) -> None:
        self._log, self._store, self._spools = log, disk / "store", spools
        self._next = 0.0
        self.stored: dict[str, set[str]] = {}
        self.spooled: dict[str, set[str]] = {name: set() for name in spools}
        self.twice: set[str] = set()
        self.last_stored_at: dict[str, float] = {}

    def look(self, *, at_once: bool = False) -> None:
        """Look, if it is time or must be at once."""
        if time.monotonic() < self._next and not at_once:
            return
        for name, folder in self._spools.items():
            self._look_at_spool(name, folder)
        self._look_at_table()
        self._next = time.monotonic() + _LOOK_SECS

    def known(self, device_id: str) -> set[str]:
        """Records of a device that were seen anywhere."""
        return self.spooled[device_id] | self.stored.get(device_id, set())

    def count(self, device_id: str) -> int:
        """Records of a device that were seen in the table."""
        return len(self.stored.get(device_id, ()))

    def late(self) -> set[str]:
        """Results that came after their lease, which the coordinator keeps in its state file."""
        with StateReader(self._store / STATE) as reader:
            return late_records(reader)

    def _look_at_table(self) -> None:
        found: dict[str, Counter[str]] = {}
        try:
            for device_id, batch in Store.read(self._store).columns(["record_id"]):
                found.setdefault(device_id, Counter()).update(batch.column(0).to_pylist())
        except FleetError:
            return  # it is not there yet, or changes just now
        for name, counts in found.items():
            known = self.stored.setdefault(name, set())
            if fresh := tuple(sorted(counts.keys() - known)):
                known.update(fresh)
                self.last_stored_at[name] = time.monotonic()
                self._log.add(Event(kind="measured", records=fresh))
                self._log.add(Event(kind="seen", places={"store": fresh}))
            self.twice.update(one for one, times in counts.items() if times > 1)

    def _look_at_spool(self, name: str, folder: Path) -> None:
        """Note what an agent has promised to keep: the rows of its spool."""
        fresh = [row.key for row in read_rows(folder / FILE)]
        if names := tuple(one for one in fresh if one not in self.spooled[name]):
            self.spooled[name].update(names)
            self._log.add(Event(kind="measured", records=names))
            self._log.add(Event(kind="acknowledged", by="spool", records=names))
