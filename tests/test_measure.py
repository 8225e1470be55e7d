"""The host's timing lock; timing itself is tried with real programs in `test_pool.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.measure import not_timing, timing_lock


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_every_user_of_the_host_can_take_the_lock_whatever_the_umask_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "timing.lock"
    with timing_lock(path), not_timing(path) as is_free:
        assert not is_free
    assert path.stat().st_mode & 0o777 == 0o644
