"""Triton's caches of autotuned kernels, `KERNEL.autotune.json`: one object, all configurations of one key.

The file names neither device nor time. A configuration that failed has infinite times; Triton writes so when
a kernel does not compile or needs more than the device has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fleet.interchange.logs.catalog import Catalog, Measurement
from fleet.interchange.logs.json_items import JsonItems
from fleet.interchange.logs.json_values import Rejected, shown
from fleet.interchange.logs.knobs import KernelHead, KernelReader, failed, only, read_items, timed
from fleet.interchange.logs.lines import LogLines

TOOL = "triton"
SUFFIX = ".autotune.json"
KEYS = frozenset(("key", "configs_timings"))
#: What it writes for the time of a failure, and the word of `fleet.interchange.logs.knobs.FAILURES`.
ERRORS = {"inf": "compile"}
#: What Triton keeps beside `kwargs`; values that are None say nothing.
OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


def read_autotuned(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    """Read one file of Triton's cache."""
    kernel = only(lines.path, SUFFIX)
    items = JsonItems(lines.chunks(), "configs_timings")
    return read_items(
        items, catalog, lambda head: KernelHead(tool=TOOL, kernel=kernel, problem=head.get("key")), _result
    )


def _result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not list or len(item) != 2 or type(item[0]) is not dict:
        raise Rejected("a result is not [configuration, times]", shown(item))
    config, times = item
    options = {name: one for name, one in config.items() if name != "kwargs" and one is not None}
    knobs = config.get("kwargs", {})
    if type(knobs) is not dict or knobs.keys() & options.keys():
        raise Rejected("kwargs are not an object of further knobs", shown(knobs))
    # Median first; of the quantiles only it is a time of the kernel.
    median = times[0] if type(times) is list and times else times
    if type(median) is float and math.isinf(median):
        return reader.measurement({**knobs, **options}, failed("inf", ERRORS))
    return reader.measurement({**knobs, **options}, timed([median]))
