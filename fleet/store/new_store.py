"""A store that is made for one purpose, and is not left behind where nothing came into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fleet.store.store import Store


@contextmanager
def store_or_nothing(path: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a store for writing; one that was made for it and holds no record at the end is taken away again.

    A mistyped name or a log that is none leaves no empty dataset to be found by everybody.

    Args:
        path: Folder of the store.

    Raises:
        StoreError: As of `Store.open`.
    """
    folder = Path(path)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    is_new = not folder.exists() or not any(folder.iterdir())
    has_rows = not is_new
    try:
        with Store.open(folder) as store:
            try:
                yield store
            finally:
                has_rows = has_rows or store.rows > 0
    finally:
        if not has_rows:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # somebody else may have put something there meanwhile
                for parent in missing[1:]:
                    parent.rmdir()
                if not missing:
                    folder.mkdir()
