"""A disk whose steps are watched or fail: what a kill leaves behind, and what a full disk does."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable, write_deltalake

from agents.records import Record
from agents.row_file import RowFile
from fleet.state import table
from fleet.state.state_file import StateFile
from fleet.store.store import Store


def failing(number: int = errno.ENOSPC) -> Callable[..., NoReturn]:
    """What any step on the disk may be replaced by: it fails with this error of the system."""

    def step(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return step


def filled(folder: Path, *batches: list[Record]) -> Path:
    """A store with a commit a batch, closed."""
    with Store.open(folder) as store:
        for batch in batches:
            store.append(batch)
            store.flush()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def killed(folder: Path, copy: Path) -> Path:
    """What a kill would leave behind now."""
    return Path(shutil.copytree(folder, copy))


class Copies:
    """Copies of a folder before each step on the disk: what a kill at that moment leaves behind.

    Attributes:
        left_behind: Each copy, with what `note` said when it was made.
    """

    def __init__(self, folder: Path, beside: Path, note: Callable[[], int]) -> None:
        self._folder, self._beside, self._note = folder, beside, note
        self._is_copying = False
        self.left_behind: list[tuple[Path, int]] = []

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Copy from now on."""
        for name in ("fsync", "link", "unlink", "rename", "replace", "utime"):
            patch.setattr(os, name, self._watched(getattr(os, name)))
        patch.setattr(RowFile, "change", self._watched(RowFile.change))
        # What SQLite and deltalake do by themselves.
        patch.setattr(StateFile, "turn", self._watched(StateFile.turn))
        patch.setattr(table, "write_deltalake", self._watched(write_deltalake))
        patch.setattr(table, "DeltaTable", _watched_table(self._watched))

    def check(self, acknowledged: list[Record]) -> None:
        """Each copy of a store has what was acknowledged by then, once, and takes the rest."""
        for copy, count in self.left_behind:
            if count:
                seen = Counter(Store.read(copy).records())
                assert set(seen.values()) <= {1}
                assert set(acknowledged[:count]) <= set(seen) <= set(acknowledged)
            with Store.open(copy) as store:
                assert store.repairs == ()
                found = Counter(store.records())
                assert set(found.values()) <= {1}
                assert set(acknowledged[:count]) <= set(found) <= set(acknowledged)
                store.append(acknowledged)
                assert Counter(store.records()) == Counter(acknowledged)
            shutil.rmtree(copy)

    def _watched(self, call: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            # Copying sets times itself, which is no step of the store.
            if not self._is_copying:
                self._is_copying = True
                copy = self._beside / f"copy-{len(self.left_behind)}"
                shutil.copytree(self._folder, copy)
                self.left_behind.append((copy, self._note()))
                self._is_copying = False
            return call(*args, **kwargs)

        return step


def _watched_table(watched: Callable[[Any], Any]) -> type[DeltaTable]:
    """A table of which each step that writes is watched."""

    class Optimizer:
        def __init__(self, real: Any) -> None:
            self.compact = watched(real.compact)

    class Watched(DeltaTable):  # type: ignore[misc]
        @classmethod
        def create(cls, *args: Any, **kwargs: Any) -> DeltaTable:
            return watched(DeltaTable.create)(*args, **kwargs)

        @property
        def optimize(self) -> Optimizer:
            return Optimizer(super().optimize)

        def create_checkpoint(self) -> None:
            watched(super().create_checkpoint)()

    return Watched
