"""Errors of the fleet package: one root, so a caller can catch all of them."""

from __future__ import annotations


class FleetError(RuntimeError):
    """A failure of the deciding and keeping program itself (a failed candidate is a record instead).

    The message says what failed, where, what was found and expected, and what to do next.
    """


class UsageError(FleetError):
    """A command, or a setting that it was given, is wrong; the command line ends with exit code 2."""


class TooFewRecordsError(FleetError):
    """There is too little to learn from yet; more records mend it."""


class StoreError(FleetError):
    """The store cannot be opened, read or written as asked."""


class StoreLocked(StoreError):  # noqa: N818 - a state of the store, named so
    """Another process writes to the store; readers need no lock."""


class StoreFull(StoreError):  # noqa: N818 - a state of the disk, named so
    """The disk is full: nothing of the refused batch was kept, and the table is whole and readable."""


class StateDamaged(StoreError):  # noqa: N818 - a state of the file, named so
    """The state file does not hold what was written; the table can give most of it back."""
