"""What the store's writer answers: values of `fleet.store.store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What became of the records given to `Store.append`. All of them are durable now."""

    appended: int
    #: Records that the table, or the batch itself, held already.
    duplicates: int
    #: Version of the table that holds all of them.
    table_version: int
    #: Rows that are new, by device.
    rows: Mapping[str, pa.Table] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepResult:
    """What `Store.upkeep` did."""

    merged_files: int
    deleted_files: int
    table_version: int
