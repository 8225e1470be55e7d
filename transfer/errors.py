"""Errors of the transfer package: one root, so a caller can catch all of them."""

from __future__ import annotations


class TransferError(RuntimeError):
    """A failure of the learning program itself (a failed candidate is a record instead).

    The message says what failed, where, what was found and expected, and what to do next.
    """


class TraceError(TransferError):
    """A schedule is not what its dialect says it is; the candidate is unusable, the program is not."""


class BudgetError(TraceError):
    """Reading data of others takes more work than any real program of its size: it was given up."""


class DatasetError(TransferError):
    """The records cannot be joined into a dataset, or a dataset was asked for what it does not hold."""
