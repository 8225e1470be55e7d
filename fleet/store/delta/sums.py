"""SHA-256 sums of data files, in the commits that add them: so that a flipped bit anywhere in one is found.

`fleet.store.delta.files` makes them, `fleet.archive.verify` and `fleet.archive.backup` compare. Files of
versions that knew no sums have none until a merge rewrites them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq

from fleet.errors import StoreError
from fleet.store.delta.changes import StaleError, file_actions
from fleet.store.delta.log import checkpoints, commit_path, delta_errors, version_of

#: Key among the tags of a file in the log, which every reader and checkpoint of a Delta table passes on.
SUM_TAG = "tensorFleet.sha256"


def file_sum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def known_sums(table: Path, version: int) -> dict[str, str]:
    """Sums that the log knows, by path below the table; of files that are gone by this version, too.

    Raises:
        StoreError: A checkpoint or commit cannot be read.
    """
    sums: dict[str, str] = {}
    start = -1
    for checkpoint in checkpoints(table):
        if (start := version_of(checkpoint)) <= version:
            with delta_errors("reading the checkpoint", checkpoint):
                added = pq.read_table(checkpoint, columns=["add"]).column("add")
            for one in filter(None, added.to_pylist()):
                _take(sums, one["path"], dict(one["tags"] or ()))
            break
        start = -1
    for number in range(start + 1, version + 1):
        path = commit_path(table, number)
        try:
            for one in file_actions(path)[0]:
                _take(sums, str(one["path"]), one.get("tags") or {})
        except (StaleError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"the commit {path} cannot be read: {error}; `fleet store verify` says more"
            ) from error
    return sums


def _take(sums: dict[str, str], path: str, tags: dict[str, str]) -> None:
    if found := tags.get(SUM_TAG):
        sums[path] = found
