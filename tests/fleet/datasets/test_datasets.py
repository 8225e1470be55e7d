"""Published datasets: what is in them, that they open as records of others, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from msgspec.structs import replace

from agents.codec import MOST_VALUES
from agents.device.replay_file import HEAD_KEY, WORKLOADS_KEY
from agents.errors import AgentError
from agents.host.limited_reader import read_limited
from agents.records import (
    NOISE,
    DeviceId,
    DeviceKind,
    Family,
    Outcome,
    Record,
    Replay,
    content_hash,
    record_id_of,
)
from benchmarks.hostile_folders import PARQUET_BOMBS, write_bomb
from fleet.archive.verify import verify as verify_store
from fleet.cli.app import run
from fleet.datasets.admission import open_dataset, verify
from fleet.datasets.data_card import DatasetAbout, publish
from fleet.datasets.dataset_files import (
    CARD,
    README,
    RECORDS,
    SUMS,
    DatasetRefusedError,
    read_published,
    write_sums,
)
from fleet.errors import FleetError
from fleet.planner.device_history import known_candidates
from fleet.planner.imported_candidates import devices_of_family
from fleet.store.store import Store
from tests.agents.device.test_replay import packed
from tests.agents.device.test_replay import rewritten as rewritten_file
from tests.archive_fixtures import flip, with_column
from tests.disk_fixtures import contents
from tests.record_fixtures import make_batch, make_descriptor, make_record, make_spec, make_workload
from tests.scenario_fixtures import check_facts
from tests.table_fixtures import cells
from transfer.language.primitives import MAX_TEXT

OURS, UNUSED = make_workload(1, networks=(("net-a", 2),)), make_workload(2)
WORDS = {"workload": OURS.workload_id}
HOST = "secret-host-name"


def noise_pairs(device: str) -> list[Record]:
    """An A/A run of one candidate whose second look is 1 % slower."""
    return [
        make_record(1, device=device, origin=NOISE, attempt=attempt, run_secs=(secs,), **WORDS)
        for attempt, secs in ((1, 1e-3), (2, 1.01e-3))
    ]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store: two devices that measured, one of others, and a record that came with a log."""
    path = tmp_path_factory.mktemp("measured") / "store"
    with Store.open(path) as made:
        made.put_workloads([OURS, UNUSED], own=True)
        seen = make_descriptor(host=HOST)
        for device in ("dev-a", "dev-b"):
            made.put_device(make_spec(device, tracker="", note="a board"), seen)
            made.append([*make_batch(1, 9, device=device, **WORDS), *noise_pairs(device)])
        made.append([make_record(40, device="dev-a", quality='{"suspect":true}', **WORDS)])
        made.append([make_record(50, device="dev-a", origin="imported", **WORDS)])
        replay = Replay(records="x.parquet", device=DeviceId("dev-a"))
        made.put_device(make_spec("sim", kind=DeviceKind.REPLAY, replay=replay), seen)
        made.append(make_batch(60, 3, device="sim", **WORDS))
    return path


@pytest.fixture(scope="module")
def folder(measured: Path) -> Path:
    """What that store publishes; to be copied before it is changed."""
    path = measured.with_name("lab-one")
    about = DatasetAbout(name="lab-one", made_by="fleet collect", faults=("A fan | was loud.",))
    publish(Store.read(measured), path, about)
    return path


#: Replay devices did not measure, and imported records are not ours to publish.
SAID_OF_IT = r"""
card.records = 23
card.candidates = 10
card.workloads = 1
card.license = Apache-2.0
card.made_by = fleet collect
card.devices.dev-b.records > 0
card.devices.sim = null
card.devices.dev-a.outcomes = {ok: 9, run_timeout: 3}
card.devices.dev-a.origins = {noise: 2, random: 10}
card.devices.dev-a.suspect = 1
card.devices.dev-a.suspect_share about 0.08333333333
card.devices.dev-a.noise.pairs = 1
card.devices.dev-a.noise.median_change about 0.01
card.devices.dev-a.host = host-1
card.operators = {GMM: {workloads: 1, records: 23}}
card.protocols.0.records = 23
card.protocols.0.protocol.repeat = 3
page has # Dataset lab-one
page has A fan \| was loud.
page has | GMM | 1 | 23 |
page has | dev-b | 1 | 1.0% |
"""


def test_a_dataset_says_what_it_holds_and_how_far_to_trust_it(folder: Path) -> None:
    files = {"card": json.loads((folder / CARD).read_text()), "page": (folder / README).read_text()}
    check_facts(files, SAID_OF_IT)
    assert all(HOST.encode() not in path.read_bytes() for path in folder.iterdir())
    for line in (folder / SUMS).read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_a_dataset_opens_as_records_of_others_and_a_second_time_adds_nothing(
    folder: Path, measured: Path, store: Store
) -> None:
    assert verify(read_published(folder)) == 23
    found = open_dataset(folder, store)
    assert (found.appended, found.known, found.workloads_new) == (23, 0, 1)
    again = open_dataset(folder, store)
    assert (again.appended, again.known, again.workloads_new) == (0, 23, 0)
    assert again.table_version == found.table_version
    assert sorted(store.devices()) == ["lab-one.dev-a", "lab-one.dev-b"]
    theirs = Store.read(measured).records(device_id="dev-b")
    before = {one.candidate_id: one for one in theirs if one.origin != NOISE}
    after = list(store.records(device_id="lab-one.dev-b"))
    assert len(after) == 11
    for one in after:
        if one.origin != NOISE:
            assert one == replace(before[one.candidate_id], device_id=one.device_id)
    assert {one.outcome for one in after} == {Outcome.OK, Outcome.RUN_TIMEOUT}
    assert verify_store(store.path).damages == 0


def test_nothing_of_a_dataset_comes_to_a_device_that_runs_programs(folder: Path, store: Store) -> None:
    store.put_device(make_spec("dev-a"), make_descriptor())
    open_dataset(folder, store)
    assert store.own_workloads() == {}, "no agent of ours has made the module"
    # An agent lists the same workload: from now on there is a module that may run.
    store.put_workloads([OURS], own=True)
    assert list(store.own_workloads()) == [OURS.workload_id]
    entries = store.devices()
    assert devices_of_family(entries, Family.CPU, live=True) == ["dev-a"], "its device stays another one"
    assert all(one.spec.kind is DeviceKind.REPLAY for name, one in entries.items() if "." in name)
    assert known_candidates(store, entries, 99, live=True) == {}
    assert len(known_candidates(store, entries, 99, live=False)[OURS.workload_id]) == 10


def test_records_of_a_device_behind_a_wire_do_not_tell_where_it_is(store: Store, tmp_path: Path) -> None:
    secrets = ("10.1.2.3", "board.lab.example", "alices-key", "bobs-key", "alice", "buildhost")
    errors = {
        Outcome.LOST: "nobody serves 'alices-key' at the RPC tracker 10.1.2.3:9190 (bobs-key 1 of 1 free)",
        Outcome.RUN_FAILED: (
            'File "/home/alice/x.py": 10.1.2.3:90: '
            "the server board.lab.example:90 with the key 'alices-key' hung"
        ),
        Outcome.BUILD_FAILED: "clang -I/home/alice/include a.c on buildhost: 3/4/5 of src/rpc/a.cc failed",
    }
    environment = '{"arch":"arm64","key":"alices-key","load":0.5,"tracker":"board.lab.example:9190"}'
    store.put_workloads([OURS], own=True)
    spec = make_spec("board", kind=DeviceKind.RPC, tracker="board.lab.example:9190", key="alices-key")
    # A dataset names no card either.
    cards = (("arch", "sm_90"), ("index", "0"), ("uuid", "GPU-5ec4e7"))
    seen = make_descriptor(host="buildhost", cuda_devices=(cards,), rocm_devices=(cards,))
    store.put_device(spec, seen)
    for number, (outcome, error) in enumerate(errors.items()):
        changes: dict[str, Any] = {"outcome": outcome, "error": error, "run_secs": (), "quality": "{}"}
        store.append([make_record(number, device="board", environment=environment, **changes, **WORDS)])
    publish(store, tmp_path / "out", DatasetAbout(name="wired"))
    found = pq.read_table(tmp_path / "out" / RECORDS)
    assert found.column("environment").unique().to_pylist() == ['{"arch":"arm64","load":0.5}']
    assert sorted(found.column("error").to_pylist()) == [
        'File "(place)": (place): the server (place) with the key (place) hung',
        "clang -I(place) a.c on host-1: 3/4/5 of src/rpc/a.cc failed",
        "lost; the words of whoever lost it are not published",
    ]
    told = [str(found.to_pylist()), str(pq.read_metadata(tmp_path / "out" / RECORDS).metadata)]
    told += [(tmp_path / "out" / name).read_text() for name in (CARD, README)]
    assert not [one for one in (*secrets, "GPU-5ec4e7") if any(one in text for text in told)]
    descriptor = read_published(tmp_path / "out").devices[DeviceId("board")].descriptor
    assert descriptor.cuda_devices == descriptor.rocm_devices == (cards[:2],)


def test_ids_of_a_device_behind_a_wire_confirm_no_guess_of_its_address(store: Store, tmp_path: Path) -> None:
    """The same in a later edition, for records of two editions are known by their ids."""
    records = [
        make_record(number, device="board", environment_id=where, measured_at=at, attempt=attempt, **WORDS)
        for where, at, attempt in (("later", 2e9, 0), ("guess", 1e9, 0), ("guess", 1.5e9, 1))
        for number in range(1, 5)
    ]
    found = []
    store.put_workloads([OURS], own=True)
    store.put_device(make_spec("board", kind=DeviceKind.RPC, tracker="a:1", key="b"), make_descriptor())
    for edition, some in (("one", records), ("two", [replace(records[0], attempt=3)])):
        store.append(some)
        publish(store, tmp_path / edition, DatasetAbout(name="wired"))
        verify(read_published(tmp_path / edition))
        found.append(pq.read_table(tmp_path / edition / RECORDS))
    first, second = found
    names = ("candidate_id", "environment_id", "attempt", "record_id", "measured_at", "counts")
    rows = list(zip(*(first.column(name).to_pylist() for name in names), strict=True))
    assert all(id == record_id_of(one, "board", where, nth) for one, where, nth, id, _, _ in rows)
    assert not {one[3] for one in rows} & {one.record_id for one in records}
    [early], [late] = ({one[1] for one in rows if (one[4] < 1.9e9) is is_early} for is_early in (True, False))
    assert len({early, late, "guess", "later"}) == 4
    assert sum(one[5] for one in rows) == 8, "one of each candidate and environment counts, as before"
    assert (len(first), len(second)) == (12, 13)
    assert {one[3] for one in rows} < set(second.column("record_id").to_pylist())


def refusal(store: Path, out: Path, *devices: str, name: str = "lab-two") -> str:
    """Why a store is not published; nothing is written."""
    before = contents(out)
    with pytest.raises(FleetError) as refused:
        publish(Store.read(store), out, DatasetAbout(name=name), devices)
    assert contents(out) == before
    return str(refused.value)


def test_a_dataset_of_others_is_not_published_again(folder: Path, store: Store, tmp_path: Path) -> None:
    open_dataset(folder, store)
    assert "no device of it measured" in refusal(store.path, tmp_path / "out")
    reason = refusal(store.path, tmp_path / "out", "lab-one.dev-a")
    assert "device lab-one.dev-a has not measured its records" in reason


def test_a_device_that_logs_alone_tell_of_is_left_out(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    store.put_workloads([OURS], own=True)
    store.put_device(make_spec("dev-b"), make_descriptor())
    store.append([make_record(50, device="dev-b", origin="imported", **WORDS)])
    assert "all of its records came with logs" in refusal(store.path, out)
    store.put_device(make_spec("dev-a"), make_descriptor())
    store.append(make_batch(1, 9, device="dev-a", **WORDS))
    assert "device dev-b has not measured its records" in refusal(store.path, out, "dev-a", "dev-b")
    card = publish(store, out, DatasetAbout(name="mixed"))["card"]
    assert (list(card["devices"]), card["records"]) == (["dev-a"], 9)


def test_what_cannot_be_published_is_refused_before_anything_is_written(
    folder: Path, measured: Path, tmp_path: Path
) -> None:
    assert "is not empty, and no dataset is overwritten" in refusal(measured, folder)
    out = tmp_path / "new"
    assert "dataset name 'lab.one' is not allowed" in refusal(measured, out, name="lab.one")
    assert "device 'dev-c' has no records" in refusal(measured, out, "dev-c")
    assert not out.exists()


Change = Callable[[Path], object]
Rows = Callable[[pa.Table], pa.Table]
#: More values than any text of ours has.
MANY = '{"a":[' + "0," * MOST_VALUES + "0]}"


def flipped(name: str) -> Change:
    return lambda folder: flip(folder / name, (folder / name).stat().st_size // 2)


def written(name: str, text: str, times: int = 1, *, is_summed: bool = False) -> Change:
    """Another text, perhaps of a publisher, with right sums."""

    def change(folder: Path) -> None:
        (folder / name).write_text(text * times)
        if is_summed:
            write_sums(folder)

    return change


def in_place(name: str, make: Callable[[Path], object] = lambda _: None) -> Change:
    """Nothing, something that is no regular file, or what has no size."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def told(**changes: Any) -> Change:
    """A publisher who says something else, with right sums."""

    def change(folder: Path) -> None:
        (folder / CARD).write_text(json.dumps(json.loads((folder / CARD).read_text()) | changes))
        write_sums(folder)

    return change


def rewritten(describe: Callable[[dict[str, Any], list[Any]], object], *edits: Rows) -> Change:
    """A publisher whose rows, head or workloads are others, with right sums."""

    def change_file(table: pa.Table, entries: dict[bytes, bytes]) -> pa.Table:
        head = json.loads(entries[HEAD_KEY])
        workloads = json.loads(zlib.decompress(base64.b64decode(entries[WORKLOADS_KEY])))
        describe(head, workloads)
        entries[HEAD_KEY] = json.dumps(head).encode()
        packed(entries, json.dumps(workloads).encode())
        return reduce(lambda before, edit: edit(before), edits, table)

    def change(folder: Path) -> None:
        rewritten_file(folder / RECORDS, change_file)
        write_sums(folder)

    return change


def rows(*edits: Rows) -> Change:
    """Rows that are edited in turn."""
    return rewritten(lambda *_: None, *edits)


def device(name: str, part: str, **changes: Any) -> Change:
    """Another spec or descriptor of a device."""
    return rewritten(lambda head, _: head["devices"][name][part].update(changes))


def workload(**changes: Any) -> Change:
    return rewritten(lambda _, workloads: workloads[0].update(changes))


def long_named(head: dict[str, Any], _: list[Any]) -> None:
    head["devices"]["d" * 121] = head["devices"]["dev-a"]


def replaced(**values: Any) -> Rows:
    def edit(table: pa.Table) -> pa.Table:
        for name, value in values.items():
            table = with_column(table, name, [value] * len(table))
        return table

    return edit


def forged_ids(table: pa.Table) -> pa.Table:
    """Rows of a workload that the dataset lacks, with the ids that follow."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    for row in range(len(table)):
        candidate = content_hash("0" * 16, columns["dialect"][row], columns["trace"][row])
        parts = (columns[name][row] for name in ("device_id", "environment_id"))
        columns["workload_id"][row], columns["candidate_id"][row] = "0" * 16, candidate
        columns["record_id"][row] = content_hash(candidate, *parts, str(columns["attempt"][row]))
    return pa.table(columns, table.schema)


def no_text(name: str) -> Rows:
    """Rows with bytes in a column of texts that are none."""

    def edit(table: pa.Table) -> pa.Table:
        broken = pa.array([b"\xff"] * len(table), pa.binary()).view(pa.string())
        return table.set_column(table.schema.get_field_index(name), name, broken)

    return edit


#: What a stranger may say in each row, in the card, of a device or of a workload, or make of the files; words
#: of the refusal. The first ones would end whoever reads the store later.
SAID = r"""
rows       | quality: suspect                           | column quality holds 'suspect'
rows       | quality: '["suspect"]'                     | column quality holds
rows       | quality: '{"interval":1e999}'              | column quality holds
rows       | quality: '{"canary":{"compute":"x"}}'      | column quality holds
rows       | environment: "[]"                          | column environment holds '\[\]'
rows       | measured_at: 1.0e+300                      | column measured_at holds a time that is out of range
rows       | run_secs: [], latency_secs: null           | a row is ok and has no run_secs
rows       | outcome: ok, run_secs: [1.0e-12], latency_secs: 1.0e-12 | column run_secs holds 1e-12
rows       | trace: "[[],[1]]"                          | another id than what they say makes
rows       | device_id: dev-b                           | another id than what they say makes
rows       | latency_secs: 1.0                          | a latency where the outcome is not ok
rows       | outcome: won                               | unknown outcomes won
rows       | error: null                                | column error holds nulls
head       | devices: {}                                | device dev-a, which it does not describe
head       | devices: {../x: {}}                        | describes a device without spec
descriptor | memory_bytes: 18446744073709551616         | device dev-b: a number of its description is out of
descriptor | host: "\ud800"                             | descriptor: expected text, got half a character
workload   | arg_shapes: [[-5]], arg_dtypes: [float32]  | a number of its description is out of range
workload   | arg_shapes: [[1099511627776, 1099511627776, 9]], arg_dtypes: [int8] | its size or its FLOPs are
workload   | workload_id: imported-1                    | workload imported-1: expected 16 hexadecimal digits
workload   | flops: -1.0                                | its size or its FLOPs are out of range
card       | tensor_fleet_dataset: 2                    | has version 2, this version reads 1; publish
card       | tensor_fleet_dataset: "1"                  | does not say its version
card       | name: ../x                                 | dataset.json: name: String should match pattern
card       | devices: {dev-a: {records: 1}}             | devices\.dev-a\.outcomes: Field required
card       | records: true                              | dataset\.json: records: Input should be a valid
card       | records: 24                                | has 23 records, its card says 24
card       | license: null                              | dataset\.json: license: Input should be
card       | records: null                              | dataset\.json: records: Input should be
card       | candidates: null                           | dataset\.json: candidates: Input should be
card       | workloads: null                            | dataset\.json: workloads: Input should be
card       | devices: null                              | dataset\.json: devices: Input should be
card       | operators: null                            | dataset\.json: operators: Input should be
card       | networks: null                             | dataset\.json: networks: Input should be
card       | faults: null                               | dataset\.json: faults: Input should be
flipped    | name: records.parquet                      | records.parquet has SHA-256 \w{64}, SHA256SUMS says
flipped    | name: dataset.json                         | dataset.json has SHA-256
flipped    | name: README.md                            | README.md has SHA-256
removed    | name: SHA256SUMS                           | holds no published dataset
removed    | name: records.parquet                      | records.parquet: No such file
written    | name: SHA256SUMS, text: x                  | expected one line `SHA-256  NAME` for each
written    | name: SHA256SUMS, text: "0  ../../etc/passwd" | expected one line
written    | name: SHA256SUMS, text: x, times: 100000   | has 100,000 bytes, at most 65,536 are read
written    | name: dataset.json, text: "[", times: 100000   | dataset.json has SHA-256
resummed   | name: dataset.json, text: "[", times: 100000   | dataset.json: is no JSON
resummed   | name: dataset.json, text: "null"           | does not say its version
fifo       | name: dataset.json                         | dataset.json: is no regular file
fifo       | name: SHA256SUMS                           | SHA256SUMS: is no regular file
link       | name: README.md, target: /dev/zero         | README.md: is no regular file
link       | name: records.parquet, target: /dev/zero   | records.parquet: is no regular file
no text    | name: environment                          | Invalid UTF8
no text    | name: error                                | Invalid UTF8
"""
SAYS: dict[str, Callable[..., Change]] = {
    "rows": lambda **values: rows(replaced(**values)),
    "card": told,
    "head": lambda **values: rewritten(lambda head, _: head.update(values)),
    "descriptor": lambda **values: device("dev-b", "descriptor", **values),
    "workload": workload,
    **{"flipped": flipped, "written": written, "removed": in_place},
    "resummed": partial(written, is_summed=True),
    "fifo": lambda name: in_place(name, os.mkfifo),
    "link": lambda name, target: in_place(name, lambda path: path.symlink_to(target)),
    "no text": lambda name: rows(no_text(name)),
}


def changes() -> Iterator[tuple[Change, str]]:
    for where, values, message in cells(SAID):
        yield SAYS[where](**yaml.safe_load(f"{{{values}}}")), message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *changes(),
        (rows(replaced(environment=MANY)), r"column environment holds"),
        (rows(replaced(trace=" " * (MAX_TEXT + 1)), forged_ids), "a trace has 1,048,577 bytes"),
        (workload(module_json=MANY), "expected a module that is a JSON object of at most 1,000,000 values"),
        (device("dev-a", "spec", threads=10**400), "device dev-a: a number of its description is out of"),
        (rewritten(long_named), r"device 'lab-one\.d{121}' cannot be stored"),
        (written(CARD, "[" + "[]," * 1_100_000 + "[]]", is_summed=True), "more than 1,000,000 values"),
        (in_place(SUMS, lambda path: path.symlink_to("/proc/kmsg")), "expected one line|holds no published"),
        (rows(lambda table: table.slice(1)), "has 22 records, its card says 23"),
        (rows(lambda table: pa.concat_tables([table, table])), "23 records are there more than once"),
        (rows(lambda table: table.drop_columns(["trace"])), "column trace is not there"),
        (rows(forged_ids), "lacks workload 0000000000000000 of its records"),
    ],
)
def test_a_dataset_that_is_not_as_published_is_one_line(
    change: Change, message: str, folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    change(damaged)
    with pytest.raises(DatasetRefusedError, match=message) as refused:
        verify(read_published(damaged))
    assert "\n" not in str(refused.value)


def test_a_dataset_that_is_refused_leaves_no_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, store = shutil.copytree(folder, tmp_path / "damaged"), tmp_path / "theirs"
    rows(replaced(quality="suspect"))(damaged)
    assert run(["datasets", "open", str(damaged), "--store", str(store)]) == 1
    assert "column quality holds 'suspect'" in capsys.readouterr().err
    assert not store.exists()


def peak_mb(arguments: list[str]) -> tuple[int, str, float]:
    """Exit code, error, and most resident memory in MiB of `fleet` or of what it starts."""
    code = (
        "import resource, sys\nfrom fleet.cli.app import run\ncode = run(sys.argv[1:])\n"
        "below = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "lines = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "print(max(below, int(lines['VmHWM'].split()[0])))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.strip(), int(done.stdout.splitlines()[-1]) / 1024


@pytest.mark.parametrize("name", PARQUET_BOMBS)
def test_a_small_file_takes_no_gigabytes(name: str, tmp_path: Path) -> None:
    """They took up to 4 GB, or minutes; one was accepted."""
    bomb = tmp_path / "bomb"
    write_bomb(name, bomb)
    assert (bomb / RECORDS).stat().st_size < 3_000_000
    code, error, most = peak_mb(["datasets", "verify", str(bomb)])
    assert (code, error.count("\n")) == (1, 0), error
    assert error.startswith("fleet: ")
    assert most < 1_024, f"{most:,.0f} MiB"


def test_what_lies_of_its_size_ends_its_reader_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no bound of ours had seen it: the limit of memory holds."""
    bomb = tmp_path / "bomb"
    write_bomb("many repeats", bomb)
    (tmp_path / "boundless.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom agents.device import bounded_parquet\n"
        "from agents.host import limited_reader\n"
        "bounded_parquet._MOST_GROUP_BYTES = bounded_parquet._MOST_GROUP_VALUES = 1 << 60\n"
        "limited_reader.MOST_BYTES = 400 << 20\n"
        "from fleet.datasets.admission import DatasetRefusedError, _verified, answer\n"
        "answer(lambda: _verified(Path(sys.argv[1]), ''), DatasetRefusedError)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AgentError, match=r"cannot be decoded: malloc|400 MiB are needed|ended with"):
        read_limited("boundless", str(bomb))


def test_a_dataset_is_known_by_one_sum(folder: Path) -> None:
    digest = hashlib.sha256((folder / SUMS).read_bytes()).hexdigest()
    assert read_published(folder, digest.upper()).sha256 == digest
    with pytest.raises(
        DatasetRefusedError, match=f"has SHA-256 {digest}, expected {'0' * 64}: it is another one"
    ):
        read_published(folder, "0" * 64)


@pytest.mark.parametrize("name", ["open-cpu-1", "open-cpu-2"])
def test_a_dataset_of_the_repository_is_whole_and_what_the_page_says(name: str) -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs/datasets.md").read_text()
    found = read_published(root / "examples" / name)
    assert f" {found.sha256} |" in page
    assert f"| {verify(found):,}, {found.card['candidates']:,} |" in page
    assert f"| {len(found.workloads)} of {len(found.card['networks'])} networks" in page
    assert sum(one.stat().st_size for one in found.folder.iterdir()) < 30_000_000
