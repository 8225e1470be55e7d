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
    was_there = {one for one in places if one.exists()}
    made = [one for one in places if one not in was_there or not any(one.iterdir())]
    above = [one for one in store.parents if not one.exists()]
    try:
        yield
    finally:
        if store in made and not _has_records(store, made):
            for place in made:
                shutil.rmtree(place, ignore_errors=True)
                if place in was_there:
                    place.mkdir()
            with suppress(OSError):  # somebody else may have put something there meanwhile
                for parent in above:
                    parent.rmdir()


def _has_records(store: Path, made: list[Path]) -> bool:
    if not store.exists():
        return True  # another process may be about to make it
    if any(read_rows(path) for folder in made for path in folder.glob(f"*/{SPOOL_FILE}")):
        return True
    try:
        with Store.open(store, create=False) as found:  # which takes in what waits for the table
            return found.rows > 0
    except StoreError:
        return True
