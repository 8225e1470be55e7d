"""`state.sqlite`: what a coordinator knows, in one place; a turn of it is one transaction.

The coordinator's process is the one writer. It knows rows and bytes: `fleet.core` says what an event means,
and the table's writer what a waiting row holds. See decision 65 and `docs/store.md`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from agents.files import fsync, make_folder
from agents.sqlite_files import copy_aside, ends_in_log, finish_rebuild, has_lost_turns, log_of
from fleet.errors import StateDamaged
from fleet.histogram import Histogram
from fleet.state.questions import Questions
from fleet.state.schema import Labels, open_reader, open_writer, state_errors
from fleet.state.turn import Turn


class StateFile(Questions):
    """The file, opened for writing.

    Promises: when the block of `turn` has ended, all of it survives a kill and a power cut, and so does what
    `change` was given before it; after a kill in the middle, all of it or nothing is there.

    Args:
        path: The file; made if it is missing, with its folder. The caller holds the lock of its store.

    Raises:
        StateDamaged: It does not hold what was written.
        StoreFull: No room to make it.
        StoreError: It lies on a network, has another layout, or the disk failed.

    Attributes:
        notes: Damage that was found in the log, one line each; mostly empty.
        waits: How long the disk took to make turns durable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.waits = Histogram()
        #: What the open transaction has changed; a disk without room takes it back, and it is made again.
        self._changes: list[Callable[[Turn], object]] = []
        with state_errors("opening the state file", path):
            make_folder(path.parent)
            finish_rebuild(path)
            ends = ends_in_log(path)
        connection = open_writer(path)
        try:
            with state_errors("opening the state file", path):
                if has_lost_turns(connection, ends):
                    _, [copy] = copy_aside(path, [log_of(path)])
                    self.notes.append(
                        f"{path} is damaged in its log: kept as {copy.name}; turns behind the damage are lost"
                    )
                super().__init__(connection, Labels(connection, path), path)
                if fault := next(self.faults(), None):
                    raise StateDamaged(fault)
        except BaseException:
            connection.close()
            raise

    def change(self, make: Callable[[Turn], object]) -> None:
        """Change something in the open transaction, or in a new one, which the next `turn` or `keep` ends.

        Questions that are asked here know of it at once, other processes when it is on the disk. On a disk
        without room it is made again with the next `turn`, which raises as long as that fails.
        """
        self._changes.append(make)
        try:
            if self._connection.in_transaction:
                make(Turn(self._connection, self._labels))
            else:
                self._begin()
        except sqlite3.Error:
            self._roll_back()
        except BaseException:
            self._changes.pop()
            self._roll_back()
            raise

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Change what the block says; with all `change`s before, it is on the disk when the block has ended.

        An error within the block takes it back. The changes before it are made again.

        Raises:
            StoreFull: No room; nothing of it was kept.
            StoreError: The disk failed; nothing of it counts.
        """
        with state_errors("writing the state file", self.path):
            try:
                yield self._begin()
                with self.waits.timed():
                    self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                if self._changes:
                    with suppress(sqlite3.Error):
                        self._begin()
                raise
            self._labels.commit()
            self._changes.clear()

    def keep(self) -> None:
        """Wait until all that was changed is on the disk.

        Raises:
            StoreFull: No room; it comes with a later turn.
            StoreError: The disk failed.
        """
        if self._changes:
            with self.turn():
                pass

    def take_back(self) -> None:
        """Forget all changes that are not on the disk."""
        self._changes.clear()
        self._roll_back()

    def _begin(self) -> Turn:
        """The open transaction; a new one has all changes that are not on the disk."""
        turn = Turn(self._connection, self._labels)
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for make in self._changes:
                    make(turn)
            except BaseException:
                self._roll_back()
                raise
        return turn

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        self._labels.rollback()

    def close(self) -> None:
        """Let another process write. Closing twice does no harm."""
        with suppress(sqlite3.Error):
            self._connection.close()


def back_up(path: Path, target: Path) -> None:
    """Copy a state file as it is at one moment, beside the process that writes it.

    Raises:
        StoreError: It cannot be read, or the copy cannot be written.
    """
    with (
        state_errors("backing up the state file", target),
        closing(open_reader(path)) as source,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        # All pages in one step: a transaction meanwhile would begin the copy anew.
        source.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")
    with state_errors("backing up the state file", target):
        fsync(target)
        fsync(target.parent)
