"""Hostile logs: all finds of the past and hundreds of new files go through, and the fuzzer finds what is bad.

`benchmarks.hostile` does the same with thousands of files, training and a real device.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.programs.trace_rules import _INSTRUCTIONS
from benchmarks import hostile
from benchmarks.hostile_child import folder_names, make_case, question_of
from benchmarks.hostile_corpus import CORPUS, DIALECTS, LineSource, corpus_names, module, seeds, steps_of
from benchmarks.hostile_run import Found, Question, run
from benchmarks.hostile_values import deep_text, with_fault
from tests.disk_fixtures import contents
from transfer.errors import TraceError
from transfer.features.access import block_accesses
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import TAGS
from transfer.language.autotvm import AutoTVMReader
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.program import program_stages

#: Seed and number of the generated cases that every run of the tests reads.
SEED, CASES = 20_260, 36
QUICK = ("import", "dataset", "replay", "export")


def found_of(questions: list[Question], folder: Path, module_name: str = "benchmarks.hostile_child") -> Found:
    markers = folder / "markers"
    markers.mkdir(exist_ok=True)
    found = Found()
    run(questions, folder / "work", seed=SEED, markers=markers, found=found, module=module_name)
    assert list(markers.iterdir()) == []
    assert found.done == len(questions)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "questions",
    [
        [Question(case=name, stages=QUICK) for name in corpus_names()],
        [Question(case=str(place), stages=QUICK if place % 8 == 0 else QUICK[:2]) for place in range(CASES)],
        [question_of(name) for name in folder_names(8)],
    ],
    ids=["corpus", "generated", "folders"],
)
def test_nothing_is_found(questions: list[Question], tmp_path: Path) -> None:
    found = found_of(questions, tmp_path)
    assert found.finds == {}, "\n".join(
        f"{find['stage']}: {find['kind']}, {find['times']} times, first case {find['case']}:\n{find['text']}"
        for find in found.finds.values()
    )
    # What is made is neither all honest nor all garbage.
    for dialect in {"ansor", "autotvm", "meta_schedule"} & found.kinds.keys():
        counts = found.kinds[dialect]
        assert counts["imported"] > counts["lines"] / 10, dialect
        assert counts["rejected"] > counts["lines"] / 20, dialect
    assert found.count("refused") > 2


def test_every_find_of_the_corpus_has_its_origin() -> None:
    text = (CORPUS / "README.md").read_text()
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == set(corpus_names())


def test_cases_hold_every_dialect_and_attack_and_are_the_same_again(tmp_path: Path) -> None:
    cases = [make_case(str(number), 1, "/watched", tmp_path / f"{number}") for number in range(90)]
    assert cases[:20] == [
        make_case(str(number), 1, "/watched", tmp_path / f"again-{number}") for number in range(20)
    ]
    make_case("1", 2, "/watched", tmp_path / "other")
    assert contents(tmp_path / "1") == contents(tmp_path / "again-1") != contents(tmp_path / "other")
    assert {case.kind for case in cases} == set(DIALECTS)
    assert sum(case.lines for case in cases) > 34 * len(cases)  # 3,000 of them hold over 100,000 lines
    files = contents(tmp_path)
    assert any(b"/watched/1-" in data for data in files.values())
    assert 20 < sum(data.startswith(b"\x1f\x8b") for data in files.values()) < 70
    assert {case.kind for case in cases if case.attacks} >= {"ansor", "autotvm", "meta_schedule"}
    # Every instruction that the rules know is tried, and some that they do not.
    for dialect, known in (("meta_schedule", set(_INSTRUCTIONS)), ("ansor", set(TAGS))):
        lines = [*seeds(dialect), *seeds(f"{dialect}-gpu")]
        assert known < {step[0] for line in lines for step in steps_of(dialect, line)}


def _text_of(dialect: str) -> Callable[[Random], str]:
    def made(rng: Random) -> str:
        whole = LineSource(rng, dialect).next()
        for _ in range(rng.choice((0, 1, 3))):
            whole = with_fault(rng, whole)
        try:
            steps = whole[1][0] if dialect == "meta_schedule" else steps_of(dialect, whole)
        except (KeyError, IndexError, TypeError):
            steps = whole
        return deep_text(steps).decode()

    return made


def _module_text(rng: Random) -> str:
    return deep_text(module(rng)).decode()


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (_text_of("meta_schedule"), MetaScheduleReader().read),
        (_text_of("ansor"), AnsorReader().read),
        (_text_of("autotvm"), AutoTVMReader().read),
        (_module_text, program_stages),
        (_module_text, block_accesses),
    ],
    ids=["trace", "steps", "entity", "stages", "accesses"],
)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_made_is_read_or_refused(
    make: Callable[[Random], str], read: Callable[[str], Any], seed: int
) -> None:
    text = make(Random(seed))
    with contextlib.suppress(TraceError):
        assert len(read(text)) <= 40 * len(text)


#: A child that does wrong in each way, a case a way.
_BAD_CHILD = """
import os, time
from benchmarks import hostile_child
from benchmarks.hostile_stages import Unaccounted
from fleet.errors import FleetError

def bad(work):
    match work.marker.rpartition("-")[2].rstrip("+"):
        case "0": raise ValueError("raw")
        case "1": os.abort()
        case "2": time.sleep(600)
        case "3": [bytearray(b"x") * (1 << 20) for _ in range(1100)]
        case "4": raise Unaccounted("5 lines in, 4 out")
        case "5": raise FleetError("one clear line")

hostile_child.main(stages={"import": bad})
"""


@pytest.mark.timeout(200)
def test_whatever_a_child_does_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_child.py").write_text(_BAD_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.hostile_run.PATIENCE_SECS", 5.0)
    questions = [Question(case=str(number), stages=("import",)) for number in range(7)]
    found = found_of(questions, tmp_path, "bad_child")
    kinds = {find["case"]: find["kind"] for find in found.finds.values()}
    assert kinds.pop("0").startswith("ValueError in ")
    assert kinds == {"1": "ended with -6", "2": "hang", "3": "memory", "4": "Unaccounted"}
    expected = {"ok": 1, "refused": 1, "crash": 2, "hang": 1, "memory": 1, "unaccounted": 1}
    assert found.ended == {("import", how): count for how, count in expected.items()}
    assert found.peak_memory_mb > 1_024


@pytest.mark.timeout(300)
def test_the_benchmark_prints_what_scripts_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> Any:
        hostile.main(["--json", *words])
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(hostile, "_KEPT", tmp_path)
    monkeypatch.setattr(hostile, "corpus_names", lambda: ["target-dashes.json"])
    found = told("--files", "3", "--folders", "0", "--networks", "1", "--live", "0")
    zeros = ("executed", "crashes", "hangs", "unaccounted_lines")
    assert [found[name] for name in zeros] == [0, 0, 0, 0], found["finds"]
    assert found["files"] >= 4
    assert {stage.split(",")[0] for stage in found["by_stage"]} >= {"import", "command", "dataset", "archive"}
    assert 50 < found["peak_memory_mb"] <= 1_024
    # A find makes the exit code 1.
    monkeypatch.setattr("benchmarks.hostile_run.TARGET_MB", 1.0)
    with pytest.raises(SystemExit, match="1"):
        told("--only", "2")
    assert list(tmp_path.iterdir()) == [tmp_path / "0-2"]


@pytest.mark.tvm
@pytest.mark.timeout(300)
def test_the_attacks_run_code_where_they_are_replayed_as_they_came(tmp_path: Path) -> None:
    """Without this the count of executed attacks would be 0 whatever the fleet did."""
    script = """
import json, sys
from benchmarks.hostile_corpus import attack_steps
from benchmarks.hostile_live import programs
import numpy as np, tvm
from tvm.s_tir.schedule import Schedule, Trace
public = tvm.ir.load_json(programs("")[0])
for number in range(5):
    schedule = Schedule(public)
    Trace.apply_json_to_schedule([attack_steps(number, f"{sys.argv[1]}/{number}"), []], schedule)
    built = tvm.tirx.build(schedule.mod, target=tvm.target.Target({"kind": "llvm"}))
    tensors = [tvm.runtime.tensor(np.ones((64, 64), "float32")) for _ in range(3)]
    built.get_function("main", query_imports=True)(*tensors)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
