"""Workloads and environments of an import, each made once however many lines name it.

The readers of the dialects fill it; `fleet.interchange.import_logs` stores what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agents.records import Workload, WorkloadId, canonical_json, content_hash
from agents.values import Value
from fleet.interchange.logs.json_items import Document
from fleet.interchange.logs.json_values import LoggedResult, Rejected, canonical_text
from fleet.interchange.logs.lines import MAX_LINE_BYTES, LogLines
from fleet.interchange.logs.operators import Operator
from fleet.interchange.logs.targets import Machine
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import MAX_TEXT

#: Workloads and environments in one import at most: real logs have some thousands, MIOpen's
#: databases up to 194,000; each workload is a file.
MAX_WORKLOADS = 250_000
MAX_ENVIRONMENTS = 10_000

#: Characters of the key of a workload without a module; real ones have some hundred, or some thousand where
#: they hold schedule steps.
MAX_KEY_CHARS = 1 << 16
#: Characters of all workloads of one import: each is read again, whole, by whoever learns from the store.
MAX_WORKLOAD_CHARS = 256 << 20
#: Characters of one environment, and of all: an environment is written again for every row.
MAX_ENVIRONMENT_CHARS = 1 << 14
MAX_ENVIRONMENTS_CHARS = 8 << 20
#: Bytes that an item of a shape takes in memory.
_EXTENT_BYTES = 40

#: Digits of a workload id.
WORKLOAD_ID_DIGITS = 16


class LoggedWorkload(Struct, eq=False):
    """A workload that lines of a dialect name."""

    workload: Workload
    dialect: str
    #: How often its FLOPs were estimated.
    estimates: int = 0

    @classmethod
    def of(
        cls, dialect: str, workload_id: WorkloadId, name: str, operator: Operator, module_json: str
    ) -> LoggedWorkload:
        """What a log says of a workload; it knows no networks."""
        workload = Workload(
            workload_id=workload_id,
            name=name,
            operator=operator.name,
            arg_shapes=operator.shapes,
            arg_dtypes=operator.dtypes,
            flops=operator.flops,
            networks=(),
            module_json=module_json,
        )
        return cls(workload, dialect)

    @property
    def bytes(self) -> int:
        """About what it takes in memory until it is stored."""
        workload = self.workload
        return len(workload.module_json) + _EXTENT_BYTES * sum(
            2 + len(shape) for shape in workload.arg_shapes
        )

    def candidate_id(self, trace: str) -> str:
        """Id of a schedule of this workload."""
        return content_hash(self.workload.workload_id, self.dialect, trace)

    def estimate_flops(self, flops: float) -> None:
        """Keep an estimate that was not there before."""
        self.estimates += 1
        self.workload = replace(self.workload, flops=flops)

    def forget_content(self) -> None:
        """Give memory back once it is stored; modules may have some hundred KB."""
        self.workload = replace(self.workload, module_json="", name="", arg_shapes=(), arg_dtypes=())


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """Where lines were measured, as far as they say."""

    #: Canonical JSON for `Record.environment`.
    text: str
    environment_id: str
    machine: Machine


class Measurement(Value, frozen=True):
    """One line, read."""

    workload: LoggedWorkload
    environment: Environment
    #: Canonical text of the schedule.
    trace: str
    result: LoggedResult


class Catalog:
    """What the lines of one import name.

    Attributes:
        traces: Looks at every MetaSchedule trace, as whoever learns from it will.
    """

    def __init__(self) -> None:
        self.traces = MetaScheduleReader()
        self._workloads: dict[Hashable, LoggedWorkload] = {}
        self._by_id: dict[WorkloadId, LoggedWorkload] = {}
        self._environments: dict[Hashable, Environment] = {}
        self._workload_chars = self._environment_chars = 0

    def by_id(self, workload_id: WorkloadId) -> LoggedWorkload | None:
        """A workload that was made under another key."""
        return self._by_id.get(workload_id)

    def workload(self, key: Hashable, make: Callable[[], LoggedWorkload]) -> LoggedWorkload:
        """The workload that a reader knows under a key; made when it is new.

        Raises:
            Rejected: There are too many, or `make` says so.
        """
        workload = self._workloads.get(key)
        if workload is None:
            if len(self._workloads) >= MAX_WORKLOADS:
                raise Rejected(f"more than {MAX_WORKLOADS:,} workloads")
            logged = make()
            workload = self._by_id.get(logged.workload.workload_id)
            if workload is None:
                chars = self._workload_chars + len(logged.workload.module_json)
                if chars > MAX_WORKLOAD_CHARS:
                    raise Rejected(
                        "workloads take too much room", f"more than {MAX_WORKLOAD_CHARS:,} characters"
                    )
                self._workload_chars = chars
                workload = self._by_id[logged.workload.workload_id] = logged
            self._workloads[key] = workload
        return workload

    def environment(self, key: Hashable, make: Callable[[], tuple[dict[str, Any], Machine]]) -> Environment:
        """The environment that a reader knows under a key; made when it is new.

        Raises:
            Rejected: There are too many, or `make` says so.
        """
        environment = self._environments.get(key)
        if environment is None:
            if len(self._environments) >= MAX_ENVIRONMENTS:
                raise Rejected(f"more than {MAX_ENVIRONMENTS:,} targets")
            value, machine = make()
            text = _bounded("target", canonical_json(value), MAX_ENVIRONMENT_CHARS)
            if self._environment_chars + len(text) > MAX_ENVIRONMENTS_CHARS:
                raise Rejected(
                    "targets take too much room", f"more than {MAX_ENVIRONMENTS_CHARS:,} characters"
                )
            self._environment_chars += len(text)
            environment = self._environments[key] = Environment(text, content_hash("imported", text), machine)
        return environment


def check_key(key_text: str) -> str:
    """Refuse the key of a workload that is longer than any.

    Raises:
        Rejected: It is.
    """
    return _bounded("workload key", key_text, MAX_KEY_CHARS)


def checked_trace(value: Any) -> str:
    """The canonical text of a schedule.

    Raises:
        Rejected: It is longer than what learning reads, or nested too deeply.
    """
    return _bounded("trace", canonical_text(value), MAX_TEXT)


def _bounded(what: str, text: str, most: int) -> str:
    if len(text) > most:
        raise Rejected(f"{what} is too long", f"{len(text):,} characters")
    return text


def key_id(dialect: str, key_text: str) -> WorkloadId:
    """Id of a workload that has no module: hash of its dialect and of what names it there."""
    return WorkloadId(content_hash(dialect, key_text)[:WORKLOAD_ID_DIGITS])


# What a dialect declares of its logs: how they are told from others, and what reads them.
#
# `fleet.interchange.line_reader` goes by it; a reader sees one line, or one file, and knows nothing of
# imports.


def _nothing(_: Path | None) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """Logs of a tool that hold a measurement a line, as JSON."""

    #: The tool, for people; empty where the dialect has another format with its name.
    tool: str
    dialect: str
    #: Whether a parsed line is of this format.
    matches: Callable[[Any], bool]
    #: Reads a parsed line, with what `context` gave; None for a line that only others refer to. It raises
    #: `Rejected` for what is no measurement.
    read: Callable[[Any, Catalog, Any], Measurement | None]
    #: The file beside a log that belongs to it.
    companion: Callable[[Path], Path | None] = _nothing
    #: What the lines of one file share, given that file beside it.
    context: Callable[[Path | None], Any] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """Logs of a tool that are read file by file: one JSON document (`document`), or text (`is_head`)."""

    tool: str
    dialect: str
    #: Yields each measurement of a file, or why there is none; each counts as a line.
    read: Callable[[LogLines, Catalog], Iterator[Measurement | Rejected]]
    #: Where the document holds its results.
    document: Document | None = None
    #: End of the names of such documents, where it has one.
    suffix: str = ""
    #: Whether a first line begins such a text.
    is_head: Callable[[bytes], bool] | None = None
    max_line_bytes: int = MAX_LINE_BYTES
