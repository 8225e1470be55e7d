"""What a killed or damaged writer has left beside the table: taken up by the next one.

Only `fleet.store.store` calls it, as it opens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from fleet.daemon.intake_log import INTAKE, IntakeLog, by_device
from fleet.store.files import lost_tables
from fleet.store.log import DataFile
from fleet.store.results import AppendResult

_LOG = logging.getLogger(__name__)

#: Rows of the intake that are taken up in one commit, by their bytes in memory.
_TAKEN_UP_BYTES = 128 << 20

#: Of `fleet.store.store.Store`: known rows are left out, the others are durable when it returns.
Append = Callable[[Mapping[str, pa.Table]], AppendResult]


def take_up_intake(root: Path, append: Append, notes: list[str]) -> None:
    """Append what `fleet.daemon.intake` had acknowledged but not handed on when its process ended.

    Args:
        root: Folder of the store.
        append: Keeps rows.
        notes: Gets a line for each damaged segment.

    Raises:
        StoreFull: No room; the log is as before.
        StoreError: Rows of a newer version, or the disk failed.
    """
    log = IntakeLog(root / INTAKE)
    segments = log.segments()
    waiting: list[pa.Table] = []
    for number in segments:
        waiting += log.replay(number, notes)
        if waiting and (number == segments[-1] or sum(one.nbytes for one in waiting) >= _TAKEN_UP_BYTES):
            result = append(by_device(pa.concat_tables(waiting)))
            waiting.clear()
            if result.appended:
                _LOG.info("%s: took up %d records that waited in %s", root, result.appended, INTAKE)
    # Only now: a kill before leaves all of it, and the ids tell what the table has.
    for number in segments:
        log.drop(number)


def take_up_lost_rows(table: Path, files: tuple[DataFile, ...], append: Append) -> str:
    """Append the rows of data files whose commit is damaged; return what to say."""
    taken = 0
    for device_id, rows in lost_tables(table, files):
        taken += append({device_id: rows}).appended
    return f"{taken} records were taken up again from data files that no whole commit names"


__all__ = ["take_up_intake", "take_up_lost_rows"]
