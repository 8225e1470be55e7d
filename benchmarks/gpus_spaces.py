"""Brute-forced spaces of kernels, measured on several GPUs: the data of `benchmarks.gpus`.

A folder holds a folder a kernel, and in it a Kernel Tuner cache a device (`DEVICE.json` or `.json.gz`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId, Outcome
from fleet.interchange.dialects import kernel_tuner
from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.targets import device_from_log
from transfer.arrays import Floats, Singles
from transfer.features.hardware import hardware_table, hardware_vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """One kernel: the configurations that every device has tried.

    Legend: N configurations, D devices, F knobs that vary.
    """

    kernel: str
    devices: tuple[str, ...]
    #: (N,) texts of the configurations, equal on all devices, and how Kernel Tuner writes their knobs.
    traces: tuple[str, ...]
    keys: tuple[str, ...]
    #: (N, F) knobs as numbers, sizes as logarithms.
    numbers: Floats
    #: (N, D) mean seconds; NaN where the configuration fails.
    secs: Floats
    #: Seconds of the repeats, by device and configuration.
    repeats: tuple[tuple[tuple[float, ...], ...], ...]
    #: (D, H) hardware vectors.
    hardware: Singles
    #: File of each device.
    files: tuple[Path, ...]

    def speed(self, device: int) -> Floats:
        """(N,) speed of each configuration over the fastest one's; 0 where it fails."""
        secs = self.secs[:, device]
        return np.nan_to_num(np.nanmin(secs) / secs)

    def measure(self, device: int, row: int, random: np.random.Generator) -> float:
        """One measurement: mean of as many repeats as there are, drawn with replacement; NaN if it fails."""
        seen = np.array(self.repeats[device][row])
        return float(random.choice(seen, len(seen)).mean()) if len(seen) else float("nan")


def find_spaces(folder: Path) -> list[Space]:
    """The spaces of a folder that at least three devices have measured."""
    found = []
    for kernel in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = {
            path.name.split(".")[0]: path
            for path in sorted(kernel.iterdir())
            if path.name.endswith((".json", ".json.gz")) and "_T4." not in path.name
        }
        read = {name: cache for name, path in files.items() if (cache := _read(name, path))[0]}
        if len(read) >= 3:
            found.append(_space(kernel.name, files, read))
    return found


def _read(name: str, path: Path) -> tuple[dict[str, tuple[float, ...]], Any]:
    """Repeats by configuration, and the hardware vector of the device."""
    found: dict[str, tuple[float, ...]] = {}
    vector = None
    for one in kernel_tuner.FORMATS[0].read(LogLines(path), Catalog()):
        if isinstance(one, Rejected):
            continue
        if vector is None:
            device = DeviceId(name.lower())
            vector = hardware_vector(*device_from_log(device, one.environment.machine))
        found[one.trace] = one.result.run_secs if one.result.outcome is Outcome.OK else ()
    return found, vector


def _space(kernel: str, files: dict[str, Path], read: dict[str, tuple[dict[str, Any], Any]]) -> Space:
    import json

    devices = tuple(read)
    common = set.intersection(*(set(cache) for cache, _ in read.values()))
    traces = tuple(sorted(common))
    knobs = [json.loads(trace) for trace in traces]
    names = list(_names(files[devices[0]]))
    repeats = tuple(tuple(read[name][0][trace] for trace in traces) for name in devices)
    means = [[float(np.mean(secs)) if secs else np.nan for secs in one] for one in repeats]
    return Space(
        kernel=kernel,
        devices=devices,
        traces=traces,
        keys=tuple(",".join(str(one[name]) for name in names) for one in knobs),
        numbers=_numbers([[one[name] for name in names] for one in knobs]),
        secs=np.array(means).T,
        repeats=repeats,
        hardware=hardware_table([read[name][1] for name in devices]),
        files=tuple(files[name] for name in devices),
    )


def _names(path: Path) -> list[str]:
    from fleet.interchange.logs.json_items import JsonItems

    items = JsonItems(LogLines(path).chunks(), "cache", open_end=True)
    next(iter(items))
    return list(items.head["tune_params_keys"])


def _numbers(rows: list[list[Any]]) -> Floats:
    """Knobs that vary: two values and words as places in their order, other numbers as logarithms."""
    columns = []
    for values in zip(*rows, strict=True):
        distinct = sorted(set(values), key=lambda one: (str(type(one)), one))
        if len(distinct) < 2:
            continue
        plain = len(distinct) > 2 and all(type(one) in (int, float) and one >= 0 for one in distinct)
        places = {one: float(place) for place, one in enumerate(distinct)}
        columns.append([np.log2(1 + one) if plain else places[one] for one in values])
    return np.array(columns, dtype=np.float64).T
