"""The table behind a state file: rows move once, whatever a kill, a power cut or somebody else leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

import fleet.state.table
from agents.records import DeviceId
from benchmarks.store import make_records
from fleet.errors import StateDamaged, StoreError
from fleet.state.rows import pack, result_of
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable
from tests.archive_fixtures import rows_of

DEVICE, LANE = DeviceId("bench"), 3


class Cut(BaseException):
    """A kill, at the place of a call."""


def kill_at(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], object]) -> None:
    """Do something whose process ends at its call of a function."""

    def die(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(where, name, die)
        with pytest.raises(Cut):
            act()


def take_in(state: StateFile, start: int, count: int) -> None:
    records = make_records(start, count)
    with state.turn() as turn:
        turn.add_results(map(result_of, records))
        turn.add_waiting(LANE, [DEVICE], count, pack(rows_of(records)), 100.0)


def stored(folder: Path) -> list[str]:
    return sorted(DeltaTable(folder).to_pyarrow_table(columns=["record_id"]).column(0).to_pylist())


def names(count: int) -> list[str]:
    return sorted(record.record_id for record in make_records(0, count))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def state(folder: Path) -> Iterator[StateFile]:
    state = StateFile(folder / "state.sqlite")
    yield state
    state.close()


def commit_of(folder: Path, version: int) -> Path:
    return folder / "records" / "_delta_log" / f"{version:020d}.json"


@pytest.mark.parametrize("left", [0, 300, -3])
def test_a_torn_version_is_set_aside_and_its_rows_wait(
    folder: Path, state: StateFile, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    table = RecordsTable(folder / "records", state)
    take_in(state, 0, 5)
    kill_at(monkeypatch, fleet.state.table, "fsync_all", lambda: table.flush([LANE]))
    path = commit_of(folder, 1)
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    again = RecordsTable(folder / "records", state)
    [note] = again.notes
    assert "was torn: kept as" in note
    assert again.flush([LANE]) == 5
    assert stored(folder / "records") == names(5)


def test_a_version_of_somebody_else_is_refused(folder: Path, state: StateFile) -> None:
    RecordsTable(folder / "records", state)
    write_deltalake(
        folder / "records", rows_of(make_records(50, 2)), mode="append", partition_by=["device_id"]
    )
    with pytest.raises(StoreError, match=r"version 1 of .* was written by somebody else"):
        RecordsTable(folder / "records", state)


@pytest.mark.parametrize("versions", [1, 2])
def test_a_state_file_that_is_older_than_the_table_is_refused(
    folder: Path, state: StateFile, versions: int
) -> None:
    """One version behind looks like a killed writer's, but its rows do not wait: the table alone has them."""
    table = RecordsTable(folder / "records", state)
    shutil.copytree(folder, folder.with_name("older"))
    for number in range(versions):
        take_in(state, 5 * number, 5)
        table.flush([LANE])
    for made in ("older", "empty"):
        other = StateFile(folder.with_name(made) / "state.sqlite")
        words = rf"ends with version {versions}, its state file names version (0|none)"
        with pytest.raises(StateDamaged, match=words):
            RecordsTable(folder / "records", other)
        other.close()
    assert stored(folder / "records") == names(5 * versions)
