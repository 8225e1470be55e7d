"""Flags, settled rows and readings of columns against what `fleet.store.noise` says of the same records."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Record
from fleet.store.delta.schema import records_to_table
from fleet.store.noise import noise_floor, readings, settled, settled_rows
from tests.record_fixtures import make_record, measured_records


@given(measured_records(), st.integers(1, 5))
def test_the_rows_that_count_are_those_of_the_records_that_count(records: list[Record], rows: int) -> None:
    table = records_to_table(records)
    found = settled_rows(table.to_batches(max_chunksize=rows))
    ids = np.array(table.column("record_id").to_pylist(), dtype=object)[found]
    assert set(ids) == {record.record_id for record in settled(records)}
    assert len(ids) == len(set(ids))


def test_of_equal_records_the_first_counts() -> None:
    table = records_to_table([make_record(1), make_record(1), make_record(2)])
    assert settled_rows(table.to_batches()).tolist() == [True, False, True]
    # A filter may leave nothing of a batch.
    assert settled_rows([table.to_batches()[0].slice(0, 0)]).tolist() == []
    assert settled_rows([]).tolist() == []


@given(measured_records())
def test_readings_have_the_noise_floor_of_their_records(records: list[Record]) -> None:
    device_id = make_record(1).device_id
    batches = records_to_table(records).to_batches()
    found = [reading for batch in batches for reading in readings(device_id, batch)]
    assert noise_floor(found) == noise_floor(records)
