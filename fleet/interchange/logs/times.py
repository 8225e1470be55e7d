"""Units of time and dates as tuners write them: each tool has words and forms of its own.

Called by the readers of configurations (`kernel_tuner.py`). A unit or date of an unknown form is an error of
its line, never a guess: a wrong unit makes a program a thousand times slower or faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from fleet.interchange.logs.json_values import Rejected, excerpt
from fleet.interchange.logs.results import MAX_TIMESTAMP

#: How many of a unit make a second, by its words without a plural's `s`; Kernel Tuner wrote `miliseconds`.
_PER_SECOND: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("ms", "msec", "milli", "millisec", "millisecond", "milisecond"), 1e3),
    **dict.fromkeys(("us", "usec", "micro", "microsec", "microsecond"), 1e6),
    **dict.fromkeys(("ns", "nsec", "nano", "nanosec", "nanosecond"), 1e9),
}
_MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u"})
_UNIT_KEY = "timeunit"
_MAX_CHARS = 64
_NUMBER = re.compile(r"[0-9]{9,19}(?:\.[0-9]{1,9})?")
_ZONE = re.compile(r"\s*(?:UTC|GMT|Z)$|\s+(?=[+-][0-9]{2}:?[0-9]{2}$)", re.IGNORECASE)
_YEAR_FIRST = re.compile(r"([0-9]{4})[/.]([0-9]{2})[/.]([0-9]{2})")


def units_per_second(word: Any) -> float | None:
    """Number of units in a second, such as 1000 for `ms` or `Milliseconds`; None for no unit of time."""
    if type(word) is not str or len(word) > _MAX_CHARS:
        return None
    name = word.strip().lower().translate(_MICRO)
    return _PER_SECOND.get(name) or _PER_SECOND.get(name.removesuffix("s"))


def stated_unit(value: Mapping[str, Any]) -> float | None:
    """Units per second by the key `timeunit`, `time_unit` or `TimeUnit` of an object; None without one.

    Raises:
        Rejected: What stands there is no unit of time.
    """
    for key, word in value.items():
        if key.replace("_", "").lower() == _UNIT_KEY and word not in (None, ""):
            return checked_unit(word)
    return None


def checked_unit(word: Any) -> float:
    """Units per second of a word that must be a unit of time.

    Raises:
        Rejected: It is none.
    """
    units = units_per_second(word)
    if units is None:
        raise Rejected("the unit of time is not known", excerpt(word))
    return units


def unix_secs(value: Any) -> float:
    """Unix seconds of a date; 0 without one.

    Args:
        value: A text in ISO 8601 (also with a blank for the `T`, slashes, `UTC`), as in mails or by `date`;
            or seconds, milliseconds, microseconds or nanoseconds since 1970.

    Raises:
        Rejected: It is no date, or one before 1970.
    """
    if value is None or value == "":
        return 0.0
    text = value.strip() if type(value) is str else ""
    if type(value) in (int, float) or (len(text) > 8 and _NUMBER.fullmatch(text)):
        # Compared before it is converted: a whole number may be too long for a float.
        secs = -1.0 if type(value) is not str and not 0 <= value < 1e19 else float(value)
        for _ in range(3):
            secs /= 1e3 if secs >= MAX_TIMESTAMP else 1
    else:
        secs = _text_secs(text[: _MAX_CHARS + 1])
    if not 0 <= secs < MAX_TIMESTAMP:
        raise Rejected("timestamp is out of range", excerpt(value))
    return secs


def _text_secs(text: str) -> float:
    if not 0 < len(text) <= _MAX_CHARS:
        raise Rejected("timestamp is not a time", excerpt(text))
    iso = _ZONE.sub(lambda zone: "" if zone[0].isspace() else "+00:00", text, count=1)
    iso = _YEAR_FIRST.sub(r"\1-\2-\3", iso, count=1)
    for read, form in ((datetime.fromisoformat, iso), (parsedate_to_datetime, text)):
        try:
            at = read(form)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (TypeError, ValueError, OverflowError, IndexError):
            continue
    raise Rejected("timestamp is not a time", excerpt(text))
