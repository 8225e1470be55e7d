"""Lines of the old tuners: Ansor's record format v0.6 and AutoTVM's 0.2, as their own readers take them.

Records that came from such a log are written as they were. Candidates measured through MetaSchedule become
Ansor lines too: their trace is read into canonical primitives and those are written as Ansor's 14 steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.records import Descriptor, DeviceSpec, Family, Outcome, Record, Workload, content_hash
from fleet.interchange.export_source import (
    NO_TRACE,
    NotHeldError,
    Source,
    json_object,
    json_trace,
    write_lines,
)
from fleet.interchange.logs.json_values import ERROR_TEXTS

#: What both formats write for the seconds of a failed measurement.
FAILED_SECS = 1e10

#: Error numbers, the same in both formats. They have no word for a measurement that was lost or rejected:
#: any number would say that the candidate itself failed.
_ERROR_NUMBERS = {
    Outcome.OK: 0,
    Outcome.BUILD_FAILED: 2,
    Outcome.RUN_FAILED: 4,
    Outcome.WRONG_OUTPUT: 5,
    Outcome.BUILD_TIMEOUT: 6,
    Outcome.RUN_TIMEOUT: 7,
}
_NUMBER_OF_TEXT = {text: number for number, text in ERROR_TEXTS.items()}
#: Fields of an Ansor task after key and target, in order.
_TASK_FIELDS = ("hardware_params", "target_host", "layout_rewrite_option", "task_input_names")
_INT_MAX = 2**31 - 1


def write_ansor(path: Path, source: Source) -> int:
    """Write the records of one device as Ansor lines; returns how many.

    Args:
        path: Where to write; `.gz` at its end compresses.
        source: The device; records of other dialects than `ansor` and `meta_schedule` are counted there.
    """
    from transfer.errors import TraceError
    from transfer.language.ansor_steps import check_steps
    from transfer.language.meta_schedule import MetaScheduleReader
    from transfer.language.to_ansor import to_ansor_steps

    reader = MetaScheduleReader()

    def line(record: Record) -> dict[str, Any]:
        workload = _workload_of(record, source)
        if record.dialect == "ansor":
            steps = json_trace(record, check_steps)
        elif record.dialect == "meta_schedule":
            try:
                steps = to_ansor_steps(reader.read(record.trace, workload))
            except TraceError:
                raise NotHeldError(NO_TRACE) from None
        else:
            raise NotHeldError(f"dialect {record.dialect}")
        value: dict[str, Any] = {
            "i": [_ansor_task(record, workload, source), [[], steps]],
            "r": _result(record),
        }
        if version := _ansor_version(record):
            value["v"] = version
        return value

    return write_lines(path, map(json.dumps, source.held(line)))


def write_autotvm(path: Path, source: Source) -> int:
    """Write the records of one device as AutoTVM lines; see `write_ansor`, but for dialect `autotvm`."""
    from transfer.language.autotvm import check_entity

    def line(record: Record) -> dict[str, Any]:
        workload = _workload_of(record, source)
        if record.dialect != "autotvm":
            raise NotHeldError(f"dialect {record.dialect}")
        key = json_object(workload.module_json)
        if not {"name", "args"} <= key.keys():
            raise NotHeldError("its workload is none of AutoTVM's")
        entity = json_trace(record, check_entity)
        environment = _environment(record)
        return {
            "input": [_target(environment, source.spec), key["name"], key["args"], key.get("kwargs", {})],
            # The index is a place in a space that no record holds; readers go by the entity.
            "config": {"index": 0, "code_hash": None, "entity": entity},
            "result": _result(record),
            "version": 0.2,
            "tvm_version": environment.get("tvm", ""),
        }

    return write_lines(path, map(json.dumps, source.held(line)))


def _workload_of(record: Record, source: Source) -> Workload:
    """The workload of a record that either format has words for."""
    if record.outcome not in _ERROR_NUMBERS:
        raise NotHeldError(f"{record.outcome}: the format has no word for it")
    return source.workload_of(record)


def _result(record: Record) -> list[Any]:
    """`[costs, error_no, all_cost, timestamp]` as both formats have it."""
    number = _NUMBER_OF_TEXT.get(record.error, _ERROR_NUMBERS[record.outcome])
    costs = list(record.run_secs) if record.outcome is Outcome.OK else [FAILED_SECS]
    at = record.measured_at
    # Ansor's own reader takes whole seconds only; lines that were imported are written as they were.
    is_whole = record.dialect == "meta_schedule" or at == int(at)
    return [costs, number, record.build_secs + record.timing_secs, int(at) if is_whole else at]


def _ansor_task(record: Record, workload: Workload, source: Source) -> list[Any]:
    environment = _environment(record)
    task: list[Any] = [_workload_key(record, workload), _target(environment, source.spec)]
    if "imported" in environment:
        # As many fields as the line had: earlier versions wrote fewer.
        return task + [environment[name] for name in _TASK_FIELDS if name in environment]
    return [*task, hardware_params(source.spec, source.descriptor), "", 0, []]


def _ansor_version(record: Record) -> str:
    """The version that the line had, or today's; empty where it had none."""
    environment = _environment(record)
    return str(environment.get("log_version", "")) if "imported" in environment else "v0.6"


def _workload_key(record: Record, workload: Workload) -> str:
    """The key of Ansor's own workload; for others a digest and the extents of all arguments, as it has."""
    key = json_object(workload.module_json).get("key") if record.dialect == "ansor" else None
    if key is not None:
        return json.dumps(key)
    extents = [extent for shape in workload.arg_shapes for extent in shape]
    return json.dumps([content_hash(workload.workload_id), *extents])


def _count(target: Mapping[str, Any], name: str, otherwise: int) -> int:
    """An option of a target as a number; targets of imported logs hold whatever a stranger wrote."""
    option = target.get(name)
    return option if type(option) is int and 0 < option <= _INT_MAX else otherwise


def hardware_params(spec: DeviceSpec | None, descriptor: Descriptor | None) -> list[int]:
    """Ansor's eight hardware parameters of a device, with its defaults where nothing is known."""
    target: Mapping[str, Any] = {} if spec is None else spec.target
    if spec is not None and spec.family is Family.GPU:
        warp = _count(target, "thread_warp_size", 32)
        shared = _count(target, "max_shared_memory_per_block", 49152)
        threads = _count(target, "max_threads_per_block", 1024)
        return [-1, 16, 64, shared, _INT_MAX, threads, warp // 4, warp]
    cores = _count(target, "num-cores", 1)
    probed = descriptor.ansor_params if descriptor is not None else ()
    vector, line = (*probed[1:3], 0, 0)[:2]
    return [cores, vector or 64, line or 64, 0, 0, 0, 0, 0]


def _environment(record: Record) -> Mapping[str, Any]:
    """What the environment of an imported record keeps of its line; nothing for other records."""
    return {} if record.dialect == "meta_schedule" else json_object(record.environment)


def _target(environment: Mapping[str, Any], spec: DeviceSpec | None) -> str:
    target = environment.get("target")
    if isinstance(target, str):
        return target
    return target_text(target if isinstance(target, dict) else {} if spec is None else spec.target)


def target_text(target: Mapping[str, Any]) -> str:
    """Write a target in the form of those tools' time: `llvm -keys=cpu -mcpu=core-avx2`."""
    kind = str(target.get("kind", "llvm"))
    listed = target.get("keys")
    stated_keys = ",".join(map(str, listed)) if isinstance(listed, list) else ""
    keys = stated_keys or {"llvm": "cpu", "cuda": "cuda,gpu"}.get(kind, kind)
    words = [kind, f"-keys={keys}"]
    for name in sorted(target.keys() - {"kind", "keys", "host"}):
        value = target[name]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"-{name}={int(value) if isinstance(value, bool) else text}")
    return " ".join(words)
