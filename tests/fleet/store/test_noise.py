"""What second measurements say of a device's noise, and which record of a candidate a dataset uses."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import NOISE, Outcome, Record
from fleet.store.delta.schema import records_to_table
from fleet.store.noise import NoiseFloor, noise_floor, readings, settled, settled_rows
from tests.dataset_fixtures import changed
from tests.record_fixtures import make_record, measured_records
from tests.table_fixtures import cells

SUSPECT = '{"suspect":true}'


def timed(number: int, attempt: int, secs: float, **changes: Any) -> Record:
    """An `ok` record of candidate `number` with this latency."""
    values: dict[str, Any] = {
        "outcome": Outcome.OK,
        "error": "",
        "run_secs": (secs * 1.5, secs),
        "attempt": attempt,
        "measured_at": 1000.0 + 10 * attempt + number,
    }
    return make_record(number, **values | changes)


def failed(number: int, attempt: int, outcome: Outcome, **changes: Any) -> Record:
    """A record of candidate `number` without a latency."""
    return make_record(
        number, **{"outcome": outcome, "run_secs": (), "error": "why", "attempt": attempt} | changes
    )


# ---- the noise floor -----------------------------------------------------------------------------------


def test_pairs_of_an_aa_run_are_compared() -> None:
    again = [1.0, 1.01, 0.98, 0.90, 1.02]
    records = [timed(number, 0, 5.0) for number in range(5)]
    records += [timed(number, 1, 1.0, origin=NOISE) for number in range(5)]
    records += [timed(number, 2, secs, origin=NOISE) for number, secs in enumerate(again)]
    assert noise_floor(records) == NoiseFloor(
        pairs=5,
        median_change=pytest.approx(0.02),
        p90_change=pytest.approx(0.1),
        # 0.98 is a win of 2 %, 0.90 one of 11 %.
        false_win_share=0.2,
        measured_at=1024.0,
    )


#: Measurements by candidate, attempt, origin and seconds; how many pairs they are, and their change.
PAIRED = """
# several A/A runs of one candidate, and half a run
1 1 noise 1.0, 1 2 noise 1.1, 1 3 noise 2.0, 1 4 noise 2.0      | 2 | 0.05
1 1 noise 1.0, 1 3 noise 1.0, 1 4 noise 1.2                     | 1 | 0.2
# a leader that was confirmed at once
1 0 random 1.0, 1 1 confirm 1.0, 1 2 remeasure 1.2              | 1 | 0.2
# without an A/A run whatever was measured again
1 0 random 1.0, 1 1 remeasure 1.1, 2 0 random 1.0, 2 3 random 1.0 | 2 | 0.05
"""


@pytest.mark.parametrize(("measurements", "pairs", "change"), cells(PAIRED))
def test_measurements_are_paired(measurements: str, pairs: str, change: str) -> None:
    fields = [one.split() for one in measurements.split(", ")]
    floor = noise_floor(
        timed(int(number), int(attempt), float(secs), origin=origin)
        for number, attempt, origin, secs in fields
    )
    assert (floor.pairs, floor.median_change) == (int(pairs), pytest.approx(float(change)))


#: What a second measurement says.
INCOMPARABLE = """
origin: confirm
environment_id: elsewhere
device_id: dev-b
quality: '{"suspect":true}'
quality: '{"stopped_early":true}'
run_secs: [0.0, 1.0]
run_secs: []
outcome: rejected
"""


@pytest.mark.parametrize("changes", INCOMPARABLE.strip().splitlines())
def test_what_cannot_be_compared_is_left_out(changes: str) -> None:
    one = timed(1, 0, 1.0)
    assert noise_floor([one, timed(1, 1, 2.0)]) is not None
    assert noise_floor([one, changed(timed(1, 1, 2.0), changes)]) is None
    # One measurement, delivered twice.
    assert noise_floor([]) is noise_floor([one]) is noise_floor([one, one]) is None


# ---- the record that counts ----------------------------------------------------------------------------


#: Records of a candidate, one an attempt: the outcome, the origin of a second one, whether it is suspect; the
#: one that counts has a star.
COUNTING = """
# what is trusted stands
ok*, ok remeasure, ok noise
run_failed*, ok noise
# a second one that is suspect too changes nothing, and waits for a third
ok suspect*, ok remeasure suspect
ok suspect, ok remeasure suspect, ok remeasure*
# a trusted failure replaces a suspect success, and a trusted success comes before it
ok suspect, wrong_output remeasure*
ok suspect, wrong_output remeasure, ok remeasure*
# anything comes before a lost one
lost, ok suspect*
lost, rejected suspect*
lost, ok*
lost*, lost
# what says nothing gives way to the first that does
ok suspect, ok remeasure*, ok remeasure
ok suspect, ok noise*, ok noise
run_timeout suspect, ok remeasure*, ok remeasure
run_timeout suspect, ok noise*, ok noise
rejected, ok remeasure*, ok remeasure
rejected, ok noise*, ok noise
lost, ok remeasure*, ok remeasure
lost, ok noise*, ok noise
"""


def written(attempt: int, text: str) -> Record:
    """A record of candidate 1 as the table has it."""
    outcome, *words = text.strip("*").split()
    changes = {"quality": SUSPECT} if "suspect" in words else {}
    origin = "".join(word for word in words if word != "suspect")
    changes |= {"origin": origin} if origin else {}
    if outcome == "ok":
        return timed(1, attempt, 9.0 - attempt, **changes)
    return failed(1, attempt, Outcome(outcome), **changes)


@pytest.mark.parametrize("line", [line for [line] in cells(COUNTING)])
def test_one_record_of_a_candidate_counts_in_whatever_order_they_come(line: str) -> None:
    texts = line.split(", ")
    records = [written(attempt, text) for attempt, text in enumerate(texts)]
    [counting] = [one for one, text in zip(records, texts, strict=True) if text.endswith("*")]
    assert settled(records) == settled(reversed(records)) == [counting]


@given(measured_records(), st.randoms())
def test_the_choice_is_one_of_each_and_independent_of_order(
    records: list[Record], draws: random.Random
) -> None:
    def key(record: Record) -> tuple[str, str]:
        return record.candidate_id, record.environment_id

    kept = settled(records)
    assert list(map(key, kept)) == list(dict.fromkeys(map(key, records)))
    for record in kept:
        rivals = [one for one in records if key(one) == key(record)]
        if any(not one.is_suspect and one.outcome is not Outcome.LOST for one in rivals):
            assert not record.is_suspect
            assert record.outcome is not Outcome.LOST
    draws.shuffle(records)
    assert set(settled(records)) == set(settled(kept)) == set(kept)


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
