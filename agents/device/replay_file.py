"""The Parquet file of exported records: what its footer says, and the columns that a replay device reads.

`fleet.interchange.export_parquet` writes such files with the help of this module, `replay.py` reads them.
All columns are in `docs/export.md`. Files may come from other people: what is read is checked and bounded.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.codec import bounded_json, device_from_json, workload_from_json
from agents.device.bounded_parquet import check_claims
from agents.errors import AgentError
from agents.files import check_regular
from agents.records import Descriptor, DeviceId, DeviceSpec, Workload, as_json_dict, canonical_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Keys in the footer: what the file is, as JSON; and its workloads, JSON packed by zlib in base64.
HEAD_KEY = b"tensor_fleet"
WORKLOADS_KEY = b"tensor_fleet_workloads"
#: Version of the columns and of the footer.
VERSION = 1
#: Columns of texts that are read: each text is held once, however many rows share it.
TEXTS = [
    *("device_id", "record_id", "workload_id", "candidate_id", "outcome", "origin", "model_version", "error"),
    *("environment_id", "environment", "protocol", "dialect", "trace", "quality"),
]
#: Bytes of a file at most.
MOST_FILE_BYTES = 8 << 30
#: Most bytes that packed workloads may unpack to: some 10,000 workloads.
_MOST_WORKLOADS_BYTES = 256 << 20
#: Most values and keys in an entry: a workload has some 40, and one import may bring 50,000 workloads.
_MOST_VALUES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file says of one device."""

    spec: DeviceSpec
    #: None for a device that was never probed.
    descriptor: Descriptor | None


def footer(
    devices: Mapping[DeviceId, Recorded], workloads: Iterable[Workload], table_version: int
) -> dict[bytes, bytes]:
    """Make the footer's entries of a new file, which is exported from this version of a store."""
    value = {
        "version": VERSION,
        "table_version": table_version,
        "devices": {
            device_id: {
                "spec": as_json_dict(recorded.spec),
                "descriptor": None if recorded.descriptor is None else as_json_dict(recorded.descriptor),
            }
            for device_id, recorded in devices.items()
        },
    }
    packed = zlib.compress(canonical_json([as_json_dict(workload) for workload in workloads]).encode())
    return {HEAD_KEY: canonical_json(value).encode(), WORKLOADS_KEY: base64.b64encode(packed)}


def open_file(path: Path) -> pq.ParquetFile:
    """Open an exported file, its texts as dictionaries; the caller closes it.

    Raises:
        AgentError: It is not there, no regular file, no Parquet file, lacks a column of texts, or says that
            it unpacks to more than any file of its size.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = check_regular(path, MOST_FILE_BYTES)
        file = pq.ParquetFile(path, read_dictionary=TEXTS)
    except FileNotFoundError as error:
        raise AgentError(f"{path}: no such file; write it with `fleet export`") from error
    except KeyError as error:
        name = error.args[0].decode()
        raise AgentError(f"{path} is no file of exported records: column {name} is not there") from None
    except (OSError, pa.ArrowException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AgentError(f"{path} is no Parquet file that can be read: {why}") from error
    try:
        check_claims(file, path, size)
    except AgentError:
        file.close()
        raise
    return file


def read_devices(file: pq.ParquetFile, path: Path) -> dict[DeviceId, Recorded]:
    """Read what an exported file says of its devices.

    Raises:
        AgentError: It is another Parquet file, damaged, or of another version.
    """
    value = _json(path, _entry(file, HEAD_KEY, path))
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise AgentError(f"{path}: its footer does not say its version; export it again")
    if version != VERSION:
        raise AgentError(f"{path} has version {version}, this version reads {VERSION}; export it again")
    devices = value.get("devices")
    if not isinstance(devices, dict):
        raise AgentError(f"{path}: its footer names no devices; export it again")
    return {DeviceId(name): _recorded(path, recorded) for name, recorded in devices.items()}


def read_workloads(file: pq.ParquetFile, path: Path) -> list[Workload]:
    """Read the workloads of an exported file, in the order of the file.

    Raises:
        AgentError: They are damaged, or too many.
    """
    packed = _entry(file, WORKLOADS_KEY, path)
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(packed, validate=True), _MOST_WORKLOADS_BYTES)
    except (ValueError, zlib.error) as error:
        raise AgentError(f"{path}: the workloads in its footer are damaged: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise AgentError(
            f"{path}: the workloads in its footer are damaged, or larger than {_MOST_WORKLOADS_BYTES} bytes"
        )
    value = _json(path, text)
    if not isinstance(value, list):
        raise AgentError(f"{path}: the workloads in its footer are no list")
    return [workload_from_json(workload) for workload in value]


def _recorded(path: Path, value: Any) -> Recorded:
    if not isinstance(value, dict) or not {"spec", "descriptor"} <= value.keys():
        raise AgentError(f"{path}: its footer describes a device without spec or descriptor")
    spec, descriptor = device_from_json(value["spec"], value["descriptor"])
    return Recorded(spec=spec, descriptor=descriptor)


def _entry(file: pq.ParquetFile, key: bytes, path: Path) -> bytes:
    entries = file.metadata.metadata or {}
    if key not in entries:
        raise AgentError(f"{path} is no file of exported records: write one with `fleet export`")
    entry = entries[key]
    assert isinstance(entry, bytes)
    return entry


def _json(path: Path, text: bytes) -> Any:
    try:
        return bounded_json(text.decode(), _MOST_VALUES)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{path}: its footer is damaged: {error}") from error
