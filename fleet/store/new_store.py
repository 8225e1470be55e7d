"""A store that is made for one purpose, and is not left behind where nothing came into it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.row_file import read_rows
from agents.spool.disk_spool import FILE as SPOOL_FILE
from fleet.errors import StoreError
from fleet.store.store import Store


@contextmanager
def records_or_nothing(store: Path, *beside: Path) -> Iterator[None]:
    """Take away what a block has made, where at its end no record is in its store.

    A mistyped name, or a request that cannot be done, leaves no empty dataset to be found by everybody. What
    was there before stays.

    Args:
        store: Folder of the store, which the block makes, opens and closes.
        beside: Folders that it makes beside it; with a finished record in a new one, all stays.
    """
    places = (store, *beside)
    was_there = {path for path in places if path.exists()}
    new_folders = [path for path in places if path not in was_there or not any(path.iterdir())]
    above = [path for path in store.parents if not path.exists()]
    try:
        yield
    finally:
        if store in new_folders and not _has_records(store, new_folders):
            for place in new_folders:
                shutil.rmtree(place, ignore_errors=True)
                if place in was_there:
                    place.mkdir()
            with suppress(OSError):  # somebody else may have put something there meanwhile
                for parent in above:
                    parent.rmdir()


def _has_records(store: Path, folders: list[Path]) -> bool:
    if not store.exists():
        return True  # another process may be about to make it
    if any(read_rows(path) for folder in folders for path in folder.glob(f"*/{SPOOL_FILE}")):
        return True
    try:
        with Store.open(store, create=False) as reader:  # which takes in what waits for the table
            return reader.rows > 0
    except StoreError:
        return True
