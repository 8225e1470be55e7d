"""One line of a log, whatever dialect it is in; and which files are no logs of lines but configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from fleet.interchange.logs import kernel_tuner, triton
from fleet.interchange.logs.ansor import read_ansor
from fleet.interchange.logs.autotvm import read_autotvm
from fleet.interchange.logs.catalog import Catalog, Measurement
from fleet.interchange.logs.helion import MAX_LINE, is_table, read_table, run_of
from fleet.interchange.logs.json_items import FOLLOWED, TOO_LONG, JsonItems, spans_lines
from fleet.interchange.logs.json_values import Rejected, careful, parse_line
from fleet.interchange.logs.knobs import only
from fleet.interchange.logs.lines import LogLines, first_lines
from fleet.interchange.logs.meta_schedule import Database, is_workload_line, read_record
from transfer.language.meta_schedule import MetaScheduleReader

_Read = Callable[[LogLines, Catalog], Iterator[Measurement | Rejected]]

#: Tools whose logs are read line by line, by dialect.
_LINE_TOOLS: Final = {"ansor": "Ansor", "autotvm": "AutoTVM", "meta_schedule": "MetaSchedule"}
#: Tools that write one JSON document, and their readers, by the key of its results.
_DOCUMENTS: Final[dict[str, tuple[str, _Read]]] = {
    kernel_tuner.CACHE.listed: ("Kernel Tuner", kernel_tuner.read_cache),
    kernel_tuner.T4.listed: ("T4", kernel_tuner.read_t4),
    triton.CACHE.listed: ("Triton", triton.read_autotuned),
}
#: Dialects by name; `auto` takes each line for what it looks like.
DIALECTS: Final = ("auto", *_LINE_TOOLS, "knobs")
#: What an import reads, for people.
READ_FORMATS: Final = (*_LINE_TOOLS.values(), *(tool for tool, _ in _DOCUMENTS.values()), "Helion")
#: Reason of a file that is one JSON document of another tool.
UNREAD_FORMAT: Final = "a format that is not read"

#: Lines of a file that are looked at to tell which tuner wrote it.
_LOOK_LINES = 20


class LineReader:
    """Reads one line, whatever dialect it is in."""

    def __init__(self, dialect: str = "auto") -> None:
        self._dialect = dialect
        self._catalog = Catalog()
        self._traces = MetaScheduleReader()

    def knobs(self, path: Path) -> tuple[LogLines, Iterator[Measurement | Rejected]] | None:
        """Open a file of another tuner's configurations; None where it is read line by line.

        Returns:
            The file, and each configuration, or the reason why it is none that can be kept.

        Raises:
            OSError: The file cannot be read.
        """
        if self._dialect not in ("auto", "knobs"):
            return None
        lines, _ = first_lines(path, _LOOK_LINES)
        if is_table(lines[0]):
            table = LogLines(path, MAX_LINE)
            return table, read_table(table, self._catalog)
        read = _document_reader(path, [line.strip() for line in lines if line.strip()])
        if read is None:
            return None
        file = LogLines(path)
        return file, read(file, self._catalog)

    def read(self, line: bytes, database: Database) -> Measurement | None:
        """Read a line; None for a workload line, which `database` takes up.

        Raises:
            Rejected: It is no measurement that can be kept.
        """
        return careful(self._read, line, database)

    def _read(self, line: bytes, database: Database) -> Measurement | None:
        value = parse_line(line)
        if type(value) is dict:
            if "input" in value:
                self._check("autotvm")
                return read_autotvm(value, self._catalog)
            if "i" in value:
                if _is_old_autotvm(value["i"]):
                    raise Rejected("AutoTVM log before 0.2", "convert it with TVM 0.6's autotvm.record")
                self._check("ansor")
                return read_ansor(value, self._catalog)
            if "run_id" in value and "kernel_name" in value:
                run_of(value)  # read with the table beside it
                return None
        elif type(value) is list and len(value) == 2:
            self._check("meta_schedule")
            if not is_workload_line(value):
                return read_record(value, database, self._catalog, self._traces)
            database.add(value)
            return None
        raise Rejected("no known dialect", line[:40].decode(errors="replace"))

    def _check(self, dialect: str) -> None:
        if self._dialect not in ("auto", dialect):
            raise Rejected(f"a line of {dialect}, asked for {self._dialect}")


def _document_reader(path: Path, lines: list[bytes]) -> _Read | None:
    """What reads a file that is one JSON document, by its first lines; None for a log of lines."""
    first = lines[0] if lines else b""
    # A single line is one of a log, whole or not.
    is_log = len(lines) < 2 or _is_json(first) or _has_whole_neighbours(lines[1:])
    if first[:1] == b"[":
        is_document = first == b"[" or (not is_log and spans_lines(LogLines(path).chunks()))
        return _unread if is_document else None
    if first[:1] != b"{":
        return None
    items = JsonItems(LogLines(path).chunks(), _DOCUMENTS)
    ending = ""
    try:
        next(iter(items), None)
    except Rejected as reason:
        ending = reason.reason
    if items.listed_key == triton.CACHE.listed and not only(path, triton.SUFFIX):
        return _unread
    if items.listed_key:
        return _DOCUMENTS[items.listed_key][1]
    is_document = first == b"{" or (not is_log and ending in ("", FOLLOWED, TOO_LONG))
    return _unread if is_document else None


def _unread(lines: LogLines, _catalog: Catalog) -> Iterator[Rejected]:
    yield Rejected(UNREAD_FORMAT, f"expected a file of {', '.join(READ_FORMATS)}")


def _has_whole_neighbours(lines: list[bytes]) -> bool:
    """Whether two lines, one below the other, are whole objects or lists: a document has a comma there."""
    whole = (line[:1] in (b"{", b"[") and _is_json(line) for line in lines)
    return any(map(all, pairwise(whole)))


def _is_json(line: bytes) -> bool:
    try:
        parse_line(line)
    except Rejected:
        return False
    return True


def _is_old_autotvm(value: Any) -> bool:
    """AutoTVM 0.1 wrote [target, function, args, ...] under `i`."""
    return type(value) is list and len(value) >= 3 and type(value[0]) is str and type(value[1]) is str
