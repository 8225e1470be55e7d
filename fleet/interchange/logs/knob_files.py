"""Which tuner wrote a file of configurations, by its name and its first bytes.

Called by `fleet.interchange.import_files` and `fleet.interchange.import_logs`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.helion import TableFile, is_table
from fleet.interchange.logs.kernel_tuner import CACHE_KEYS, T4_KEYS, CacheFile, T4File
from fleet.interchange.logs.knobs import KnobFile, only
from fleet.interchange.logs.lines import first_lines
from fleet.interchange.logs.triton import KEYS, SUFFIX, AutotuneFile

#: Lines of a file that are looked at.
_LOOK_LINES = 20
_LOOK_BYTES = 1 << 16
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_0-9]{1,32})"\s*:')
_RESULTS = re.compile(rb'"results"\s*:\s*\[')


def open_knob_file(path: Path, catalog: Catalog) -> KnobFile | None:
    """Open a file of configurations; None where it is something else.

    Raises:
        OSError: The file cannot be read.
    """
    lines, _ = first_lines(path, _LOOK_LINES)
    if is_knob_table(lines):
        return TableFile(path, catalog)
    head = b"\n".join(lines)[:_LOOK_BYTES]
    found = _FIRST_KEY.match(head)
    key = found[1].decode() if found else ""
    if key in KEYS and only(path, SUFFIX):
        return AutotuneFile(path, catalog)
    if key in T4_KEYS and (key not in CACHE_KEYS or _RESULTS.search(head)):
        return T4File(path, catalog)
    return CacheFile(path, catalog) if key in CACHE_KEYS else None


def is_knob_table(lines: Sequence[bytes]) -> bool:
    """Whether the first lines of a file are those of a table of configurations."""
    return bool(lines) and is_table(lines[0])
