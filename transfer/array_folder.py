"""Arrays in a folder: one .npy file each and a manifest, opened without reading them into memory.

Called by `transfer.data.dataset`. Nothing is pickled or unpickled. A folder appears under its name only when
it is whole. It is a copy of what can be computed again, so it may be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.regular_files import check_regular, read_regular
from transfer.checked_folder import MANIFEST_NAME, MOST_MANIFEST_BYTES, whole_folder
from transfer.errors import TransferError

#: Bytes of one array at most: it is mapped, so it need not fit in memory.
_MOST_ARRAY_BYTES = 1 << 40


def write_folder(
    folder: Path,
    kind: str,
    version: int,
    arrays: Mapping[str, NDArray[Any]],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write arrays under a name that must be free.

    Args:
        folder: Folder to make; its parent is made as needed.
        kind: What it holds, and `version` of that layout: checked when it is opened.
        version: See `kind`.
        arrays: By name; none of objects.
        extra: More to remember, as JSON.

    Raises:
        TransferError: The folder exists already, or it cannot be written.
    """
    if folder.exists():
        raise TransferError(f"{folder} exists already; delete it or choose another name")
    manifest = {
        "kind": kind,
        "version": version,
        "arrays": {name: {"shape": one.shape, "dtype": str(one.dtype)} for name, one in arrays.items()},
        "extra": dict(extra or {}),
    }
    try:
        with whole_folder(folder) as part:
            for name, array in arrays.items():
                np.save(part / f"{name}.npy", array, allow_pickle=False)
            (part / MANIFEST_NAME).write_text(json.dumps(manifest))
    except OSError as error:
        raise TransferError(f"cannot write {folder}: {error}; free space or choose another place") from error


def read_folder(folder: Path, kind: str, version: int) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Open what `write_folder` wrote.

    Returns:
        The arrays by name, memory-mapped and read-only, and what else was remembered.

    Raises:
        TransferError: The folder is missing, damaged, or of another kind or version.
    """
    try:
        manifest = json.loads(read_regular(folder / MANIFEST_NAME, MOST_MANIFEST_BYTES))
        found = manifest["kind"], manifest["version"]
        if found != (kind, version):
            raise TransferError(
                f"{folder} holds {found[0]!r} version {found[1]}, expected {kind!r} version {version}; "
                "delete it and make it again"
            )
        arrays = {
            name: _open_array(folder / f"{name}.npy", tuple(about["shape"]), about["dtype"])
            for name, about in manifest["arrays"].items()
        }
        return arrays, dict(manifest["extra"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TransferError(
            f"cannot open {folder} as {kind!r}: {type(error).__name__}: {error}; delete it and make it again"
        ) from error


def _open_array(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """One array; an empty one cannot be mapped, so it is read.

    Raises:
        ValueError: It is not what the manifest says.
    """
    check_regular(path, _MOST_ARRAY_BYTES)
    array: NDArray[Any] = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    if array.shape != shape or str(array.dtype) != dtype:
        raise ValueError(f"{path.name} is {array.dtype}{array.shape}, the manifest says {dtype}{shape}")
    return array
