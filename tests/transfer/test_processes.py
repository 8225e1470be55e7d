"""Pieces of work side by side: in order, and one clear error where a process dies."""

from __future__ import annotations

import os
import signal

import pytest

from transfer.errors import TransferError
from transfer.processes import run_each


def process_of(item: int) -> tuple[int, int]:
    if item < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return item, os.getpid()


def test_results_come_in_order_from_other_processes() -> None:
    found = list(run_each(process_of, [3, 1, 2], 2, of="the test", pieces="numbers"))
    assert [item for item, _ in found] == [3, 1, 2]
    assert os.getpid() not in {process for _, process in found}


def test_a_process_that_dies_is_one_clear_error() -> None:
    with pytest.raises(TransferError, match=r"a worker of the test died .* one of 2 numbers; run it again"):
        list(run_each(process_of, [-1, -2], 2, of="the test", pieces="numbers"))
