"""Devices with records that different code of this project measured, and whether their canaries changed.

Called by `fleet.doctor.look`. A record's environment has the hash of the code that timed it
(`agents.device.measurements`); the hash makes no other environment.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fleet.comparison.series import canary_ratios
from fleet.doctor.words import MixedCode
from fleet.errors import StoreError
from fleet.store.reader import StoreReader
from fleet.store.store import Store

_COLUMNS = ("environment_id", "environment", "measured_at", "quality")
_CODE = r'"measuring_code":"(?P<code>[0-9a-f]+)"'


def mixed_code(store: Path) -> Iterator[MixedCode]:
    """Devices with records of an environment that different code of this project measured.

    The first and the last file of a device and its waiting rows are looked at, which bounds the time.
    """
    try:
        reader = Store.read(store)
        for device_id in reader.device_ids:
            for readings in _readings(reader, device_id).values():
                if len(readings) > 1:
                    yield MixedCode(device_id, _change(readings))
                    break
    except StoreError:
        return


def _readings(reader: StoreReader, device_id: str) -> dict[str, dict[str, list[float]]]:
    """Mean ratio of the canaries to their usual speed at each reading, by environment and code."""
    files = [file.path for file in reader.snapshot.files if file.device_id == device_id]
    readings: dict[str, dict[str, list[float]]] = defaultdict(dict)
    columns = reader.columns(_COLUMNS, device_ids=[device_id], files={*files[:1], *files[-1:]})
    for _, batch in columns:
        texts = batch.column("environment").cast(pa.string())
        codes = pc.struct_field(pc.extract_regex(texts, _CODE), "code")
        environment_ids = batch.column("environment_id").cast(pa.string())
        pairs = zip(environment_ids.to_pylist(), codes.to_pylist(), strict=True)
        for environment_id, code in dict.fromkeys(pairs):
            if code is None:
                continue
            rows = batch.filter(pc.and_(pc.equal(environment_ids, environment_id), pc.equal(codes, code)))
            ratios = readings[environment_id].setdefault(code, [])
            ratios += [statistics.geometric_mean(reading.values()) for _, reading in canary_ratios(rows)]
    return readings


def _change(readings: dict[str, list[float]]) -> float | None:
    """How far apart the canaries' median speeds under each code are; None if fewer than two were read."""
    medians = [statistics.median(ratios) for ratios in readings.values() if ratios]
    return max(medians) / min(medians) - 1 if len(medians) > 1 else None
