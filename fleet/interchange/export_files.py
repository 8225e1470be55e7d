"""Where an export is written: one file or one folder, which is there as a whole or not at all.

Called by `export_store.py` and the writers beside it. It knows nothing of records.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import io
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml

from agents.files import make_folder
from fleet.durable import disk_errors, fsync
from fleet.errors import FleetError

#: In every exported folder: what it is, from which version of the store, how many records. YAML, because an
#: import of the folder takes JSON for a log.
MANIFEST = "export.yaml"
_FORMAT_KEY = "tensor_fleet_export"
#: Little is gained above, and imports of such lines are bound by the parser anyway.
_GZIP_LEVEL = 6
#: End of the hidden name of an export while another takes its place.
_OLD = ".old"


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[Path]:
    """Write a file beside its place and move it there at the end; after a failure nothing is left of it.

    Yields the path to write to; the folder of the file is made if missing.

    Raises:
        FleetError: Something is there and may not be replaced.
        StoreError: The disk failed; `StoreFull` where there was no room.
    """
    with disk_errors("exporting", path):
        if path.is_dir():
            raise FleetError(f"{path} is a folder; name a file that is not there yet")
        if path.exists() and not replace:
            raise _exists_error(path)
        make_folder(path.parent)
        beside = _beside(path)
        try:
            yield beside
            fsync(beside)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        fsync(path.parent)


@contextmanager
def whole_folder(path: Path, *, replace: bool) -> Iterator[Path]:
    """Fill a folder beside its place and move it there at the end; after a failure nothing is left of it.

    Yields the folder to fill; those above are made if missing. What is replaced is an earlier export, never
    another folder.

    Raises:
        FleetError: Something is there and may not be replaced.
        StoreError: The disk failed; `StoreFull` where there was no room.
    """
    with disk_errors("exporting", path):
        _put_back(path)
        if path.exists() and not path.is_dir():
            raise FleetError(f"{path} is a file; this export is a folder: name one that is not there yet")
        is_taken = path.is_dir() and any(path.iterdir())
        if is_taken and not replace:
            raise _exists_error(path)
        if is_taken and not _is_export(path):
            raise FleetError(
                f"{path} is not replaced: it holds no {MANIFEST} of an earlier export; choose another place"
            )
        make_folder(path.parent)
        beside = _beside(path)
        try:
            beside.mkdir()
            yield beside
            for entry in [*beside.rglob("*"), beside]:
                fsync(entry)
            if is_taken:
                # A name by which the next export to this place knows it again.
                path.rename(_beside(path, _OLD))
            beside.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(beside)
            _put_back(path)
            raise
        fsync(path.parent)
        _put_back(path)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Say in an exported folder what it is; `facts` are plain values."""
    (folder / MANIFEST).write_text(yaml.safe_dump({_FORMAT_KEY: 1, **facts}))


@contextmanager
def text_lines(path: Path, name: str) -> Iterator[TextIO]:
    """Open a file for lines of text; compressed where `name`, its final one, ends in `.gz`."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("wb"))
        if not name.endswith(".gz"):
            yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))
            return
        # Without name and time, so that equal records give equal files.
        packed = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline="\n"))


def _beside(path: Path, end: str = ".tmp") -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{end}")


def _put_back(path: Path) -> None:
    """Give a replaced export its place again, if a kill left the place empty; remove it behind a new one.

    No error if that fails: the next export tries again.
    """
    with contextlib.suppress(OSError):
        for old in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}{_OLD}"):
            if not path.exists():
                old.rename(path)
            elif _is_export(path):
                # Renamed first: what a kill leaves of it here is no export any more.
                rest = _beside(path)
                old.rename(rest)
                shutil.rmtree(rest)


def _is_export(folder: Path) -> bool:
    try:
        value = yaml.safe_load((folder / MANIFEST).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(value, dict) and _FORMAT_KEY in value


def _exists_error(path: Path) -> FleetError:
    return FleetError(f"{path} is there already; choose another place, or replace it with --replace")
