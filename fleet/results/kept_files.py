"""Files that are kept for people only, as many as there is reason to keep: the oldest go.

`fleet.results.late_results` and `fleet.results.refused_records` write here. Nothing reads the files back but
people, so what is deleted is missed by no promise; without a bound a year of them would fill the disk and
slow every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.spool.frames import make_folder
from fleet.durable import disk_errors, fsync, write_durably

#: Files of one folder, and their bytes. The newest file stays, however long it is.
MOST_FILES, MOST_BYTES = 10_000, 64 << 20
#: What is left of either when the oldest go: not one more line in the log for each new file.
_LEFT = 0.9


class KeptFiles:
    """A folder of `.jsonl` files, one folder a device.

    Args:
        folder: Made with the first file.
        most_files: Files that are kept.
        most_bytes: Bytes that are kept.

    Attributes:
        sizes: Bytes of each file that is there, oldest first.
        notes: What was deleted, one line each; whoever tells people clears it.
    """

    def __init__(self, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_files, self._most_bytes = most_files, most_bytes
        found = [(path, path.stat()) for path in folder.glob("*/*.jsonl")]
        found.sort(key=lambda one: (one[1].st_mtime_ns, one[0]))
        self.sizes = {path: about.st_size for path, about in found}
        self._bytes = sum(self.sizes.values())
        self.notes: list[str] = []
        self._prune()

    def put(self, doing: str, path: Path, lines: Sequence[str]) -> bool:
        """Keep lines in a file of their own; they are on the disk when this returns.

        Args:
            doing: What is being done, for errors.
            path: `FOLDER/DEVICE/NAME.jsonl`; the same lines must always have the same name.
            lines: Without their ends.

        Returns:
            Whether they are new here.

        Raises:
            StoreFull: No room; none of them was kept.
            StoreError: The disk failed.
        """
        with disk_errors(doing, self.folder):
            if path.exists():
                # A kill may have come between its name and this.
                fsync(path.parent)
                return False
            make_folder(path.parent)
            data = "".join(f"{line}\n" for line in lines).encode()
            write_durably(path, data)
        self.sizes[path] = len(data)
        self._bytes += len(data)
        self._prune()
        return True

    def _prune(self) -> None:
        if len(self.sizes) <= self._most_files and self._bytes <= self._most_bytes:
            return
        files, bytes_ = len(self.sizes), self._bytes
        for path in list(self.sizes)[:-1]:
            if len(self.sizes) <= _LEFT * self._most_files and self._bytes <= _LEFT * self._most_bytes:
                break
            self._bytes -= self.sizes.pop(path)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self.notes.append(f"{path} is too old to be kept but cannot be deleted: {error.strerror}")
        if files > len(self.sizes):
            self.notes.append(
                f"the {files - len(self.sizes)} oldest files in {self.folder} were deleted "
                f"({(bytes_ - self._bytes) / 2**20:.1f} MiB): at most {self._most_files} files and "
                f"{self._most_bytes / 2**20:g} MiB are kept for people to look at"
            )


__all__ = ["MOST_BYTES", "MOST_FILES", "KeptFiles"]
