"""MetaSchedule's JSON databases: lines of workloads, lines of tuning records that name them by position.

Modules are taken out of their base64 wrapping as text; nothing here builds a TVM object.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agents.records import WorkloadId, canonical_json, content_hash, imported_id
from fleet.interchange.logs.catalog import (
    MAX_WORKLOADS,
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
    careful,
    database_result,
    parse_line,
)
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.operators import (
    MAX_TENSORS,
    Shape,
    block_operator,
    tensor_name,
    tensor_of,
)
from fleet.interchange.logs.targets import Machine, parse_target
from transfer.errors import TraceError

DIALECT = "meta_schedule"

#: TVM puts the length of the JSON text in front of it.
_LENGTH_BYTES = 8
_MAX_INSTRUCTIONS = 10_000
_INSTRUCTION = frozenset({(str, list, list, list)})
#: Blocks are `GetBlock` to old versions, `GetSBlock` to new ones.
_GET_BLOCK = ("GetBlock", "GetSBlock")
#: Bytes of all modules of one file, compressed.
_MAX_MODULES_BYTES = 64 << 20


class Database:
    """The workloads that the tuning records of one file name by position.

    Args:
        beside: File of workloads beside it, if any; what is wrong with a line of it is told elsewhere.
    """

    def __init__(self, beside: Path | None = None) -> None:
        #: (workload id, module's text compressed); the text may be some hundred KB.
        self._modules: list[tuple[WorkloadId, bytes] | None] = []
        self._bytes = 0
        #: Tells this database from others in the catalog's keys, which keep it alive.
        self.key = object()
        #: Stands for a database without workload lines: hash of its first record, so that longer copies of
        #: the same database agree.
        self.anchor = ""
        for line in () if beside is None else LogLines(beside):
            with suppress(Rejected):
                if type(line) is bytes and line.strip():
                    careful(self.add, parse_line(line))

    @property
    def has_workloads(self) -> bool:
        """Whether any workload line was seen."""
        return bool(self._modules)

    def add(self, value: Any) -> None:
        """Take a workload line, `[structural hash, base64 of the module]`; a faulty one keeps its place.

        Raises:
            Rejected: It holds no module.
        """
        if len(self._modules) >= MAX_WORKLOADS:
            raise Rejected(f"more than {MAX_WORKLOADS:,} workloads")
        self._modules.append(None)
        entry = _module(value)
        if self._bytes + len(entry[1]) > _MAX_MODULES_BYTES:
            raise Rejected("modules take too much memory")
        self._bytes += len(entry[1])
        self._modules[-1] = entry

    def entry(self, index: int) -> tuple[WorkloadId, bytes]:
        """Id of one workload, and the text of its module compressed.

        Raises:
            Rejected: The workload line is faulty or missing.
        """
        module = self._modules[index] if index < len(self._modules) else None
        if module is None:
            raise Rejected("its workload line is faulty or missing", f"workload {index}")
        return module


def workload_file(path: Path) -> Path | None:
    """The file of workloads beside a file of tuning records: `database_workload.json` and the like."""
    if "tuning_record" not in path.name:
        return None
    beside = path.with_name(path.name.replace("tuning_record", "workload"))
    plain = beside.with_name(beside.name.removesuffix(".gz"))
    for candidate in (beside, plain, plain.with_name(f"{plain.name}.gz")):
        if candidate.is_file():
            return candidate
    return None


def _is_workload_line(value: Any) -> bool:
    """Whether a line is `[text, text]`, as workloads are written."""
    return type(value) is list and len(value) == 2 and type(value[0]) is str and type(value[1]) is str


def _module(value: Any) -> tuple[WorkloadId, bytes]:
    if not _is_workload_line(value):
        raise Rejected("workload line is not [hash, module]", got=value)
    digits, encoded = value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and int(digits) < 1 << 64):
        raise Rejected("structural hash is not a number of 64 bits", got=digits)
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise Rejected("module is not base64", got=encoded) from None
    text = raw[_LENGTH_BYTES:]
    if int.from_bytes(raw[:_LENGTH_BYTES], "little") != len(text):
        raise Rejected("module is cut", f"{len(text)} bytes")
    module = parse_line(text)
    if type(module) is not dict or "nodes" not in module:
        raise Rejected("module is not TVM's JSON", got=module)
    # The stated hash is nobody's word but the log's, so it names no workload of ours.
    return imported_id(int(digits), text.decode()), zlib.compress(text, 1)


def _matches(value: Any) -> bool:
    return type(value) is list and len(value) == 2


def _read(value: list[Any], catalog: Catalog, database: Database) -> Measurement | None:
    if _is_workload_line(value):
        database.add(value)
        return None
    index, record = value
    if type(index) is not int or not 0 <= index < 1 << 32 or type(record) is not list or len(record) != 4:
        raise Rejected("no tuning record", "expected [workload, [trace, run_secs, target, args_info]]")
    trace, run_secs, target, args = record
    instructions = _checked_trace(trace)
    result = database_result(run_secs)
    trace_text, args_key = checked_trace(trace), cache_key(args)
    if not database.has_workloads and not database.anchor:
        database.anchor = content_hash(trace_text, canonical_text(args))[:16]
    workload = catalog.workload(
        (DIALECT, database.key, index, args_key),
        lambda: _workload(catalog, database, index, args, _blocks(instructions)),
    )
    environment = catalog.environment((DIALECT, cache_key(target)), lambda: _environment(target))
    try:
        # As whoever learns from it will: a decision may be missing, or of another form.
        catalog.traces.check(trace_text, workload.workload)
    except TraceError as error:
        raise Rejected("trace cannot be read", str(error)[:100]) from None
    return Measurement(workload, environment, trace_text, result)


def _checked_trace(trace: Any) -> list[Any]:
    """The instructions of `[instructions, decisions]`."""
    if type(trace) is not list or len(trace) != 2 or type(trace[0]) is not list or type(trace[1]) is not list:
        raise Rejected("trace is not [instructions, decisions]", got=trace)
    instructions: list[Any] = trace[0]
    if len(instructions) > _MAX_INSTRUCTIONS or len(trace[1]) > _MAX_INSTRUCTIONS:
        raise Rejected("too many instructions", str(len(instructions)))
    for instruction in instructions:
        if type(instruction) is not list or tuple(map(type, instruction)) not in _INSTRUCTION:
            raise Rejected("an instruction is not [kind, inputs, attributes, outputs]", got=instruction)
    for decision in trace[1]:
        if type(decision) is not list or len(decision) != 2 or type(decision[0]) is not int:
            raise Rejected("a decision is not [instruction, value]", got=decision)
    return instructions


def _blocks(instructions: list[Any]) -> list[str]:
    return [
        instruction[2][0]
        for instruction in instructions
        if instruction[0] in _GET_BLOCK and instruction[2] and type(instruction[2][0]) is str
    ]


def _workload(
    catalog: Catalog, database: Database, index: int, args: Any, blocks: list[str]
) -> LoggedWorkload:
    shapes, dtypes = _arguments(args)
    operator = block_operator(blocks, shapes, dtypes)
    if database.has_workloads:
        workload_id, packed = database.entry(index)
        workload = catalog.by_id(workload_id)
        if workload is not None:
            return workload
        module_json = zlib.decompress(packed).decode()
    else:
        key = {"database": database.anchor, "index": index, "args_info": args}
        workload_id = key_id(DIALECT, check_key(canonical_text(key)))
        module_json = canonical_json({"dialect": DIALECT, **key})
    name = tensor_name(operator.name, shapes)[:100]
    operator = replace(operator, name=operator.name[:100])
    return LoggedWorkload.of(DIALECT, workload_id, name, operator, module_json)


def _arguments(args: Any) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    """Shapes and types of `[["TENSOR", dtype, shape], ...]`; empty if any of it is something else."""
    tensors = []
    for argument in args if type(args) is list and len(args) <= MAX_TENSORS else ():
        is_whole = type(argument) is list and len(argument) == 3
        kind, dtype, shape = argument if is_whole else (None, None, None)
        tensor = tensor_of([kind, shape, dtype])
        if tensor is None:
            return (), ()
        tensors.append(tensor)
    return tuple(shape for shape, _ in tensors), tuple(dtype for _, dtype in tensors)


def _environment(target: Any) -> tuple[dict[str, Any], Machine]:
    return {"imported": DIALECT, "target": target}, Machine(parse_target(target))


FORMATS = (
    LineFormat(
        tool="MetaSchedule",
        dialect=DIALECT,
        matches=_matches,
        read=_read,
        companion=workload_file,
        context=Database,
    ),
)
