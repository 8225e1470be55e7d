"""Parts of the day as people write them."""

from __future__ import annotations

import re

_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]|24):([0-5]\d)")


def window_secs(text: str) -> tuple[float, float]:
    """Read a part of the day, such as `22:00-06:30`.

    Returns:
        Begin and end in seconds since midnight; one that reaches over midnight ends before it begins.

    Raises:
        ValueError: The text is none.
    """
    found = _WINDOW.fullmatch(text)
    hours = [int(one) for one in found.groups()] if found else []
    if not hours or hours[:2] == hours[2:] or hours[2] * 60 + hours[3] > 24 * 60:
        raise ValueError(f"expected a part of the day such as '22:00-06:30', got {text!r}")
    return hours[0] * 3600.0 + hours[1] * 60.0, hours[2] * 3600.0 + hours[3] * 60.0


__all__ = ["window_secs"]
