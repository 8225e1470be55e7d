"""The matrix as plain numbers and texts and back: what `fleet.coverage.table_summary` keeps on the disk.

What only this life of the coordinator knows is left out: losses of the present agents, and candidates that
are blocked for other reasons than the store's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.coverage.candidate_index import ID_BYTES, CandidateIndex
from fleet.coverage.matrix import CHUNK_BYTES, Matrix, PlaceBits, Row, Space

#: Types of the arrays. `chunk` and `bits` hold a number and `CHUNK_BYTES` bytes for each piece of a set of
#: places: first those of what the store has of each space, then those of the entries. An entry is what one
#: row has of one workload.
TYPES = {
    "ids": "u1",
    "order": "<i4",
    "chunk": "<i4",
    "bits": "u1",
    "row": "<i4",
    "workload": "<i4",
    "chunks": "<i4",
    "measured": "<i8",
    "best": "<i4",
    "best_secs": "<f8",
    "best_ids": "u1",
    "waiting": "u1",
}
_OF_ENTRIES = ("row", "workload", "chunks", "measured", "best")
_DIGITS = 2 * ID_BYTES


def pack(matrix: Matrix) -> tuple[dict[str, Any], dict[str, list[NDArray[Any]]]]:
    """Take a copy of a matrix, as far as it may still change.

    Returns:
        What goes into a header, and the pieces of each array of `TYPES`.
    """
    pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in TYPES}
    spaces: list[dict[str, Any]] = []
    for (family, workload_id), space in matrix.spaces.items():
        ids, order = space.index.arrays()
        pieces["ids"].append(ids.view(np.uint8))
        pieces["order"].append(order)
        _put(pieces, space.stored)
        spaces.append(
            {
                "family": family,
                "workload": workload_id,
                "candidates": len(order),
                "chunks": len(space.stored.chunks),
                "leaders": list(space.leaders),
                "quarantined": sorted(space.quarantined),
            }
        )
    entries: dict[str, list[Any]] = {name: [] for name in (*_OF_ENTRIES, "best_secs", "best_ids")}
    workloads: dict[WorkloadId, int] = {}
    rows: list[dict[str, Any]] = []
    present = {key: row for key, row in matrix.rows.items() if row.records}
    for number, ((device_id, environment_id), row) in enumerate(present.items()):
        rows.append(
            {
                "device": device_id,
                "environment": environment_id,
                "records": row.records,
                "noise_at": row.noise_at,
                "lost": dict(row.lost),
            }
        )
        for workload_id, bits in row.rows.items():
            best = row.best.get(workload_id, [])
            code = workloads.setdefault(workload_id, len(workloads))
            about = (number, code, len(bits.chunks), row.measured[workload_id], len(best))
            for name, value in zip(_OF_ENTRIES, about, strict=True):
                entries[name].append(value)
            entries["best_secs"] += [secs for secs, _ in best]
            entries["best_ids"] += [one for _, one in best]
            _put(pieces, bits)
    best_ids = bytes.fromhex("".join(entries.pop("best_ids")))
    pieces["best_ids"].append(np.frombuffer(best_ids, dtype=np.uint8))
    for name, values in entries.items():
        pieces[name].append(np.array(values, dtype=TYPES[name]))
    return {"spaces": spaces, "rows": rows, "workloads": list(workloads)}, pieces


def unpack(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], families: Mapping[DeviceId, str]
) -> Matrix:
    """Make the matrix again.

    Args:
        header: As `pack` gave it, after JSON.
        arrays: The arrays, each in one piece; they may be mapped from a file, and are not changed.
        families: Family of each device.

    Raises:
        KeyError, ValueError, IndexError, TypeError: It is none.
    """
    matrix = Matrix()
    bits = _taken(arrays)
    first = 0
    for value in header["spaces"]:
        end = first + int(value["candidates"])
        space = Space(
            index=CandidateIndex(
                arrays["ids"][ID_BYTES * first : ID_BYTES * end], arrays["order"][first:end]
            ),
            stored=_next(bits, int(value["chunks"])),
            leaders=dict.fromkeys(map(DeviceId, value["leaders"])),
        )
        space.quarantine(map(CandidateId, value["quarantined"]))
        matrix.spaces[value["family"], WorkloadId(value["workload"])] = space
        first = end
    rows: list[tuple[Row, str]] = []
    for value in header["rows"]:
        device_id = DeviceId(value["device"])
        row = matrix.row(device_id, value["environment"])
        row.records, row.noise_at = int(value["records"]), float(value["noise_at"])
        row.lost = {CandidateId(one): int(attempt) for one, attempt in value["lost"].items()}
        rows.append((row, families[device_id]))
    _unpack_rows(matrix, rows, list(map(WorkloadId, header["workloads"])), arrays, bits)
    return matrix


def _unpack_rows(
    matrix: Matrix,
    rows: Sequence[tuple[Row, str]],
    workloads: Sequence[WorkloadId],
    arrays: Mapping[str, NDArray[Any]],
    bits: Iterator[tuple[int, bytearray]],
) -> None:
    secs, ids = arrays["best_secs"].tolist(), arrays["best_ids"].tobytes().hex()
    fastest = 0
    entries = (arrays[name].tolist() for name in _OF_ENTRIES)
    for number, code, chunks, measured, best in zip(*entries, strict=True):
        (row, family), workload_id = rows[number], workloads[code]
        if (family, workload_id) not in matrix.spaces:
            raise ValueError(f"{workload_id} has no candidates for {family}")
        row.rows[workload_id] = _next(bits, chunks)
        row.measured[workload_id] = measured
        if best:
            row.best[workload_id] = [
                (secs[one], CandidateId(ids[_DIGITS * one : _DIGITS * (one + 1)]))
                for one in range(fastest, fastest + best)
            ]
        fastest += best


def _put(pieces: dict[str, list[NDArray[Any]]], bits: PlaceBits) -> None:
    pieces["chunk"].append(np.array(list(bits.chunks), dtype=TYPES["chunk"]))
    pieces["bits"].append(np.frombuffer(b"".join(bits.chunks.values()), dtype=np.uint8))


def _taken(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, bytearray]]:
    bits = arrays["bits"].data
    for place, number in enumerate(arrays["chunk"].tolist()):
        yield number, bytearray(bits[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES])


def _next(bits: Iterator[tuple[int, bytearray]], count: int) -> PlaceBits:
    found = PlaceBits()
    found.chunks = dict(islice(bits, count))
    if len(found.chunks) != count or any(len(one) != CHUNK_BYTES for one in found.chunks.values()):
        raise ValueError("there are fewer bits than it says")
    return found
