"""The summary of the table: what a start learns from it is what the records say, or it is not believed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.records import CandidateId, DeviceId, Outcome, Record, WorkloadId, content_hash
from agents.trust import IMPORTED
from fleet.coverage import table_summary
from fleet.coverage.coverage import Coverage
from fleet.coverage.table_summary import FILE, SUMMARY, Counts, TableSummary
from fleet.store.delta.changes import StaleError, changes_since
from fleet.store.delta.log import commit_path
from fleet.store.intake import Intake, IntakeSettings
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.coordinator_fixtures import Fleet, everything_measured, killed_at, make_fleet
from tests.record_fixtures import make_record

DEVICES = [DeviceId(f"dev-{letter}") for letter in "abc"]
FAMILIES = {one: "gpu" if one == "dev-c" else "cpu" for one in DEVICES}
WORKLOADS = [WorkloadId("a1b2"), WorkloadId("c3d4")]
ENVIRONMENTS = ["e" * 32, "f" * 32]


def facts(coverage: Coverage) -> dict[str, Any]:
    """All that is known, free of the order in which it became known."""
    found: dict[str, Any] = {}
    for (family, workload_id), space in coverage.matrix.spaces.items():
        ids = [space.index.id_at(place) for place in range(len(space.index))]
        stored = {ids[place] for place in space.stored.places().tolist()}
        about = set(ids), stored, set(space.leaders), space.quarantined, space.blocked
        found[f"{family} {workload_id}"] = about
        assert space.index.find(ids) == list(range(len(ids)))
    for (device_id, environment_id), row in coverage.matrix.rows.items():
        if not row.records:
            continue
        bits = {}
        for workload_id, one in row.rows.items():
            index = coverage.matrix.spaces[FAMILIES[device_id], workload_id].index
            bits[workload_id] = {index.id_at(place) for place in one.places().tolist()}
        about_row = bits, row.measured, row.records, row.best, row.lost, row.noise_at
        found[f"{device_id} {environment_id}"] = about_row
    return found


def counts_of(store: StoreReader) -> dict[DeviceId, Counts]:
    counts = {one: Counts(found.records, found.ok, found.last_at) for one, found in store.counts().items()}
    for device_id, batch in store.columns(["origin"]):
        counts[device_id].imported += batch.column(0).to_pylist().count(IMPORTED)
    return counts


def loaded(
    store: StoreReader, summary: TableSummary | None, workloads: list[WorkloadId] = WORKLOADS
) -> Coverage:
    coverage = Coverage(FAMILIES, workloads)
    coverage.load(store, summary)
    return coverage


def save(store: Store, coverage: Coverage, counts: dict[DeviceId, Counts], *waiting: Any) -> None:
    summary = TableSummary(store.path / SUMMARY)
    packed = summary.packed(store, coverage.matrix, counts, coverage.families, coverage.wanted, waiting)
    summary.write(packed)


def check(store: Store) -> TableSummary:
    """What the summary tells is what the records say."""
    summary = TableSummary.open(store)
    assert summary.counts == counts_of(store)
    assert facts(loaded(store, summary)) == facts(loaded(store, None))
    return summary


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """A batch: some lost, some of A/A runs, some that kill, in two environments and workloads."""
    found = []
    for number in draw(st.lists(st.integers(0, 40), min_size=1, max_size=16, unique=True)):
        kind = draw(st.sampled_from(["ok", "ok", "lost", "noise", "killer", "suspect", IMPORTED]))
        changes: dict[str, Any] = {
            "device": draw(st.sampled_from(DEVICES)),
            "workload": draw(st.sampled_from(WORKLOADS)),
            "environment_id": draw(st.sampled_from(ENVIRONMENTS)),
            "attempt": draw(st.integers(0, 3)),
            "run_secs": ((1 + number % 7) * 1e-3,),
            "measured_at": 1e9 + draw(st.integers(0, 99)),
            "outcome": Outcome.OK,
            "quality": "{}",
        }
        if kind == "lost":
            changes |= {"outcome": Outcome.LOST, "run_secs": ()}
        elif kind in ("noise", IMPORTED):
            changes["origin"] = kind
        elif kind in ("killer", "suspect"):
            changes["quality"] = '{"quarantined":true}' if kind == "killer" else '{"suspect":true}'
        found.append(make_record(number, **changes))
    return found


STEPS = st.lists(st.one_of(records(), st.sampled_from(["save", "open", "merge", "upkeep"])), max_size=10)


@given(steps=STEPS)
@settings(max_examples=12, deadline=None)
def test_whatever_comes_the_summary_and_what_came_since_tell_what_the_records_tell(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("summary")
    store = Store.open(folder / "store")
    try:
        coverage, counts = loaded(store, None), counts_of(store)
        for step in [*steps, "save", "merge", "open"]:
            match step:
                case "save":
                    save(store, coverage, counts)
                case "open":
                    store.close()
                    store = Store.open(folder / "store")
                    summary = check(store)
                    coverage, counts = loaded(store, summary), summary.counts
                case "merge":
                    for device_id in DEVICES:
                        files = sorted(store._files_of(device_id), key=lambda file: file.path)
                        if len(files) > 1:
                            store._merge_groups([files[: len(files) // 2 + 1]])
                case "upkeep":
                    store.upkeep(retention_hours=0)
                case batch:
                    fresh = [one for one in batch if not store.known([one.record_id])[0]]
                    known = {one.record_id: one for one in fresh}.values()
                    store.append(batch)
                    coverage.add(known)
                    for one in known:
                        of = counts.setdefault(one.device_id, Counts())
                        of.add(1, one.outcome is Outcome.OK, one.measured_at)
                        of.imported += one.origin == IMPORTED
        # It was saved before the last merge, and believed all the same.
        summary = check(store)
        assert summary.saved_version >= 0
        assert not summary.parts
    finally:
        store.close()
        shutil.rmtree(folder)


def all_ok(start: int, end: int) -> list[Record]:
    return [make_record(number, outcome=Outcome.OK, run_secs=(1e-3,)) for number in range(start, end)]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "store") as made:
        made.append(all_ok(0, 30))
        save(made, loaded(made, None), counts_of(made))
        yield made


def reads(store: Store) -> int:
    """Rows of the table that are read for the summary and the matrix."""
    seen = 0
    columns = store.columns

    def noted(*names: Any, **options: Any) -> Any:
        nonlocal seen
        for device_id, batch in columns(*names, **options):
            seen += batch.num_rows
            yield device_id, batch

    store.columns = noted  # type: ignore[method-assign]
    loaded(store, TableSummary.open(store))
    store.columns = columns  # type: ignore[method-assign]
    return seen


def test_only_rows_that_came_since_are_read(store: Store) -> None:
    check(store)
    assert reads(store) == 0
    store.append(all_ok(30, 37))
    check(store)
    assert reads(store) == 7
    # In one file with the old ones now.
    store._merge_groups([store._files_of(DEVICES[0])])
    assert len(store.data_files()) == 1
    check(store)
    summary = TableSummary.open(store)
    assert list(summary.parts.values()) == [[(30, 7)]]  # type: ignore[union-attr]
    assert reads(store) == 7


def _cut(path: Path, _: Store) -> None:
    os.truncate(path, path.stat().st_size - 9)


def _flip(path: Path, _: Store) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _other_commit(_: Path, store: Store) -> None:
    commit = commit_path(store.path / "records", store.version)
    commit.write_text(commit.read_text().replace('"timestamp"', '"timestamp" '))


@pytest.mark.parametrize(
    "change",
    [
        _cut,
        _flip,
        _other_commit,
        lambda path, _: path.write_bytes(b""),
        lambda path, _: path.write_bytes(b"something else, and long enough to have a header"),
        lambda path, _: shutil.rmtree(path.parent),
    ],
    ids=["cut off", "a flipped bit", "another commit", "empty", "something else", "deleted"],
)
def test_what_does_not_fit_is_not_believed(store: Store, change: Callable[[Path, Store], object]) -> None:
    change(store.path / SUMMARY / FILE, store)
    summary = check(store)
    assert (summary.saved_version, summary.parts) == (-1, None)
    assert reads(store) == 60, "once for the counts, once for the matrix"


def test_other_workloads_or_families_need_all_records(store: Store) -> None:
    assert reads(store) == 0
    summary = TableSummary.open(store)
    more = loaded(store, summary, [*WORKLOADS, WorkloadId("new")])
    assert facts(more) == facts(loaded(store, None))
    assert summary.is_due(store) is False, "a small table is read as fast"
    assert summary.saved_rows == 0
    moved = Coverage({**FAMILIES, DEVICES[0]: "gpu"}, WORKLOADS)
    moved.load(store, TableSummary.open(store))
    assert {family for family, _ in moved.matrix.spaces} == {"gpu"}
    # A device without records changes nothing.
    added = Coverage({**FAMILIES, DeviceId("dev-z"): "cpu"}, WORKLOADS)
    summary = TableSummary.open(store)
    added.load(store, summary)
    assert summary.saved_rows == 30


def test_a_candidate_whose_traces_were_deleted_is_forgotten(tmp_path: Path) -> None:
    new = CandidateId(content_hash("new"))
    with Store.open(tmp_path / "store") as store:
        store.append([make_record(1)])
        coverage = loaded(store, None)
        coverage.propose("cpu", WORKLOADS[0], [new])
        save(store, coverage, counts_of(store))
        there = Coverage(FAMILIES, WORKLOADS)
        there.load(store, TableSummary.open(store), {("cpu", WORKLOADS[0]): [new]})
        assert there.gaps(DEVICES[1], WORKLOADS[0], 9)[-1] == new
        gone = Coverage(FAMILIES, WORKLOADS)
        gone.load(store, TableSummary.open(store), {})
        assert facts(gone) == facts(loaded(store, None))


def test_records_on_their_way_into_the_table_are_counted_once(tmp_path: Path) -> None:
    batch = all_ok(0, 12)
    with Store.open(tmp_path / "store") as store:
        store.append(batch[:5])
        intake = Intake(store, IntakeSettings(wait_secs=1e9))
        coverage, counts = loaded(store, None), counts_of(store)
        coverage.add(intake.append(batch).fresh)
        counts[DEVICES[0]].add(7, 7, max(one.measured_at for one in batch))
        save(store, coverage, counts, *intake.waiting_rows())
        intake.log.close()
    lost = tmp_path / "lost"
    shutil.copytree(tmp_path / "store", lost)
    # The next start takes them up.
    with Store.open(tmp_path / "store") as store:
        assert store.rows == 12
        assert check(store).saved_rows == 5
    shutil.rmtree(lost / "intake")
    with Store.open(lost) as store:
        assert check(store).saved_version == -1, "it tells of records that are gone"


def test_a_merge_of_unknown_kind_makes_it_stale(store: Store) -> None:
    version = store.version
    store.append([make_record(40)])
    store._merge_groups([store._files_of(DEVICES[0])])
    newest = commit_path(store.path / "records", store.version)
    changed = []
    for line in newest.read_text().splitlines():
        action = json.loads(line)
        if "remove" in action:
            action["remove"]["partitionValues"] = {"device_id": "somebody"}
        changed.append(json.dumps(action))
    newest.write_text("\n".join(changed) + "\n")
    with pytest.raises(StaleError, match="unknown way"):
        changes_since(store.path / "records", version, store.version)
    assert check(store).saved_version == -1


def test_the_daemon_begins_with_it_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAVE_ROWS", "SAVE_ROWS_AT_END"):
        monkeypatch.setattr(table_summary, name, 1)
    fleet: Fleet = make_fleet(tmp_path)
    fleet.run(lambda one: one.view()["store"]["records"] > 40)
    path = tmp_path / "store" / SUMMARY / FILE
    assert path.exists()

    def parts() -> Any:
        with Store.open(tmp_path / "store") as opened:
            return TableSummary.open(opened).parts

    assert parts() == {}
    # Killed amid it: what came since is read, and all is measured once.
    with killed_at(60), pytest.raises(BaseException, match=r"before|after"):
        fleet.run(lambda one: False)
    view = fleet.run(everything_measured(fleet))
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)) == sum(one["records"] for one in view["devices"].values())
    assert parts() == {}


def test_it_is_written_while_the_daemon_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_summary, "SAVE_ROWS", 8)
    fleet = make_fleet(tmp_path, ("one",))
    path = tmp_path / "store" / SUMMARY / FILE

    def is_written(coordinator: Any) -> bool:
        fleet.clock.now += 1.0
        coordinator._parts.intake.flush()  # else it waits for two seconds of real time
        return path.exists()

    with fleet.coordinator() as (coordinator, _):
        fleet.turn_until(coordinator, is_written)
    # As after a kill: nothing was told to end.
    with Store.open(tmp_path / "store") as store:
        summary = TableSummary.open(store)
        assert summary.saved_version >= 0
        assert summary.counts == counts_of(store)
