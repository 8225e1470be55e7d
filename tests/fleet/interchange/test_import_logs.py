from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents.records import canonical_json
from fleet.errors import FleetError
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.conftest import running
from tests.dataset_fixtures import gmm_trace
from tests.knob_fixtures import cache_text, cached
from tests.log_fixtures import (
    CUDA_TARGET,
    ansor,
    autotvm,
    meta_schedule,
    records,
    run,
    run_lines,
    workload_line,
    write_log,
)


def test_overlapping_snapshots_in_any_order_are_one_log(tmp_path: Path) -> None:
    lines = [ansor(n) for n in range(30)]
    again = ansor(3, r=[[5e-3], 0, 1.5, 1_700_009_999])
    one = write_log(tmp_path / "one.json", lines[:20])
    two = write_log(tmp_path / "two.json.gz", [*lines[10:], again])
    found = []
    for number, paths in enumerate(((one, two), (two, one))):
        report = run(tmp_path / str(number), *paths)
        assert (report.imported, report.duplicates) == (31, 10)
        found.append(records(tmp_path / str(number)))
    assert set(found[0]) == set(found[1])
    twice = [one for one in found[0] if one.trace == canonical_json(lines[3]["i"][1][1])]
    assert len({one.attempt for one in twice}) == len(twice) == 2


#: Why | a line that is refused.
REFUSED = """
truncated | {"i": [["[\\"0123456789abcdef
truncated | {
not UTF-8 | junk \xff
not JSON | junk
not JSON | junk \u00e4
a number is not finite | [NaN]
blank line |
blank line |
comment line | #
i is not [task, [stages, steps]] | {"i": 1, "r": 2}
no known dialect | {"x": 1}
no known dialect | [1, 2, 3]
malformed SP step | {"i": [["[\\"k\\"]", "llvm"], [[], [["SP", "a"]]]], "r": [[1], 0, 1, 1]}
workload key is not a list that begins with a name | {"i": [["[]", "llvm"], [[], []]], "r": [[1], 0, 1, 1]}
workload key is not JSON | {"i": [["{", "llvm"], [[], []]], "r": [[1], 0, 1, 1]}
task_input_names are not texts | {"i":[["[\\"k\\"]", "llvm", [1], "", 1, [7]], [[], []]], "r": [[1], 0, 1, 1]}
trace is not [instructions, decisions] | [0, [[[]], [1], {"kind": "llvm"}, []]]
an instruction is not [kind, inputs, attributes, outputs] | [0, [[[7], []], [1], {"kind": "llvm"}, []]]
a decision is not [instruction, value] | [0, [[[], [7]], [1], {"kind": "llvm"}, []]]
target of an unknown kind | {"i": [["[\\"k\\"]", "abacus"], [[], []]], "r": [[1], 0, 1, 1]}
AutoTVM log before 0.2 | {"i": ["llvm", "topi_x", [], {}, [], {}], "r": [[1], 0, 1, 1], "v": 0.1}
"""


def test_damaged_lines_are_counted_with_the_first_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.interchange.line_reader.MAX_RECORD_BYTES", 110_000)
    rows = [row.split("|", 1) for row in REFUSED.strip().splitlines()]
    # Half a character of UTF-8 is a byte of its own.
    faulty: list[Any] = [text.strip().encode("latin-1" if "\xff" in text else "utf-8") for _, text in rows]
    knob = autotvm(1, config={"entity": [["tile", "sp", "big"]]})
    faulty += [b"[" * 100_000, knob, workload_line(), ansor(1, v="x" * 120_000)]
    report = run_lines(tmp_path, ansor(0), *faulty, ansor(4))
    more = ["nested too deeply", "malformed sp knob", "workload line", "line too long"]
    reasons = Counter([*(reason.strip() for reason, _ in rows), *more])
    assert (report.imported, report.counts.rejected) == (2, reasons)
    log = tmp_path / "log.json"
    assert report.examples["truncated"].startswith(f"{log}:2: ends in ")
    assert report.examples["not UTF-8"] == f"{log}:4: byte 5"


def test_a_trace_that_learning_could_not_read_is_rejected(tmp_path: Path) -> None:
    """One of them kept every snapshot of the store from being made."""
    lines = [meta_schedule(n) for n in range(7)]
    for number, one in enumerate(lines):
        one[1][0] = json.loads(gmm_trace(i=(16, 2, 1, 4 + number)))
    faulty = [one[1][0][1] for one in lines]
    del faulty[1][0]
    faulty[2][0][1] = [4]
    faulty[3][4][1] = "16"
    faulty[4][4][1] = 4  # of four choices
    faulty[5][0][1][0] = 2**63
    log = write_log(tmp_path / "database_tuning_record.json", lines)
    report = run(tmp_path, log)
    assert report.imported == 2
    assert report.counts.rejected == {"trace cannot be read": 5}
    assert report.examples["trace cannot be read"] == (
        f"{log}:2: MetaSchedule instruction 4 needs 4 tile factors, got None"
    )
    assert len(load_snapshot(Store.read(tmp_path / "store")).dataset) == 2


def test_records_are_read_again_when_the_file_of_their_workloads_has_changed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "database_tuning_record.json", [meta_schedule(n, index=n) for n in range(2)])
    workloads = write_log(tmp_path / "database_workload.json", [workload_line(0)])
    first = run(tmp_path, log)
    assert (first.imported, first.rejected) == (1, 1)
    assert run(tmp_path, log).files_known == 1
    write_log(workloads, [workload_line(0), workload_line(1)])
    second = run(tmp_path, log)
    assert (second.imported, second.duplicates, second.rejected, second.files_known) == (1, 1, 0, 0)


def test_networks_come_from_the_layout_or_the_option_and_are_joined(tmp_path: Path) -> None:
    logs = tmp_path / "board"
    write_log(logs / "resnet-18" / "xgb.jsonl.gz", [autotvm(0)])
    write_log(logs / "vgg-16" / "ga.jsonl", [autotvm(1)])
    write_log(logs / "loose.json", [autotvm(2)])
    report = run(tmp_path, logs)
    assert report.networks == {"resnet-18", "vgg-16"}
    run(tmp_path, logs / "loose.json", network="mine")
    (workload,) = Store.read(tmp_path / "store").workloads().values()
    assert workload.networks == (("mine", 1), ("resnet-18", 1), ("vgg-16", 1))


def test_cpu_and_gpu_do_not_mix(tmp_path: Path) -> None:
    cpu = write_log(tmp_path / "logs" / "cpu.json", [autotvm(0)])
    gpu = write_log(tmp_path / "logs" / "gpu.json", [autotvm(0, target=CUDA_TARGET)])
    words = (
        rf"{gpu}:1 was measured on a gpu \(cuda\), but {cpu}:1 \(llvm\) is a cpu.*give each its own --device"
    )
    with pytest.raises(FleetError, match=words):
        run(tmp_path, tmp_path / "logs")
    assert records(tmp_path) == []  # noticed before anything was stored
    run(tmp_path, cpu)
    knobs = write_log(tmp_path / "cache.json", [cache_text([cached(0)])])
    for path in (gpu, knobs):
        with pytest.raises(FleetError, match="but device dev-a is a cpu"):
            run(tmp_path, path)
    late = write_log(tmp_path / "late.json", [*map(autotvm, range(90)), autotvm(0, target=CUDA_TARGET)])
    with pytest.raises(FleetError, match=f"{late}:91 was measured on a gpu"):
        run(tmp_path, late)


def test_a_wanted_dialect_leaves_the_others(tmp_path: Path) -> None:
    report = run_lines(tmp_path, autotvm(0), ansor(0), dialect="ansor")
    assert (report.imported, report.counts.rejected) == (1, {"a line of autotvm, asked for ansor": 1})
    assert run(tmp_path, tmp_path / "log.json").imported == 1  # asked otherwise, the file is read again


def test_a_known_device_keeps_its_description(tmp_path: Path) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    (folder / "box.yaml").write_text(
        "schema: 1\ndevice_id: box\nkind: local\nfamily: cpu\n"
        "target: {kind: llvm, mcpu: x86-64-v3, num-cores: 1}\n"
    )
    log = write_log(tmp_path / "log.json", [autotvm(0)])
    with Store.open(tmp_path / "store") as store:
        request = ImportRequest(paths=(log,), device_id="box", devices_folder=folder)
        assert import_logs(store, request).described_by == str(folder / "box.yaml")
        assert store.devices()[request.device_id].spec.target["mcpu"] == "x86-64-v3"  # type: ignore[index]
        again = ImportRequest(paths=(log,), device_id="box", devices_folder=folder, again=True)
        assert import_logs(store, again).described_by == "the store"


#: Imports with small batches, so that kills fall between and into commits; says when it begins to read.
IMPORTER = """
import sys
from pathlib import Path
from fleet.interchange import import_rows
import_rows.BATCH_ROWS = 50
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.store.store import Store
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    request = ImportRequest(paths=(Path(sys.argv[2]),), device_id="dev-a")
    print(import_logs(store, request).imported, flush=True)
"""


def test_a_killed_import_goes_on(tmp_path: Path) -> None:
    for file in range(4):
        write_log(tmp_path / "logs" / f"{file}.json.gz", [autotvm(n + 500 * file) for n in range(600)])
    for wait_secs in (0.05, 0.2):
        with running(IMPORTER, tmp_path / "store", tmp_path / "logs") as child:
            time.sleep(wait_secs)
            child.kill()
            child.wait()
    before = len(records(tmp_path))
    report = run(tmp_path, tmp_path / "logs")
    assert report.counts.lines == 2400
    assert before + report.imported == 2100  # 500 apart, 600 long: three overlaps of 100
    seen = Counter(record.record_id for record in records(tmp_path))
    assert len(seen) == 2100
    assert set(seen.values()) == {1}
