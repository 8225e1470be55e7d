from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.codec import record_from_json, record_to_json
from agents.errors import AgentError, SpoolError, SpoolFull
from agents.lease import LeaseTag, tag_from_json
from agents.records import Record
from agents.spool.disk_spool import Spool
from agents.spool.frames import frame
from tests.record_fixtures import LAYOUT_1, make_batch, make_batch_of_layout_1, make_record


def only_segment(folder: Path) -> Path:
    (segment,) = folder.glob("*.seg")
    return segment


def test_records_come_back_in_order_after_reopening(tmp_path: Path) -> None:
    with Spool(tmp_path / "s") as spool:
        spool.put(make_batch(0, 3))
        spool.put(make_batch(3, 2))
        assert spool.pending() == make_batch(0, 5)
    with Spool(tmp_path / "s") as spool:
        assert spool.pending() == make_batch(0, 5)
        assert len(spool) == 5


def test_acknowledged_records_do_not_come_back(tmp_path: Path) -> None:
    records = make_batch(0, 4)
    with Spool(tmp_path) as spool:
        spool.put(records)
        spool.acknowledge([records[0].record_id, records[2].record_id, "unknown"])
        assert spool.pending() == [records[1], records[3]]
    with Spool(tmp_path) as spool:
        assert spool.pending() == [records[1], records[3]]


def test_a_record_put_twice_is_pending_once(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
        spool.put([*make_batch(1, 2), make_record(2)])
        assert spool.pending() == make_batch(0, 3)


def test_a_record_acknowledged_and_put_again_is_pending(tmp_path: Path) -> None:
    first, second = make_batch(0, 2)
    with Spool(tmp_path) as spool:
        spool.put([first, second])
        spool.acknowledge([first.record_id])
        spool.put([first])
        assert spool.pending() == [second, first]
    with Spool(tmp_path) as spool:
        assert spool.pending() == [second, first]


def test_segments_are_deleted_as_they_are_acknowledged(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=2000) as spool:
        for number in range(20):
            spool.put([make_record(number)])
        many = len(list(tmp_path.glob("*.seg")))
        assert many > 5
        spool.acknowledge(record.record_id for record in make_batch(0, 10))
        assert len(list(tmp_path.glob("*.seg"))) < many
        spool.acknowledge(record.record_id for record in make_batch(10, 10))
        assert list(tmp_path.glob("*.seg")) == []
        spool.put([make_record(99)])
        assert spool.pending() == [make_record(99)]


def test_growth_is_bounded(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=1500, max_bytes=6000) as spool:
        for number in range(6000 // len(frame({"record": record_to_json(make_record(9))}))):
            spool.put([make_record(number)])
        with pytest.raises(SpoolFull, match=r"at most 6000 bytes, no room for 1 records of \d+ bytes"):
            spool.put([make_record(99)])
        kept = spool.pending()
        assert kept == make_batch(0, len(kept))
        assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) <= 6000
        spool.acknowledge(record.record_id for record in kept)
        spool.put([make_record(100)])
        assert spool.pending() == [make_record(100)]


def test_a_torn_last_frame_is_dropped_at_every_length(tmp_path: Path) -> None:
    kept, torn = make_batch(0, 2), make_record(2)
    with Spool(tmp_path) as spool:
        spool.put(kept)
    segment = only_segment(tmp_path)
    whole = segment.read_bytes()
    last = frame({"record": record_to_json(torn)})
    for length in range(len(last)):
        segment.write_bytes(whole + last[:length])
        with Spool(tmp_path) as spool:
            assert spool.pending() == kept
        assert segment.read_bytes() == whole
    segment.write_bytes(whole + last[:-1])
    with Spool(tmp_path) as spool:
        spool.put([torn])
    with Spool(tmp_path) as spool:
        assert spool.pending() == [*kept, torn]


def test_zeros_left_by_a_power_cut_are_dropped(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
    with only_segment(tmp_path).open("ab") as stream:
        stream.write(bytes(4096))
    with Spool(tmp_path) as spool:
        assert spool.pending() == make_batch(0, 2)


@pytest.mark.parametrize("victim", range(4))
def test_garbage_before_the_end_is_reported_and_costs_only_its_frame(tmp_path: Path, victim: int) -> None:
    records = make_batch(0, 5)
    with Spool(tmp_path) as spool:
        spool.put(records)
    segment = only_segment(tmp_path)
    lengths = [len(frame({"record": record_to_json(record)})) for record in records]
    offset = sum(lengths[:victim])
    data = bytearray(segment.read_bytes())
    data[offset + lengths[victim] // 2] ^= 0x40
    segment.write_bytes(data)

    with pytest.raises(SpoolError, match=rf"{segment.name} is damaged at byte {offset}: kept as"):
        Spool(tmp_path)
    assert segment.with_name(segment.name + ".corrupt").read_bytes() == data
    with Spool(tmp_path) as spool:
        assert spool.pending() == records[:victim] + records[victim + 1 :]


def test_a_segment_cut_short_before_the_last_one_is_reported(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=1) as spool:
        spool.put(make_batch(0, 2))
        spool.put(make_batch(2, 2))
    first = min(tmp_path.glob("*.seg"))
    os.truncate(first, first.stat().st_size - 7)
    with pytest.raises(SpoolError, match="damaged at byte"):
        Spool(tmp_path)
    with Spool(tmp_path) as spool:
        assert spool.pending() == [make_record(0), *make_batch(2, 2)]


def test_damage_behind_its_back_is_reported_by_pending(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
        data = bytearray(only_segment(tmp_path).read_bytes())
        data[60] ^= 1
        only_segment(tmp_path).write_bytes(data)
        with pytest.raises(SpoolError, match="is damaged"):
            spool.pending()


def test_a_record_of_a_newer_version_stops_the_spool_and_stays(tmp_path: Path) -> None:
    value = record_to_json(make_record(1)) | {"schema": 3}
    (tmp_path / "0000000000.seg").write_bytes(frame({"record": value}))
    for _ in range(2):
        with pytest.raises(SpoolError, match=r"byte 12: .*layout 3 .*upgrade tensor-fleet"):
            Spool(tmp_path)


def test_a_spool_of_the_older_version_is_delivered_and_goes_on(tmp_path: Path) -> None:
    # A segment as that version wrote it, byte for byte: frames of layout 1, one acknowledgement.
    first, second = json.loads(LAYOUT_1), json.loads(LAYOUT_1) | {"attempt": 3}
    done = {"acknowledged": [record_from_json(first).record_id]}
    old = b"".join(frame(value) for value in ({"record": first}, {"record": second}, done))
    (tmp_path / "0000000000.seg").write_bytes(old)
    with Spool(tmp_path) as spool:
        (pending,) = spool.pending()
        assert (pending.schema, pending.attempt, pending.quality) == (1, 3, "{}")
        spool.put([make_record(1), *make_batch_of_layout_1(2, 1)])
    with Spool(tmp_path) as spool:
        assert spool.pending() == [pending, make_record(1), *make_batch_of_layout_1(2, 1)]
        spool.acknowledge(record.record_id for record in spool.pending())
        assert spool.pending() == []


def test_a_record_that_could_not_be_read_again_is_not_put(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        with pytest.raises(AgentError, match="quality"):
            spool.put([make_record(1), make_record(2, quality="fine")])
        spool.put([make_record(3)])
    with Spool(tmp_path) as spool:
        assert spool.pending() == [make_record(3)]


def test_a_second_user_is_refused(tmp_path: Path) -> None:
    with Spool(tmp_path), pytest.raises(SpoolError, match="open in another process"):
        Spool(tmp_path)
    Spool(tmp_path).close()


def test_it_waits_for_a_predecessor_that_lets_go(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put(make_batch(0, 1))
    with pytest.raises(SpoolError, match=r"another process and was so for 0\.1 s"):
        Spool(tmp_path, lock_timeout_secs=0.1)
    ending = threading.Timer(0.2, first.close)
    ending.start()
    with Spool(tmp_path, lock_timeout_secs=30) as second:
        assert second.pending() == make_batch(0, 1)
    ending.join()


def test_records_come_back_with_the_lease_that_they_were_made_under(tmp_path: Path) -> None:
    one, other = LeaseTag(job_id="j-1", fencing_token=4), LeaseTag(job_id="j-2", fencing_token=5)
    expected = list(zip([None, one, one, other], make_batch(0, 4), strict=True))
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 1))
        spool.put(make_batch(1, 2), one)
        spool.put(make_batch(3, 1), other)
        assert list(spool.pending_tagged()) == expected
    with Spool(tmp_path) as spool:
        assert list(spool.pending_tagged()) == expected
        assert spool.pending() == make_batch(0, 4)


def test_a_record_put_under_a_newer_lease_replaces_the_older_one(tmp_path: Path) -> None:
    late, good = LeaseTag(job_id="j-1", fencing_token=4), LeaseTag(job_id="j-1", fencing_token=7)
    again = make_record(0, measured_at=1.8e9)
    with Spool(tmp_path, segment_bytes=100) as spool:
        spool.put([make_record(0)], late)
        spool.put([make_record(1)], late)
        spool.put([again], good)
        assert list(spool.pending_tagged()) == [(late, make_record(1)), (good, again)]
    with Spool(tmp_path, segment_bytes=100) as spool:
        assert list(spool.pending_tagged()) == [(late, make_record(1)), (good, again)]
        spool.acknowledge([again.record_id])
        assert list(spool.pending_tagged()) == [(late, make_record(1))]


@given(tag=st.none() | st.builds(LeaseTag, job_id=st.text(), fencing_token=st.integers()))
def test_every_tag_can_be_read_again(tag: LeaseTag | None) -> None:
    value = json.loads(json.dumps(None if tag is None else tag.as_json()))
    assert tag_from_json(value) == tag


@pytest.mark.parametrize("value", [0, "j", [], ["j"], ["j", "1"], ["j", True], [1, 1], ["j", 1, 2], {"j": 1}])
def test_what_is_no_tag_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be \[job_id, fencing_token\]"):
        tag_from_json(value)
    (tmp_path / "0000000000.seg").write_bytes(
        frame({"record": record_to_json(make_record(0)), "lease": value})
    )
    with pytest.raises(SpoolError, match=r"byte 12: a lease tag must be"):
        Spool(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("x")
    with pytest.raises(SpoolError, match="cannot be opened"):
        Spool(tmp_path / "s")


def test_a_closed_spool_refuses(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.close()
    spool.close()
    with pytest.raises(SpoolError, match="was closed"):
        spool.put(make_batch(0, 1))


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_keeps_nothing_of_the_batch_and_all_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real_write = os.pwrite

    def no_room(descriptor: int, *args: object) -> int:
        if call == "pwrite" and isinstance(args[0], bytes):
            real_write(descriptor, args[0][:100], args[1])  # type: ignore[arg-type]  # offset is an int
        raise OSError(errno.ENOSPC, "No space left on device")

    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, no_room)
            with pytest.raises(SpoolFull, match=r"could not keep 3 records of \d+ bytes: No space left"):
                spool.put(make_batch(2, 3))
            if call == "pwrite":
                spool.acknowledge([make_record(0).record_id])
                spool.put([])
        expected = make_batch(1, 1) if call == "pwrite" else make_batch(0, 2)
        assert spool.pending() == expected
        spool.put(make_batch(2, 3))
        assert spool.pending() == [*expected, *make_batch(2, 3)]
    with Spool(tmp_path) as spool:
        assert make_batch(2, 3) == spool.pending()[-3:]


def test_a_disk_that_was_full_as_a_segment_began_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path / "s") as spool:
        with monkeypatch.context() as patch:

            def full(_: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, "fsync", full)
            with pytest.raises(SpoolFull):
                spool.put(make_batch(0, 1))
        spool.put(make_batch(0, 2))
        assert spool.pending() == make_batch(0, 2)
    with Spool(tmp_path / "s") as spool:
        assert spool.pending() == make_batch(0, 2)


class SpoolMachine(RuleBasedStateMachine):
    """Any order of puts, acknowledgements, reopenings and torn tails against a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="spool-"))
        self.spool = Spool(self.folder, segment_bytes=3000)
        self.model: dict[str, Record] = {}
        self.next = 0

    @rule(count=st.integers(1, 4))
    def put(self, count: int) -> None:
        records = make_batch(self.next, count)
        self.next += count
        self.spool.put(records)
        self.model |= {record.record_id: record for record in records}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True))
        self.spool.acknowledge(chosen)
        for record_id in chosen:
            del self.model[record_id]

    @rule(tail=st.binary(max_size=40))
    def die_and_reopen(self, tail: bytes) -> None:
        self.spool.close()
        before = set(self.model)
        segments = sorted(self.folder.glob("*.seg"))
        if segments:
            with segments[-1].open("ab") as stream:
                stream.write(tail)
        self.spool = Spool(self.folder, segment_bytes=3000)
        again = {record.record_id: record for record in self.spool.pending()}
        # An acknowledgement in a segment deleted since is forgotten: the record is delivered once more.
        assert before <= set(again)
        self.model = again

    @invariant()
    def pending_is_what_was_put_and_not_acknowledged(self) -> None:
        pending = self.spool.pending()
        assert {record.record_id: record for record in pending} == self.model
        assert len(pending) == len(self.model)

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.folder)


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
