"""Bring the records table of an older version to the layout of this one.

Only `fleet.store.store` calls it, holding the writer's lock. Readers need no migration:
`fleet.store.delta.schema` reads the data files of every published layout.
"""

from __future__ import annotations

import logging
from pathlib import Path

from deltalake import DeltaTable, Schema

from fleet.store.delta.log import TABLE_OPTIONS, TableSnapshot, commit, delta_errors
from fleet.store.delta.schema import SCHEMA_KEY, STORE_SCHEMA, TABLE_SCHEMA

_LOG = logging.getLogger(__name__)


def migrated(folder: Path, snapshot: TableSnapshot) -> TableSnapshot:
    """Give the table this version's columns: one commit of new metadata, durable like any other.

    No data file changes: all that layout 1 lacks are nullable columns, and rows of files without one have
    null there (Delta protocol, section "Change Metadata"). Older versions of this program refuse the table
    from then on; before the commit it is theirs, whole.

    Returns:
        The version that has this layout: the given one if it has it already.

    Raises:
        OSError: Nothing was published.
        StoreError: Somebody else has published this version, or the table cannot be read.
    """
    if snapshot.layout == STORE_SCHEMA:
        return snapshot
    _commit_metadata(folder, snapshot.version, "ADD COLUMNS")
    _LOG.info("%s: brought from store layout %d to %d", folder, snapshot.layout, STORE_SCHEMA)
    return TableSnapshot(version=snapshot.version + 1, files=snapshot.files, layout=STORE_SCHEMA)


def with_options(folder: Path, snapshot: TableSnapshot) -> TableSnapshot:
    """Give a table that lacks some of this version's options all of them, in one commit of metadata.

    Tables are the same to readers and to older versions; what the options do is upkeep's.

    Raises:
        OSError: Nothing was published.
        StoreError: Somebody else has published this version, or the table cannot be read.
    """
    with delta_errors("reading the metadata", folder):
        found = DeltaTable(folder, version=snapshot.version).metadata().configuration
    if found.items() >= TABLE_OPTIONS.items():
        return snapshot
    _commit_metadata(folder, snapshot.version, "SET TBLPROPERTIES")
    return TableSnapshot(version=snapshot.version + 1, files=snapshot.files, layout=snapshot.layout)


def _commit_metadata(folder: Path, version: int, operation: str) -> None:
    """Publish the version after this one, with the columns and options of today."""
    with delta_errors("reading the metadata", folder):
        before = DeltaTable(folder, version=version).metadata()
        action = {
            "id": str(before.id),
            "name": before.name,
            "description": before.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": Schema.from_arrow(TABLE_SCHEMA).to_json(),
            "partitionColumns": before.partition_columns,
            "createdTime": before.created_time,
            "configuration": {**before.configuration, **TABLE_OPTIONS, SCHEMA_KEY: str(STORE_SCHEMA)},
        }
    commit(folder, version + 1, operation, [{"metaData": action}])
