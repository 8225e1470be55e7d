"""AutoTVM 0.2: one JSON object a line, with the keys input, config, result, version, tvm_version."""

from __future__ import annotations

from typing import Any

from agents.records import canonical_json
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
from fleet.interchange.logs.operators import autotvm_operator, tensor_name
from fleet.interchange.logs.targets import Machine, parse_target
from transfer.language.autotvm import check_entity

DIALECT = "autotvm"
_MAX_NAME = 512
_MAX_VERSION = 64


def is_old(value: dict[str, Any]) -> bool:
    """Whether a line is of AutoTVM before 0.2, which wrote [target, function, args, ...] under `i`."""
    inputs = value.get("i")
    return type(inputs) is list and len(inputs) >= 3 and type(inputs[0]) is type(inputs[1]) is str


def _matches(value: Any) -> bool:
    return type(value) is dict and ("input" in value or is_old(value))


def _read(value: dict[str, Any], catalog: Catalog, _context: None) -> Measurement:
    if "input" not in value:
        raise Rejected("AutoTVM log before 0.2", "convert it with TVM 0.6's autotvm.record")
    try:
        inputs, entity, costs = value["input"], value["config"]["entity"], value["result"]
    except (KeyError, TypeError):
        raise Rejected("no AutoTVM 0.2 line", "expected input, config.entity and result") from None
    result = tuner_result(costs)
    if type(inputs) is not list or not 3 <= len(inputs) <= 8:
        raise Rejected("input is not [target, function, args, kwargs]", got=inputs)
    if fault := check_entity(entity):
        raise Rejected(fault, got=entity)
    workload = catalog.workload((DIALECT, cache_key(inputs[1:])), lambda: _workload(inputs))
    target, version = inputs[0], value.get("tvm_version", "")
    if type(target) is not str or type(version) is not str or len(version) > _MAX_VERSION:
        raise Rejected("target or tvm_version is not a text", got=(target, version))
    environment = catalog.environment(
        (DIALECT, cache_key(target), version), lambda: _environment(target, version, inputs[1])
    )
    return Measurement(workload, environment, checked_trace(entity), result)


def _workload(inputs: list[Any]) -> LoggedWorkload:
    name, args, kwargs = inputs[1], inputs[2], inputs[3] if len(inputs) > 3 else {}
    if type(name) is not str or not 0 < len(name) <= _MAX_NAME:
        raise Rejected("function is not a name", got=name)
    if type(args) is not list or type(kwargs) is not dict:
        raise Rejected("arguments are not a list and an object", got=(args, kwargs))
    key: dict[str, Any] = {"name": name, "args": args}
    if kwargs:
        key["kwargs"] = kwargs
    key_text = check_key(canonical_text(key))
    operator = autotvm_operator(name, args)
    shapes = operator.shapes
    return LoggedWorkload.of(
        DIALECT,
        key_id(DIALECT, key_text),
        tensor_name(name, shapes)[:_MAX_NAME] if shapes else f"{name} {canonical_text(args)}"[:100],
        operator,
        canonical_json({"dialect": DIALECT, **key}),
    )


def _environment(target: str, version: str, function: str) -> tuple[dict[str, Any], Machine]:
    value = {"imported": DIALECT, "target": target, "tvm": version}
    return value, Machine(parse_target(target), tvm_version=version, function=function)


FORMATS = (LineFormat(tool="AutoTVM", dialect=DIALECT, matches=_matches, read=_read),)
