"""Ansor v0.6 and earlier: one JSON object a line, with the keys i, r, v.

Fields that earlier versions did not have may be missing: of a task all but the workload's key and the
target, of the line the version.
"""

from __future__ import annotations

from typing import Any

import orjson

from agents.records import canonical_json
from fleet.interchange.dialects.autotvm import is_old
from fleet.interchange.logs.catalog import (
    Catalog,
    LineFormat,
    LoggedWorkload,
    Measurement,
    check_key,
    checked_trace,
    key_id,
)
from fleet.interchange.logs.json_values import (
    Rejected,
    cache_key,
    canonical_text,
    tuner_result,
)
from fleet.interchange.logs.operators import MAX_TENSORS, Operator, shape_of
from fleet.interchange.logs.targets import Machine, parse_target
from transfer.language.ansor_steps import check_steps, main_stage_flops

DIALECT = "ansor"

#: Fields of a task after the workload's key, in their order.
_TASK_FIELDS = ("target", "hardware_params", "target_host", "layout_rewrite_option", "task_input_names")
_TASK_TYPES = (str, list, str, int, list)
_MAX_HARDWARE = 16
_MD5_DIGITS = 32
_MAX_VERSION = 64
#: Ansor's keys do not say types; TVM's own networks and all published logs are of this one.
_DTYPE = "float32"
#: Records of a workload that are asked for its FLOPs: simple programs have no tiled stage at all.
_ESTIMATES = 32


def _matches(value: Any) -> bool:
    return type(value) is dict and "i" in value and "input" not in value and not is_old(value)


def _read(value: dict[str, Any], catalog: Catalog, _context: None) -> Measurement:
    try:
        task, (_, steps) = value["i"]
        key_text = task[0]
    except (KeyError, TypeError, ValueError, IndexError):
        raise Rejected("i is not [task, [stages, steps]]", got=value.get("i")) from None
    result = tuner_result(value.get("r"))
    if type(key_text) is not str or type(task) is not list or not 2 <= len(task) <= 6:
        raise Rejected("task is not [workload key, target, ...]", got=task)
    check_key(key_text)
    trace = checked_trace(steps)
    if fault := check_steps(steps):
        raise Rejected(fault, got=steps)
    workload = catalog.workload((DIALECT, cache_key(key_text)), lambda: _workload(key_text))
    if not workload.workload.flops and workload.estimates < _ESTIMATES:
        workload.estimate_flops(main_stage_flops(steps))
    version = value.get("v", "")
    if type(version) is not str or len(version) > _MAX_VERSION:
        raise Rejected("v is not a text", got=version)
    environment = catalog.environment(
        (DIALECT, cache_key(task[1:]), version), lambda: _environment(task[1:], version)
    )
    return Measurement(workload, environment, trace, result)


def _workload(key_text: str) -> LoggedWorkload:
    try:
        key = orjson.loads(key_text)
    except orjson.JSONDecodeError:
        raise Rejected("workload key is not JSON", got=key_text) from None
    if type(key) is not list or not key or type(key[0]) is not str:
        raise Rejected("workload key is not a list that begins with a name", got=key_text)
    canonical = canonical_text(key)
    # The first item is a function's name, or the digest of a compute graph.
    is_digest = len(key[0]) == _MD5_DIGITS and all(digit in "0123456789abcdef" for digit in key[0])
    operator = DIALECT if is_digest else key[0]
    # Newer keys hold the shapes of all arguments, outputs last; older ones and named functions plain numbers.
    shapes = [shape_of(item) for item in key[1:]] if len(key) <= MAX_TENSORS else [None]
    tensor_shapes = tuple(shape for shape in shapes if shape) if all(shapes) else ()
    rest = canonical_text(key[1:])[1:-1].replace(",", " ").replace('"', "")
    return LoggedWorkload.of(
        DIALECT,
        key_id(DIALECT, canonical),
        f"{key[0][:8] if is_digest else key[0]} {rest}"[:100],
        Operator(operator[:100], tensor_shapes, (_DTYPE,) * len(tensor_shapes)),
        canonical_json({"dialect": DIALECT, "key": key}),
    )


def _environment(fields: list[Any], version: str) -> tuple[dict[str, Any], Machine]:
    value: dict[str, Any] = {"imported": DIALECT}
    for name, kind, field in zip(_TASK_FIELDS, _TASK_TYPES, fields, strict=False):
        if type(field) is not kind:
            raise Rejected(f"{name} has a wrong type", got=field)
        value[name] = field
    if version:
        value["log_version"] = version
    hardware = value.get("hardware_params", [])
    if len(hardware) > _MAX_HARDWARE or any(type(parameter) is not int for parameter in hardware):
        raise Rejected("hardware_params are not whole numbers", got=hardware)
    if any(type(name) is not str for name in value.get("task_input_names", [])):
        raise Rejected("task_input_names are not texts", got=value["task_input_names"])
    return value, Machine(parse_target(value["target"]), hardware=tuple(hardware))


FORMATS = (LineFormat(tool="Ansor", dialect=DIALECT, matches=_matches, read=_read),)
