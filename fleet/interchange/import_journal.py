"""Which files were read to their end before: an import that is run again does not read them again.

Called by `fleet.interchange.import_logs`. One JSON line a file, in the store's folder `imports/`, written
after the file's last row is durable. It is only a shortcut: without it the same lines are found to be known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.durable import disk_errors, fsync
from fleet.interchange.import_report import LineCounts

#: Folder of the journals in a store.
FOLDER = "imports"

#: Changes when the importer gives other records for the same lines; what was read before is read again then.
IMPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file as it was when it was read: changed in any way, it is another one."""

    path: str
    bytes: int
    modified_ns: int
    #: Options of the import: the same file read as another dialect is another source.
    settings: str

    @classmethod
    def of(cls, path: Path, settings: str) -> FileState:
        """Look at a file.

        Raises:
            OSError: It is gone.
        """
        status = path.stat()
        return cls(
            path=str(path.resolve()), bytes=status.st_size, modified_ns=status.st_mtime_ns, settings=settings
        )


class ImportJournal:
    """The files of one device that were read to their end."""

    def __init__(self, store: Path, device_id: str) -> None:
        self._path = store / FOLDER / f"{device_id}.jsonl"
        self._finished: dict[FileState, LineCounts] = {}
        with disk_errors("reading the journal of imports", self._path):
            text = self._path.read_text(errors="replace") if self._path.exists() else ""
        for line in text.splitlines():
            try:
                value = json.loads(line)
                if value["version"] == IMPORT_VERSION:
                    self._finished[FileState(**value["file"])] = LineCounts.from_json(value["counts"])
            except (ValueError, KeyError, TypeError):
                continue  # torn by a kill: the file is read again

    def counts(self, state: FileState) -> LineCounts | None:
        """What the file held when it was read to its end; None if it was not."""
        return self._finished.get(state)

    def finish(self, files: Mapping[FileState, LineCounts]) -> None:
        """Note files whose rows are all durable.

        Raises:
            StoreFull: No room.
            StoreError: The disk failed.
        """
        if not files:
            return
        lines = ""
        for state, counts in files.items():
            value = {"version": IMPORT_VERSION, "file": asdict(state), "counts": counts.to_json()}
            lines += json.dumps(value, sort_keys=True) + "\n"
        with disk_errors("writing the journal of imports", self._path):
            is_new = not self._path.exists()
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as stream:
                # A torn line of a killed import must not swallow the next one.
                stream.write(lines if is_new else "\n" + lines)
                stream.flush()
                os.fsync(stream.fileno())
            fsync(self._path.parent)
        self._finished.update(files)
