"""The intake: what it acknowledges survives, is in the table once in the end, and waits within bounds."""

from __future__ import annotations

import errno
import math
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agents.records import Record
from agents.row_file import RowFile
from fleet.errors import StoreError, StoreFull
from fleet.state.packed_rows import pack, unpack
from fleet.store.delta.schema import TABLE_SCHEMA, records_to_table
from fleet.store.intake import Intake, IntakeSettings
from fleet.store.intake_log import FILE, INTAKE, IntakeLog, by_device, copy_log
from fleet.store.store import Store
from tests.disk_fixtures import Copies, failing, killed
from tests.record_fixtures import make_batch, make_record


class Clock:
    """Seconds that only go on when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s") as opened:
        yield opened


@pytest.fixture
def intake(store: Store, clock: Clock) -> Iterator[Intake]:
    with Intake(store, clock=clock) as made:
        yield made


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / INTAKE).glob("*"))


def in_table(folder: Path) -> Counter[Record]:
    return Counter(Store.read(folder).records())


def as_rows(records: list[Record]) -> pa.Table:
    devices = pa.array([one.device_id for one in records], pa.string())
    return records_to_table(records).add_column(0, TABLE_SCHEMA.field("device_id"), devices)


def mixed(start: int, count: int) -> list[Record]:
    return [*make_batch(start, count), *make_batch(start, 2, device="dev-b")]


def test_records_are_durable_at_once_and_in_the_table_after_a_flush(
    tmp_path: Path, store: Store, intake: Intake, clock: Clock
) -> None:
    result = intake.append(mixed(0, 5))
    assert (result.appended, result.duplicates, result.table_version) == (7, 0, 0)
    assert (intake.waiting, intake.waiting_secs) == (7, 0.0)
    assert not in_table(store.path)
    # A kill now loses nothing: whoever opens the store next has them.
    with Store.open(killed(store.path, tmp_path / "copy")) as copy:
        assert copy.repairs == ()
        assert Counter(copy.records()) == Counter(mixed(0, 5))
        assert files(tmp_path / "copy") == []
    clock.now += 1.5
    assert intake.waiting_secs == 1.5
    intake.flush()
    assert (intake.waiting, intake.waiting_secs) == (0, 0.0)
    assert in_table(store.path) == Counter(mixed(0, 5))
    assert list(store.records("dev-a")) == make_batch(0, 5)
    intake.close()
    assert files(store.path) == []


def test_a_record_is_kept_once_wherever_it_is(store: Store, intake: Intake) -> None:
    store.append(make_batch(0, 2))
    intake.append(make_batch(2, 2))
    batch = [*make_batch(0, 6), *make_batch(4, 2)]
    result = intake.append(batch)
    assert (result.appended, result.duplicates) == (2, 6)
    ids = [record.record_id for record in make_batch(0, 7)]
    for _ in range(2):
        assert intake.append(batch).appended == 0
        assert intake.known(ids) == [True] * 6 + [False]
        intake.flush()
    assert in_table(store.path) == Counter(make_batch(0, 6))


def test_an_empty_batch_keeps_nothing_and_moves_the_others_on(
    store: Store, intake: Intake, clock: Clock
) -> None:
    assert intake.append([]).appended == 0
    assert files(store.path) == []
    intake.append(make_batch(0, 3))
    for secs, waiting in ((1.9, 3), (0.2, 0)):
        clock.now += secs
        intake.append([])
        assert intake.waiting == waiting
    assert in_table(store.path) == Counter(make_batch(0, 3))


def test_some_devices_go_on_at_a_time_those_that_waited_longest_first(store: Store, clock: Clock) -> None:
    names = ["a", "b", "c", "d", "e"]
    with Intake(store, IntakeSettings(devices_per_commit=2), clock=clock) as intake:
        for number in range(3):
            intake.append([one for name in names for one in make_batch(number, 1, device=name)])
        seen = []
        for _ in range(4):
            clock.now += 2.5
            intake.append([])
            intake.append([])  # at once again: it is not time yet
            seen.append(({one.device_id for one in in_table(store.path)}, intake.waiting))
        assert seen == [({"a", "b"}, 9), ({"a", "b", "c", "d"}, 3), (set(names), 0), (set(names), 0)]
        assert store.version == 3


@pytest.mark.parametrize("limits", [{"most_rows": 10}, {"most_bytes": 2000}])
def test_what_waits_is_bounded(store: Store, clock: Clock, limits: dict[str, int]) -> None:
    most = 0
    with Intake(store, IntakeSettings(**limits), clock=clock) as intake:
        for start in range(0, 60, 4):
            intake.append(mixed(start, 4))
            most = max(most, intake.waiting)
    assert most <= 18
    assert len(in_table(store.path)) == 60 + len({n for s in range(0, 60, 4) for n in (s, s + 1)})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_refuses_the_batch_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, intake: Intake, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "change", failing(number))
        with pytest.raises(StoreError, match=f"taking in records in .*{os.strerror(number)}") as caught:
            intake.append(make_batch(0, 5))
        assert isinstance(caught.value, StoreFull) == (number == errno.ENOSPC)
        assert intake.waiting == 0
    assert intake.append(mixed(0, 5)).appended == 7
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "change", failing(number))
        with pytest.raises(StoreError, match="forgetting records that the table has"):
            intake.flush()
    copy = killed(store.path, tmp_path / "copy")
    intake.close()
    store.close()
    for folder in (store.path, copy):
        with Store.open(folder) as again:
            assert again.repairs == ()
            assert Counter(again.records()) == Counter(mixed(0, 5))


def test_commits_leave_time_for_other_work(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Store.append_tables

    def slowly(*arguments: Any, **named: Any) -> Any:
        clock.now += 2.0
        return commit(*arguments, **named)

    with Intake(store, IntakeSettings(devices_per_commit=1, pause=6.0), clock=clock) as intake:
        intake.append([*make_batch(0, 1), *make_batch(0, 1, device="dev-b")])
        monkeypatch.setattr(Store, "append_tables", slowly)
        for secs, waiting in ((3.0, 1), (11.0, 1), (1.5, 0)):
            clock.now += secs
            intake.append([])
            assert intake.waiting == waiting


def test_only_what_somebody_is_about_to_read_is_handed_on(store: Store, clock: Clock) -> None:
    with Intake(store, IntakeSettings(devices_per_commit=1), clock=clock) as intake:
        kept = intake.append([*make_batch(0, 3), *make_batch(0, 1), *make_batch(5, 2, device="dev-b")])
        assert kept.fresh == [*make_batch(0, 3), *make_batch(5, 2, device="dev-b")]
        assert intake.append(make_batch(0, 4)).fresh == make_batch(3, 1)
        intake.flush(device_id="dev-c")
        intake.flush(candidate_ids={make_record(50).candidate_id})
        assert intake.waiting == 6
        intake.flush(device_id="dev-b")
        assert in_table(store.path) == Counter(make_batch(5, 2, device="dev-b"))
        intake.flush(candidate_ids=[make_record(3).candidate_id])
        assert in_table(store.path) == Counter([*make_batch(0, 4), *make_batch(5, 2, device="dev-b")])
        assert intake.waiting == 0


def test_a_table_without_room_keeps_records_waiting_until_they_are_too_many(
    store: Store, monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with Intake(store, IntakeSettings(most_rows=12), clock=clock) as intake:
        with monkeypatch.context() as patch:
            patch.setattr("fleet.store.writer.write_data_files", failing())
            for start in range(0, 15, 5):
                clock.now += 5
                assert intake.append(make_batch(start, 5)).appended == 5
            assert "records wait for room" in caplog.text
            with pytest.raises(StoreFull):
                intake.append(make_batch(15, 5))
            with pytest.raises(StoreFull):
                intake.flush()
            assert intake.waiting == 15
        assert intake.append(make_batch(15, 5)).appended == 5
    assert in_table(store.path) == Counter(make_batch(0, 20))


def test_closing_without_room_leaves_the_records_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    intake = Intake(store)
    intake.append(make_batch(0, 5))
    with monkeypatch.context() as patch:
        patch.setattr("fleet.store.writer.write_data_files", failing())
        intake.close()
        intake.close()
        assert "5 records wait in the log" in caplog.text
        with pytest.raises(StoreFull):
            Store.open(killed(store.path, tmp_path / "copy"))
        with pytest.raises(StoreError, match="this intake was closed"):
            intake.append([])
    store.close()
    for folder in (store.path, tmp_path / "copy"):
        Store.open(folder).close()
        assert in_table(folder) == Counter(make_batch(0, 5))


def test_a_closed_store_takes_nothing_in(store: Store, intake: Intake) -> None:
    intake.append(make_batch(0, 2))
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        intake.append(make_batch(2, 2))
    intake.close()
    Store.open(store.path).close()
    assert in_table(store.path) == Counter(make_batch(0, 2))


def test_damage_is_reported_and_what_is_whole_goes_on(tmp_path: Path, store: Store, intake: Intake) -> None:
    for start in range(0, 9, 3):
        intake.append(make_batch(start, 3))
    intake.log.close()
    copy = killed(store.path, tmp_path / "copy")
    with sqlite3.connect(copy / INTAKE / FILE) as database:
        database.execute("UPDATE rows SET body = substr(body, 2) WHERE id = 2")
    database.close()
    data = (copy / INTAKE / FILE).read_bytes()
    with Store.open(copy) as again:
        [note] = again.repairs
        assert "is damaged" in note
        assert Counter(again.records()) == Counter([*make_batch(0, 3), *make_batch(6, 3)])
        assert again.append(make_batch(0, 9)).appended == 3
    assert [path.read_bytes() for path in (copy / INTAKE).iterdir()] == [data]
    with Store.open(copy) as again:
        assert again.repairs == ()


def log_of(folder: Path, *pieces: bytes) -> None:
    """A new store with pieces that wait in its log."""
    Store.open(folder).close()
    log = IntakeLog(folder / INTAKE)
    log.append(pieces)
    log.close()


def test_rows_of_another_version_are_refused_and_left(tmp_path: Path) -> None:
    newer = pa.table({"device_id": ["a"], "new_column": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, newer.schema) as writer:
        writer.write_table(newer)
    log_of(tmp_path, sink.getvalue().to_pybytes())
    with pytest.raises(StoreError, match=r"have the columns .*new_column"):
        Store.open(tmp_path)
    assert FILE in files(tmp_path)
    assert list(Store.read(tmp_path).records()) == []


def test_a_copy_beside_a_writer_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = IntakeLog(tmp_path / "log")
    pieces = [pack(as_rows(make_batch(start, 2))) for start in range(0, 8, 2)]
    log.append(pieces[:2])
    real, calls = shutil.copyfile, 0

    def copyfile(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        real(source, target)
        if calls == 1:
            # All that the log of pages had goes into the file, which was copied already.
            log.close()
            log.append(pieces[2:])

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    (tmp_path / "copy").mkdir()
    assert copy_log(tmp_path / "log", tmp_path / "copy")
    notes: list[str] = []
    found = list(IntakeLog(tmp_path / "copy").replay(notes))
    assert (found, notes) == ([unpack(one) for one in pieces], [])


def test_rows_are_split_by_device_in_their_order() -> None:
    records = [make_record(number, device=f"dev-{number * 7 % 3}") for number in range(12)]
    table = as_rows(records)
    split = by_device(pa.concat_tables([table.slice(0, 5), table.slice(5)]))
    assert sorted(split) == ["dev-0", "dev-1", "dev-2"]
    for name, rows in split.items():
        assert rows.equals(records_to_table([one for one in records if one.device_id == name]))


def test_a_kill_before_any_step_on_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A copy of the folder before each step is what a kill at that moment leaves behind."""
    folder = tmp_path / "s"
    acknowledged: list[Record] = []
    copies = Copies(folder, tmp_path, lambda: len(acknowledged))
    with Store.open(folder) as store, monkeypatch.context() as patch:
        intake = Intake(store, IntakeSettings(devices_per_commit=1), clock=clock)
        copies.watch(patch)
        for start in range(0, 9, 3):
            intake.append(mixed(start, 3))
            acknowledged += mixed(start, 3)
            clock.now += 1.5
        intake.close()
    assert len(copies.left_behind) > 20
    copies.check(list(dict.fromkeys(acknowledged)))


class AnyOrder(RuleBasedStateMachine):
    """Batches, waiting, kills and flushes in any order: every record is there once."""

    folders: Iterator[Path]

    @initialize(devices=st.integers(1, 3), rows=st.integers(5, 40))
    def begin(self, devices: int, rows: int) -> None:
        self.folder = next(type(self).folders)
        self.settings = IntakeSettings(devices_per_commit=devices, most_rows=rows)
        self.clock = Clock()
        self.kept: set[Record] = set()
        self.open(self.folder)

    def open(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store.open(folder)
        self.intake = Intake(self.store, self.settings, clock=self.clock)

    @rule(
        parts=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.sampled_from("abcde")), max_size=4)
    )
    def append(self, parts: list[tuple[int, int, str]]) -> None:
        batch = [one for start, count, name in parts for one in make_batch(start, count, device=name)]
        new = set(batch) - self.kept
        result = self.intake.append(batch)
        assert (result.appended, result.duplicates) == (len(new), len(batch) - len(new))
        self.kept |= new

    @rule(secs=st.sampled_from([0.5, 3.0]))
    def wait(self, secs: float) -> None:
        self.clock.now += secs

    @rule()
    def flush(self) -> None:
        self.intake.flush()
        assert Counter(self.store.records()) == Counter(self.kept)

    @rule()
    def kill(self) -> None:
        copy = killed(self.folder, next(type(self).folders))
        self.intake.log.close()
        self.store.close()
        self.open(copy)
        assert Counter(self.store.records()) == Counter(self.kept)

    @invariant()
    def nothing_is_twice(self) -> None:
        found = Counter(self.store.records())
        assert set(found.values()) <= {1}
        assert len(found) + self.intake.waiting == len(self.kept)
        assert self.intake.waiting <= self.settings.most_rows + 20

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.intake.close()
            assert Counter(self.store.records()) == Counter(self.kept)
            assert files(self.folder) == []
            self.store.close()


def test_every_record_is_there_once_in_any_order(tmp_path: Path) -> None:
    AnyOrder.folders = (tmp_path / str(number) for number in range(10**9))
    run_state_machine_as_test(
        AnyOrder, settings=settings(max_examples=10, stateful_step_count=12, deadline=None)
    )


def test_rows_in_the_log_that_no_table_can_have_stop_no_start(tmp_path: Path) -> None:
    """They must not keep the store shut for ever."""
    good, bad = mixed(0, 5), make_record(9, run_secs=(math.nan, 1e-3))
    log_of(tmp_path, pack(as_rows([*good, bad])))
    with Store.open(tmp_path) as store:
        [note] = store.repairs
        assert "1 rows that were taken in cannot be stored" in note
        assert "column run_secs holds nan" in note
        assert Counter(store.records()) == Counter(good)
    [kept] = (tmp_path / INTAKE).glob("refused-*.arrow")
    assert unpack(kept.read_bytes()).column("candidate_id").to_pylist() == [bad.candidate_id]
    assert files(tmp_path) == [kept.name]
    with Store.open(tmp_path) as store:
        assert store.repairs == ()
