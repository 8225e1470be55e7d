"""`state.sqlite`: what a coordinator knows, in one place; a turn of it is one transaction.

The coordinator's process is the one writer. It knows rows and bytes: `fleet.core` says what an event means,
and the table's writer what a waiting row holds. See decision 65 and `docs/store.md`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from agents.files import fsync, make_folder
from agents.sqlite_files import copy_aside, ends_in_log, finish_rebuild, has_lost_turns, log_of
from fleet.errors import StateDamaged
from fleet.histogram import Histogram
from fleet.state.keys import Labels
from fleet.state.questions import Questions
from fleet.state.schema import open_reader, open_writer, state_errors
from fleet.state.turn import Turn


class StateFile(Questions):
    """The file, opened for writing.

    Promises: when the block of `turn` has ended, all of it survives a kill and a power cut; after a kill in
    the middle, all of it or nothing is there.

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

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Change what the block says, in one transaction; it is on the disk when the block has ended.

        An error within the block takes all of it back.

        Raises:
            StoreFull: No room; nothing of it was kept.
            StoreError: The disk failed; nothing of it counts.
        """
        connection = self._connection
        with state_errors("writing the state file", self.path):
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield Turn(connection, self._labels)
                with self.waits.timed():
                    connection.execute("COMMIT")
                self._labels.commit()
            finally:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
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
