"""Kernel Tuner's caches, and T4 files of the FAIR autotuning community.

A cache names device, kernel, problem size and knobs, then maps the joined knobs to one result each; Kernel
Tuner leaves off the closing brackets while it tunes. A T4 file is a list of results and does not name
kernel and device: those come from its `metadata`, from the cache beside it (`A100.json` beside
`A100_T4.json`), or, last, from its folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fleet.interchange.logs.catalog import Catalog, Measurement
from fleet.interchange.logs.json_items import JsonItems
from fleet.interchange.logs.json_values import Rejected, shown
from fleet.interchange.logs.knobs import KernelHead, KernelReader, failed, only, read_items, timed
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.results import MAX_ALL_SECS, MAX_TIMESTAMP, LoggedResult
from transfer.language.knobs import MAX_KNOBS

TOOL = "kernel_tuner"
#: Keys that a cache, and a T4 file, may begin with.
CACHE_KEYS = frozenset(
    (
        "schema_version",
        "device_name",
        "kernel_name",
        "problem_size",
        "tune_params_keys",
        "tune_params",
        "cache",
    )
)
T4_KEYS = frozenset(("metadata", "results", "schema_version"))

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
#: Milliseconds of a result that were spent on building and timing.
_SPENT = ("compile_time", "verification_time", "benchmark_time")
_T4_SPENT = ("compilation", "validation", "benchmark")
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def read_cache(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    """Read a cache of Kernel Tuner."""
    items = JsonItems(lines.chunks(), "cache", open_end=True)
    return read_items(items, catalog, _cache_head, _cache_result)


def _cache_head(head: Mapping[str, Any]) -> KernelHead:
    names = head.get("tune_params_keys")
    if type(names) is not list or not 0 < len(names) <= MAX_KNOBS or not all(type(n) is str for n in names):
        raise Rejected("tune_params_keys is not a list of names", shown(names))
    return KernelHead(
        tool=TOOL,
        kernel=head.get("kernel_name", ""),
        problem=_numbers_of(head.get("problem_size")),
        device_name=head.get("device_name", ""),
        order=tuple(names),
    )


def _cache_result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not dict:
        raise Rejected("a result is not an object", shown(item))
    try:
        knobs = {
            name: value if type(value := item[name]) is int else number_of(value) for name in reader.order
        }
    except KeyError as missing:
        raise Rejected("a knob is missing", str(missing)) from None
    spent, at = _spent(item, _SPENT), moment(item.get("timestamp", ""))
    time = item.get("time")
    error: Any = item.get("__error__", time if type(time) is str else None)
    if error is None and type(time) is not float:
        error = next((one for one in item.values() if type(one) is str and one in ERRORS), None)
    if error is not None:
        return reader.measurement(knobs, failed(error, ERRORS, spent, at))
    if type(rate := item.get("GFLOP/s")) is float and type(time) is float:
        reader.tell_flops(rate * time * 1e6)
    return reader.measurement(knobs, _timed(item.get("times"), time, spent, at))


def read_t4(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    """Read a T4 file."""
    items = JsonItems(lines.chunks(), "results")
    return read_items(items, catalog, partial(_t4_head, lines.path), _t4_result)


def _t4_head(path: Path, value: dict[str, Any]) -> KernelHead:
    metadata = value.get("metadata")
    if type(metadata) is dict and type(metadata.get("kernel_name")) is str:
        return KernelHead(
            tool=str(metadata.get("tool", "t4"))[:32],
            kernel=metadata["kernel_name"],
            problem=metadata.get("problem_size"),
            device_name=metadata.get("device_name", ""),
            details=_details(metadata.get("details")),
            order=tuple(map(str, _listed(metadata.get("order"))))[:MAX_KNOBS],
        )
    stem = only(path, ".json").removesuffix("_T4")
    for name in (f"{stem}.json.gz", f"{stem}.json"):
        beside = path.with_name(name)
        if beside.name != path.name and beside.is_file():
            items = JsonItems(LogLines(beside).chunks(), "cache", open_end=True)
            with suppress(Rejected):  # damaged before its first result
                next(iter(items), None)
                if (found := _cache_head(items.head)).kernel:
                    return found
    return KernelHead(tool="t4", kernel=path.absolute().parent.name, problem=None)


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _details(value: Any) -> dict[str, Any]:
    known = {"tool", "kernel", "problem", "dialect", "order"}
    return {} if type(value) is not dict else {name: one for name, one in value.items() if name not in known}


def _t4_result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not dict or type(item.get("configuration")) is not dict:
        raise Rejected("a result has no configuration", shown(item))
    knobs = {name: number_of(one) for name, one in item["configuration"].items()}
    times = item.get("times", {})
    if type(times) is not dict:
        raise Rejected("times are not an object", shown(times))
    spent, at = _spent(times, _T4_SPENT), moment(item.get("timestamp", ""))
    validity = item.get("invalidity")
    if validity != "correct":
        return reader.measurement(knobs, failed(validity, INVALIDITIES, spent, at))
    told = {
        one["name"]: one.get("value")
        for one in _listed(item.get("measurements"))
        if type(one) is dict and type(one.get("name")) is str
    }
    value, rate = told.get("time"), told.get("GFLOP/s")
    if type(value) is type(rate) is float:
        reader.tell_flops(rate * value * 1e6)
    if item.get("correctness", 1) != 1:
        return reader.measurement(knobs, failed("correctness", INVALIDITIES, spent, at))
    return reader.measurement(knobs, _timed(times.get("runtimes"), value, spent, at))


def _timed(times: Any, time: Any, spent: float, at: float) -> LoggedResult:
    if times is None and type(time) in (float, int):
        times = [time]
    if times is None:
        raise Rejected("not measured", "neither times nor time")
    return timed(times, spent, at)


def _spent(item: Mapping[str, Any], names: tuple[str, ...]) -> float:
    total = 0.0
    for name in names:
        value = item.get(name, 0.0)
        if type(value) not in (float, int) or not 0 <= value < MAX_ALL_SECS or not math.isfinite(value):
            raise Rejected(f"{name} is out of range", shown(value))
        total += value
    return total / 1e3


def moment(text: Any) -> float:
    """Unix seconds of a timestamp; 0 where there is none.

    Raises:
        Rejected: It is no time.
    """
    if not text:
        return 0.0
    try:
        at = datetime.fromisoformat(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise Rejected("timestamp is not a time", shown(text)) from None
    if not 0 <= seconds < MAX_TIMESTAMP:
        raise Rejected("timestamp is out of range", shown(text))
    return seconds


def number_of(value: Any) -> Any:
    """A knob's value; a whole number in quotes is that number, for both are the same text in the kernel."""
    return int(value) if type(value) is str and _WHOLE.fullmatch(value) else value


def _numbers_of(value: Any) -> Any:
    return [number_of(one) for one in value] if type(value) is list else number_of(value)
