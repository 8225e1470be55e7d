"""A store that was made for work that failed goes with it; nothing that was there before does."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from agents.spool.disk_spool import Spool
from fleet.store.store import Store, records_or_nothing
from tests.record_fixtures import make_record


def work(store: Path, *beside: Path, records: int = 0) -> None:
    for folder in beside:
        (folder / "part").mkdir(parents=True)
    with Store.open(store) as opened:
        if records:
            opened.append([make_record(number) for number in range(records)])


@pytest.mark.parametrize("is_failure", [False, True])
def test_nothing_is_left_where_no_record_came(tmp_path: Path, is_failure: bool) -> None:
    store, root = tmp_path / "new" / "runs" / "store", tmp_path / "new" / "runs" / "fleet"
    failing = pytest.raises(ValueError, match="no") if is_failure else nullcontext()
    with failing, records_or_nothing(store, root):
        work(store, root)
        if is_failure:
            raise ValueError("no")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    store, root, empty = tmp_path / "store", tmp_path / "fleet", tmp_path / "empty"
    (root / "mine").mkdir(parents=True)
    empty.mkdir()
    with records_or_nothing(store, root, empty):
        work(store, empty)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "fleet"]
    assert list(empty.iterdir()) == []
    assert [one.name for one in root.iterdir()] == ["mine"]
    work(store)
    with records_or_nothing(store):
        pass
    assert store.is_dir(), "an empty store of before"


def test_one_record_in_it_or_finished_beside_it_keeps_all(tmp_path: Path) -> None:
    store, spools, root = tmp_path / "store", tmp_path / "spool", tmp_path / "fleet"
    with records_or_nothing(store, root):
        work(store, root, records=1)
    assert Store.read(store).rows == 1
    assert (root / "part").is_dir()
    store = tmp_path / "other"
    with records_or_nothing(store, spools):
        work(store)
        spool = Spool(spools / "dev-a")
        spool.put([make_record(1)], None)
        spool.close()
    assert store.is_dir()
    assert (spools / "dev-a").is_dir()
    # Those of another store, in a folder that was there, are none of this one's.
    another = tmp_path / "another"
    with records_or_nothing(another, spools):
        work(another)
    assert not another.exists()
    assert (spools / "dev-a").is_dir()


def test_a_store_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with records_or_nothing(store):
        other = Store.open(store)
    assert store.is_dir()
    other.close()
