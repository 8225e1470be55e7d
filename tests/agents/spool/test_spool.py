from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.codec import record_to_json
from agents.errors import SpoolError, SpoolFull
from agents.records import LeaseTag
from agents.row_file import RowFile
from agents.spool.disk_spool import FILE, Spool
from tests.disk_fixtures import failing
from tests.record_fixtures import make_batch, make_record


def test_growth_is_bounded(tmp_path: Path) -> None:
    with Spool(tmp_path, max_bytes=6000) as spool:
        spool.put(make_batch(0, 4))
        with pytest.raises(SpoolFull, match=r"at most 6000 bytes, no room for 9 records of \d+ bytes"):
            spool.put(make_batch(4, 9))
        kept = spool.pending()
        assert kept == make_batch(0, 4)
        spool.acknowledge(record.record_id for record in kept)
        spool.put([make_record(100)])
        assert spool.pending() == [make_record(100)]


def test_damage_is_one_clear_error_and_the_rest_goes_on(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 5))
    data = (tmp_path / FILE).read_bytes().replace(b'\\"v2\\"', b'\\"v9\\"')
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(SpoolError, match=r"damaged: kept as spool\.sqlite\.corrupt.*open the spool again"):
        Spool(tmp_path)
    assert (tmp_path / f"{FILE}.corrupt").read_bytes() == data
    with Spool(tmp_path) as spool:
        assert len(spool.pending()) == 4


def put_row(folder: Path, value: dict[str, Any], layout: int = 1) -> None:
    """A row of a spool that this version would not write."""
    rows = RowFile(folder / FILE, layout=layout)
    rows.change([("", json.dumps(value).encode())])
    rows.close()


@pytest.mark.parametrize(
    ("schema", "layout", "words"),
    [
        (2, 2, r"spool\.sqlite has layout 2, this version reads 1; open it"),
        (3, 1, "layout 3, this version reads 2 only"),
    ],
    ids=["spool", "record"],
)
def test_a_spool_or_a_record_of_another_version_is_refused_and_stays(
    tmp_path: Path, schema: int, layout: int, words: str
) -> None:
    put_row(tmp_path, {"record": record_to_json(make_record(1)) | {"schema": schema}}, layout)
    for _ in range(2):
        with pytest.raises(SpoolError, match=words):
            Spool(tmp_path)


def test_it_waits_for_a_predecessor_that_lets_go(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put(make_batch(0, 1))
    for secs, words in ((0.0, "open in another process; "), (0.1, r"another process and was so for 0\.1 s")):
        with pytest.raises(SpoolError, match=words):
            Spool(tmp_path, lock_timeout_secs=secs)
    ending = threading.Timer(0.2, first.close)
    ending.start()
    with Spool(tmp_path, lock_timeout_secs=30) as second:
        assert second.pending() == make_batch(0, 1)
    ending.join()


def test_records_come_back_with_their_lease_and_a_newer_one_replaces_the_older(tmp_path: Path) -> None:
    late, good = LeaseTag(job_id="j-1", fencing_token=4), LeaseTag(job_id="j-1", fencing_token=7)
    again = make_record(1, measured_at=1.8e9)
    expected = [(None, make_record(0)), (late, make_record(2)), (good, make_record(3)), (good, again)]
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 1))
        spool.put(make_batch(1, 2), late)
        spool.put([make_record(3), again], good)
        assert list(spool.pending_tagged()) == expected
    with Spool(tmp_path) as spool:
        assert list(spool.pending_tagged()) == expected
        assert spool.pending() == [record for _, record in expected]
        spool.acknowledge([again.record_id])
        assert list(spool.pending_tagged()) == expected[:-1]


def test_a_full_disk_keeps_nothing_of_the_batch_and_all_before(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
        assert spool._rows is not None
        spool._rows._connection.execute("PRAGMA max_page_count=4")
        with pytest.raises(SpoolFull, match=r"could not keep 30 records of \d+ bytes: No space left"):
            spool.put(make_batch(2, 30))
        spool.acknowledge([make_record(0).record_id])
        assert spool.pending() == make_batch(1, 1)
        spool._rows._connection.execute("PRAGMA max_page_count=99")
        spool.put(make_batch(2, 30))
    with Spool(tmp_path) as spool:
        assert spool.pending() == make_batch(1, 31)


def test_acknowledgements_that_find_no_room_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, Spool(tmp_path) as spool:
        spool.put(make_batch(0, 2))
        spool.acknowledge([make_record(0).record_id])
        patch.setattr(RowFile, "change", failing())
    with Spool(tmp_path) as spool:
        assert spool.pending() == make_batch(0, 2)


def test_a_kill_loses_nothing_and_gives_back_what_no_put_took_along(tmp_path: Path) -> None:
    first, second, *others = batch = make_batch(0, 5)
    with Spool(tmp_path / "living") as spool:
        spool.put(batch[:3])
        spool.acknowledge([first.record_id, "unknown"])
        spool.put(others[1:])
        spool.acknowledge([second.record_id])
        assert spool.pending() == others
        shutil.copytree(tmp_path / "living", tmp_path / "killed")
    with Spool(tmp_path / "killed") as spool:
        assert spool.pending() == batch[1:]
        # It may come again.
        spool.acknowledge([second.record_id])
        spool.put([second])
        assert spool.pending() == [*others, second]
    with Spool(tmp_path / "living") as spool:
        assert spool.pending() == others
