"""Hostile logs: all finds of the past and hundreds of new files go through, and the fuzzer finds what is bad.

`benchmarks.hostile` does the same with thousands of files, training and a real device.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Workload, WorkloadId
from benchmarks import hostile
from benchmarks.hostile_attacks import calling_map, foreign_ir
from benchmarks.hostile_corpus import CORPUS, corpus_case, corpus_names
from benchmarks.hostile_datasets import attack_steps, record, write_dataset
from benchmarks.hostile_files import DIALECTS, make_case
from benchmarks.hostile_folders import (
    FOLDER_STAGES,
    FolderCase,
    folder_names,
    folder_stages,
    open_dataset_case,
)
from benchmarks.hostile_found import Found
from benchmarks.hostile_modules import MODULES, module
from benchmarks.hostile_run import Question, run
from benchmarks.hostile_stages import Work, expected_lines, import_case
from benchmarks.hostile_traces import KINDS, TRACES, trace
from benchmarks.hostile_tuners import STEPS, ansor_steps, entity
from benchmarks.hostile_values import deep_text
from transfer.errors import TraceError
from transfer.features.access import block_accesses
from transfer.language.ansor import AnsorReader
from transfer.language.autotvm import AutoTVMReader
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.program import program_stages

#: Seed and number of the generated cases that every run of the tests reads.
SEED, CASES = 20_260, 64
QUICK = ("import", "dataset", "replay", "export")


def found_of(questions: list[Question], folder: Path, module_name: str = "benchmarks.hostile_child") -> Found:
    markers = folder / "markers"
    markers.mkdir(exist_ok=True)
    found = run(questions, folder / "work", seed=SEED, markers=markers, module=module_name)
    assert list(markers.iterdir()) == []
    return found


def no_finds(found: Found) -> None:
    assert found.finds == {}, "\n".join(
        f"{find['stage']}: {find['kind']}, {find['times']} times, first case {find['case']}:\n{find['text']}"
        for find in found.finds.values()
    )


@pytest.mark.timeout(300)
def test_nothing_is_found_in_the_corpus(tmp_path: Path) -> None:
    found = found_of([Question(case=name, stages=QUICK) for name in corpus_names()], tmp_path)
    no_finds(found)
    assert found.done == len(corpus_names()) >= 13


@pytest.mark.timeout(600)
def test_nothing_is_found_in_generated_files(tmp_path: Path) -> None:
    stages = [QUICK if number % 8 == 0 else QUICK[:2] for number in range(CASES)]
    found = found_of([Question(case=place, stages=one) for place, one in enumerate(stages)], tmp_path)
    no_finds(found)
    assert found.done == CASES
    # What is made is neither all honest nor all garbage.
    for dialect in ("ansor", "autotvm", "meta_schedule"):
        counts = found.dialects[dialect]
        assert counts["imported"] > counts["lines"] / 10, dialect
        assert counts["rejected"] > counts["lines"] / 20, dialect


@pytest.mark.timeout(600)
def test_nothing_is_found_in_folders_of_strangers(tmp_path: Path) -> None:
    names = folder_names(16)
    found = found_of([Question(case=name, stages=folder_stages(name)) for name in names], tmp_path)
    no_finds(found)
    tallies = found.stages
    assert {name: tally.files for name, tally in tallies.items()} == dict.fromkeys(FOLDER_STAGES, 4)
    assert sum(tally.refused for tally in tallies.values()) > 4


def test_a_script_of_a_stranger_would_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If any trace were fit for a script, as it once was."""
    monkeypatch.setattr("fleet.coverage.reproducer.replay_fault", lambda *_: "")
    monkeypatch.setattr("fleet.coverage.reproducer.is_live", lambda _: True)
    case = FolderCase(
        name="dataset-0",
        dialect="dataset",
        form="folder",
        files=(),
        lines=0,
        make=lambda folder: write_dataset(folder, [record(0, attack_steps(0, f"{tmp_path}/marker"))]),
        marker=f"{tmp_path}/marker",
    )
    work = Work(case, tmp_path / "case")
    case.write(work.logs)
    open_dataset_case(work)
    assert [path.name for path in tmp_path.glob("marker*")] == ["marker-script"]


def test_every_find_of_the_corpus_has_its_origin() -> None:
    text = (CORPUS / "README.md").read_text()
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == set(corpus_names())
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1_000_000


def test_a_case_is_the_same_for_the_same_seed_and_number() -> None:
    for number in range(20):
        assert make_case(3, number, "/m") == make_case(3, number, "/m")
    assert make_case(3, 1, "/m").files != make_case(4, 1, "/m").files


def test_cases_hold_every_dialect_form_and_attack() -> None:
    cases = [make_case(1, number, "/watched") for number in range(90)]
    assert {case.dialect for case in cases} == set(DIALECTS)
    assert {case.form for case in cases} == {"plain", "gz", "damaged gz"}
    assert sum(case.lines for case in cases) > 34 * len(cases)  # 3,000 of them hold over 100,000 lines
    marked = [case for case in cases if case.markers and case.form == "plain"]
    assert len(marked) > 10
    assert any(b"/watched/1-" in case.files[0][1] for case in marked)


def test_traces_hold_every_kind_and_steps_every_tag() -> None:
    rng = Random(5)
    kinds = Counter(one[0] for _ in range(200) for one in trace(rng, "/watched/x")[0])
    assert set(KINDS) <= set(kinds)
    tags = Counter(step[0] for _ in range(100) for step in ansor_steps(rng))
    assert set(STEPS) <= set(tags)
    assert all(make(rng, "") for make in TRACES)


@given(st.integers(0, 2**32))
def test_any_trace_is_read_or_refused(seed: int) -> None:
    text = deep_text(trace(Random(seed))).decode()
    workload = _workload(json.dumps(MODULES[0](Random(seed))))
    reader = MetaScheduleReader()
    for known in (None, workload):
        with contextlib.suppress(TraceError):
            steps = reader.read(text, known)
            assert len(steps) <= text.count("[")


@given(st.integers(0, 2**32))
def test_any_module_tells_something_or_nothing(seed: int) -> None:
    made = module(Random(seed))
    try:
        text = json.dumps(made)
    except RecursionError:
        return
    assert isinstance(program_stages(text), tuple)
    assert isinstance(block_accesses(text), dict)


@given(st.integers(0, 2**32))
def test_any_steps_and_entities_are_read_or_refused(seed: int) -> None:
    rng = Random(seed)
    for reader, value in ((AnsorReader(), ansor_steps(rng)), (AutoTVMReader(), entity(rng))):
        try:
            steps = reader.read(json.dumps(value))
        except TraceError:
            continue
        assert len(steps) <= 40 * len(value)


def _workload(module_json: str) -> Workload:
    return Workload(
        workload_id=WorkloadId("0123456789abcdef"),
        name="hostile",
        operator="GMM",
        arg_shapes=(),
        arg_dtypes=(),
        flops=0.0,
        networks=(),
        module_json=module_json,
    )


#: A child that does wrong in each way, one case a way.
_BAD_CHILD = """
import json, os, sys, time
from benchmarks import hostile_child
from benchmarks.hostile_stages import Unaccounted
from fleet.errors import FleetError

def bad(work):
    number = int(work.case.name)
    if number == 0:
        raise ValueError("raw")
    if number == 1:
        os.abort()
    if number == 2:
        time.sleep(600)
    if number == 3:
        held = [bytearray(b"x") * (1 << 20) for _ in range(1100)]
    if number == 4:
        raise Unaccounted("5 lines in, 4 out")
    if number == 5:
        raise FleetError("one clear line")

hostile_child.main(stages={"import": bad})
"""


@pytest.mark.timeout(200)
def test_whatever_a_child_does_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_child.py").write_text(_BAD_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.hostile_run.PATIENCE_SECS", 5.0)
    found = found_of(
        [Question(case=number, stages=("import",)) for number in range(7)], tmp_path, "bad_child"
    )
    kinds = {find["case"]: find["kind"] for find in found.finds.values()}
    assert kinds.pop("0").startswith("ValueError in ")
    assert kinds == {"1": "ended with -6", "2": "hang", "3": "memory", "4": "Unaccounted"}
    tally = found.stages["import"]
    assert (tally.files, tally.crashes, tally.hangs, tally.refused, tally.over_memory) == (7, 2, 1, 1, 1)
    assert tally.peak_memory_mb > 1_024


def test_lines_are_counted_apart_from_the_importer(tmp_path: Path) -> None:
    case = corpus_case("target-dashes.json", str(tmp_path))
    work = Work(case, tmp_path / "case")
    case.write(work.logs)
    import_case(work)
    assert work.lines == expected_lines(case.files[0][1]) == 4
    expected = {b"": 0, b"a": 1, b"a\n": 1, b"\n": 1, b"\xef\xbb\xbfa\nb": 2}
    assert {data: expected_lines(data) for data in expected} == expected


def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["hostile", "--json", *words])
    code = hostile.main()
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.timeout(300)
def test_the_benchmark_prints_what_scripts_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hostile, "corpus_names", lambda: ["target-dashes.json"])
    monkeypatch.setattr(hostile, "_CORPUS_STAGES", ("import", "command", "dataset"))
    words = ("--files", "3", "--folders", "0", "--live", "0", "--keep", str(tmp_path))
    code, told = run_main(monkeypatch, capsys, *words)
    assert code == 0, told["finds"]
    zeros = ("executed", "crashes", "hangs", "unaccounted_lines")
    assert [told[name] for name in zeros] == [0, 0, 0, 0]
    assert told["corpus"] == 1
    assert told["files"] >= 4
    assert told["lines"] > 4
    assert set(told["by_stage"]) >= {"import", "command", "dataset"}
    assert told["longest_secs"] > 0
    assert 50 < told["peak_memory_mb"] <= 1_024
    # One case again, and a find makes the exit code 1.
    monkeypatch.setattr("benchmarks.hostile_found.TARGET_MB", 1.0)
    code, told = run_main(monkeypatch, capsys, "--only", "2", "--keep", str(tmp_path))
    assert code == 1
    assert sum(counts["cases"] for counts in told["by_dialect"].values()) == 1


@pytest.mark.tvm
@pytest.mark.timeout(300)
def test_the_attacks_run_code_where_they_are_replayed_as_they_came(tmp_path: Path) -> None:
    """Without this the count of executed attacks would be 0 whatever the fleet did."""
    script = """
import json, sys
from benchmarks.hostile_stranger import attack, programs
import numpy as np, tvm
from tvm.s_tir.schedule import Schedule, Trace
public, _ = programs("")
for number in (0, 1, 2, 3, 4):
    schedule = Schedule(public)
    Trace.apply_json_to_schedule([attack(number, f"{sys.argv[1]}/{number}"), []], schedule)
    built = tvm.tirx.build(schedule.mod, target=tvm.target.Target({"kind": "llvm"}))
    tensors = [tvm.runtime.tensor(np.ones((64, 64), "float32")) for _ in range(3)]
    built.get_function("main", query_imports=True)(*tensors)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]


def test_markers_stand_in_the_parts_that_run() -> None:
    assert '"/w/x"' in calling_map("/w/x")
    assert "/w/x\\00" in foreign_ir("/w/x")
    assert "[5 x i8]" in foreign_ir("/w/x")
