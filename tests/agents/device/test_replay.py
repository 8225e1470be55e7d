"""Replay devices: what is answered when, determinism, speed, damaged and foreign files."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.codec import device_from_json
from agents.device import replay_file
from agents.device.messages import Batch
from agents.device.replay import ReplayWorker, open_records
from agents.device.worker import DeviceRefusedError
from agents.errors import AgentError
from agents.records import (
    NOISE,
    Candidate,
    DeviceId,
    DeviceKind,
    Outcome,
    Protocol,
    Record,
    Replay,
    as_json_dict,
)
from benchmarks.harness import drawn
from fleet.daemon.replay_files import ready
from fleet.errors import FleetError
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.record_fixtures import ANY_JSON, make_descriptor, make_record, make_spec, make_workload
from tests.table_fixtures import rows

WORKLOAD = make_workload(1, (("resnet-50", 2), ("bert-tiny", 1)))
OTHER = make_workload(2, (("a-network-of-others", 1),))
Maker = Callable[..., ReplayWorker]
#: What Python reads as JSON, and JSON does not have.
NO_NUMBERS = ('{"x":NaN}', '{"x":1e999}')


def recorded(number: int, **changes: Any) -> Record:
    return make_record(number, **{"workload": WORKLOAD.workload_id, **changes})


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """Makes a worker that answers from some records of dev-a."""

    def make(records: list[Record], **options: Any) -> ReplayWorker:
        path = tmp_path / "records.parquet"
        if not path.exists():
            with Store.open(tmp_path / "store") as store:
                store.put_device(make_spec(), make_descriptor())
                store.put_workloads([WORKLOAD, OTHER])
                store.append(records)
                export(store, path, "parquet")
        replay = Replay(records=str(path), device=DeviceId("dev-a"), **options)
        spec = make_spec("again", kind=DeviceKind.REPLAY, replay=replay)
        return ReplayWorker(spec, open_records(spec))

    return make


def ask(worker: ReplayWorker, records: list[Record], *, attempt: int = 0) -> list[Record]:
    candidates = tuple(
        Candidate(workload_id=one.workload_id, trace=one.trace, dialect=one.dialect) for one in records
    )
    workloads = {one.workload_id: one for one in (WORKLOAD, OTHER)}
    batch = Batch(candidates=candidates, workloads=workloads, protocol=Protocol(repeat=9), attempt=attempt)
    return worker.measure(batch)


def answers(worker: ReplayWorker, record: Record, attempts: int) -> list[Record]:
    """What it answers one candidate with, at each attempt."""
    return [ask(worker, [record], attempt=attempt)[0] for attempt in range(attempts)]


def timeless(records: list[Record]) -> list[Record]:
    return [replace(record, measured_at=0.0) for record in records]


def test_a_recorded_candidate_is_answered_with_its_raw_seconds_and_marked(maker: Maker) -> None:
    known = recorded(1, quality='{"canary":{"memory":1.5},"interval":0.02}')
    started = time.time()
    worker = maker([known], seed=3)
    [record] = ask(worker, [known], attempt=4)
    for name in ("outcome", "run_secs", "warmup_secs", "number", "build_secs", "timing_secs", "protocol"):
        assert getattr(record, name) == getattr(known, name)
    assert record.device_id == "again"
    assert record.attempt == 4
    assert record.environment_id == worker.environment_id(Protocol()) != known.environment_id
    assert record.measured_at >= started
    seen = json.loads(record.environment)
    assert seen["load"] == 0.5
    assert seen["replay"] == {
        "device": "dev-a",
        "environment_id": known.environment_id,
        "attempt": 0,
        "measured_at": known.measured_at,
        "seed": 3,
        "noise": False,
        "failures": False,
    }
    # The canary told of that moment, the interval of the numbers.
    assert json.loads(record.quality) == {"interval": 0.02}


def test_the_record_that_counts_is_answered(maker: Maker) -> None:
    drifting = recorded(1, quality='{"suspect":true}')
    steady = recorded(1, attempt=1, origin="remeasure", run_secs=(0.5, 0.625))
    later = recorded(1, attempt=2, origin=NOISE, run_secs=(0.25,))
    worker = maker([drifting, steady, later])
    assert [one.run_secs for one in answers(worker, drifting, 3)] == [steady.run_secs] * 3


def test_a_failure_is_answered_as_it_was_and_offered_only_when_asked_for(maker: Maker) -> None:
    good, bad = recorded(1), recorded(4, outcome=Outcome.BUILD_FAILED, error="no such intrinsic")
    worker = maker([good, bad])
    [answer] = ask(worker, [bad])
    assert (answer.outcome, answer.error) == ("build_failed", "no such intrinsic")
    offered = drawn(worker, WORKLOAD, 9)
    assert [one.candidate_id for one in offered] == [good.candidate_id]
    offered = drawn(maker([], failures=True), WORKLOAD, 9)
    assert {one.candidate_id for one in offered} == {good.candidate_id, bad.candidate_id}


def test_with_failures_a_candidate_is_lost_as_often_as_it_was(maker: Maker) -> None:
    rows = [
        recorded(1, attempt=attempt, **({} if attempt % 4 else {"outcome": Outcome.LOST, "run_secs": ()}))
        for attempt in range(8)
    ]
    worker = maker(rows, failures=True)
    found = answers(worker, rows[0], 400)
    counts = Counter(record.outcome for record in found)
    assert set(counts) == {Outcome.OK, Outcome.LOST}
    assert 60 < counts[Outcome.LOST] < 140
    assert timeless(answers(maker([], failures=True), rows[0], 5)) == timeless(found[:5])
    assert {one.outcome for one in answers(maker([]), rows[0], 20)} == {Outcome.OK}


def test_noise_draws_among_recorded_repeats_and_measurements(maker: Maker) -> None:
    rows = [
        recorded(1, run_secs=(0.5, 0.75, 0.625)),
        recorded(1, attempt=1, origin=NOISE, run_secs=(1.5, 1.25)),
        recorded(1, attempt=2, outcome=Outcome.RUN_FAILED, run_secs=()),
    ]
    worker = maker(rows, noise=True)
    found = answers(worker, rows[0], 60)
    assert {record.outcome for record in found} == {Outcome.OK}
    drawn = {record.run_secs for record in found}
    assert len(drawn) > 10
    assert all(set(secs) <= set(rows[0].run_secs) or set(secs) <= set(rows[1].run_secs) for secs in drawn)
    assert {len(secs) for secs in drawn} == {2, 3}
    assert timeless(found) == timeless(answers(maker([], noise=True), rows[0], 60))
    other = answers(maker([], noise=True, seed=1), rows[0], 60)
    assert [one.run_secs for one in other] != [one.run_secs for one in found]


def test_options_make_other_environments_and_the_protocol_does_not(maker: Maker) -> None:
    rows = [recorded(1)]
    variants = [{}, {"seed": 1}, {"noise": True}, {"failures": True}]
    ids = {maker(rows, **options).environment_id(Protocol()) for options in variants}
    assert len(ids) == len(variants)
    assert maker(rows).environment_id(Protocol(repeat=2)) in ids


def test_neighbours_of_the_parents_come_first(maker: Maker) -> None:
    traces = ["[[1,1,1,1]]", "[[1,1,1,2]]", "[[1,1,2,2]]", "[[9,9,9,9]]", "[[9,9,9,8]]"]
    made = [Candidate(workload_id=WORKLOAD.workload_id, trace=trace) for trace in traces]
    worker = maker([recorded(1, trace=one.trace, candidate_id=one.candidate_id) for one in made])

    def near(parents: list[str], count: int = 2) -> list[str]:
        return [one.trace for one in drawn(worker, WORKLOAD, count, parents=parents)]

    assert near(traces[:1]) == traces[1:3]
    assert near(traces[3:4], 1) == traces[4:]
    assert near(traces) == []
    assert drawn(worker, OTHER, 5, parents=traces) == []


def test_workloads_of_networks_and_those_of_no_known_one_are_listed(maker: Maker) -> None:
    worker = maker([recorded(1), recorded(1, workload=OTHER.workload_id)])
    assert worker.network_workloads(["bert-tiny"]) == [WORKLOAD, OTHER]
    assert worker.network_workloads(["mobilenet-v2"]) == [OTHER]


def test_a_device_that_cannot_be_had_is_refused_in_one_sentence(maker: Maker) -> None:
    """`test_replaying.py` has what a coordinator finds before an agent starts."""
    for changes, words in (
        ({"replay": None}, "does not say which records"),
        ({"family": "gpu"}, "family gpu"),
    ):
        spec = replace(maker([recorded(1)]).spec, **changes)
        with pytest.raises(DeviceRefusedError, match=words) as refusal:
            ReplayWorker(spec, open_records(spec))
        assert "\n" not in str(refusal.value)


def rewritten(path: Path, change: Callable[[pa.Table, dict[bytes, bytes]], pa.Table | None]) -> None:
    """Write an exported file again with another table (None: the same) or footer."""
    with pq.ParquetFile(path) as file:
        table, entries = file.read().replace_schema_metadata(None), dict(file.metadata.metadata)
    entries.pop(b"ARROW:schema", None)
    changed = change(table, entries)
    table = table if changed is None else changed
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(entries)


def head(entries: dict[bytes, bytes], **changes: Any) -> None:
    value = json.loads(entries[replay_file.HEAD_KEY]) | changes
    entries[replay_file.HEAD_KEY] = json.dumps(value).encode()


def packed(entries: dict[bytes, bytes], text: bytes) -> None:
    entries[replay_file.WORKLOADS_KEY] = base64.b64encode(zlib.compress(text))


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with this value in a column, or with a column of values."""
    if not isinstance(values, pa.Array):
        values = pa.array([values] * table.num_rows)
    return table.set_column(table.schema.get_field_index(name), name, values)


#: What the footer's head says, and why the file is refused then.
HEADS = """
    {"version": 99}                  -> has version 99, this version reads 1
    {"version": null}                -> does not say its version
    {"devices": []}                  -> names no devices
    {"devices": {"dev-a": {}}}       -> without spec
    {"devices": {"dev-a": {"spec": 1, "descriptor": null}}} -> device spec: Expected `object`, got `int`
    {"devices": {}}                  -> has no device 'dev-a'; it has none
"""
#: What stands in for the footer's workloads.
PACKED = """
    [{}] -> workload: Object missing required field `workload_id`
    {}   -> no list
    x    -> footer is damaged
"""
#: What stands in every row of a column; null is no value.
COLUMNS = """
    outcome: "vanished"   -> outcome 'vanished' is not known
    build_secs: NaN       -> build_secs: expected finite seconds
    wait_secs: NaN        -> wait_secs: expected finite seconds
    timing_secs: NaN      -> timing_secs: expected finite seconds
    measured_at: NaN      -> measured_at: expected finite seconds
    measured_at: null     -> is damaged|expected finite seconds
    run_secs: []          -> run_secs: expected finite seconds
    run_secs: [1.0, 0.0]  -> run_secs: expected finite seconds
    run_secs: [Infinity]  -> run_secs: expected finite seconds
    run_secs: [-1.0]      -> run_secs: expected finite seconds
    run_secs: "none"      -> run_secs: expected numbers
    warmup_secs: [NaN]    -> warmup_secs: expected finite seconds
    number: "many"        -> number: expected a whole number in every row
    protocol: "{}"        -> a protocol cannot be read: record: protocol: lacks build_timeout_sec
    protocol: "{"         -> a protocol cannot be read
    schema: 99            -> a protocol cannot be read: .*this version reads 2 only
    device_id: "dev-b"    -> holds no record of device 'dev-a'
    environment_id: null  -> environment_id: expected a
    candidate_id: null    -> candidate_id: expected a
    dialect: null         -> dialect: expected a
    environment: null     -> environment: expected a
    protocol: null        -> protocol: expected a
    attempt: null         -> attempt: expected a
    schema: null          -> schema: expected a
"""


def in_column(table: pa.Table, line: str) -> pa.Table:
    name, _, value = line.partition(": ")
    if value == "null" and name != "measured_at":
        return put(table, name, pa.nulls(table.num_rows, table.schema.field(name).type))
    return put(table, name, json.loads(value))


CHANGES: dict[str, Callable[[pa.Table, dict[bytes, bytes], str], pa.Table | None]] = {
    "head": lambda _, entries, text: head(entries, **json.loads(text)),
    "workloads": lambda _, entries, text: packed(entries, text.encode()),
    "column": lambda table, _, text: in_column(table, text),
    "no footer": lambda _, entries, __: entries.clear(),
    "no pack": lambda _, entries, __: entries.update({replay_file.WORKLOADS_KEY: b"AAAA"}),
    "no trace": lambda table, *_: table.drop_columns(["counts", "trace"]),
    "no row": lambda table, *_: table.slice(0, 0),
}


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        *(("head", *row) for row in rows(HEADS)),
        *(("workloads", *row) for row in rows(PACKED)),
        *(("column", *row) for row in rows(COLUMNS)),
        ("no footer", "", "no file of exported records"),
        ("no pack", "", "workloads in its footer are damaged"),
        ("no trace", "", "column trace is not there"),
        ("no row", "", "holds no record of device 'dev-a'"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(
    maker: Maker, tmp_path: Path, kind: str, text: str, words: str
) -> None:
    maker([recorded(1)]).close()
    rewritten(tmp_path / "records.parquet", lambda table, entries: CHANGES[kind](table, entries, text))
    with pytest.raises(DeviceRefusedError, match=words) as refusal:
        maker([])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("quality", None), *((name, text) for name in ("quality", "environment") for text in NO_NUMBERS)],
)
def test_a_text_that_is_no_json_ends_no_batch(
    maker: Maker, tmp_path: Path, name: str, text: str | None
) -> None:
    maker([recorded(1)]).close()
    rewritten(tmp_path / "records.parquet", lambda table, _: put(table, name, text))
    [answer] = ask(maker([]), [recorded(1)])
    assert (answer.outcome, answer.run_secs) == (Outcome.OK, recorded(1).run_secs)
    assert "x" not in json.loads(getattr(answer, name))


def test_a_file_that_ends_its_reader_is_refused_before_an_agent_starts(maker: Maker, tmp_path: Path) -> None:
    """pyarrow ends its process if the levels of a list differ from those that statistics count."""
    worker = maker([recorded(1)])
    worker.close()
    path = tmp_path / "records.parquet"
    optional, required = (b"\x35" + kind + b"\x18\x08run_secs" for kind in (b"\x02", b"\x00"))
    assert path.read_bytes().count(optional) == 1
    path.write_bytes(path.read_bytes().replace(optional, required))
    with pytest.raises(FleetError, match=r"records: .* \(its process was ended by SIGABRT\): it is damaged"):
        ready({worker.spec.device_id: worker.spec}, tmp_path)


REPLAY = Replay(records="x", device=DeviceId("y"), noise=True)
SPEC = as_json_dict(make_spec(protocol_changes=(("repeat", 3.0),), replay=REPLAY))
DESCRIPTOR = as_json_dict(make_descriptor())


@given(st.sampled_from([*((0, name) for name in SPEC), *((1, name) for name in DESCRIPTOR)]), ANY_JSON)
def test_a_foreign_value_of_a_device_is_refused_or_of_the_right_type(
    place: tuple[int, str], value: Any
) -> None:
    which, name = place
    parts = [SPEC, DESCRIPTOR]
    parts[which] = parts[which] | {name: value}
    try:
        device = device_from_json(*parts)
    except AgentError:
        return
    assert device_from_json(*map(as_json_dict, device)) == device
