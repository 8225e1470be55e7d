"""Triton's caches of autotuned kernels, `KERNEL.autotune.json`: one object, all configurations of one key.

The file names neither device nor time. A configuration that failed has infinite times; Triton writes so when
a kernel does not compile or needs more than the device has. Its versions write the values of a key as JSON
(`16`) or as texts (`"16"`): both are the same key here.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from fleet.interchange.logs.catalog import Measurement
from fleet.interchange.logs.json_items import Document
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.knobs import (
    KernelHead,
    KernelReader,
    document_format,
    failed,
    number_of,
    only,
    timed,
)

TOOL = "triton"
SUFFIX = ".autotune.json"
CACHE = Document("configs_timings")
#: What it writes for the time of a failure, and the word of `fleet.interchange.logs.knobs.FAILURES`.
ERRORS = {"inf": "compile"}
#: What Triton keeps beside `kwargs`; values that are None say nothing.
OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
_WORDS = {"True": True, "False": False, "None": None}
_FRACTION = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18}(?:e[+-]?[0-9]{1,2})?|e[+-]?[0-9]{1,2})")


def _head(path: Path, head: dict[str, Any]) -> KernelHead:
    return KernelHead(tool=TOOL, kernel=only(path, SUFFIX), problem=_key(head.get("key")))


def _key(value: Any) -> Any:
    """A key's values as JSON has them, whichever version wrote them."""
    return [_value_of(part) for part in value] if type(value) is list else _value_of(value)


def _value_of(value: Any) -> Any:
    if type(value) is not str:
        return value
    return float(value) if _FRACTION.fullmatch(value) else _WORDS.get(value, number_of(value))


def _result(reader: KernelReader, item: Any) -> Measurement:
    if type(item) is not list or len(item) != 2 or type(item[0]) is not dict:
        raise Rejected("a result is not [configuration, times]", got=item)
    config, times = item
    options = {name: option for name, option in config.items() if name != "kwargs" and option is not None}
    knobs = config.get("kwargs", {})
    if type(knobs) is not dict or knobs.keys() & options.keys():
        raise Rejected("kwargs are not an object of further knobs", got=knobs)
    # Median first; of the quantiles only it is a time of the kernel.
    median = times[0] if type(times) is list and times else times
    if median == math.inf:
        return reader.measurement({**knobs, **options}, failed("inf", ERRORS))
    return reader.measurement({**knobs, **options}, timed([median]))


FORMATS = (document_format("Triton", CACHE, _head, _result, SUFFIX),)
