"""The base of values that cross a process or a file.

A declaration is all there is: msgspec encodes, decodes and validates by the types of its fields. An unknown
field, a missing one that has no default, or a value of another type is an error with its path.
"""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that never changes; equal fields make equal values."""


class Identified(Value, frozen=True, dict=True):
    """A value that keeps what was computed of it (`functools.cached_property`) beside its fields."""

    def __post_init__(self) -> None:
        # A changed copy (`msgspec.structs.replace`) is given what its original kept.
        self.__dict__.clear()
