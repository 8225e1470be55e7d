"""A `.pt2` file is read here, checked, and written again: torch is given the copy, and never the file.

torch's own reader of such a file unpickles, looks names up, runs text as Python and loads libraries. And two
readers of one zip file may see different entries: of names that differ by case, of two directories. So a file
is read once, by Python's reader. What the graph (`graph_schema.py`) and the weights (`payloads.py`) may hold
is listed; anything else is refused by its name. The copy has the entries of this list under names of ours.
Standard library only.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from agents.codec import bounded_json
from agents.networks.graph_schema import UnknownValueError, check_program
from agents.networks.network_name import NetworkRefusedError, why_value_shaped
from agents.networks.payloads import check_payloads, check_pickle

#: Bytes that are read at once; the zip reader takes its whole directory at once, one entry some 100 bytes.
_MOST_READ_BYTES: Final = 16 << 20
_MOST_MODEL_BYTES: Final = 64 << 20
_MOST_CONFIG_BYTES: Final = 32 << 20
_MOST_PICKLE_BYTES: Final = 1 << 20
_MOST_EXAMPLE_BYTES: Final = 64 << 20
#: Values in the JSON of a graph: some 60 for an operator.
_MOST_VALUES: Final = 2_000_000
_CHUNK_BYTES: Final = 1 << 20
_MODEL: Final = re.compile(r"models/([\w.-]{1,100})\.json", re.ASCII)
#: Entries of tensors, by folder.
_TENSORS: Final = {
    "data/weights/": re.compile(r"weight_\d{1,9}", re.ASCII),
    "data/constants/": re.compile(r"tensor_\d{1,9}", re.ASCII),
}
#: Entries that say the same in each archive, and those that are not looked at.
_FIXED: Final = {
    "archive_format": b"pt2",
    "archive_version": b"0",
    "byteorder": b"little",
}
_IGNORED: Final = (".data/version", ".data/serialization_id")
#: Files of its author's, which no network needs.
_EXTRA: Final = "extra/"
_PICKLE: Final = re.compile(r"data\.pkl|data/\d{1,9}", re.ASCII)
_PICKLE_NOTES: Final = {
    "version",
    "byteorder",
    ".format_version",
    ".storage_alignment",
    ".data/serialization_id",
}
#: What Python's reader raises of a broken file.
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


def rewrite_archive(opened: IO[bytes], copy: IO[bytes], network: str) -> bytes:
    """Check a `.pt2` file, and write the network in it as a new archive.

    Args:
        opened: The file.
        copy: Where the archive for torch is written.
        network: Its name, for messages.

    Returns:
        Its example inputs, checked, as a new file of `torch.save`; empty if there are none.

    Raises:
        NetworkRefusedError: It is none, has dynamic shapes, or holds what is not loaded; the message says so.
    """
    try:
        with _entries(opened) as (archive, entries):
            return _rewritten(archive, entries, copy)
    except UnknownValueError as error:
        if error.is_dynamic:
            raise NetworkRefusedError(f"network {network}: {_why_dynamic(error)}") from None
        raise NetworkRefusedError(f"network {network}: is refused: {error}") from None
    except RecursionError:
        raise NetworkRefusedError(f"network {network}: its graph nests too deeply") from None
    except _BROKEN as error:
        raise NetworkRefusedError(
            f"network {network}: is no archive of torch.export.save ({error!s:.200}); save it with "
            "torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
        ) from None


def _why_dynamic(error: UnknownValueError) -> str:
    if error.operator:
        return why_value_shaped(error.operator)
    return f"has dynamic shapes; export it with fixed ones (no dynamic_shapes): {error}"


class _Bounded(io.RawIOBase):
    """A file of which no more than some bytes are read at once."""

    def __init__(self, opened: IO[bytes]) -> None:
        self._opened = opened

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_READ_BYTES:
            raise UnknownValueError(f"its directory has more than {_MOST_READ_BYTES:,} bytes")
        # Without a size, the reader looks for the end of the directory in the last 64 KiB.
        return self._opened.read(size if size >= 0 else _MOST_READ_BYTES)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._opened.seek(offset, whence)

    def tell(self) -> int:
        return self._opened.tell()

    def seekable(self) -> bool:
        return True


@contextmanager
def _entries(opened: IO[bytes]) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """The entries of an archive as torch writes it, by their names within its one folder."""
    total = opened.seek(0, os.SEEK_END)
    opened.seek(0)
    with zipfile.ZipFile(_Bounded(opened)) as archive:
        entries: dict[str, zipfile.ZipInfo] = {}
        folded: set[str] = set()
        roots = set()
        for entry in archive.infolist():
            root, _, inner = entry.filename.partition("/")
            roots.add(root)
            if inner.casefold() in folded:
                raise UnknownValueError(f"entry {inner!r:.80}: stands in the archive twice")
            folded.add(inner.casefold())
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise UnknownValueError(f"entry {inner!r:.80}: is compressed, and torch compresses none")
            entries[inner] = entry
        if len(roots) != 1 or not all(roots):
            raise UnknownValueError("entries lie in several folders")
        if sum(entry.file_size for entry in entries.values()) > total:
            raise UnknownValueError("its entries have more bytes than the file")
        yield archive, entries


def _rewritten(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], copy: IO[bytes]) -> bytes:
    name = _model_name(entries)
    texts: dict[str, bytes] = {}
    examples = f"data/sample_inputs/{name}.pt"
    allowed = {f"models/{name}.json", examples, *_FIXED, *_IGNORED}
    tensors: dict[str, zipfile.ZipInfo] = {}
    for folder, pattern in _TENSORS.items():
        inside = {
            inner.removeprefix(folder): entry for inner, entry in entries.items() if inner.startswith(folder)
        }
        files = {place: entry for place, entry in inside.items() if pattern.fullmatch(place)}
        config = f"{name}_{folder.split('/')[1]}_config.json"
        if config not in inside:
            raise UnknownValueError(f"has no {folder}{config}; save it again with torch 2.10 or later")
        described = _json(archive, inside[config], _MOST_CONFIG_BYTES)
        check_payloads(described, {place: entry.file_size for place, entry in files.items()})
        texts[folder + config.replace(name, "model", 1)] = json.dumps(described).encode()
        tensors |= {folder + place: entry for place, entry in files.items()}
        allowed |= {folder + config, *tensors}
    for inner in entries:
        if inner not in allowed and not inner.startswith(_EXTRA):
            raise UnknownValueError(f"entry {inner!r:.80}: holds code or objects, or is of another program")
    for inner, expected in _FIXED.items():
        if inner not in entries or _read(archive, entries[inner], 16) != expected:
            raise UnknownValueError(f"entry {inner}: expected {expected.decode()}")
    program = _json(archive, entries[f"models/{name}.json"], _MOST_MODEL_BYTES)
    check_program(program)
    texts["models/model.json"] = json.dumps(program, allow_nan=False).encode()
    del program
    texts |= {"data/sample_inputs/model.pt": b"", ".data/version": b"6\n", **_FIXED}
    _write(copy, texts, archive, tensors)
    return _examples(archive, entries[examples]) if examples in entries else b""


def _model_name(entries: dict[str, zipfile.ZipInfo]) -> str:
    names = [match[1] for match in map(_MODEL.fullmatch, entries) if match]
    if len(names) != 1:
        raise UnknownValueError(
            f"expected an archive of torch.export.save with one program, got {len(names)}; "
            "torch 2.10 or later writes it"
        )
    return names[0]


def _examples(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Write example inputs again: they are an archive in the archive."""
    content = _read(archive, entry, _MOST_EXAMPLE_BYTES)
    if not content:
        return b""
    copy = io.BytesIO()
    with _entries(io.BytesIO(content)) as (inner, entries):
        for name in entries:
            if not _PICKLE.fullmatch(name) and name not in _PICKLE_NOTES:
                raise UnknownValueError(f"example inputs: hold {name!r:.80}")
        if "data.pkl" not in entries:
            raise UnknownValueError("example inputs: are no file of torch.save")
        pickle = _read(inner, entries["data.pkl"], _MOST_PICKLE_BYTES)
        check_pickle(pickle)
        files = {name: held for name, held in entries.items() if name.startswith("data/")}
        _write(copy, {"data.pkl": pickle, "version": b"3\n", "byteorder": b"little"}, inner, files)
    return copy.getvalue()


def _write(
    copy: IO[bytes], texts: dict[str, bytes], archive: zipfile.ZipFile, files: dict[str, zipfile.ZipInfo]
) -> None:
    """Write a new archive of texts, and of entries of another one."""
    with zipfile.ZipFile(copy, "w") as output:
        for name, text in texts.items():
            output.writestr(zipfile.ZipInfo(f"network/{name}"), text)
        for name, entry in files.items():
            info = zipfile.ZipInfo(f"network/{name}")
            info.file_size = entry.file_size
            with archive.open(entry) as source, output.open(info, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)


def _json(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> Any:
    text = _read(archive, entry, most)
    try:
        return bounded_json(text.decode(), _MOST_VALUES)
    except ValueError as error:
        raise UnknownValueError(f"entry {entry.filename!r:.80}: is no JSON: {error!s:.200}") from None


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    if entry.file_size > most:
        raise UnknownValueError(
            f"entry {entry.filename!r:.80}: has {entry.file_size:,} bytes of at most {most:,}"
        )
    with archive.open(entry) as source:
        return b"".join(iter(lambda: source.read(_CHUNK_BYTES), b""))
