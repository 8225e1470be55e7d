"""The lines of a log, whatever dialect it is in: each a measurement, or the reason why it is none.

What a file or a line looks like is in the declarations of `fleet.interchange.dialects`; this module goes by
them, and holds what is the same for all: bounds, blank lines and comments, what no dialect claims.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fleet.interchange import dialects
from fleet.interchange.logs.catalog import Catalog, FileFormat, LineFormat, Measurement
from fleet.interchange.logs.json_items import JsonItems
from fleet.interchange.logs.json_values import (
    WORKLOAD_LINE,
    Rejected,
    careful,
    parse_line,
)
from fleet.interchange.logs.knobs import only
from fleet.interchange.logs.lines import LONG_LINE, LogLines, Unreadable, first_lines
from transfer.language.dialects import READERS

#: Dialects by name; `auto` takes each line for what it looks like.
DIALECTS: Final = ("auto", *READERS)
#: Reason of a file that is one JSON document of another tool.
UNREAD_FORMAT: Final = "a format that is not read"
#: A longer line is a workload of a database, or not read.
MAX_RECORD_BYTES: Final = 4 << 20

#: Lines of a file that are looked at to tell which tuner wrote it.
_LOOK_LINES = 20

#: A log that is being read: its file, and what became of each line.
OpenLog = tuple[LogLines, Iterator[Measurement | Rejected]]


@cache
def formats() -> tuple[LineFormat | FileFormat, ...]:
    """What the modules of `fleet.interchange.dialects` declare."""
    modules = pkgutil.iter_modules(dialects.__path__, f"{dialects.__name__}.")
    return tuple(form for module in modules for form in import_module(module.name).FORMATS)


def tools() -> list[str]:
    """Tools whose logs are read, for people."""
    return sorted(form.tool for form in formats() if form.tool)


def line_formats() -> list[LineFormat]:
    """Formats of logs that are read line by line."""
    return [form for form in formats() if isinstance(form, LineFormat)]


def file_formats() -> list[FileFormat]:
    """Formats of logs that are read file by file."""
    return [form for form in formats() if isinstance(form, FileFormat)]


def is_head(line: bytes) -> bool:
    """Whether a first line begins a tool's text that is no JSON."""
    return any(form.is_head is not None and form.is_head(line) for form in file_formats())


def companion_of(path: Path) -> Path | None:
    """The file beside a log of lines that belongs to it."""
    return next((beside for form in line_formats() if (beside := form.companion(path)) is not None), None)


class LineReader:
    """Reads the logs of one import.

    Args:
        dialect: One of `DIALECTS`; lines of others are rejected.
    """

    def __init__(self, dialect: str = "auto") -> None:
        self._dialect = dialect
        self._catalog = Catalog()
        self._file_formats = [form for form in file_formats() if dialect in ("auto", form.dialect)]

    def open(self, path: Path, *, with_companion: bool = True) -> OpenLog:
        """Open a log; without its companion where it is only looked at.

        Raises:
            OSError: The file cannot be read.
        """
        if self._file_formats:
            lines, _ = first_lines(path, _LOOK_LINES)
            for form in self._file_formats:
                if form.is_head is not None and form.is_head(lines[0]):
                    text = LogLines(path, form.max_line_bytes)
                    return text, form.read(text, self._catalog)
            key = _document_key(path, [line.strip() for line in lines if line.strip()])
            if key is not None:
                document = LogLines(path)
                return document, self._document(document, key)
        log = LogLines(path)
        return log, self.read(log, companion_of(path) if with_companion else None)

    def _document(self, lines: LogLines, key: str) -> Iterator[Measurement | Rejected]:
        for form in self._file_formats:
            has_name = not form.suffix or only(lines.path, form.suffix)
            if form.document is not None and form.document.listed == key and has_name:
                return form.read(lines, self._catalog)
        return iter((Rejected(UNREAD_FORMAT, f"expected a file of {', '.join(tools())}"),))

    def read(
        self, lines: Iterable[bytes | Unreadable], companion: Path | None = None
    ) -> Iterator[Measurement | Rejected]:
        """Yield what each line of one file is, given the file beside it."""
        sources = [(form, form.context(companion)) for form in line_formats()]
        for line in lines:
            try:
                yield careful(self._measurement, line, sources)
            except Rejected as reason:
                yield reason

    def _measurement(self, line: bytes | Unreadable, sources: list[tuple[LineFormat, Any]]) -> Measurement:
        if type(line) is not bytes:
            raise Rejected(str(line))
        if len(line) > MAX_RECORD_BYTES and not line.startswith(b'["'):
            raise Rejected(LONG_LINE, f"{len(line):,} bytes")
        value = parse_line(line)
        for form, context in sources:
            if form.matches(value):
                if self._dialect not in ("auto", form.dialect):
                    raise Rejected(f"a line of {form.dialect}, asked for {self._dialect}")
                measurement = form.read(value, self._catalog, context)
                if measurement is None:
                    raise Rejected(WORKLOAD_LINE)
                return measurement
        raise Rejected("no known dialect", line[:40].decode(errors="replace"))


def _document_key(path: Path, lines: list[bytes]) -> str | None:
    """Key of the results of a file that is one JSON document, by its first lines.

    It is empty where no format has such results; None for a log of lines.
    """
    first = lines[0] if lines else b""
    keys = {form.document.listed for form in file_formats() if form.document is not None}
    items = JsonItems(LogLines(path).chunks(), keys)
    if first.startswith(b"{"):
        with suppress(Rejected):
            next(iter(items), None)
    return items.listed_key or ("" if first in (b"{", b"[") else None)
