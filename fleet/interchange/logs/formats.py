"""What a dialect declares of its logs: how they are told from others, and what reads them.

`fleet.interchange.line_reader` goes by it; a reader sees one line, or one file, and knows nothing of imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.interchange.logs.catalog import Catalog, Measurement
from fleet.interchange.logs.json_items import Document
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import MAX_LINE_BYTES, LogLines


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
