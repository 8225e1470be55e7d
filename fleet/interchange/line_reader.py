"""One line of a log, whatever dialect it is in; and which files are no logs of lines but configurations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fleet.interchange.logs.ansor import read_ansor
from fleet.interchange.logs.autotvm import read_autotvm
from fleet.interchange.logs.catalog import Catalog, Measurement
from fleet.interchange.logs.helion import MAX_LINE, is_table, read_table, run_of
from fleet.interchange.logs.json_values import Rejected, careful, parse_line
from fleet.interchange.logs.kernel_tuner import CACHE_KEYS, T4_KEYS, read_cache, read_t4
from fleet.interchange.logs.knobs import only
from fleet.interchange.logs.lines import LogLines, first_lines
from fleet.interchange.logs.meta_schedule import Database, is_workload_line, read_record
from fleet.interchange.logs.triton import KEYS, SUFFIX, read_autotuned
from transfer.language.meta_schedule import MetaScheduleReader

#: Dialects by name; `auto` takes each line for what it looks like.
DIALECTS: Final = ("auto", "ansor", "autotvm", "meta_schedule", "knobs")

#: Lines and bytes of a file that are looked at to tell which tuner wrote its configurations.
_LOOK_LINES = 20
_LOOK_BYTES = 1 << 16
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_0-9]{1,32})"\s*:')
_RESULTS = re.compile(rb'"results"\s*:\s*\[')


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
        head = b"\n".join(lines)[:_LOOK_BYTES]
        found = _FIRST_KEY.match(head)
        key = found[1].decode() if found else ""
        if key in KEYS and only(path, SUFFIX):
            read = read_autotuned
        elif key in T4_KEYS and (key not in CACHE_KEYS or _RESULTS.search(head)):
            read = read_t4
        elif key in CACHE_KEYS:
            read = read_cache
        else:
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


def _is_old_autotvm(value: Any) -> bool:
    """AutoTVM 0.1 wrote [target, function, args, ...] under `i`."""
    return type(value) is list and len(value) >= 3 and type(value[0]) is str and type(value[1]) is str
