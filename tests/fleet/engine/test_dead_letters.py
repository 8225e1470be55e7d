"""Records that the store refuses are found among many; they and late ones are kept for people, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import DeviceId, LeaseTag, Protocol, Record
from fleet.core.arrivals import Arrival
from fleet.engine.record_sink import DeadLetters, find_faults, sift
from fleet.errors import StoreError, StoreFull
from fleet.state.contents import LATE, REFUSED
from fleet.state.questions import StateReader
from fleet.state.rows import DeadLetter
from fleet.state.schema import STATE
from fleet.state.turn import Turn
from fleet.store.store import Store
from tests.coordinator_fixtures import make_fleet
from tests.disk_fixtures import failing
from tests.record_fixtures import make_batch, make_record
from tests.scenario_fixtures import fields_of
from tests.state_fixtures import state_of
from tests.table_fixtures import cells

#: What a record may say that no store can keep.
POISON = dict(
    cells(r"""
a number that is none             | run_secs: [.nan, 0.001], warmup_secs: []
one behind a number               | run_secs: [0.001, .nan]
a time without end                | timing_secs: .inf
a time before its beginning       | warmup_secs: [0.1, -0.1]
a layout of tomorrow              | schema: 99
a layout of yesterday             | schema: 1
text for a number                 | number: many
nothing for text                  | origin: null
a device that is a path           | device_id: ../x
half a character                  | trace: "\ud800"
words about quality that are none | quality: suspect
no outcome                        | outcome: fine
half a character in an id         | workload_id: "half \udce2"
a protocol that is no JSON        | protocol: {min_repeat_ms: .inf}
a number without end              | attempt: 1180591620717411303424
""")
)


def poisoned(number: int, what: str) -> Record:
    """A record that is ok but for one thing."""
    good = next(one for one in make_batch(number, 8) if one.run_secs)
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields_of(POISON[what]).items()
    }
    if "protocol" in changes:
        changes["protocol"] = Protocol(**changes["protocol"])
    return replace(good, **changes)


@pytest.mark.parametrize("what", POISON)
def test_each_poison_is_refused_by_the_store_or_would_stop_who_reads_it(tmp_path: Path, what: str) -> None:
    bad = poisoned(0, what)
    assert list(find_faults([bad])) == [0]
    if what == "words about quality that are none":
        with pytest.raises(ValueError, match="Expecting value"):
            _ = bad.is_suspect
        return
    refusals = (StoreError, TypeError, ValueError, AttributeError)
    good = make_record(9)
    with Store.open(tmp_path) as store:
        with pytest.raises(refusals):
            store.append([good, bad])
        assert store.rows == 0
        assert store.append([good]).appended == 1


@settings(max_examples=10, deadline=None)
@given(places=st.sets(st.integers(0, 40)), what=st.sampled_from(sorted(POISON)))
def test_all_that_are_bad_are_found_and_no_other(places: set[int], what: str) -> None:
    records = make_batch(0, 41)
    bad = poisoned(50, what)
    for place in places:
        records[place] = bad
    assert set(find_faults(records)) == places


@contextmanager
def letters_of(folder: Path) -> Iterator[DeadLetters]:
    with state_of(folder) as file:
        yield DeadLetters(file)


def kept(folder: Path, kind: str) -> list[DeadLetter]:
    """What was set aside, oldest first."""
    with StateReader(folder / STATE) as reader:
        return [letter for letter in reader.letters() if letter.kind == kind]


def refuse(letters: DeadLetters, record: Record) -> None:
    lease = LeaseTag(job_id="job", fencing_token=1)
    arrival = Arrival(device_id=DeviceId("dev-a"), incarnation=1, lease=lease, records=(record,))
    _, [refusal] = sift([arrival])
    letters.keep_refused(refusal)


def keep_late(letters: DeadLetters, number: int, token: int) -> bool:
    lease = LeaseTag(job_id="job", fencing_token=token)
    return letters.keep_late(DeviceId("dev-a"), lease, [make_record(number)])


def test_one_that_is_no_json_is_kept_as_it_is_shown(tmp_path: Path) -> None:
    without = replace(make_record(0), environment_id=None)  # type: ignore[arg-type]
    with letters_of(tmp_path) as letters:
        refuse(letters, without)
        refuse(letters, replace(make_record(0), trace=object()))  # type: ignore[arg-type]
        first, second = (json.loads(letter.body)["record"] for letter in kept(tmp_path, REFUSED))
    assert first["environment_id"] is None
    assert "trace=<object object at" in second


def test_a_full_disk_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = poisoned(0, "a layout of tomorrow")
    with letters_of(tmp_path) as letters:
        with monkeypatch.context() as patch:
            patch.setattr(Turn, "keep_letter", failing())
            with pytest.raises(StoreFull, match="writing the state file"):
                refuse(letters, bad)
            with pytest.raises(StoreFull, match="writing the state file"):
                keep_late(letters, 1, 1)
        assert (letters.refused, kept(tmp_path, REFUSED), kept(tmp_path, LATE)) == (0, [], [])
        refuse(letters, bad)
        assert letters.refused == 1
        assert keep_late(letters, 1, 1)
        assert not keep_late(letters, 1, 1), "the same delivery is no news"


def test_the_daemon_says_what_it_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(tmp_path, ("one",))
    with fleet.coordinator() as (coordinator, _):
        letters = coordinator._parts.record_sink.letters
        monkeypatch.setattr("fleet.engine.record_sink.MOST_ROWS", 4)
        for number in range(10):
            keep_late(letters, number, number)
        fleet.turn(coordinator, 3)
    assert len(fleet.set_aside("late")) <= 4
    assert any("oldest deliveries of late" in line for line in fleet.lines)
