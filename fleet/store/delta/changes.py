"""What came into the records table since one of its versions: for caches that hold what it was then.

`fleet.store.delta.index` and `fleet.coverage.table_summary` call it. It follows the commits, for these say
exactly what was added and which files were merged; anything unexpected on the way makes a cache stale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.store.delta.log import TableSnapshot, commit_path


class StaleError(Exception):
    """A cache does not tell what the table holds; the message says why."""


class DamagedError(StaleError):
    """A cache is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the newest version has that an earlier one lacked."""

    #: Of each file that came since: the files whose rows it holds, in the order of the rows. A file that was
    #: appended since is its own source; others are of the earlier version.
    sources: dict[str, tuple[str, ...]]
    #: Rows of each file that was appended since, those that were merged meanwhile included.
    new_rows: dict[str, int]

    @property
    def fresh(self) -> list[str]:
        """Files with new rows, perhaps among older ones."""
        return [path for path, found in self.sources.items() if not self.new_rows.keys().isdisjoint(found)]

    def new_parts(
        self, before: Mapping[str, int], snapshot: TableSnapshot
    ) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Say where the new rows stand in files that hold older ones too.

        Args:
            before: Rows of each file of the earlier version.
            snapshot: The newest version.

        Yields:
            A file of it, and the first row and number of rows of each piece that is new.

        Raises:
            StaleError: The rows do not add up.
        """
        for file in snapshot.files:
            pieces: list[tuple[int, int]] = []
            start = 0
            for source in self.sources.get(file.path, (file.path,)):
                rows = self.new_rows.get(source, before.get(source, -1))
                if rows < 0:
                    raise StaleError(f"nobody knows the rows of {source}")
                if source in self.new_rows:
                    pieces.append((start, rows))
                start += rows
            if start != file.rows:
                raise StaleError(f"{file.path} has {file.rows} rows, those of its sources are {start}")
            if pieces:
                yield file.path, pieces


def commit_hash(path: Path) -> str:
    """Hash of a commit; empty for one that is gone: upkeep deletes old ones."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def changes_of_cache(
    table: Path, version: int, commit: object, rows: int, snapshot: TableSnapshot
) -> Changes:
    """What a cache lacks of the newest version, if it is a cache of this table.

    Args:
        table: Folder of the table.
        version: That the cache was made of.
        commit: Hash of that version's commit, as the cache says it.
        rows: Of that version, likewise.
        snapshot: The newest version.

    Raises:
        StaleError: The version is another one, or the counts do not add up; or as of `changes_since`.
    """
    there = commit_hash(commit_path(table, version))
    if version > snapshot.version or not there or there != commit:
        raise StaleError(f"version {version} of the table is not the one that the cache was made of")
    changes = changes_since(table, version, snapshot.version)
    if rows + sum(changes.new_rows.values()) != snapshot.rows:
        raise StaleError("the counts of the records do not add up")
    return changes


def changes_since(table: Path, version: int, newest: int) -> Changes:
    """Follow the commits after a version.

    Raises:
        StaleError: A commit is gone or damaged, took records out, or was not made by this program.
    """
    sources: dict[str, tuple[str, ...]] = {}
    new_rows: dict[str, int] = {}
    for number in range(version + 1, newest + 1):
        added, removed = file_actions(commit_path(table, number))
        if any(one.get("dataChange", True) for one in removed):
            raise StaleError(f"version {number} of the table took records out")
        # A merge puts the files of a device into one, in the order in which it removes them.
        merged: dict[object, list[str]] = {}
        for one in removed:
            path = str(one["path"])
            merged.setdefault(_device(one), []).extend(sources.pop(path, (path,)))
        for one in added:
            path = str(one["path"])
            if one.get("dataChange", True):
                sources[path], new_rows[path] = (path,), _rows(one)
            elif found := merged.pop(_device(one), None):
                sources[path] = tuple(found)
            else:
                raise StaleError(f"version {number} of the table merged files in an unknown way")
        if merged:
            raise StaleError(f"version {number} of the table merged files in an unknown way")
    return Changes(sources=sources, new_rows=new_rows)


def _device(action: Mapping[str, Any]) -> object:
    return (action.get("partitionValues") or {}).get("device_id")


def file_actions(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What a commit says of added and of removed files.

    Raises:
        StaleError: It is gone or damaged.
    """
    added, removed = [], []
    try:
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                added.append(action["add"])
            elif "remove" in action:
                removed.append(action["remove"])
        return added, removed
    except (OSError, ValueError, TypeError) as error:
        raise StaleError(f"commit {path.name} cannot be followed: {error}") from error


def _rows(add: Mapping[str, Any]) -> int:
    try:
        if add.get("deletionVector"):
            raise StaleError(f"{add['path']} has a deletion vector")
        return int(json.loads(add["stats"])["numRecords"])
    except (KeyError, ValueError, TypeError) as error:
        raise StaleError(f"a commit does not say how many rows {add.get('path')} has") from error
