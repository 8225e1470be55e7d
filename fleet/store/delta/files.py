"""Data files and old commits of the records table: sums of files, and commits that nobody needs any more."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agents.regular_files import regular_chunks
from fleet.durable import disk_errors
from fleet.store.delta.log import checkpoints, version_of

#: Bytes of a file at most whose sum is taken: what a pipe or a device gives has no end.
_MOST_SUMMED_BYTES = 1 << 40


def forget_old_commits(folder: Path, version: int) -> None:
    """Delete commits and checkpoints that no version from a given one on needs.

    deltalake would go by the dates of the files, and so by the wall clock.

    Raises:
        StoreError: The disk failed.
    """
    log = folder / "_delta_log"
    with disk_errors("deleting old commits", folder):
        older = [path for path in checkpoints(folder) if version_of(path) <= version]
        first = next((version_of(path) for path in older if _is_readable(path)), 0)
        commits = [path for path in log.glob("*.json") if path.stem.isdigit()]
        for path in (*commits, *older):
            if version_of(path) < first:
                path.unlink()


def _is_readable(checkpoint: Path) -> bool:
    try:
        pq.read_metadata(checkpoint)
    except (pa.ArrowException, OSError):
        return False
    return True


def file_sum(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    for chunk in regular_chunks(path, _MOST_SUMMED_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
