"""Stores that earlier versions really wrote, kept as they are: every later version reads them, for ever.

`tests/stores/layout_N` was made by running the code of that time: commits, a checkpoint, a merge, dead files.
Never make one anew; a new layout of the store adds a folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from agents.codec import record_from_json
from agents.records import Record, as_json_dict
from fleet.store.delta.log import TABLE_OPTIONS
from fleet.store.delta.schema import STORE_SCHEMA
from fleet.store.store import Store
from tests.disk_fixtures import content
from tests.record_fixtures import make_batch, record_ids

FOLDER = Path(__file__).parents[2] / "stores"


@pytest.fixture(params=sorted(path.name for path in FOLDER.glob("layout_*")))
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a frozen store, and what it held when it was written."""
    folder = FOLDER / request.param
    expected = json.loads((folder / "expected.json").read_text())
    return Path(shutil.copytree(folder / "store", tmp_path / "s")), expected


def records_of(expected: dict[str, Any]) -> list[Record]:
    return [
        record_from_json({name: value for name, value in one.items() if name != "record_id"})
        for one in expected["records"]
    ]


def test_there_is_a_frozen_store_of_each_layout() -> None:
    layouts = {json.loads(path.read_text())["layout"] for path in FOLDER.glob("*/expected.json")}
    assert layouts == set(range(1, STORE_SCHEMA + 1))


def test_it_is_read_as_it_was_and_nothing_is_written(frozen: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = frozen
    before = content(folder)
    reader = Store.read(folder)
    found = list(reader.records())
    assert reader.version == expected["version"]
    assert found == records_of(expected)
    # Ids are written out in the file, so that a change of the hash shows.
    assert [one.record_id for one in found] == [one["record_id"] for one in expected["records"]]
    assert set(record_ids(reader)) == {one["record_id"] for one in expected["records"]}
    assert sum(one.records for one in reader.counts().values()) == len(found)
    assert [as_json_dict(one) for one in reader.workloads().values()] == expected["workloads"]
    assert {one.spec.device_id: one.spec.note for one in reader.devices().values()} == {
        one["device_id"]: one["note"] for one in expected["devices"]
    }
    assert content(folder) == before


def test_it_is_written_on_and_no_record_changes(frozen: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = frozen
    known = records_of(expected)
    with Store.open(folder) as store:
        assert store.repairs == ()
        assert store.append([*known, *make_batch(200, 3)]).appended == 3
        store.upkeep(retention_hours=0)
        version = store.upkeep(retention_hours=0).table_version
        assert store.append(known).duplicates == len(known)
        assert store.upkeep().table_version == version
    found_options = DeltaTable(folder / "records").metadata().configuration
    assert found_options.items() >= TABLE_OPTIONS.items()
    found = list(Store.read(folder).records())
    assert len(found) == len(known) + 3
    assert set(found) == {*known, *make_batch(200, 3)}
