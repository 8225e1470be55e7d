"""The folder `_delta_log` of the records table: what its commits say, and what a crash has torn there.

`fleet.state.table` decides which of them count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from agents.files import free_name, fsync_all
from agents.records import DeviceId
from fleet.state.rows import TableFile

Action = dict[str, Any]
#: What a commit may say.
_WORDS: Final = frozenset(
    {"commitInfo", "add", "remove", "txn", "metaData", "protocol", "cdc", "domainMetadata"}
)


class TableLog:
    """The log of one table, for the process that writes it and for those that check or copy it.

    Args:
        table: The table's folder.

    Attributes:
        folder: The log's folder.
        notes: Torn files that were set aside, one line each; mostly empty.
    """

    def __init__(self, table: Path) -> None:
        self.folder = table / "_delta_log"
        self.notes: list[str] = []

    def commit_path(self, version: int) -> Path:
        """Where the commit of a version stands."""
        return self.folder / f"{version:020d}.json"

    def checkpoint_path(self, version: int) -> Path:
        """Where a checkpoint of a version would stand."""
        return self.folder / f"{version:020d}.checkpoint.parquet"

    def versions(self) -> list[int]:
        """Versions whose commits are there, oldest first."""
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit())

    def checkpoints(self) -> list[int]:
        """Versions whose checkpoints are there, newest first."""
        names = (path.name.split(".")[0] for path in self.folder.glob("*.checkpoint.parquet"))
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def last(self) -> int:
        """The newest version that anything speaks of; -1 for none."""
        return max([*self.versions(), *self.checkpoints()], default=-1)

    def actions(self, version: int) -> list[Action]:
        """What a commit says.

        Raises:
            OSError: It cannot be read.
            ValueError: It is torn.
        """
        # Texts within may hold what Python takes for the end of a line.
        lines = self.commit_path(version).read_text().split("\n")
        actions = [json.loads(line) for line in lines if line]
        words = {word for action in actions for word in action}
        if "commitInfo" not in words or not words <= _WORDS:
            raise ValueError(f"it says {', '.join(sorted(words))}")
        return actions

    def check_checkpoints(self) -> None:
        """Set torn checkpoints aside, and remove a hint that leads nowhere: the commits say the same."""
        for version in self.checkpoints():
            path = self.checkpoint_path(version)
            try:
                pq.read_table(path)
                break
            except (OSError, pa.ArrowException):
                self._put_aside(path)
        hint = self.folder / "_last_checkpoint"
        if hint.exists() and not self._leads_to_checkpoint(hint):
            hint.unlink()

    def set_aside(self, version: int) -> None:
        """Give a torn version another name."""
        self._put_aside(self.commit_path(version))

    def files_of(self, version: int) -> list[Path]:
        """The files that make a version: the newest checkpoint up to it, and the commits after that."""
        begun = next((number for number in self.checkpoints() if number <= version), -1)
        start = [self.checkpoint_path(begun)] if begun >= 0 else []
        return start + [self.commit_path(number) for number in range(begun + 1, version + 1)]

    def forget_before(self, version: int) -> None:
        """Delete commits and checkpoints that no version from a given one on needs.

        deltalake would go by the dates of the files, and so by the wall clock.
        """
        older = [number for number in self.checkpoints() if number <= version]
        first = next((number for number in older if _is_readable(self.checkpoint_path(number))), 0)
        paths = [*map(self.checkpoint_path, older), *map(self.commit_path, self.versions())]
        for number, path in zip([*older, *self.versions()], paths, strict=True):
            if number < first:
                path.unlink()

    def take_back(self, version: int, actions: Iterable[Action]) -> None:
        """Remove a version that does not count, and the data files that it adds."""
        self.commit_path(version).unlink()
        fsync_all([self.folder])
        for file in added(actions):
            (self.folder.parent / file.path).unlink(missing_ok=True)

    def set_broken_aside(self) -> None:
        """Set aside the commits behind the first one that is torn or missing, and that one."""
        begun = next(iter(self.checkpoints()), -1)
        later = [version for version in self.versions() if version > begun]
        whole = begun
        for version in later:
            try:
                self.actions(version)
            except (OSError, ValueError, AttributeError, TypeError):
                break
            if version != whole + 1:
                break
            whole = version
        # Without its beginning the log says nothing, whatever is taken away.
        for version in reversed(later) if whole >= 0 else ():
            if version > whole:
                self.set_aside(version)

    def _leads_to_checkpoint(self, hint: Path) -> bool:
        try:
            return int(json.loads(hint.read_text())["version"]) in self.checkpoints()
        except (ValueError, LookupError, TypeError):
            return False

    def _put_aside(self, path: Path) -> None:
        aside = free_name(path, ".torn")
        path.rename(aside)
        fsync_all([self.folder])
        self.notes.append(f"{path} was torn: kept as {aside.name}, nothing in it is lost")


def _is_readable(checkpoint: Path) -> bool:
    try:
        pq.read_metadata(checkpoint)
    except (pa.ArrowException, OSError):
        return False
    return True


def added(actions: Iterable[Action]) -> list[TableFile]:
    """The data files that a commit adds, without the sums of their bytes."""
    return [
        TableFile(
            path=action["path"],
            device_id=DeviceId(action["partitionValues"]["device_id"]),
            rows=json.loads(action["stats"])["numRecords"],
            sha256="",
        )
        for action in (action["add"] for action in actions if "add" in action)
    ]


def removed(actions: Iterable[Action]) -> Iterator[str]:
    """Yield the paths of data files that a commit takes out of the table."""
    return (action["remove"]["path"] for action in actions if "remove" in action)
