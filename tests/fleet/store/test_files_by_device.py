"""The files of one device, without a look through those of all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fleet.store.store as store_module
from fleet.store.store import Store
from tests.record_fixtures import make_batch

DEVICES = ("dev-a", "dev-b", "dev-c")


class Files(tuple[Any, ...]):
    """Files of a table that may not be gone through."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all files are gone through for one device")


def check(store: Store) -> None:
    whole, expected = store.snapshot, {}
    for name in DEVICES:
        expected[name] = [file for file in whole.files if file.device_id == name]
    store.snapshot = replace(whole, files=Files(whole.files))
    assert {name: store._files_of(name) for name in DEVICES} == expected
    assert store._files_of("none") == []
    store.snapshot = whole


def test_they_are_those_of_the_table_after_appends_merges_and_an_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LEAST_MERGED", 2)
    with Store.open(tmp_path) as store:
        for number in range(6):
            for name in DEVICES[: 1 + number % 3]:
                store.append(make_batch(8 * number, 8, device=name))
                check(store)
        store.upkeep()
        check(store)
    with Store.open(tmp_path) as store:
        check(store)
