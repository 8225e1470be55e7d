"""Late and refused records are kept for people, and bounded: the oldest files go, and it is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.lease import LeaseTag
from agents.records import DeviceId
from fleet.core.arrivals import Arrival
from fleet.results import kept_files
from fleet.results.kept_files import KeptFiles
from fleet.results.late_results import keep_late
from fleet.results.refused_records import RefusedRecords
from tests.coordinator_fixtures import Fleet, make_fleet
from tests.record_fixtures import make_record

A = DeviceId("dev-a")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*.jsonl"))


def put(files: KeptFiles, name: str, line: str = "{}") -> bool:
    return files.put("keeping", files.folder / "dev-a" / f"{name}.jsonl", [line])


def test_the_oldest_go_by_number_and_by_bytes(tmp_path: Path) -> None:
    files = KeptFiles(tmp_path, most_files=10)
    assert all(put(files, f"{number:02d}") for number in range(10))
    assert (len(names(tmp_path)), files.notes) == (10, [])
    assert not put(files, "03"), "the same delivery is no news"
    put(files, "10")
    # To nine tenths, so that not every file from now on is worth a line.
    assert names(tmp_path) == [f"{number:02d}.jsonl" for number in range(2, 11)]
    [note] = files.notes
    assert "the 2 oldest files" in note
    assert "at most 10 files" in note
    large = KeptFiles(tmp_path / "large", most_bytes=1000)
    for number in range(3):
        put(large, str(number), "x" * 400)
    assert names(tmp_path / "large") == ["1.jsonl", "2.jsonl"]
    put(large, "huge", "x" * 5000)
    assert names(tmp_path / "large") == ["huge.jsonl"], "the newest stays, however long it is"


def test_a_folder_that_grew_without_a_bound_is_bounded_at_the_start(tmp_path: Path) -> None:
    files = KeptFiles(tmp_path)
    for number in range(20):
        # Names say nothing of age: the disk does.
        put(files, f"{(7 * number) % 20:02d}")
        os.utime(tmp_path / "dev-a" / f"{(7 * number) % 20:02d}.jsonl", (1e9 + number, 1e9 + number))
    again = KeptFiles(tmp_path, most_files=10)
    assert names(tmp_path) == sorted(f"{(7 * number) % 20:02d}.jsonl" for number in range(11, 20))
    assert len(again.notes) == 1


def test_one_that_cannot_be_deleted_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = KeptFiles(tmp_path, most_files=2)
    put(files, "0")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    put(files, "1")
    assert put(files, "2")
    assert "cannot be deleted: Operation not permitted" in files.notes[0]


def test_late_and_refused_records_are_bounded(tmp_path: Path) -> None:
    late = KeptFiles(tmp_path / "late", most_files=5)
    for fencing_token in range(8):
        assert keep_late(
            late, A, LeaseTag(job_id="job", fencing_token=fencing_token), [make_record(fencing_token)]
        )
    assert [int(name.split("-")[0]) for name in names(tmp_path / "late")][-1] == 7
    assert len(names(tmp_path / "late")) <= 5
    refused = RefusedRecords(tmp_path / "refused")
    refused.files = KeptFiles(tmp_path / "refused", most_files=5)
    for number in range(8):
        bad = make_record(number, schema=99)
        refused.sift([Arrival(device_id=A, incarnation=1, lease=None, records=(bad,))])
    assert refused.count == len(names(tmp_path / "refused")) <= 5
    assert refused.count == RefusedRecords(tmp_path / "refused").count


def test_the_daemon_says_what_it_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet: Fleet = make_fleet(tmp_path, ("one",))
    folder = fleet.folder / "root" / "late" / "one"
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / f"{number:08d}-0.jsonl").write_text("{}\n")
    monkeypatch.setattr(kept_files.KeptFiles.__init__, "__kwdefaults__", {"most_files": 4, "most_bytes": 9})
    fleet.run(lambda one: one.view()["store"]["records"] > 0)
    assert len(fleet.late_files()) < 4
    assert any("oldest files" in line and "late" in line for line in fleet.lines)
