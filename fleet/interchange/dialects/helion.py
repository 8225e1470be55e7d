"""Helion's autotuning logs: `NAME.csv`, a line a measurement, and `NAME.meta.jsonl`, a line a kernel.

A line of the table names its run; the run's line beside it says kernel, shapes, types and device. Without it
the kernel is named after the file. Configurations are written as Python calls,
`Config(block_sizes=[32, 16], num_warps=4)`, and are read here as data.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet.interchange.logs.catalog import Catalog, FileFormat, LineFormat, Measurement
from fleet.interchange.logs.json_values import (
    COMMENT,
    LoggedResult,
    Rejected,
    careful,
    parse_line,
    seconds_of,
    text_of,
)
from fleet.interchange.logs.knobs import DIALECT, KernelHead, KernelReader, failed, only, timed
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.operators import MAX_TENSORS, Shape, is_dtype, shape_of

TOOL = "helion"
SIDECAR = ".meta.jsonl"
COLUMNS = (
    "run_id",
    "timestamp_s",
    "config_id",
    "generation",
    "status",
    "perf_ms",
    "compile_time_s",
    "config",
)
#: Columns without which a table is none of Helion's.
_NEEDED = frozenset(("status", "perf_ms", "config"))
#: What it calls a failure, and the word of `fleet.interchange.logs.knobs.FAILURES`.
STATUSES = {
    "error": "run",
    "peer_compilation_fail": "compile",
    "timeout": "compile_timeout",
    "filtered": "invalid",
    "accuracy_mismatch": "wrong",
}
#: Rows that are no measurement of their own.
_NO_RESULTS = frozenset(("started", "deduplicated"))
_MAX_LINE = 1 << 16
_MAX_RUNS = 10_000
_FACTS = ("compute_capability", "device_kind")
#: How its configurations are called.
_CALLED = ("Config", "helion.Config")

#: How Python shows a shape and a type of torch within a list.
_TORCH_SIZE = re.compile(r"torch\.Size\((\[[0-9, ]*\])\)")
_TORCH_NAME = re.compile(r"(?<![\w'\".])torch\.[a-z0-9_]+")


def _is_table(line: bytes) -> bool:
    """Whether a first line is the head of Helion's table."""
    return {word.strip() for word in line[:1024].decode(errors="replace").split(",")} >= _NEEDED


def _read_table(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    """Read one table."""
    columns: list[str] = []
    runs = _runs(lines.path)
    readers: dict[str, KernelReader] = {}

    def measurement(row: Mapping[str, str]) -> Measurement:
        if not row.keys() >= _NEEDED:
            raise Rejected("a line has too few columns", f"{len(row)}")
        if row["status"] in _NO_RESULTS:
            raise Rejected("not measured", row["status"])
        run = row.get("run_id") or row.get("kernel_id") or ""
        if run not in readers:
            name = only(lines.path, ".csv") or lines.path.name
            head = runs.get(run, KernelHead(tool=TOOL, kernel=name, problem=run[:64]))
            if len(readers) >= _MAX_RUNS:
                raise Rejected(f"more than {_MAX_RUNS:,} runs")
            readers[run] = KernelReader(catalog, head)
        return readers[run].measurement(read_config(row["config"]), _result(row))

    for line in lines:
        try:
            cells = _cells(line)
            if not columns or cells[0] == columns[0]:
                # Each run that finds an empty file writes the head again.
                columns = cells
                raise Rejected(COMMENT)
            yield careful(measurement, dict(zip(columns, cells, strict=False)))
        except Rejected as reason:
            yield reason


def _cells(line: object) -> list[str]:
    try:
        cells = next(csv.reader([text_of(line)], strict=True))
    except csv.Error as error:
        raise Rejected("no line of a table", str(error)) from None
    return [cell.strip() for cell in cells]


def _result(row: Mapping[str, str]) -> LoggedResult:
    spent = _number(row.get("compile_time_s") or "0", "compile_time_s")
    if row["status"] != "ok":
        return failed(row["status"], STATUSES, spent)
    if not row["perf_ms"]:
        return failed("error", STATUSES, spent)
    return timed([_number(row["perf_ms"], "perf_ms")], spent)


def _number(text: str, name: str) -> float:
    try:
        return seconds_of(float(text), name)
    except ValueError:
        raise Rejected(f"{name} is not a number", got=text) from None


def read_config(text: str) -> dict[str, Any]:
    """The keywords of a written call of `Config`, as JSON has them.

    Raises:
        Rejected: It is something else.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or ast.unparse(call.func) not in _CALLED:
            raise ValueError("another call")
        knobs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in knobs:
            raise ValueError("knobs without names")
        written = json.dumps(knobs, allow_nan=False)
    # Deep values are errors of syntax or memory to Python's parser; no name or call in a value is followed.
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise Rejected("configuration is not Config(...)", got=text) from None
    # As JSON has them: lists for tuples, and bounded.
    config: dict[str, Any] = parse_line(written.encode())
    return config


def _runs(table: Path) -> dict[str, KernelHead]:
    """Kernels by run, out of the file beside a table; lines that are wrong are told when it is imported."""
    beside = table.with_name((only(table, ".csv") or table.name) + SIDECAR)
    heads: dict[str, KernelHead] = {}
    if not beside.is_file():
        return heads
    for line in LogLines(beside):
        try:
            value = parse_line(line) if type(line) is bytes and line.strip() else None
            run = careful(_run_of, value)
        except Rejected:
            continue
        if len(heads) < _MAX_RUNS:
            heads[run[0]] = run[1]
    return heads


def _run_of(value: Any) -> tuple[str, KernelHead]:
    """Run and kernel of one line of the file beside a table.

    Raises:
        Rejected: It is something else.
    """
    if type(value) is not dict or type(value.get("kernel_name")) is not str:
        raise Rejected("no kernel of Helion", got=value)
    hardware = value.get("hardware_info")
    facts = hardware if type(hardware) is dict else {}
    name = facts.get("device_name") or value.get("hardware") or ""
    props = facts.get("device_props")
    facts_by_name = {**(props if type(props) is dict else {}), **{name: facts.get(name) for name in _FACTS}}
    stated = tuple(
        sorted(
            (str(key)[:64], str(fact)[:64]) for key, fact in facts_by_name.items() if type(fact) in (int, str)
        )
    )[:32]
    problem = [_listed(value.get(name)) for name in ("input_shapes", "dtypes")]
    tensors = _tensors(*problem)
    head = KernelHead(
        tool=TOOL,
        kernel=value["kernel_name"],
        problem=problem,
        arg_shapes=tuple(shape for shape, _ in tensors),
        arg_dtypes=tuple(dtype for _, dtype in tensors),
        device_name=name if type(name) is str else "",
        details={"source": value.get("kernel_source", "")},
        device_facts=stated,
    )
    return str(value.get("run_id") or value.get("kernel_id") or ""), head


def _listed(value: Any) -> Any:
    """A list that Helion wrote as JSON, or as the text of a Python list; other texts stay texts."""
    if type(value) is not str:
        return value
    text = _TORCH_NAME.sub(r"'\g<0>'", _TORCH_SIZE.sub(r"\1", value))
    try:
        return read_config(f"Config(value={text})").get("value", value)
    except Rejected:
        return value


def _tensors(shapes: Any, dtypes: Any) -> list[tuple[Shape, str]]:
    """Shape and type of each tensor; none if they do not belong together."""
    if not type(shapes) is type(dtypes) is list or not len(shapes) == len(dtypes) <= MAX_TENSORS:
        return []
    pairs = zip(map(shape_of, shapes), dtypes, strict=True)
    return [(shape, dtype.removeprefix("torch.")) for shape, dtype in pairs if shape and is_dtype(dtype)]


def _is_run(value: Any) -> bool:
    return type(value) is dict and "run_id" in value and "kernel_name" in value


def _check_run(value: Any, _catalog: Catalog, _context: None) -> None:
    _run_of(value)  # read with the table beside it


FORMATS = (
    FileFormat(tool="Helion", dialect=DIALECT, read=_read_table, is_head=_is_table, max_line_bytes=_MAX_LINE),
    LineFormat(tool="", dialect=DIALECT, matches=_is_run, read=_check_run),
)
