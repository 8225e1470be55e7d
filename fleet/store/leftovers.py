"""What a killed or damaged writer has left beside the table: taken up by the next one.

Only `fleet.store.store` calls it, as it opens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from agents.records import content_hash
from fleet.durable import fsync, write_durably
from fleet.errors import StoreError, StoreFull
from fleet.state.packed_rows import pack
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.files import lost_tables
from fleet.store.delta.log import TORN, DataFile, commit_path
from fleet.store.intake_log import INTAKE, IntakeLog, by_device
from fleet.store.writer import AppendResult

_LOG = logging.getLogger(__name__)

#: Rows of the intake that are taken up in one commit, by their bytes in memory.
_TAKEN_UP_BYTES = 128 << 20

#: Added to the name of a damaged commit once the rows of its data files are in the table again.
_TAKEN_UP = ".taken"

#: Of `fleet.store.store.Store`: known rows are left out, the others are durable when it returns.
Append = Callable[[Mapping[str, pa.Table]], AppendResult]


def take_up_intake(root: Path, append: Append, notes: list[str]) -> None:
    """Append what `fleet.store.intake` had acknowledged but not handed on when its process ended.

    `notes` gets a line for damage, and one for rows that cannot be stored.

    Raises:
        StoreFull: No room; the log is as before.
        StoreError: Rows of another version, or the disk failed.
    """
    log = IntakeLog(root / INTAKE)
    waiting: list[pa.Table] = []
    with closing(log):
        for table in log.replay(notes):
            waiting.append(table)
            if sum(one.nbytes for one in waiting) >= _TAKEN_UP_BYTES:
                _taken(root, waiting, append, notes)
        _taken(root, waiting, append, notes)
    # Deleted last: after an earlier kill everything is still here, and the ids tell which rows the table has.
    log.clear()


def _taken(root: Path, waiting: list[pa.Table], append: Append, notes: list[str]) -> None:
    """Append rows; those that no table can have are kept for people, for they would stop every start."""
    if not waiting:
        return
    rows = pa.concat_tables(waiting)
    waiting.clear()
    try:
        result = append(by_device(rows))
    except StoreFull:
        raise
    except StoreError:
        refused = _refused(rows)
        if not refused:
            raise
        reasons = sorted(set(refused.values()))
        kept = pack(rows.take(sorted(refused)))
        path = root / INTAKE / f"refused-{content_hash(kept.hex())[:16]}.arrow"
        write_durably(path, kept)
        notes.append(
            f"{len(refused)} rows that were taken in cannot be stored ({reasons[0]}): kept as {path}"
        )
        result = append(by_device(rows.take([one for one in range(rows.num_rows) if one not in refused])))
    if result.appended:
        _LOG.info("%s: took up %d records that waited in %s", root, result.appended, INTAKE)


def _refused(rows: pa.Table) -> dict[int, str]:
    """Find rows that no table can have, by halves; what is wrong with each by its place."""
    found: dict[int, str] = {}
    waiting = [(0, rows.num_rows)]
    while waiting:
        start, count = waiting.pop()
        part = rows.slice(start, count)
        try:
            for name in part.column("device_id").unique().to_pylist():
                check_name("device", name)
            check_columns(part.drop_columns(["device_id"]))
        except StoreError as error:
            if count == 1:
                found[start] = str(error)
            else:
                waiting += [(start, count // 2), (start + count // 2, count - count // 2)]
    return found


def take_up_lost_rows(table: Path, files: tuple[DataFile, ...], append: Append, notes: list[str]) -> None:
    """Append the rows of data files whose commit is damaged, once for each that was set aside.

    That may have been an earlier start, which was killed or had no room before it was done with this. `notes`
    gets a line if there was such a commit.

    Raises:
        StoreFull: No room; the next start does it again.
        StoreError: The disk failed; likewise.
    """
    log = commit_path(table, 0).parent
    damaged = sorted(log.glob(f"*.json.*{TORN}"))
    if not damaged:
        return
    taken = 0
    for device_id, rows in lost_tables(table, files):
        taken += append({device_id: rows}).appended
    # Renamed last: after an earlier kill the next start does it again, and the ids tell what is there.
    kept = [path.rename(path.with_name(path.name + _TAKEN_UP)) for path in damaged]
    fsync(log)
    names = ", ".join(path.name for path in kept)
    notes.append(
        f"{taken} records were taken up again from data files that no whole commit names; kept as {names}"
    )
