"""The intake: what it acknowledges survives, is in the table once in the end, and waits within bounds."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agents.records import Record
from fleet.errors import StoreError, StoreFull
from fleet.store.delta.schema import TABLE_SCHEMA, records_to_table
from fleet.store.intake import Intake, IntakeSettings
from fleet.store.intake_log import INTAKE, IntakeLog, by_device, pack, unpack
from fleet.store.store import Store
from tests.record_fixtures import make_batch, make_batch_of_layout_1, make_record


class Clock:
    """Seconds that only go on when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def segments(folder: Path) -> list[Path]:
    return sorted((folder / INTAKE).glob("*.log"))


def in_table(folder: Path) -> Counter[Record]:
    return Counter(Store.read(folder).records())


def killed(folder: Path, copy: Path) -> Path:
    """What a kill would leave behind now."""
    return Path(shutil.copytree(folder, copy))


def mixed(start: int, count: int) -> list[Record]:
    return [*make_batch(start, count), *make_batch(start, 2, device="dev-b")]


def test_records_are_durable_at_once_and_in_the_table_after_a_flush(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store, Intake(store, clock=clock) as intake:
        result = intake.append(mixed(0, 5))
        assert (result.appended, result.duplicates, result.table_version) == (7, 0, 0)
        assert (intake.waiting, intake.waiting_secs) == (7, 0.0)
        assert not in_table(tmp_path / "s")
        # A kill now loses nothing: whoever opens the store next has them.
        with Store.open(killed(tmp_path / "s", tmp_path / "copy")) as copy:
            assert copy.repairs == ()
            assert Counter(copy.records()) == Counter(mixed(0, 5))
            assert segments(tmp_path / "copy") == []
        clock.now += 1.5
        assert intake.waiting_secs == 1.5
        intake.flush()
        assert (intake.waiting, intake.waiting_secs) == (0, 0.0)
        assert in_table(tmp_path / "s") == Counter(mixed(0, 5))
        assert list(store.records("dev-a")) == make_batch(0, 5)
    assert segments(tmp_path / "s") == []


def test_a_record_is_kept_once_wherever_it_is(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store, Intake(store, clock=clock) as intake:
        store.append(make_batch(0, 2))
        intake.append(make_batch(2, 2))
        batch = [*make_batch(0, 6), *make_batch(4, 2)]
        result = intake.append(batch)
        assert (result.appended, result.duplicates) == (2, 6)
        assert intake.append(batch).appended == 0
        ids = [record.record_id for record in make_batch(0, 7)]
        assert intake.known(ids) == [True] * 6 + [False]
        intake.flush()
        assert intake.known(ids) == [True] * 6 + [False]
        assert intake.append(batch).appended == 0
        assert intake.append_tables({"dev-a": records_to_table(batch)}).duplicates == 8
    assert in_table(tmp_path / "s") == Counter(make_batch(0, 6))


def test_an_empty_batch_keeps_nothing_and_moves_the_others_on(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store, Intake(store, clock=clock) as intake:
        assert intake.append([]).appended == 0
        assert not segments(tmp_path / "s")
        intake.append(make_batch(0, 3))
        clock.now += 1.9
        intake.append([])
        assert intake.waiting == 3
        clock.now += 0.2
        intake.append([])
        assert intake.waiting == 0
        assert in_table(tmp_path / "s") == Counter(make_batch(0, 3))


def test_some_devices_go_on_at_a_time_those_that_waited_longest_first(tmp_path: Path, clock: Clock) -> None:
    names = ["a", "b", "c", "d", "e"]
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, IntakeSettings(devices_per_commit=2), clock=clock)
        for number in range(3):
            intake.append([one for name in names for one in make_batch(number, 1, device=name)])
        seen = []
        for _ in range(4):
            clock.now += 2.5
            intake.append([])
            intake.append([])  # at once again: it is not time yet
            seen.append(({one.device_id for one in in_table(tmp_path / "s")}, intake.waiting))
        assert seen == [
            ({"a", "b"}, 9),
            ({"a", "b", "c", "d"}, 3),
            (set(names), 0),
            (set(names), 0),
        ]
        assert store.version == 3
        intake.close()


@pytest.mark.parametrize("limits", [{"most_rows": 10}, {"most_bytes": 2000}])
def test_what_waits_is_bounded(tmp_path: Path, clock: Clock, limits: dict[str, int]) -> None:
    most = 0
    with Store.open(tmp_path / "s") as store:
        with Intake(store, IntakeSettings(**limits), clock=clock) as intake:
            for start in range(0, 60, 4):
                intake.append(mixed(start, 4))
                most = max(most, intake.waiting)
        assert most <= 18
        assert len(in_table(tmp_path / "s")) == 60 + len({n for s in range(0, 60, 4) for n in (s, s + 1)})


def test_columns_are_taken_in_as_records_are(tmp_path: Path, clock: Clock) -> None:
    old = make_batch_of_layout_1(50, 2)
    tables = {
        "dev-a": records_to_table([*make_batch(0, 4), *make_batch(2, 4), *old]),
        "dev-b": records_to_table(make_batch(0, 3, device="dev-b")),
        "dev-c": records_to_table([]),
    }
    with Store.open(tmp_path / "s") as store, Intake(store, clock=clock) as intake:
        intake.append(make_batch(0, 1))
        result = intake.append_tables(tables)
        assert (result.appended, result.duplicates) == (10, 3)
        with pytest.raises(StoreError, match="cannot be stored"):
            intake.append_tables({"dev/d": tables["dev-b"]})
        wrong = tables["dev-b"].set_column(3, TABLE_SCHEMA.field("outcome"), pa.array(["fine"] * 3))
        with pytest.raises(StoreError, match="unknown outcomes fine"):
            intake.append_tables({"dev-d": wrong})
        with pytest.raises(StoreError, match="rows have the columns"):
            intake.append_tables({"dev-d": wrong.drop_columns(["quality"])})
    expected = [*make_batch(0, 6), *old, *make_batch(0, 3, device="dev-b")]
    assert in_table(tmp_path / "s") == Counter(expected)


def test_a_record_that_cannot_be_stored_refuses_the_batch(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store, Intake(store, clock=clock) as intake:
        with pytest.raises(StoreError, match="record layout 3"):
            intake.append([make_record(1), make_record(2, schema=3)])
        with pytest.raises(StoreError, match=r"device '\.\./x' cannot be stored"):
            intake.append([make_record(1), make_record(1, device="../x")])
        assert (intake.waiting, segments(tmp_path / "s")) == (0, [])
        assert intake.append([make_record(1)]).appended == 1


@pytest.mark.parametrize("failing", range(1, 5))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_refuses_the_batch_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, failing: int, number: int
) -> None:
    # The first append syncs: the store's folder, the log's folder, the segment; the fourth does not come.
    real, calls = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(number, "disk trouble")
        real(descriptor)

    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, clock=clock)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            if failing < 4:
                with pytest.raises(StoreError, match=r"taking in records in .*disk trouble") as caught:
                    intake.append(make_batch(0, 5))
                assert isinstance(caught.value, StoreFull) == (number == errno.ENOSPC)
                assert (intake.waiting, segments(tmp_path / "s")) == (0, [])
            else:
                assert intake.append(make_batch(0, 5)).appended == 5
        intake.append(mixed(0, 5))
        copy = killed(tmp_path / "s", tmp_path / "copy")
        intake.close()
    for folder in (tmp_path / "s", copy):
        with Store.open(folder) as again:
            assert again.repairs == ()
            assert Counter(again.records()) == Counter(mixed(0, 5))


def test_a_disk_that_becomes_read_only_is_one_error_and_loses_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == INTAKE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok)

    with Store.open(tmp_path / "store") as store:
        intake = Intake(store, clock=clock)
        intake.append(make_batch(0, 3))
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse)
            with pytest.raises(StoreError, match="forgetting records that the table has"):
                intake.flush()
    with Store.open(tmp_path / "store") as store:
        Intake(store, clock=clock).close()
    assert in_table(tmp_path / "store") == Counter(make_batch(0, 3))


def test_refused_batches_leave_no_segments_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def no_room(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, clock=clock)
        intake.append(make_batch(0, 2))
        (segment,) = segments(tmp_path / "s")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            for _ in range(5):
                with pytest.raises(StoreFull):
                    intake.append(make_batch(2, 2))
                # What it held before is still acknowledged.
                assert segments(tmp_path / "s") == [segment]
        intake.append(make_batch(2, 2))
        assert len(segments(tmp_path / "s")) == 2
        intake.close()
        assert segments(tmp_path / "s") == []
    assert in_table(tmp_path / "s") == Counter(make_batch(0, 4))


def test_commits_leave_time_for_other_work(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, IntakeSettings(devices_per_commit=1, pause=6.0), clock=clock)
        intake.append([*make_batch(0, 1), *make_batch(0, 1, device="dev-b")])
        commit = Store.append_tables

        def slowly(*arguments: Any) -> Any:
            clock.now += 2.0
            return commit(*arguments)

        monkeypatch.setattr(Store, "append_tables", slowly)
        clock.now += 3.0
        intake.append([])
        assert intake.waiting == 1
        clock.now += 11.0
        intake.append([])
        assert intake.waiting == 1
        clock.now += 1.5
        intake.append([])
        assert intake.waiting == 0
        intake.close()


def test_only_what_somebody_is_about_to_read_is_handed_on(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, IntakeSettings(devices_per_commit=1), clock=clock)
        kept = intake.append([*make_batch(0, 3), *make_batch(0, 1), *make_batch(5, 2, device="dev-b")])
        assert kept.fresh == [*make_batch(0, 3), *make_batch(5, 2, device="dev-b")]
        assert intake.append(make_batch(0, 4)).fresh == make_batch(3, 1)
        intake.flush(device_id="dev-c")
        intake.flush(candidate_ids={make_record(50).candidate_id})
        assert intake.waiting == 6
        intake.flush(device_id="dev-b")
        assert in_table(tmp_path / "s") == Counter(make_batch(5, 2, device="dev-b"))
        intake.flush(candidate_ids=[make_record(3).candidate_id])
        assert in_table(tmp_path / "s") == Counter([*make_batch(0, 4), *make_batch(5, 2, device="dev-b")])
        assert intake.waiting == 0
        intake.close()


def test_a_table_without_room_keeps_records_waiting_until_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, IntakeSettings(most_rows=12), clock=clock)
        with monkeypatch.context() as patch:
            patch.setattr("fleet.store.writer.write_data_files", no_room)
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
        intake.close()
    assert in_table(tmp_path / "s") == Counter(make_batch(0, 20))


def test_closing_without_room_leaves_the_records_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Store.open(tmp_path / "s") as store, monkeypatch.context() as patch:
        intake = Intake(store, clock=clock)
        intake.append(make_batch(0, 5))
        patch.setattr("fleet.store.writer.write_data_files", no_room)
        intake.close()
        intake.close()
        assert "5 records wait in the log" in caplog.text
        with pytest.raises(StoreFull):
            Store.open(killed(tmp_path / "s", tmp_path / "copy"))
        with pytest.raises(StoreError, match="this intake was closed"):
            intake.append([])
    for name in ("s", "copy"):
        Store.open(tmp_path / name).close()
        assert in_table(tmp_path / name) == Counter(make_batch(0, 5))


def test_a_closed_store_takes_nothing_in(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store)
        intake.append(make_batch(0, 2))
    with pytest.raises(StoreError, match="was closed"):
        intake.append(make_batch(2, 2))
    Store.open(tmp_path / "s").close()
    assert in_table(tmp_path / "s") == Counter(make_batch(0, 2))


@pytest.mark.parametrize("left", [1, 11, 12, 13, -1])
def test_an_unfinished_write_at_the_end_is_left_out(tmp_path: Path, clock: Clock, left: int) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, clock=clock)
        intake.append(make_batch(0, 3))
        size = segments(tmp_path / "s")[0].stat().st_size
        intake.append(make_batch(3, 3))
        copy = killed(tmp_path / "s", tmp_path / "copy")
        intake.close()
    (segment,) = segments(copy)
    os.truncate(segment, size + left if left > 0 else segment.stat().st_size - 1)
    with Store.open(copy) as again:
        assert again.repairs == ()
        assert Counter(again.records()) == Counter(make_batch(0, 3))
        assert again.append(make_batch(0, 6)).appended == 3


def test_damage_elsewhere_is_told_and_kept_for_people(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, clock=clock)
        for start in range(0, 9, 3):
            intake.append(make_batch(start, 3))
        copy = killed(tmp_path / "s", tmp_path / "copy")
        intake.close()
    (segment,) = segments(copy)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with Store.open(copy) as again:
        assert len(again.repairs) == 1
        assert "is damaged at byte" in again.repairs[0]
        assert Counter(again.records()) == Counter([*make_batch(0, 3), *make_batch(6, 3)])
    assert segments(copy) == []
    assert [path.read_bytes() for path in (copy / INTAKE).glob("*.corrupt")] == [bytes(data)]


@pytest.mark.parametrize("at", [0, 3, 4, 7, 8, 200, -1])
@pytest.mark.parametrize("first", [0, 3], ids=["the only frame", "behind another"])
def test_damage_of_the_last_frame_is_told_and_kept_for_people(
    tmp_path: Path, clock: Clock, at: int, first: int
) -> None:
    with Store.open(tmp_path / "s") as store:
        intake = Intake(store, clock=clock)
        intake.append(make_batch(0, first))
        before = segments(tmp_path / "s")[0].stat().st_size if first else 0
        intake.append(make_batch(first, 3))
        copy = killed(tmp_path / "s", tmp_path / "copy")
        intake.close()
    (segment,) = segments(copy)
    data = bytearray(segment.read_bytes())
    data[before + at if at >= 0 else at] ^= 1
    segment.write_bytes(data)
    with Store.open(copy) as again:
        [note] = again.repairs
        assert f"is damaged at byte {before}: kept as {segment.name}.corrupt" in note
        assert Counter(again.records()) == Counter(make_batch(0, first))
        assert again.append(make_batch(0, first + 3)).appended == 3
    assert [path.read_bytes() for path in (copy / INTAKE).iterdir()] == [bytes(data)]
    with Store.open(copy) as again:
        assert again.repairs == ()


def test_a_cut_segment_with_others_behind_it_is_damage(tmp_path: Path) -> None:
    log = IntakeLog(tmp_path / INTAKE, segment_bytes=1)
    devices = pa.array(["dev-a"] * 2)
    for start in (0, 2):
        table = records_to_table(make_batch(start, 2))
        log.append([pack(table.add_column(0, TABLE_SCHEMA.field("device_id"), devices))])
    first, last = segments(tmp_path)
    for path in (first, last):
        os.truncate(path, path.stat().st_size - 1)
    notes: list[str] = []
    assert [table for number in log.segments() for table in log.replay(number, notes)] == []
    [note] = notes
    assert note.startswith(f"{first} is damaged at byte 0")


def test_rows_of_a_newer_version_are_refused_and_left(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    newer = pa.table({"device_id": ["a"], "new_column": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, newer.schema) as writer:
        writer.write_table(newer)
    IntakeLog(tmp_path / "s" / INTAKE).append([sink.getvalue().to_pybytes()])
    with pytest.raises(StoreError, match=r"have the columns .*new_column"):
        Store.open(tmp_path / "s")
    assert len(segments(tmp_path / "s")) == 1
    assert list(Store.read(tmp_path / "s").records()) == []


def test_a_log_begins_new_segments_and_drops_them_one_by_one(tmp_path: Path, clock: Clock) -> None:
    log = IntakeLog(tmp_path / "log", segment_bytes=3000)
    devices = pa.array(["dev-a"] * 2)
    tables = [
        records_to_table(make_batch(start, 2)).add_column(0, TABLE_SCHEMA.field("device_id"), devices)
        for start in range(0, 12, 2)
    ]
    numbers = [log.append([pack(table)]) for table in tables]
    assert len(set(numbers)) > 1
    assert log.held_bytes == sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    log.drop(numbers[0])
    assert numbers[0] not in IntakeLog(tmp_path / "log").segments()
    notes: list[str] = []
    found = [table for number in log.segments() for table in log.replay(number, notes)]
    assert (found, notes) == (
        [table for table, one in zip(tables, numbers, strict=True) if one != numbers[0]],
        [],
    )
    assert unpack(pack(tables[0])).equals(tables[0])


def test_rows_are_split_by_device_in_their_order() -> None:
    records = [make_record(number, device=f"dev-{number * 7 % 3}") for number in range(12)]
    devices = pa.array([one.device_id for one in records])
    table = records_to_table(records).add_column(0, TABLE_SCHEMA.field("device_id"), devices)
    split = by_device(pa.concat_tables([table.slice(0, 5), table.slice(5)]))
    assert sorted(split) == ["dev-0", "dev-1", "dev-2"]
    for name, rows in split.items():
        assert rows.equals(records_to_table([one for one in records if one.device_id == name]))


def test_settings_that_make_no_sense_are_refused() -> None:
    for name in ("devices_per_commit", "most_bytes", "most_rows"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            IntakeSettings(**{name: 0})
    with pytest.raises(ValueError, match="wait_secs must not be negative"):
        IntakeSettings(wait_secs=-1)


def test_a_kill_before_any_step_on_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A copy of the folder before each step is what a kill at that moment leaves behind."""
    folder = tmp_path / "s"
    acknowledged: list[Record] = []
    left_behind: list[tuple[Path, int]] = []
    copying = False

    def watched(call: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal copying
            # Copying sets times itself, which is no step of the store.
            if not copying:
                copying = True
                copy = tmp_path / f"copy-{len(left_behind)}"
                shutil.copytree(folder, copy)
                left_behind.append((copy, len(acknowledged)))
                copying = False
            return call(*args, **kwargs)

        return step

    with Store.open(folder) as store, monkeypatch.context() as patch:
        intake = Intake(store, IntakeSettings(devices_per_commit=1), clock=clock)
        for name in ("fsync", "link", "unlink", "replace", "utime", "pwrite"):
            patch.setattr(os, name, watched(getattr(os, name)))
        for start in range(0, 9, 3):
            intake.append(mixed(start, 3))
            acknowledged += mixed(start, 3)
            clock.now += 1.5
        intake.close()
    assert len(left_behind) > 20
    acknowledged = list(dict.fromkeys(acknowledged))
    for copy, count in left_behind:
        with Store.open(copy) as store:
            assert store.repairs == ()
            found = Counter(store.records())
            assert set(found.values()) <= {1}
            assert set(acknowledged[:count]) <= set(found) <= set(acknowledged)
            store.append(acknowledged)
            assert Counter(store.records()) == Counter(acknowledged)
        shutil.rmtree(copy)


WRITER = """
import sys
import fleet.store.store as module
from fleet.store.intake import Intake, IntakeSettings
from tests.record_fixtures import make_batch
module.MERGE_FILES, module.CHECKPOINT_EVERY = 4, 5
store = module.Store.open(sys.argv[1])
intake = Intake(store, IntakeSettings(devices_per_commit=2, commit_every_secs=0.02, wait_secs=0.01))
print("ready", flush=True)
for batch in range(int(sys.argv[2]), 10**9):
    intake.append([one for name in "abcde" for one in make_batch(batch * 3, 3, device=name)])
    print(batch, flush=True)
"""


@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_records_survive_real_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: set[int] = set()
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(max(acknowledged, default=-1) + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        # At least one batch, however slow the host is.
        lines = [child.stdout.readline()]
        time.sleep(rng.uniform(0.0, 0.5))
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines(keepends=True)
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        acknowledged |= {int(line) for line in lines if line.endswith("\n")}
        with Store.open(tmp_path / "s") as store:
            assert store.repairs == ()
            seen = Counter(store.records())
        assert set(seen.values()) <= {1}
        for batch in acknowledged:
            for name in "abcde":
                assert all(one in seen for one in make_batch(batch * 3, 3, device=name))
        # A write that a kill cuts off leaves the groups of devices (two, two and one) that were whole by
        # then; the next writer brings the batch again.
        assert len(seen) - 15 * len(acknowledged) in (0, 6, 12, 15)
    assert len(acknowledged) >= 3


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
        parts=st.lists(
            st.tuples(st.integers(0, 30), st.integers(1, 5), st.sampled_from("abcde")), max_size=4
        ),
        columns=st.booleans(),
    )
    def append(self, parts: list[tuple[int, int, str]], columns: bool) -> None:
        batch = [one for start, count, name in parts for one in make_batch(start, count, device=name)]
        new = set(batch) - self.kept
        if columns:
            by_name: dict[str, list[Record]] = {}
            for one in batch:
                by_name.setdefault(one.device_id, []).append(one)
            result = self.intake.append_tables({one: records_to_table(rows) for one, rows in by_name.items()})
        else:
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
            assert segments(self.folder) == []
            self.store.close()


def test_every_record_is_there_once_in_any_order(tmp_path: Path) -> None:
    AnyOrder.folders = (tmp_path / str(number) for number in range(10**9))
    run_state_machine_as_test(
        AnyOrder, settings=settings(max_examples=10, stateful_step_count=12, deadline=None)
    )


def test_rows_in_the_log_that_no_table_can_have_stop_no_start(tmp_path: Path) -> None:
    """An earlier version may have taken in what is refused now; it must not keep the store shut for ever."""
    good = mixed(0, 5)
    bad = replace(make_record(9), run_secs=(math.nan, 1e-3))
    devices = pa.array([one.device_id for one in [*good, bad]], pa.string())
    with Store.open(tmp_path) as store:
        table = records_to_table([*good, bad])
        log = IntakeLog(store.path / INTAKE)
        log.append([pack(table.add_column(0, TABLE_SCHEMA.field("device_id"), devices))])
    with Store.open(tmp_path) as store:
        [note] = store.repairs
        assert "1 rows that were taken in cannot be stored" in note
        assert "column run_secs holds nan" in note
        assert Counter(store.records()) == Counter(good)
    [kept] = (tmp_path / INTAKE).glob("refused-*.arrow")
    assert unpack(kept.read_bytes()).column("candidate_id").to_pylist() == [bad.candidate_id]
    assert not segments(tmp_path)
    with Store.open(tmp_path) as store:
        assert store.repairs == ()
