"""Configurations that other tuners measured: what their files have in common.

The readers of the tools (`kernel_tuner.py`, `triton.py`, `helion.py`) yield every configuration of a file, or
the reason why it is none that can be kept; this module makes a `Measurement` of kernel, knobs and result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agents.records import Outcome, canonical_json
from fleet.interchange.logs.catalog import (
    Catalog,
    Environment,
    FileFormat,
    LoggedWorkload,
    Measurement,
    check_key,
    checked_trace,
    key_id,
)
from fleet.interchange.logs.json_items import Document
from fleet.interchange.logs.json_values import (
    LoggedResult,
    Rejected,
    canonical_text,
    careful,
    check_secs,
)
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.operators import Operator, Shape, shape_of
from fleet.interchange.logs.targets import Machine, gpu_target
from transfer.language.knobs import check_knobs

DIALECT: Final = "knobs"
_MAX_NAME = 512
_NUMBERS = frozenset((float, int))
_WHOLE = re.compile(r"-?[0-9]{1,18}")

#: What the tools call a failure, by the word that this project keeps in `Record.error`.
FAILURES: Final = {
    "invalid": (Outcome.BUILD_FAILED, "invalid: the configuration breaks a restriction of the space"),
    "compile": (
        Outcome.BUILD_FAILED,
        "compile: the kernel could not be compiled, or needs too much of the device",
    ),
    "run": (Outcome.RUN_FAILED, "run: the kernel could not be run"),
    "wrong": (Outcome.WRONG_OUTPUT, "wrong: the kernel's answer was wrong"),
    "timeout": (Outcome.RUN_TIMEOUT, "timeout: running took too long"),
    "compile_timeout": (Outcome.BUILD_TIMEOUT, "compile_timeout: compiling took too long"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelHead:
    """What a file says of all its configurations."""

    #: Tool that tuned: `kernel_tuner`, `triton`, `helion`, `t4`.
    tool: str
    kernel: str
    #: Problem size as the tool has it; any short JSON value.
    problem: Any
    #: As the driver names it; empty where the file does not say.
    device_name: str = ""
    #: More of what names the kernel, such as its source.
    details: dict[str, Any] = field(default_factory=dict)
    #: Names of the knobs in the tool's order, which it may insist on.
    order: tuple[str, ...] = ()
    #: Properties of the device that the file states.
    device_facts: tuple[tuple[str, str], ...] = ()
    #: Units of time in a second; None if the file does not say.
    per_second: float | None = None
    #: Shapes and types of the kernel's tensors; empty if the file does not say.
    arg_shapes: tuple[Shape, ...] = ()
    arg_dtypes: tuple[str, ...] = ()


def document_format(
    tool: str,
    document: Document,
    head: Callable[[Path, dict[str, Any]], KernelHead],
    result: Callable[[KernelReader, Any], Measurement],
    suffix: str = "",
) -> FileFormat:
    """The format of files that hold the configurations of one kernel each.

    Args:
        tool: For people.
        document: How a file is laid out.
        head: Makes the kernel of the file's path and the values beside its results.
        result: Makes a measurement of one result.
        suffix: End of the names of such files, where the tool has one.
    """

    def kernel_reader(catalog: Catalog, path: Path) -> KernelReader:
        return KernelReader(catalog, head(path, document.head(path)))

    def read(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
        reader: KernelReader | None = None
        try:
            for item in document.items(lines):
                if reader is None:
                    reader = careful(kernel_reader, catalog, lines.path)
                try:
                    yield careful(result, reader, item)
                except Rejected as reason:
                    yield reason
        except Rejected as reason:
            yield reason

    return FileFormat(tool=tool, dialect=DIALECT, read=read, document=document, suffix=suffix)


class KernelReader:
    """Turns configurations of one kernel into measurements.

    Attributes:
        head: What the file says of all its configurations.

    Raises:
        Rejected: The head names no kernel that can be kept.
    """

    def __init__(self, catalog: Catalog, head: KernelHead) -> None:
        if type(head.kernel) is not str or not 0 < len(head.kernel) <= _MAX_NAME:
            raise Rejected("the kernel has no name", got=head.kernel)
        if not _is_name(head.device_name):
            raise Rejected("name of the device is not a text", got=head.device_name)
        self.head = head
        key = {"tool": head.tool, "kernel": head.kernel, "problem": head.problem, **head.details}
        text = check_key(canonical_text(key))
        try:
            canonical_json(key)
        except ValueError:
            # These tools write `NaN` and `Infinity`, which the text above shows as null.
            raise Rejected("a number is not finite", got=key) from None
        self._workload = catalog.workload((DIALECT, text), lambda: _workload(head, key, text))
        self._environment: Environment = catalog.environment(
            (DIALECT, head.tool, head.device_name), lambda: _environment(head)
        )

    def measurement(self, knobs: Any, result: LoggedResult) -> Measurement:
        """One configuration with its result.

        Raises:
            Rejected: It is no configuration.
        """
        if fault := check_knobs(knobs):
            raise Rejected(fault, got=knobs)
        return Measurement(self._workload, self._environment, checked_trace(knobs), result)

    def tell_flops(self, flops: float) -> None:
        """Keep what a metric says of the kernel's work."""
        if not self._workload.workload.flops and 0 < flops < 1e30:
            self._workload.estimate_flops(float(f"{flops:.6g}"))


def _is_name(value: Any) -> bool:
    """Whether a value may name a device: a text, and no half of a character, which no other reader takes."""
    if type(value) is not str or len(value) > _MAX_NAME:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _workload(head: KernelHead, key: dict[str, Any], text: str) -> LoggedWorkload:
    shape = shape_of(head.problem if type(head.problem) is list else [head.problem])
    shapes, dtypes = ((shape,), ("float32",)) if shape else (head.arg_shapes, head.arg_dtypes)
    problem = canonical_text(head.problem) if type(head.problem) is not str else head.problem
    order = {"order": list(head.order)} if head.order else {}
    return LoggedWorkload.of(
        DIALECT,
        key_id(DIALECT, text),
        f"{head.kernel} {problem}"[:_MAX_NAME],
        Operator(head.kernel[:64], shapes, dtypes),
        canonical_json({"dialect": DIALECT, **key, **order}),
    )


def _environment(head: KernelHead) -> tuple[dict[str, Any], Machine]:
    target = gpu_target(head.device_name)
    value = {
        "imported": DIALECT,
        "tool": head.tool,
        "device_name": head.device_name,
        "target": dict(target.options),
    }
    return value, Machine(target, device_name=head.device_name, device_facts=head.device_facts)


def failed(
    said: Any, words: Mapping[str, str], all_secs: float = 0.0, measured_at: float = 0.0
) -> LoggedResult:
    """A failure by what a tool calls it, and the tool's words for those of `FAILURES`.

    Raises:
        Rejected: The tool has no such word.
    """
    kind = words.get(said) if type(said) is str else None
    if kind is None:
        raise Rejected("an error of an unknown kind", got=said)
    outcome, text = FAILURES[kind]
    return LoggedResult(outcome, (), text, all_secs, measured_at)


def timed(
    runs: Any, all_secs: float = 0.0, measured_at: float = 0.0, *, per_second: float = 1e3
) -> LoggedResult:
    """A result by its times, one a repeat.

    Args:
        runs: Times in a unit of which `per_second` make a second; milliseconds if it is not given.
        all_secs: Seconds of building and running together; 0 if they are not known.
        measured_at: Unix seconds; 0 if they are not known.
        per_second: Units in a second.

    Raises:
        Rejected: They are no times.
    """
    if runs == [None]:
        raise Rejected("not measured", "neither times nor time")
    if type(runs) is not list or not _NUMBERS.issuperset(map(type, runs)):
        raise Rejected("times are not a list of numbers", got=runs)
    try:
        run_secs = check_secs([value / per_second for value in runs])
    except OverflowError:  # a whole number of hundreds of digits
        raise Rejected("a number is not finite", got=runs) from None
    return LoggedResult(Outcome.OK, run_secs, "", all_secs, measured_at)


def number_of(value: Any) -> Any:
    """A knob's value; a whole number in quotes is that number, for both are the same text in the kernel."""
    return int(value) if type(value) is str and _WHOLE.fullmatch(value) else value


def only(path: Path, suffix: str) -> str:
    """Name of a file without `suffix` and `.gz`; empty where it ends otherwise."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(suffix) if name.endswith(suffix) else ""
