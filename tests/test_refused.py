"""Records that the store refuses: found among many, kept for people once, counted."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.lease import LeaseTag
from agents.records import DeviceId, Record
from fleet.core.arrivals import Arrival
from fleet.errors import StoreError, StoreFull
from fleet.results.refused_records import RefusedRecords, find_faults, record_ids
from fleet.store.store import Store
from tests.record_fixtures import make_batch, make_record

NAN = math.nan
#: What a record may say that no store can keep.
POISON: dict[str, dict[str, Any]] = {
    "a number that is none": {"run_secs": (NAN, 1e-3), "warmup_secs": ()},
    "one behind a number": {"run_secs": (1e-3, NAN)},
    "a time without end": {"timing_secs": math.inf},
    "a time before its beginning": {"warmup_secs": (0.1, -0.1)},
    "a layout of tomorrow": {"schema": 99},
    "text for a number": {"number": "many"},
    "nothing for text": {"origin": None},
    "a device that is a path": {"device_id": DeviceId("../x")},
    "half a character": {"trace": "\ud800"},
    "words about quality that are none": {"quality": "suspect"},
    "no outcome": {"outcome": "fine"},
}


def arrival(records: list[Record], fencing_token: int = 1) -> Arrival:
    lease = LeaseTag(job_id="job", fencing_token=fencing_token)
    return Arrival(device_id=DeviceId("dev-a"), incarnation=1, lease=lease, records=tuple(records))


def poisoned(number: int, what: str) -> Record:
    """A record that is ok but for one thing."""
    good = next(one for one in make_batch(number, 8) if one.run_secs)
    return replace(good, **POISON[what])


@pytest.mark.parametrize("what", POISON)
def test_each_poison_is_refused_by_the_store_or_would_stop_who_reads_it(tmp_path: Path, what: str) -> None:
    bad = poisoned(0, what)
    assert list(find_faults([bad])) == [0]
    with Store.open(tmp_path) as store:
        if what != "words about quality that are none":
            from fleet.store.intake import Intake

            with (
                Intake(store) as intake,
                pytest.raises((StoreError, TypeError, ValueError, AttributeError)),
            ):
                intake.append([bad])
        else:
            with pytest.raises(ValueError, match="Expecting value"):
                _ = bad.is_suspect


@settings(max_examples=30, deadline=None)
@given(places=st.sets(st.integers(0, 40)), what=st.sampled_from(sorted(POISON)))
def test_all_that_are_bad_are_found_and_no_other(places: set[int], what: str) -> None:
    records = make_batch(0, 41)
    bad = poisoned(50, what)
    for place in places:
        records[place] = bad
    assert set(find_faults(records)) == places


def test_what_is_refused_is_kept_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    refused = RefusedRecords(tmp_path / "refused")
    good, bad = make_batch(0, 3), poisoned(9, "a number that is none")
    arrivals, refusals = refused.sift([arrival([*good, bad]), arrival(good, fencing_token=2)])
    assert [one.records for one in arrivals] == [tuple(good), tuple(good)]
    [refusal] = refusals
    assert (refusal.records, refused.count) == ((bad,), 1)
    assert "column run_secs holds nan" in refusal.reasons[0]
    [path] = (tmp_path / "refused").glob("dev-a/*.jsonl")
    told = json.loads(path.read_text())
    assert (told["job_id"], told["epoch"], told["reason"]) == ("job", 1, refusal.reasons[0])
    assert told["record"]["candidate_id"] == bad.candidate_id
    # The same delivery again, and a restart.
    refused.sift([arrival([bad])])
    assert refused.count == RefusedRecords(tmp_path / "refused").count == 1
    assert record_ids(refusal.records) == (bad.record_id,)


def test_one_that_is_no_json_is_kept_as_it_is_shown(tmp_path: Path) -> None:
    refused = RefusedRecords(tmp_path)
    bad = replace(make_record(0), environment_id=None)  # type: ignore[arg-type]
    _, [refusal] = refused.sift([arrival([bad])])
    assert record_ids(refusal.records) == ()
    [path] = tmp_path.glob("dev-a/*.jsonl")
    assert json.loads(path.read_text())["record"]["environment_id"] is None
    bad = replace(make_record(0), outcome="fine")  # type: ignore[arg-type]
    refused.sift([arrival([bad])])
    [other] = set(tmp_path.glob("dev-a/*.jsonl")) - {path}
    assert "outcome='fine'" in json.loads(other.read_text())["record"]


def test_a_full_disk_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    refused = RefusedRecords(tmp_path)
    bad = arrival([poisoned(0, "a layout of tomorrow")])
    with monkeypatch.context() as patch:
        patch.setattr("fleet.results.kept_files.write_durably", full)
        with pytest.raises(StoreFull, match="setting refused records aside"):
            refused.sift([bad])
    assert refused.count == 0
    refused.sift([bad])
    assert refused.count == 1
