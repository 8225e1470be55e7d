"""Lines of the old tuners, read by a plain reader of their format, round trips, and what strangers wrote."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Outcome, Record
from fleet.errors import FleetError
from fleet.interchange.export_lines import target_text
from fleet.interchange.export_store import export
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.interchange.import_report import WORKLOAD_LINE
from fleet.interchange.logs.targets import parse_target
from fleet.store.store import Store
from tests.knob_fixtures import cache_text, cached
from tests.log_fixtures import DATA, ansor, run, run_lines, write_log
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from transfer.language.ansor import AnsorReader
from transfer.language.to_ansor import to_ansor_steps

GOLDEN = Path(__file__).parent / "golden"
#: Items after the tag in Ansor's own reader: i a whole number, s a text, l a list of whole numbers.
STEPS = {
    **{"AN": "iii", "FU": "il", "PR": "iis", "RE": "il", "SP": "iiili", "FSP": "iiii", "FFSP": "iilii"},
    **{"SA": "iiii", "CA": "iii", "CI": "i", "CR": "i", "CHR": "isl", "CHW": "is", "RF": "iii"},
}


def is_int(value: object) -> bool:
    return type(value) is int and -(2**31) <= value < 2**31


def fits(kind: str, value: object) -> bool:
    if kind == "i":
        return is_int(value)
    if kind == "s":
        return isinstance(value, str) and value != ""
    return isinstance(value, list) and all(map(is_int, value))


def check_ansor_line(line: str) -> dict[str, Any]:
    """Read one line as `measure_record.cc` does: nothing missing, nothing more, every item of its type."""
    value = json.loads(line)
    assert (sorted(value), value["v"]) == (["i", "r", "v"], "v0.6")
    (key, target, hardware, *rest), (stages, steps) = value["i"]
    assert isinstance(json.loads(key)[0], str)
    assert isinstance(target, str)
    assert (len(hardware), all(map(is_int, hardware))) == (8, True)
    assert (rest, stages) == (["", 0, []], [])
    for tag, *items in steps:
        assert all(fits(kind, item) for kind, item in zip(STEPS[tag], items, strict=True)), (tag, items)
    costs, error_no, all_cost, timestamp = value["r"]
    assert costs
    assert all(type(one) is float and one > 0 for one in costs)
    assert 0 <= error_no <= 8
    assert (costs == [1e10]) == (error_no != 0)
    assert (type(all_cost), type(timestamp)) == (float, int)
    return value


def records_of(store: Store) -> dict[str, Record]:
    return {record.record_id: record for record in store.records()}


REAL = [
    ("ansor", "ansor_bennu/results/cuda_a100_mobilenet_10k.json.gz"),
    ("ansor", "ansor_bennu/results/x86_resnet18.json.gz"),
    ("autotvm", "autotvm_dropletsearch/x86_hokusai/resnet-18"),
    ("meta_schedule", "ansor_bennu/benchmarks/microkernels/ms/results/red"),
    # Of an older TVM.
    ("meta_schedule", "cases/ms_old_index_map"),
]


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not beside the checkout")
@pytest.mark.parametrize(("dialect", "path"), REAL)
def test_real_logs_come_back_as_equal_records(tmp_path: Path, dialect: str, path: str) -> None:
    with Store.open(tmp_path / "a") as first, Store.open(tmp_path / "b") as second:
        report = import_logs(first, ImportRequest(paths=(DATA / path,), device_id="board"))
        assert set(report.counts.rejected) <= {WORKLOAD_LINE}
        export(first, tmp_path / "out", dialect)
        import_logs(second, ImportRequest(paths=(tmp_path / "out",), device_id="board"))
        found = records_of(first)
        assert found == records_of(second)
        assert found
    if dialect == "ansor":
        traces = [record.trace for record in found.values()]
        steps = [to_ansor_steps(AnsorReader().read(trace)) for trace in traces]
        assert steps == list(map(json.loads, traces))


def test_outcomes_become_error_numbers_and_failures_their_mark(tmp_path: Path) -> None:
    trace = '[[["GetSBlock",[],["matmul","main"],["b0"]],["ComputeInline",["b0"],[],[]]],[]]'
    words: dict[str, Any] = {"workload": make_workload(1).workload_id, "trace": trace}
    with Store.open(tmp_path / "store") as store:
        store.put_device(make_spec(), make_descriptor(ansor_params=(9, 32, 128, 0, 0, 0, 0, 0)))
        store.put_workloads([make_workload(1)])
        for number, outcome in enumerate(Outcome):
            ran = (1e-3, 2e-3) if outcome in (Outcome.OK, Outcome.REJECTED) else ()
            store.append([make_record(number, outcome=outcome, run_secs=ran, **words)])
        store.append([make_record(50, **words | {"trace": "no trace"})])
        result = export(store, tmp_path / "out.jsonl.gz", "ansor")
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as stream:
        lines = [check_ansor_line(line) for line in stream]
    outcomes = list(Outcome)
    told = {outcomes[line["r"][3] - 1_700_000_000]: line["r"][:2] for line in lines}
    assert told == {
        Outcome.OK: [[1e-3, 2e-3], 0],
        Outcome.BUILD_FAILED: [[1e10], 2],
        Outcome.RUN_FAILED: [[1e10], 4],
        Outcome.WRONG_OUTPUT: [[1e10], 5],
        Outcome.BUILD_TIMEOUT: [[1e10], 6],
        Outcome.RUN_TIMEOUT: [[1e10], 7],
    }
    assert lines[0]["i"][0][2] == [1, 32, 128, 0, 0, 0, 0, 0], "the caches of its host, its own threads"
    # Neither says anything of the candidate, and the format has no word for either.
    no_word = ": the format has no word for it"
    skipped = {f"lost{no_word}": 1, f"rejected{no_word}": 1, "its trace cannot be read": 1}
    assert result.skipped == skipped


@pytest.mark.parametrize("dialect", ["ansor", "autotvm"])
def test_traces_and_targets_of_others_that_are_none_cost_only_their_record(
    dialect: str, tmp_path: Path
) -> None:
    workload = replace(make_workload(1), module_json='{"name":"dense","args":[]}')
    environments = ('{"target":5}', '{"target":{"kind":[]}}', '{"target":' + "[" * 400 + "]" * 400 + "}")
    traces = ("no trace", "{}", "[[]]", "[" * 100_000, f'[["XX",{"[" * 300}{"]" * 300}]]')
    changes = [{"environment": one, "trace": "[]"} for one in environments]
    changes += [{"environment": "{}", "trace": one} for one in traces]
    made = [
        make_record(4 * number + 1, workload=workload.workload_id, dialect=dialect, **change)
        for number, change in enumerate(changes)
    ]
    with Store.open(tmp_path / "store") as store:
        store.put_workloads([workload])
        store.append([replace(one, candidate_id=f"{number:032x}") for number, one in enumerate(made)])
        result = export(store, tmp_path / "out.jsonl", dialect)
    assert (result.records, result.skipped) == (3, {"its trace cannot be read": 5})


@pytest.mark.parametrize("form", ["kernel_tuner", "t4"])
def test_configurations_of_others_that_are_none_are_left_out_and_counted(tmp_path: Path, form: str) -> None:
    run(tmp_path, GOLDEN / "kernel_tuner" / "logs")
    path = tmp_path / "store"
    with Store.open(path) as store:
        known = next(iter(store.workloads()))
        modules = ("no JSON", "[]", '{"kernel":5,"tool":"t","problem":1}', "[" * 300 + "]" * 300)
        others = [replace(make_workload(number), module_json=one) for number, one in enumerate(modules)]
        store.put_workloads(others)
        traces = ("no trace", "[1]", '{"a":{}}', "[" * 100_000, '{"a":NaN}')
        made = [make_record(1, workload=known, trace=trace, dialect="knobs") for trace in traces]
        made += [make_record(1, workload=one.workload_id, trace="{}", dialect="knobs") for one in others]
        store.append([replace(one, candidate_id=f"{number:032x}") for number, one in enumerate(made)])
        result = export(store, tmp_path / "out", form, ["dev-a"])
    assert result.records == 6
    assert result.skipped == {"its trace cannot be read": 5, "its workload is no kernel of a tuner": 4}


def test_records_of_other_tools_are_left_out_with_a_reason(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.json", [ansor(1, target="cuda -arch=sm_80")])
    run(tmp_path, log, GOLDEN / "triton" / "logs")
    with pytest.raises(FleetError, match=r"dialect ansor.*measured by triton, not by helion"):
        export(Store.read(tmp_path / "store"), tmp_path / "out", "helion")
    assert not (tmp_path / "out").exists()


def test_name_of_a_stranger_is_no_path(tmp_path: Path) -> None:
    run_lines(tmp_path, cache_text([cached(0)], kernel_name="../../../evil\n"))
    files = export(Store.read(tmp_path / "store"), tmp_path / "out", "kernel_tuner").files
    assert all((tmp_path / "out" / "dev-a") in path.resolve().parents for path in files)


@pytest.mark.tvm
def test_live_candidates_become_lines_that_a_plain_reader_takes(
    matmul: Any, matmul_candidates: Any, tmp_path: Path
) -> None:
    rows = [
        make_record(
            4 * number + 1, workload_id=one.workload_id, candidate_id=one.candidate_id, trace=one.trace
        )
        for number, one in enumerate(matmul_candidates)
    ]
    with Store.open(tmp_path / "store") as store:
        store.put_device(make_spec(target_json='{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2}'), None)
        store.put_workloads([matmul])
        store.append(rows)
        export(store, tmp_path / "out.jsonl", "ansor")
        lines = [check_ansor_line(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        with Store.open(tmp_path / "other") as other:
            log = ImportRequest(paths=(tmp_path / "out.jsonl",), device_id="board")
            report = import_logs(other, log)
            assert (report.imported, report.rejected) == (len(rows), 0)
    assert len(lines) == len(rows)
    task = lines[0]["i"][0]
    assert json.loads(task[0])[1:] == [extent for shape in matmul.arg_shapes for extent in shape]
    assert task[1:3] == ["llvm -keys=cpu -mcpu=x86-64-v3 -num-cores=2", [2, 64, 64, 0, 0, 0, 0, 0]]
    tiled = [step for line in lines for step in line["i"][1][1] if step[0] == "SP"]
    assert {step[3] for step in tiled} >= {128}
    # One schedule for each candidate: what tells them apart has survived.
    assert len({json.dumps(line["i"][1]) for line in lines}) == len(lines)


@given(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["llvm", "cuda"])},
        optional={
            "mcpu": st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True),
            "num-cores": st.integers(1, 64),
            "mattr": st.lists(st.sampled_from(["+avx2", "+fma", "-sse4a"]), min_size=1, max_size=3),
        },
    )
)
def test_a_target_in_the_old_form_says_the_same(target: dict[str, Any]) -> None:
    found = dict(parse_target(target_text(target)).options)
    assert found.pop("keys")
    assert found == target
