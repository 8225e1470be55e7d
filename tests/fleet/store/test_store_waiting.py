"""Rows between their acknowledgement and the table: who sees them, what a full disk or a kill leaves."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agents.records import Record
from fleet.errors import StateDamaged, StoreError, StoreFull
from fleet.state import table as table_module
from fleet.state.state_file import StateFile
from fleet.store.delta.schema import records_to_table
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from tests.disk_fixtures import failing, killed
from tests.record_fixtures import make_batch, make_record


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def of_devices(names: str, start: int, count: int) -> list[Record]:
    return [record for name in names for record in make_batch(start, count, device=f"dev-{name}")]


def test_what_is_taken_comes_with_the_turn_and_is_seen_then(store: Store, tmp_path: Path) -> None:
    batch = make_batch(0, 4)
    assert store.take([*batch, batch[0]]) == batch
    assert store.take(batch[2:] + make_batch(4, 1)) == make_batch(4, 1), "it is as good as there"
    assert store.are_stored(make_batch(0, 6)) == [True] * 5 + [False]
    with Store.open(killed(store.path, tmp_path / "killed")) as again:
        assert again.are_stored(batch) == [False] * 4, "nobody was told"
    with store.state.turn():
        assert list(Store.read(store.path).records()) == []
    assert Store.read(store.path).rows == 5
    assert (store.rows, store.waiting_count, store.version) == (5, 5, 0)
    assert list(store.records()) == list(Store.read(store.path).records()) == make_batch(0, 5)
    assert store.take(batch) == []
    store.settle()
    assert store.rows == 5


def test_a_lane_goes_on_alone_when_it_is_due(tmp_path: Path) -> None:
    clock = Clock()
    settings = LaneSettings(devices=1, rows_per_device=10, wait_secs=60.0)
    with Store.open(tmp_path / "s", settings=settings, clock=clock) as store:
        store.append(of_devices("ab", 0, 6))
        assert (store.version, store.waiting_count) == (0, 12)
        store.append(of_devices("a", 6, 4))
        assert (store.version, store.waiting_count) == (1, 6)
        assert {file.device_id for file in store.snapshot.files} == {"dev-a"}
        clock.now = 59.0
        store.move_on()
        assert (store.version, store.waiting_secs) == (1, 59.0)
        clock.now = 60.0
        store.move_on()
        assert (store.version, store.waiting_count, store.waiting_secs) == (2, 0, 0.0)
        assert Counter(store.records()) == Counter(of_devices("a", 0, 10) + of_devices("b", 0, 6))


def test_an_append_that_fails_keeps_nothing_for_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = records_to_table(make_batch(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "turn", failing())
        for append in (
            lambda: store.append(make_batch(0, 3)),
            lambda: store.append_table("dev-a", table),
        ):
            with pytest.raises(OSError, match="No space"):
                append()
    assert (store.are_stored(make_batch(0, 3)), store.rows, list(store.records())) == ([False] * 3, 0, [])
    assert store.append(make_batch(0, 3)).appended == 3


def test_nobody_may_bring_more_when_too_much_waits_and_the_table_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LaneSettings(rows_per_device=1 << 30, wait_secs=1e9, most_rows=8)
    with Store.open(tmp_path / "s", settings=settings) as store:
        with monkeypatch.context() as patch:
            patch.setattr(table_module, "write_deltalake", failing())
            store.append(make_batch(0, 9))
            assert store.no_room is not None
            for bring in (
                lambda: store.append(make_batch(9, 1)),
                lambda: store.take(make_batch(9, 1)),
                lambda: store.append_table("dev-a", records_to_table(make_batch(9, 1))),
            ):
                with pytest.raises(StoreFull, match="no room while writing the table"):
                    bring()
            assert list(store.records()) == make_batch(0, 9)
        assert store.append(make_batch(9, 1)).appended == 1
        assert (store.waiting_count, store.no_room) == (1, None)
        assert list(store.records()) == make_batch(0, 10)


def test_waiting_rows_that_are_damaged_are_one_clear_error(store: Store) -> None:
    store.append(make_batch(0, 5))
    with store.state.turn() as turn:
        turn._connection.execute("UPDATE waiting SET body = substr(body, 1, 100)")
    for look in (lambda: Store.read(store.path), lambda: list(store.records()), store.flush):
        with pytest.raises(StateDamaged, match=r"waiting rows 1; `fleet store verify --rebuild`"):
            look()


@pytest.mark.parametrize("left", [0, 0.5])
def test_a_torn_last_commit_that_counted_is_refused_in_one_line(store: Store, left: float) -> None:
    for start in (0, 5):
        store.append(make_batch(start, 5))
        store.flush()
    store.close()
    path = max((store.path / "records" / "_delta_log").glob("*.json"))
    os.truncate(path, int(left * path.stat().st_size))
    for call in (Store.open, Store.read):
        with pytest.raises(StoreError) as caught:
            call(store.path)
        assert "\n" not in str(caught.value)
        assert "fleet store verify --rebuild" in str(caught.value)
    # Waiting and earlier rows are not touched by it.
    assert list(Store.read(store.path, version=1).records()) == make_batch(0, 5)


def test_files_that_a_kill_left_without_a_commit_go_with_an_upkeep(store: Store) -> None:
    store.append(make_batch(0, 5))
    store.flush()
    [file] = store.data_files()
    shutil.copy(file, file.with_name("part-of-a-killed-writer.parquet"))
    store.upkeep(retention_hours=0)
    assert list(file.parent.iterdir()) == [file]
    assert list(store.records()) == make_batch(0, 5)


class Stores(RuleBasedStateMachine):
    """Whatever is done in whatever order, there are exactly the records that were appended."""

    @initialize(folder=st.uuids())
    def open_one(self, folder: Any) -> None:
        self.folder = Path(os.environ["STORES"]) / str(folder)
        self.expected: dict[str, list[Record]] = {}
        self.next = 0
        self.rng = random.Random(str(folder))
        self.clock = Clock()
        self.open()

    def open(self) -> None:
        settings = LaneSettings(devices=2, rows_per_device=6, wait_secs=60.0, most_rows=20)
        self.store = Store.open(self.folder, settings=settings, clock=self.clock)
        assert self.store.repairs == ()

    def batch(self, names: str, size: int) -> list[Record]:
        records = of_devices(names, self.next, size)
        self.next += size
        for record in records:
            self.expected.setdefault(record.device_id, []).append(record)
        return records

    @rule(names=st.sampled_from(["a", "b", "ab", "cab"]), size=st.integers(1, 4))
    def append(self, names: str, size: int) -> None:
        records = self.batch(names, size)
        again = [record for some in self.expected.values() for record in some[:2]]
        assert self.store.append([*records, *again]).duplicates >= len(again) - len(records)

    @rule(name=st.sampled_from("abc"), size=st.integers(1, 4))
    def append_columns(self, name: str, size: int) -> None:
        device = f"dev-{name}"
        before = self.expected.get(device, [])[:2]
        table = records_to_table([*before, *self.batch(name, size)])
        done = self.store.append_table(device, table)
        assert (done.appended, done.duplicates) == (size, len(before))

    @rule(names=st.sampled_from(["b", "ac"]), is_kept=st.booleans())
    def take(self, names: str, is_kept: bool) -> None:
        records = self.batch(names, 1)
        self.store.take(records)
        if not is_kept:  # its turn fails, and is tried again
            with suppress(ZeroDivisionError), self.store.state.turn():
                raise ZeroDivisionError
        self.store.settle()

    @rule(
        step=st.sampled_from(["write_deltalake", "file_sum", "fsync_all"]),
        number=st.sampled_from([errno.ENOSPC, errno.EIO]),
        is_closed=st.booleans(),
    )
    def fails_to_go_on(self, step: str, number: int, is_closed: bool) -> None:
        """The table has no room, or its disk fails: the rows wait on."""
        if not self.store.waiting_count:
            return
        before = self.store.version, self.store.waiting_count
        error = StoreFull if number == errno.ENOSPC else StoreError
        with mock.patch.object(table_module, step, failing(number)):
            with pytest.raises(error):
                self.store.flush()
            assert (self.store.version, self.store.waiting_count) == before
            if error is StoreFull:
                assert self.store.no_room is not None
            if is_closed:
                self.store.close()
        if is_closed:
            self.open()
            assert self.store.waiting_count == before[1]

    @rule(secs=st.sampled_from([0.0, 30.0, 60.0]))
    def move_on(self, secs: float) -> None:
        self.clock.now += secs
        self.store.move_on()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.waiting_count == 0

    @rule(hours=st.sampled_from([0.0, 168.0]))
    def upkeep(self, hours: float) -> None:
        self.store.upkeep(retention_hours=hours)

    @rule(is_killed=st.booleans())
    def reopen(self, is_killed: bool) -> None:
        self.store.abandon() if is_killed else self.store.close()
        self.open()

    @invariant()
    def read(self) -> None:
        expected = Counter(record for some in self.expected.values() for record in some)
        for reader in (self.store, Store.read(self.folder)):
            assert Counter(reader.records()) == expected
            assert reader.rows == expected.total()
        assert {name: one.records for name, one in self.store.counts().items()} == {
            name: len(some) for name, some in self.expected.items()
        }
        assert all(self.store.are_stored(list(expected)))
        assert not any(self.store.are_stored([make_record(self.next + 1)]))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


@pytest.mark.timeout(300)
def test_any_sequence_gives_exactly_the_records_that_were_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORES", str(tmp_path))
    monkeypatch.setattr("fleet.store.writer.CHECKPOINT_EVERY", 3)
    case = Stores.TestCase
    case.settings = hypothesis_settings(max_examples=25, stateful_step_count=15, deadline=None)
    case().runTest()
