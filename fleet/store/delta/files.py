"""Sums of data files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agents.regular_files import regular_chunks

#: Bytes of a file at most whose sum is taken: what a pipe or a device gives has no end.
_MOST_SUMMED_BYTES = 1 << 40


def file_sum(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    for chunk in regular_chunks(path, _MOST_SUMMED_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
