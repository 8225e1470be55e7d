"""Configurations of other tuners in their own files: Kernel Tuner, T4, Triton, Helion.

Each file holds all measurements of one kernel and problem size on one device, in the form that the tool reads
back; where the tool does not choose the best one itself, a file beside it names it. Called by
`export_store.py`. Records are streamed through files beside the result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agents.records import Outcome, Record, WorkloadId
from fleet.interchange.dialects import helion, kernel_tuner, triton
from fleet.interchange.export_source import NotHeldError, Source, json_object, json_trace
from fleet.interchange.logs.knobs import DIALECT
from transfer.language.knobs import check_knobs

_SAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class _Kernel:
    """What is known of one kernel and problem size on one device."""

    #: The workload's key: tool, kernel, problem, details, order of the knobs.
    key: Mapping[str, Any]
    workload_id: WorkloadId
    flops: float
    device_name: str
    #: Records that were written.
    count: int = 0
    #: Values of each knob.
    values: dict[str, dict[Any, None]] = field(default_factory=dict)
    best_secs: float = math.inf
    best: dict[str, Any] = field(default_factory=dict)

    def ordered(self, knobs: Mapping[str, Any]) -> list[str]:
        """Names of some knobs in the tool's order, then those that it does not list."""
        order = [name for name in self.key.get("order", ()) if name in knobs]
        return [*order, *sorted(knobs.keys() - set(order))]

    @property
    def file_name(self) -> str:
        """Name of its files, without a suffix."""
        return f"{_SAFE.sub('_', str(self.key['kernel']))[:80]}-{self.workload_id}"


@dataclass(frozen=True, slots=True)
class KnobFormat:
    """How one tool writes a record, and a file of them."""

    #: Tool whose records it takes; all if empty.
    tool: str
    #: What the tool calls a failure, and the word that `Record.error` begins with.
    words: Mapping[str, str]
    #: Writes a record, given its knobs and what the tool calls its failure; empty for a success.
    item: Callable[[_Kernel, Record, dict[str, Any], str], str]
    finish: Callable[[_Kernel, Path, Iterator[str]], None]


def write_knobs(folder: Path, source: Source, form: KnobFormat) -> int:
    """Write the records of one device into a new folder in one of `FORMATS`; returns how many.

    Without any there is no folder. The source counts those that the format cannot hold.
    """
    # Of several words the last, which says most.
    words = {ours: word for word, ours in form.words.items()}
    kernels: dict[WorkloadId, _Kernel] = {}

    def item_of(record: Record) -> tuple[Record, _Kernel, dict[str, Any], str]:
        kernel = _kernel_of(record, source, kernels, form)
        knobs = json_trace(record, check_knobs)
        return record, kernel, knobs, form.item(kernel, record, knobs, _word(record, words))

    for record, kernel, knobs, item in source.held(item_of):
        folder.mkdir(exist_ok=True)
        with _parts(folder, kernel).open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(f"{item}\n")
        kernel.count += 1
        for name, value in knobs.items():
            kernel.values.setdefault(name, {}).setdefault(json.dumps(value), None)
        if record.outcome is Outcome.OK and min(record.run_secs) < kernel.best_secs:
            kernel.best_secs, kernel.best = min(record.run_secs), knobs
    for kernel in kernels.values():
        if kernel.count:
            parts = _parts(folder, kernel)
            with parts.open(encoding="utf-8", newline="\n") as stream:
                form.finish(kernel, folder, (line.rstrip("\n") for line in stream))
            parts.unlink()
    return sum(kernel.count for kernel in kernels.values())


def _kernel_of(
    record: Record, source: Source, kernels: dict[WorkloadId, _Kernel], form: KnobFormat
) -> _Kernel:
    if record.dialect != DIALECT:
        raise NotHeldError(f"dialect {record.dialect}")
    kernel = kernels.get(record.workload_id)
    if kernel is None:
        workload = source.workload_of(record)
        key = json_object(workload.module_json)
        if not _is_kernel(key):
            raise NotHeldError("its workload is no kernel of a tuner")
        name = json_object(record.environment).get("device_name", "")
        kernel = _Kernel(key, record.workload_id, workload.flops, name if isinstance(name, str) else "")
        kernels[record.workload_id] = kernel
    if form.tool and kernel.key.get("tool") != form.tool:
        raise NotHeldError(f"it was measured by {kernel.key['tool'][:32]}, not by {form.tool}")
    return kernel


def _is_kernel(key: Mapping[str, Any]) -> bool:
    """Whether what stands for a module names a kernel as imports do; that of others may name anything."""
    order = key.get("order", [])
    return (
        "problem" in key
        and type(key.get("tool")) is type(key.get("kernel")) is str
        and type(order) is list
        and all(type(name) is str for name in order)
    )


def _parts(folder: Path, kernel: _Kernel) -> Path:
    return folder / f".{kernel.workload_id}.parts"


def _millis(secs: float) -> float:
    """Milliseconds that become these seconds again when they are divided by a thousand."""
    millis = secs * 1e3
    for candidate in (millis, math.nextafter(millis, 0.0), math.nextafter(millis, math.inf)):
        if candidate / 1e3 == secs:
            return candidate
    return millis


def _word(record: Record, words: Mapping[str, str]) -> str:
    """What the tool calls the record's failure; empty for a success."""
    if record.outcome is Outcome.OK:
        return ""
    kind = record.error.partition(":")[0]
    if kind not in words:
        raise NotHeldError(f"{record.outcome} ({kind[:32]}): the format has no word for it")
    return words[kind]


def _timestamp(record: Record) -> dict[str, str]:
    """The date as a value of a result; nothing for a record whose log did not say."""
    at = record.measured_at
    return {"timestamp": str(datetime.fromtimestamp(at, UTC))} if at else {}


def _write(path: Path, before: str, items: Iterator[str], after: str, between: str = ",\n") -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(before)
        for place, item in enumerate(items):
            stream.write((between if place else "") + item)
        stream.write(after)


def _cache_item(kernel: _Kernel, record: Record, knobs: dict[str, Any], word: str) -> str:
    names = kernel.ordered(knobs)
    value: dict[str, Any] = {name: knobs[name] for name in names}
    times = [_millis(secs) for secs in record.run_secs]
    value["time"] = word or sum(times) / len(times)
    if not word:
        value["times"] = times
        if kernel.flops:
            value["GFLOP/s"] = kernel.flops / value["time"] / 1e6
    value |= {"compile_time": 0, "verification_time": 0, "benchmark_time": _millis(record.timing_secs)}
    value |= {"strategy_time": 0, "framework_time": 0} | _timestamp(record)
    return json.dumps({",".join(str(knobs[name]) for name in names): value})[1:-1]


def _finish_cache(kernel: _Kernel, folder: Path, items: Iterator[str]) -> None:
    names = kernel.ordered(kernel.values)
    problem = kernel.key["problem"]
    # Kernel Tuner compares a size that is there with its own, and takes a cache without one as it is.
    size = {} if problem is None else {"problem_size": problem}
    head = {
        "device_name": kernel.device_name,
        "kernel_name": kernel.key["kernel"],
        **size,
        "tune_params_keys": names,
        "tune_params": {name: [json.loads(text) for text in kernel.values[name]] for name in names},
        "objective": "time",
        "cache": {},
    }
    # As Kernel Tuner leaves a closed cache: without the last three characters it goes on.
    _write(folder / f"{kernel.file_name}.json", json.dumps(head, indent="")[:-3] + "\n", items, "}\n}")
    sizes = problem if isinstance(problem, list) else [problem] if size else []
    best = {
        "device_name": re.sub("[^0-9a-zA-Z]+", "_", kernel.device_name.strip()),
        "problem_size": "x".join(map(str, sizes)),
        "tunable_parameters": kernel.best,
        "time": _millis(kernel.best_secs),
    }
    results = {
        "version_number": "1.0",
        "kernel_name": kernel.key["kernel"],
        "objective": "time",
        "objective_higher_is_better": False,
        "tunable_parameters": names,
        "data": [best] if kernel.best else [],
    }
    (folder / f"{kernel.file_name}.results.json").write_text(json.dumps(results, indent=""))


def _t4_item(kernel: _Kernel, record: Record, knobs: dict[str, Any], word: str) -> str:
    times = [_millis(secs) for secs in record.run_secs]
    spent: dict[str, Any] = {"compilation": 0, "benchmark": _millis(record.timing_secs)}
    spent |= {"framework": 0, "search_algorithm": 0, "validation": 0}
    measured = [] if word else [{"name": "time", "value": sum(times) / len(times), "unit": "ms"}]
    value = {
        **_timestamp(record),
        "configuration": knobs,
        "times": spent if word else {**spent, "runtimes": times},
        "invalidity": word or "correct",
        "correctness": int(word != "correctness"),
        "measurements": measured,
        "objectives": ["time"],
    }
    return json.dumps(value)


def _finish_t4(kernel: _Kernel, folder: Path, items: Iterator[str]) -> None:
    own_fields = ("dialect", "tool", "kernel", "problem", "order")
    metadata = {
        "tool": kernel.key["tool"],
        "kernel_name": kernel.key["kernel"],
        "problem_size": kernel.key["problem"],
        "device_name": kernel.device_name,
        "details": {name: value for name, value in kernel.key.items() if name not in own_fields},
        "order": kernel.ordered(kernel.values),
        "timeunit": "milliseconds",
    }
    before = f'{{"metadata": {json.dumps(metadata)}, "results": [\n'
    _write(folder / f"{kernel.file_name}_T4.json", before, items, '\n], "schema_version": "1.0.0"}\n')


def _triton_item(kernel: _Kernel, record: Record, knobs: dict[str, Any], word: str) -> str:
    name = str(kernel.key["kernel"])
    if _SAFE.search(name) or name.startswith("."):
        raise NotHeldError("the kernel's name cannot be a file's")
    # Triton keeps three quantiles; one time is all of them.
    times = [math.inf if word else _millis(min(record.run_secs))] * 3
    options = {name: knobs.get(name) for name in triton.OPTIONS}
    rest = {name: value for name, value in knobs.items() if name not in triton.OPTIONS}
    return json.dumps([{"kwargs": rest, **options, "pre_hook": None}, times])


def _finish_triton(kernel: _Kernel, folder: Path, items: Iterator[str]) -> None:
    # As in Triton's cache, a folder a key: files are named after kernels.
    place = folder / kernel.workload_id
    place.mkdir()
    before = f'{{"key": {json.dumps(kernel.key["problem"])}, "configs_timings": ['
    _write(place / f"{kernel.key['kernel']}{triton.SUFFIX}", before, items, "]}", ", ")


def _helion_item(kernel: _Kernel, record: Record, knobs: dict[str, Any], word: str) -> str:
    if not all(_IDENTIFIER.fullmatch(name) for name in knobs):
        raise NotHeldError("the name of a knob is no name in Python")
    perf = "" if word else repr(_millis(min(record.run_secs)))
    call = ", ".join(f"{name}={value!r}" for name, value in sorted(knobs.items()))
    config = f"Config({call})".replace('"', '""')
    if "\n" in config or "\\" in config:
        raise NotHeldError("a word of the configuration holds characters that Helion would not")
    row = (kernel.workload_id, "", "", "0", word or "ok", perf, repr(record.timing_secs))
    return ",".join(row) + f',"{config}"'


def _finish_helion(kernel: _Kernel, folder: Path, items: Iterator[str]) -> None:
    _write(folder / f"{kernel.file_name}.csv", ",".join(helion.COLUMNS) + "\n", items, "\n", "\n")
    problem = kernel.key["problem"]
    shapes, dtypes = problem if isinstance(problem, list) and len(problem) == 2 else (problem, None)
    run = {
        "run_id": kernel.workload_id,
        "kernel_name": kernel.key["kernel"],
        "kernel_source": kernel.key.get("source", ""),
        "input_shapes": shapes,
        "dtypes": dtypes,
        "hardware_info": {"device_name": kernel.device_name},
    }
    (folder / f"{kernel.file_name}{helion.SIDECAR}").write_text(json.dumps(run) + "\n")
    # `helion.Config.load` reads it.
    if kernel.best:
        (folder / f"{kernel.file_name}.best.json").write_text(json.dumps(kernel.best, indent=2))


#: Formats by name.
FORMATS: Final = {
    kernel_tuner.TOOL: KnobFormat(kernel_tuner.TOOL, kernel_tuner.ERRORS, _cache_item, _finish_cache),
    "t4": KnobFormat("", kernel_tuner.INVALIDITIES, _t4_item, _finish_t4),
    triton.TOOL: KnobFormat(triton.TOOL, triton.ERRORS, _triton_item, _finish_triton),
    helion.TOOL: KnobFormat(helion.TOOL, helion.STATUSES, _helion_item, _finish_helion),
}
