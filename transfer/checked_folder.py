"""Files of a folder that appears whole or not at all, each checked against the hash that was kept of it.

Called by whoever keeps a model, the state of a run, or arrays.
Knows nothing of what the files hold, and does not load torch.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agents.files import fsync, fsync_all, read_regular
from transfer.errors import TransferError

TENSORS_NAME = "model.safetensors"
MANIFEST_NAME = "manifest.json"
#: Bytes of a manifest at most; that of the largest model so far has 30,000.
MOST_MANIFEST_BYTES = 8 << 20
#: Bytes of any other file at most: far more than a model or the state of its training has.
MOST_FILE_BYTES = 256 << 20


class CheckpointError(TransferError):
    """A checkpoint is missing, damaged, too new, or made for other features."""


def sha256(raw: bytes) -> str:
    """What a manifest keeps of a file, to know it again."""
    return hashlib.sha256(raw).hexdigest()


def put_folder(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder that appears under its name only when all of them are on disk.

    Args:
        directory: Folder to make, of a name that is free; its parent is made as needed.
        files: Content by name.

    Raises:
        CheckpointError: The name was taken meanwhile.
        OSError: There is no room, or no permission; nothing is left behind then.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because a rename is atomic only inside one file system.
    part = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".part", dir=directory.parent))
    try:
        for name, raw in files.items():
            (part / name).write_bytes(raw)
        # Readers of the registry may be other users.
        part.chmod(0o755)
        fsync_all([*(part / name for name in files), part])
        try:
            # An empty folder only would be replaced.
            part.rename(directory)
        except OSError as error:
            raise CheckpointError(f"{directory}: could not be put in place: {error}") from error
        fsync(directory.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_file(directory: Path, name: str, most_bytes: int = MOST_FILE_BYTES) -> bytes:
    """Content of one file of a folder.

    Raises:
        CheckpointError: It is missing, no regular file, or has more than `most_bytes` bytes.
    """
    try:
        return read_regular(directory / name, most_bytes)
    except FileNotFoundError as error:
        state = "folder without this file" if directory.is_dir() else "no such folder"
        raise CheckpointError(f"{directory / name}: missing ({state}); restore it or roll back") from error
    except OSError as error:
        raise CheckpointError(f"{directory / name}: {error.strerror}; restore it or roll back") from error


def read_checked(directory: Path, name: str, expected: str, cure: str = "restore it or roll back") -> bytes:
    """Content of one file of a folder, if it is the one that was put there.

    Args:
        directory: Where.
        name: Which.
        expected: Its `sha256` then.
        cure: What to do where it is another.

    Raises:
        CheckpointError: It is missing, torn or changed.
    """
    raw = read_file(directory, name)
    found = sha256(raw)
    if found != expected:
        raise CheckpointError(
            f"{directory / name}: torn or changed since it was saved (sha256 {found[:12]}, manifest says "
            f"{expected[:12]}); {cure}"
        )
    return raw
