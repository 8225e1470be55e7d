"""Dialects of traces and what reads each: the one list of them.

`fleet.interchange.dialects` reads the logs of other tools in these dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from transfer.language.ansor import AnsorReader
from transfer.language.autotvm import AutoTVMReader
from transfer.language.knobs import KnobReader
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Reader

#: What makes a reader, by dialect.
READERS: Final[Mapping[str, Callable[[], Reader]]] = {
    "ansor": AnsorReader,
    "autotvm": AutoTVMReader,
    "meta_schedule": MetaScheduleReader,
    "knobs": KnobReader,
}
