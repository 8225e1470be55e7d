"""A store that dies before any step on the disk: what was acknowledged is there, once.

Real processes that are really killed: `benchmarks.chaos --only state`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.records import Record
from fleet.store.store import Store
from tests.disk_fixtures import Copies
from tests.record_fixtures import make_batch

# Each copy is opened as a store.
pytestmark = pytest.mark.timeout(600)


def test_a_kill_before_any_step_on_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the store before each step is what a kill at that moment leaves behind."""
    path = tmp_path / "s"
    acknowledged: list[Record] = []
    path.mkdir()
    copies = Copies(path, tmp_path, lambda: len(acknowledged))
    with monkeypatch.context() as patch:
        copies.watch(patch)
        with Store.open(path) as store:
            for start in (0, 5):
                batch = [*make_batch(start, 5), *make_batch(start, 2, device="dev-b")]
                store.append(batch)
                acknowledged += batch
                store.flush()
            store.upkeep(retention_hours=0)
            batch = make_batch(10, 5)
            store.append(batch)
            acknowledged += batch
    assert len(copies.left_behind) > 25
    copies.check(acknowledged)
