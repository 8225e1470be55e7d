"""Kernel Tuner's caches, and T4 files of the FAIR autotuning community.

A cache names device, kernel, problem size and knobs, then maps the joined knobs to one result each; Kernel
Tuner leaves off the closing brackets while it tunes. A T4 file is a list of results and does not name
kernel and device: those come from its `metadata`, from the cache beside it (`A100.json` beside
`A100_T4.json`), or, last, from its folder. A cache counts in milliseconds. A T4 file says its unit, or each
measurement does; milliseconds if neither does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.interchange.logs.catalog import Measurement
from fleet.interchange.logs.json_items import Document
from fleet.interchange.logs.json_values import (
    MAX_ALL_SECS,
    Rejected,
    seconds_of,
)
from fleet.interchange.logs.knobs import (
    KernelHead,
    KernelReader,
    document_format,
    failed,
    number_of,
    only,
    timed,
)
from fleet.interchange.logs.targets import checked_unit, stated_unit, units_per_second, unix_secs
from transfer.language.knobs import MAX_KNOBS

TOOL = "kernel_tuner"
CACHE = Document("cache", open_end=True)
T4 = Document("results")

#: What a cache and a T4 file call a failure, and the word of `fleet.interchange.logs.knobs.FAILURES`.
ERRORS = {
    "ErrorConfig": "run",
    "InvalidConfig": "invalid",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "run",
}
INVALIDITIES = {
    "constraints": "invalid",
    "compile": "compile",
    "runtime": "run",
    "correctness": "wrong",
    "timeout": "timeout",
}
#: Times of a result that were spent on building and timing; the schema of T4 has the longer of two names.
_SPENT = ("compile_time", "verification_time", "benchmark_time")
_T4_SPENT = ("compilation", "compilation_time", "validation", "benchmark")
#: Units in a second of a file that does not say: milliseconds.
_MILLIS = 1e3
#: Measurements that are times by their names.
_TIME_NAME = re.compile(r"time|duration|latency|runtime", re.IGNORECASE)
_OVERHEAD_NAME = re.compile(r"compil|verif|valid|bench|framework|strateg|search|overhead", re.IGNORECASE)
#: How far the mean of several runs may lie from all of them before one of two units must be wrong.
_UNIT_FACTOR = 30


def _cache_head(_path: Path, head: Mapping[str, Any]) -> KernelHead:
    names = head.get("tune_params_keys")
    if type(names) is not list or not 0 < len(names) <= MAX_KNOBS or not all(type(n) is str for n in names):
        raise Rejected("tune_params_keys is not a list of names", got=names)
    return KernelHead(
        tool=TOOL,
        kernel=head.get("kernel_name", ""),
        problem=_numbers_of(head.get("problem_size")),
        device_name=head.get("device_name", ""),
        order=tuple(names),
    )


def _cache_result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not dict:
        raise Rejected("a result is not an object", got=item)
    try:
        knobs = {
            name: value if type(value := item[name]) is int else number_of(value)
            for name in reader.head.order
        }
    except KeyError as missing:
        raise Rejected("a knob is missing", str(missing)) from None
    spent, at = _spent(item, _SPENT, _MILLIS), unix_secs(item.get("timestamp"))
    time = item.get("time")
    error: Any = item.get("__error__", time if type(time) is str else None)
    if error is None and type(time) is not float:
        error = next((value for value in item.values() if type(value) is str and value in ERRORS), None)
    if error is not None:
        return reader.measurement(knobs, failed(error, ERRORS, spent, at))
    if type(rate := item.get("GFLOP/s")) is float and type(time) is float:
        reader.tell_flops(rate * time * 1e6)
    times = item.get("times")
    return reader.measurement(knobs, timed([time] if times is None else times, spent, at))


def _t4_head(path: Path, value: dict[str, Any]) -> KernelHead:
    metadata = value.get("metadata")
    if type(metadata) is not dict:
        metadata = {}
    per_second = stated_unit(metadata) or stated_unit(value)
    if type(metadata.get("kernel_name")) is str:
        return KernelHead(
            tool=str(metadata.get("tool", "t4"))[:32],
            kernel=metadata["kernel_name"],
            problem=metadata.get("problem_size"),
            device_name=metadata.get("device_name", ""),
            details=_details(metadata.get("details")),
            order=tuple(map(str, _listed(metadata.get("order"))))[:MAX_KNOBS],
            per_second=per_second,
        )
    head = _cache_beside(path) or KernelHead(tool="t4", kernel=path.absolute().parent.name, problem=None)
    return replace(head, per_second=per_second)


def _cache_beside(path: Path) -> KernelHead | None:
    """Kernel of the cache beside a T4 file."""
    stem = only(path, ".json").removesuffix("_T4")
    for name in (f"{stem}.json.gz", f"{stem}.json"):
        beside = path.with_name(name)
        if beside.name != path.name and beside.is_file():
            with suppress(Rejected):  # damaged before its first result
                head = _cache_head(beside, CACHE.head(beside))
                if head.kernel:
                    return head
    return None


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _details(value: Any) -> dict[str, Any]:
    own_fields = {"tool", "kernel", "problem", "dialect", "order"}
    return (
        {}
        if type(value) is not dict
        else {name: detail for name, detail in value.items() if name not in own_fields}
    )


def _t4_result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not dict or type(item.get("configuration")) is not dict:
        raise Rejected("a result has no configuration", got=item)
    knobs = {name: number_of(value) for name, value in item["configuration"].items()}
    times = item.get("times", {})
    if type(times) is not dict:
        raise Rejected("times are not an object", got=times)
    measured = {
        measurement["name"]: measurement
        for measurement in _listed(item.get("measurements"))
        if type(measurement) is dict and type(measurement.get("name")) is str
    }
    time = _time_of(measured, _listed(item.get("objectives")))
    own = _unit_of(time) if time else None
    per_second = stated_unit(times) or stated_unit(item) or reader.head.per_second or own or _MILLIS
    spent, at = _spent(times, _T4_SPENT, per_second), unix_secs(item.get("timestamp"))
    validity = item.get("invalidity")
    if validity != "correct":
        return reader.measurement(knobs, failed(validity, INVALIDITIES, spent, at))
    value = time.get("value") if time else None
    rate = measured.get("GFLOP/s", {}).get("value")
    if isinstance(value, float) and isinstance(rate, float):
        reader.tell_flops(rate * value / (own or per_second) * 1e9)
    if item.get("correctness", 1) != 1:
        return reader.measurement(knobs, failed("correctness", INVALIDITIES, spent, at))
    runs = times.get("runtimes")
    if not runs:  # Kernel Tuner writes an empty list for a cache without repeats
        runs = value if type(value) is list else [value]
        return reader.measurement(knobs, timed(runs, spent, at, per_second=own or per_second))
    result = timed(runs, spent, at, per_second=per_second)
    if own and isinstance(value, float | int):
        _check_units(result.run_secs, value / own)
    return reader.measurement(knobs, result)


def _time_of(measured: Mapping[str, dict[str, Any]], objectives: list[Any]) -> dict[str, Any] | None:
    """The measurement that is the kernel's time: the one called `time`, else an objective, else any other."""
    others = (name for name in measured if not _OVERHEAD_NAME.search(name))
    for name in ("time", *(name for name in objectives if type(name) is str), *others):
        measurement = measured.get(name)
        if measurement and (units_per_second(measurement.get("unit")) or _TIME_NAME.search(name)):
            return measurement
    return None


def _unit_of(measurement: Mapping[str, Any]) -> float | None:
    """Units per second of a measurement of time; None if it does not say."""
    unit = measurement.get("unit")
    return None if unit in (None, "") else checked_unit(unit)


def _check_units(run_secs: tuple[float, ...], mean_secs: float) -> None:
    """Refuse a result whose runs and whose measurement are not of one magnitude: a unit must be wrong."""
    if not min(run_secs) / _UNIT_FACTOR <= mean_secs <= max(run_secs) * _UNIT_FACTOR:
        raise Rejected(
            "the units of time contradict each other",
            f"runs of {min(run_secs):g} s, measured {mean_secs:g} s",
        )


def _spent(item: Mapping[str, Any], names: tuple[str, ...], per_second: float) -> float:
    times = (seconds_of(item.get(name, 0.0), name, MAX_ALL_SECS * per_second) for name in names)
    return sum(time / per_second for time in times)


def _numbers_of(value: Any) -> Any:
    return [number_of(number) for number in value] if type(value) is list else number_of(value)


FORMATS = (
    document_format("Kernel Tuner", CACHE, _cache_head, _cache_result),
    document_format("T4", T4, _t4_head, _t4_result),
)
