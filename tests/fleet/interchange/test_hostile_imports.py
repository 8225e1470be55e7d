"""Logs that were made to hang, crash or fill an import: every line is accounted for, in bounded memory.

`tests/hostile_corpus` has shapes and targets that broke an export.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.records import Workload
from fleet.errors import FleetError
from fleet.interchange import import_files
from fleet.interchange import import_logs as module
from fleet.interchange.import_rows import RowBatch
from fleet.interchange.logs import catalog as log_catalog
from fleet.interchange.logs import lines as log_lines
from fleet.interchange.logs.catalog import MAX_ENVIRONMENT_CHARS, MAX_KEY_CHARS
from fleet.store.store import Store
from tests.log_fixtures import (
    CPU_TARGET,
    ansor,
    autotvm,
    meta_schedule,
    module_line,
    read_lines,
    run,
    run_lines,
    write_log,
)


def test_what_a_reader_did_not_foresee_costs_the_line(tmp_path: Path) -> None:
    error = ZeroDivisionError("by nobody's guess")
    with mock.patch("fleet.interchange.dialects.ansor.tuner_result", side_effect=error):
        report = run_lines(tmp_path, autotvm(1), ansor(1), ansor(2))
    reason, log = "reader fault: ZeroDivisionError", tmp_path / "log.json"
    assert (report.imported, report.counts.rejected) == (1, {reason: 2})
    assert report.examples == {reason: f'{log}:2: "by nobody\'s guess"'}


@pytest.mark.parametrize("error", [MemoryError, OSError, KeyboardInterrupt, FleetError])
def test_what_is_no_fault_of_a_line_ends_the_import(error: type[BaseException], tmp_path: Path) -> None:
    with mock.patch("fleet.interchange.dialects.ansor.tuner_result", side_effect=error), pytest.raises(error):
        run_lines(tmp_path, ansor(1))


# ---- what is held ----


def test_long_keys_and_targets_are_refused(tmp_path: Path) -> None:
    long_args, trace, database = autotvm(2), autotvm(3), meta_schedule(4)
    long_args["input"][2] = [["TENSOR", [1, 2], "float32"]] * 5000
    trace["config"]["entity"][2][2] = "x" * (1 << 20)
    database[1][2] = {"kind": "llvm", "mcpu": "x" * MAX_ENVIRONMENT_CHARS}
    long_key = ansor(1, key=["k" * MAX_KEY_CHARS, [1]])
    measured, reasons = read_lines(tmp_path, long_key, long_args, trace, database, ansor(5))
    assert len(measured) == 1
    assert reasons == {
        "workload key is too long": 2,
        "trace is too long": 1,
        "target is too long": 1,
    }


def test_all_targets_and_all_workloads_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_catalog, "MAX_ENVIRONMENTS_CHARS", 2000)
    monkeypatch.setattr(log_catalog, "MAX_WORKLOAD_CHARS", 700)
    lines = [ansor(n, target=f"{CPU_TARGET} -model={'m' * 500}{n}") for n in range(10)]
    lines += [ansor(n, key=[f"other{n}" + "k" * 200, [1]]) for n in range(5)]
    measured, reasons = read_lines(tmp_path, *lines)
    assert reasons == {"targets take too much room": 8, "workloads take too much room": 3}
    assert len(measured) == 4


def test_a_commit_comes_by_bytes_of_whatever_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 34,000 rows that shared a long environment once overflowed a column of texts.
    monkeypatch.setattr("fleet.interchange.import_rows.BATCH_BYTES", 100_000)
    commits: list[int] = []
    take = RowBatch.take
    monkeypatch.setattr(RowBatch, "take", lambda batch: (commits.append(len(batch)), take(batch))[1])
    names = ["n" * 10_000]
    lines = [ansor(n) for n in range(25)]
    for line in lines:
        line["i"][0][5] = names
    costs = [ansor(n, r=[[1e-3] * 1000, 0, 1.0, 1.0]) for n in range(25, 30)]
    report = run_lines(tmp_path, *lines, *costs)
    assert report.imported == 30
    assert max(commits) < 12
    assert commits[-1] <= 5


def test_modules_that_wait_for_a_commit_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_BYTES", 10_000)
    stored: list[int] = []
    keep = Store.put_workloads

    def note(store: Store, workloads: list[Workload]) -> int:
        stored.append(sum(len(one.module_json) for one in workloads))
        return keep(store, workloads)

    monkeypatch.setattr(Store, "put_workloads", note)
    texts = [json.dumps({"nodes": [{"type": "None"}], "more": "x" * 3000 + str(n)}) for n in range(12)]
    lines = [module_line(n, text) for n, text in enumerate(texts)]
    report = run_lines(tmp_path, *lines, *(meta_schedule(1, index=n) for n in range(12)))
    assert (report.imported, report.workloads) == (12, 12)
    assert max(stored) < 14_000


# ---- files ----


@pytest.mark.parametrize("packing", [gzip, bz2])
def test_a_file_that_unpacks_without_end_is_damaged(tmp_path: Path, packing: Any) -> None:
    log = write_log(tmp_path / "log.json", [autotvm(n) for n in range(3)])
    log.write_bytes(packing.compress(log.read_bytes() + b" " * (64 << 20)))
    report = run(tmp_path, log)
    assert (report.imported, report.counts.lines) == (3, 4)
    assert "unpacks to over 128 times" in report.damaged[str(log)]


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(FleetError, match="is no regular file"):
            run(tmp_path, path)
    # One that takes the place of a file is not waited for either.
    with pytest.raises(FleetError, match="is no regular file"):
        next(iter(log_lines.LogLines(pipe)))
    write_log(tmp_path / "logs" / "log.json", [autotvm(1)])
    os.mkfifo(tmp_path / "logs" / "other.json")
    (tmp_path / "logs" / "loop.json").symlink_to("loop.json")
    assert run(tmp_path, tmp_path / "logs").imported == 1


def test_a_file_that_grows_is_read_as_long_as_it_was(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.json", [autotvm(n) for n in range(3)])
    lines = log_lines.LogLines(log, chunk_bytes=64)
    chunks = lines.chunks()
    first = next(chunks)
    with log.open("ab") as stream:
        stream.write(b"x" * 100_000)
    assert len(first) + sum(map(len, chunks)) < 100_000


def test_folders_in_folders_without_end_are_walked(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    write_log(deep / "log.json", [autotvm(1)])
    back = os.open(".", os.O_RDONLY)
    try:
        os.chdir(deep)
        for _ in range(1500):
            os.mkdir("d")  # noqa: PTH102 - no path reaches as deep
            os.chdir("d")
        os.fchdir(back)
        assert run(tmp_path, deep).imported == 1
    finally:
        os.fchdir(back)
        os.close(back)
        # What removes temporary folders calls itself for every level.
        subprocess.run(["rm", "-rf", str(deep)], check=True)


def test_more_files_than_an_import_takes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_files, "MAX_FILES", 2)
    for number in range(3):
        write_log(tmp_path / "logs" / f"{number}.json", [autotvm(number)])
    with pytest.raises(FleetError, match="more than 2 files"):
        run(tmp_path, tmp_path / "logs")


@pytest.mark.parametrize("name", [b"net\x1b[2J", b"net\xff", b"n" * 200, b"a\nb"])
def test_a_folder_that_cannot_be_a_network_names_none(name: bytes, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(name)
    write_log(folder / "xgb.json", [autotvm(1)])
    report = run(tmp_path, tmp_path)
    assert (report.imported, report.networks) == (1, set())
    # A name of bytes that are no text would make every later look at the store fail.
    assert len(Store.read(tmp_path / "store").workloads()) == 1
    with pytest.raises(FleetError, match=r"network .* cannot be used"):
        run(tmp_path, tmp_path, network=folder.name)
