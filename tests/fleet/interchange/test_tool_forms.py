"""Forms that tools really write: units, dates, order of keys, versions of one tool, files of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.interchange.export_store import export
from fleet.interchange.import_files import find_logs
from fleet.interchange.line_reader import UNREAD_FORMAT
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.targets import units_per_second, unix_secs
from fleet.store.store import Store
from tests.cli_fixtures import refusal
from tests.knob_fixtures import HELION_HEAD, cache_text, cached
from tests.log_fixtures import ansor, read_lines, read_log, records, run, run_lines, write_log
from tests.table_fixtures import cells

#: 10 July 2024, 07:36:36 UTC.
AT = 1720596996
META = {"kernel_name": "gemm", "device_name": "NVIDIA A100", "problem_size": [1024], "tool": "x"}


def t4_result(value: float | None = 96.256, unit: str = "", **more: Any) -> dict[str, Any]:
    """A result as the schema of T4 has it, by a tool that calls its time `TotalDuration`."""
    measured = [] if value is None else [{"name": "TotalDuration", "value": value, "unit": unit}]
    return {
        "timestamp": "2024-07-10 07:36:36 UTC",
        "configuration": {"block": 32},
        "objectives": ["TotalDuration"],
        "times": {"compilation_time": 1500.0, "runtimes": [96.256], "framework": 6197.0, "validation": 500.0},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": measured,
        **more,
    }


#: What a result of T4 says of its time, and the head of its file; by what its 96.256 is divided, or why it is
#: rejected.
UNITS = """
{}                   | {}                                       | 1e3
{unit: ms}           | {}                                       | 1e3
{unit: Microseconds} | {}                                       | 1e6
{unit: µs}           | {}                                       | 1e6
{unit: seconds}      | {}                                       | 1
{unit: ns}           | {}                                       | 1e9
{}                   | {metadata: {timeunit: miliseconds}}       | 1e3
{}                   | {metadata: {kernel_name: gemm, timeunit: microseconds}} | 1e6
{}                   | {metadata: {kernel_name: gemm, time_unit: s}}           | 1
{}                   | {time_unit: nanosecond}                  | 1e9
{}                   | {TimeUnit: Microseconds}                 | 1e6
{value: 0.096256, unit: s, times: {timeunit: ms, runtimes: [96.256]}}          | {timeunit: s} | 1e3
# Without repeats there is the time that was measured.
{unit: us, times: {}}               | {timeunit: milliseconds}  | 1e6
{unit: us, times: {runtimes: []}}   | {timeunit: milliseconds}  | 1e6
{unit: ticks}        | {}                                       | the unit of time is not known
{}                   | {timeunit: fortnights}                   | the unit of time is not known
{unit: us}           | {timeunit: ms}                           | the units of time contradict each other
{timestamp: soon}    | {}                                       | timestamp is not a time
{times: {runtimes: [1], validation: 1.0e+300}} | {}             | validation is out of range
"""


def units() -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    for result, head, expected in cells(UNITS):
        yield yaml.safe_load(result), yaml.safe_load(head), expected
    yield {"times": {"runtimes": [10**400]}}, {}, "a number is not finite"


@pytest.mark.parametrize(("changes", "head", "expected"), list(units()))
def test_times_are_read_in_the_unit_that_stands_closest_or_are_rejected(
    tmp_path: Path, changes: dict[str, Any], head: dict[str, Any], expected: str
) -> None:
    result = t4_result(**changes)
    measured, reasons = read_lines(tmp_path, json.dumps({"results": [result], **head}, indent=1))
    if not expected[0].isdigit():
        assert (measured, reasons) == ([], {expected: 1})
        return
    found = measured[0].result
    assert found.run_secs == (pytest.approx(96.256 / float(expected), rel=1e-12),)
    assert found.measured_at == AT
    if "compilation_time" in result["times"]:
        # Compilation counts, whose key in the schema is not that of Kernel Tuner.
        assert found.all_secs == pytest.approx(2000.0 / float(expected))


def test_a_word_of_no_unit_is_none() -> None:
    words = (None, 3, "", "x" * 1000, "GFLOP/s", "MHz", "s ", "ss")
    assert list(map(units_per_second, words)) == [*[None] * 6, 1.0, 1.0]


@pytest.mark.parametrize(
    "date",
    [
        "2024-07-10T07:36:36+00:00",
        "2024-07-10T07:36:36Z",
        "2024-07-10 07:36:36",
        "2024-07-10 07:36:36 UTC",
        "2024-07-10T09:36:36.000000123+02:00",
        "2024-07-10 09:36:36 +0200",
        "2024/07/10 07:36:36",
        "20240710T073636Z",
        "Wed, 10 Jul 2024 07:36:36 GMT",
        "Wed Jul 10 07:36:36 2024",
        "Wed Jul 10 07:36:36 UTC 2024",
        AT,
        float(AT),
        str(AT),
        AT * 1000,
        AT * 1_000_000,
        AT * 1_000_000_000,
        f"{AT}000",
    ],
)
def test_dates_of_many_tools_are_read(date: Any) -> None:
    assert unix_secs(date) == AT


@pytest.mark.parametrize(
    "date", ["soon", "10.07.", "x" * 99, "9999-01-01", "1969-01-01", -1, 10**400, True, [], {}]
)
def test_what_is_no_date_is_rejected(date: Any) -> None:
    with pytest.raises(Rejected, match="timestamp is"):
        unix_secs(date)
    assert unix_secs(None) == unix_secs("") == 0.0


def test_what_names_a_kernel_may_stand_behind_its_results(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name in ("gemm", "conv"):
        text = json.dumps({"results": [t4_result()], "metadata": {**META, "kernel_name": name}})
        write_log(logs / f"{name}_T4.json", [text])
    cache = json.loads(cache_text([cached(0)]))
    write_log(logs / "cache.json", [json.dumps(dict(reversed(cache.items())), indent=1)])
    key = {"configs_timings": [[{"kwargs": {"B": 1}}, [0.5, 0.5, 0.5]]], "key": [16]}
    write_log(logs / "k.autotune.json", [key])
    report = run(tmp_path, logs)
    assert (report.imported, report.rejected) == (4, 0), report.examples
    workloads = Store.read(tmp_path / "store").workloads().values()
    keys = [json.loads(one.module_json) for one in workloads]
    assert sorted(f"{one['kernel']} {one['problem']}" for one in keys) == [
        *("conv [1024]", "convolution_kernel [4096, 4096]", "gemm [1024]", "k [16]")
    ]
    assert report.targets == {"cuda", "opencl"}, "the device is that of the metadata; Triton names none"


def test_a_cache_without_a_problem_size_stays_one(tmp_path: Path) -> None:
    head = json.loads(cache_text([cached(0, timestamp=None), cached(1, timestamp=None)]))
    del head["problem_size"]
    assert run_lines(tmp_path, json.dumps(head)).imported == 2
    files = export(Store.read(tmp_path / "store"), tmp_path / "out", "kernel_tuner").files
    text = next(path.read_text() for path in files if not path.name.endswith(".results.json"))
    cache = json.loads(text)
    assert "problem_size" not in cache
    assert text.endswith("}\n}")  # Kernel Tuner takes this for closed
    assert not [one for one in cache["cache"].values() if "timestamp" in one]
    before = {one.record_id for one in records(tmp_path)}
    (tmp_path / "again").mkdir()
    assert run(tmp_path / "again", tmp_path / "out").imported == 2
    assert {one.record_id for one in records(tmp_path / "again")} == before


def test_keys_of_triton_as_numbers_and_as_texts_are_one_workload(tmp_path: Path) -> None:
    pairs = [[{"kwargs": {"BV": 32}, "num_warps": 2}, [1.0, 0.9, 1.1]]]
    for name, key in {"a": [16, True, None, 0.5, "x"], "b": ["16", "True", "None", "0.5", "x"]}.items():
        write_log(tmp_path / name / "kernel.autotune.json", [{"key": key, "configs_timings": pairs}])
    report = run(tmp_path, tmp_path / "a", tmp_path / "b")
    assert (report.imported, report.duplicates, report.workloads) == (1, 1, 1)


SHAPES = [[1024, 1024], [1024, 512]]
DTYPES = ["torch.float16", "torch.float16"]


@pytest.mark.parametrize(
    ("shapes", "dtypes", "problem"),
    [
        (SHAPES, DTYPES, [SHAPES, DTYPES]),
        ("[(1024, 1024), (1024, 512)]", str(DTYPES), [SHAPES, DTYPES]),
        (
            "[torch.Size([1024, 1024]), torch.Size([1024, 512])]",
            "[torch.float16, torch.float16]",
            [SHAPES, DTYPES],
        ),
        # What is no list stays a text.
        *((text, [], [text, []]) for text in ("(1024,", "__import__('os')", "[f(1)]", "x")),
    ],
)
def test_shapes_of_helion_are_known_in_each_form(
    tmp_path: Path, shapes: Any, dtypes: Any, problem: list[Any]
) -> None:
    logs = tmp_path / "logs"
    row = 'r1,0.5,c1,0,ok,0.500000,1.20,"Config(block_sizes=[64], num_warps=4)"'
    write_log(logs / "run.csv", [",".join(HELION_HEAD), row])
    write_log(logs / "run.log", [f"[{second}s] step {second} of the search" for second in range(30)])
    kernel = {"run_id": "r1", "kernel_name": "matmul", "input_shapes": shapes, "dtypes": dtypes}
    write_log(logs / "run.meta.jsonl", [kernel])
    [[measured], reasons] = read_log(logs / "run.csv")
    assert reasons == {"comment line": 1}
    assert [path.name for path in find_logs([logs])[1]] == ["run.log"]
    workload = measured.workload.workload
    assert json.loads(workload.module_json)["problem"] == problem
    if dtypes:
        assert workload.arg_shapes == ((1024, 1024), (1024, 512))
        assert workload.arg_dtypes == ("float16", "float16")


KTT = {
    "Metadata": {"TimeUnit": "Microseconds"},
    "Results": [{"Configuration": [{"Name": "b", "Value": 1}]}] * 9,
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(KTT, indent=2),
        json.dumps(KTT, indent=2)[:-40],
        json.dumps([KTT, KTT], indent=1),
        json.dumps({"Metadata": {}, "Results": ["x" * 1000] * 6000}, indent=0),
    ],
)
def test_a_document_of_another_tool_is_one_line(tmp_path: Path, text: str) -> None:
    assert read_lines(tmp_path, text) == ([], {UNREAD_FORMAT: 1})


@pytest.mark.usefixtures("elsewhere")
def test_the_advice_names_every_format() -> None:
    write_log(Path("ktt.json"), [json.dumps(KTT, indent=2)])
    advice = (
        f"no measurement in {Path('ktt.json').absolute()}: expected files of Ansor, AutoTVM, Helion, "
        "Kernel Tuner, MIOpen, MetaSchedule, T4 or Triton"
    )
    assert refusal("import", "ktt.json", "--device", "g", "--store", "new").startswith(advice)


def test_a_log_whose_first_line_is_cut_or_taken_by_no_reader_stays_a_log(tmp_path: Path) -> None:
    line = json.dumps(ansor(0))
    starts = [line[:20], line[: len(line) // 2], line[:-5], '{"i": [NaN], "r": []}']
    for start in starts:
        measured, reasons = read_lines(tmp_path, start, *map(ansor, range(1, 5)))
        assert (len(measured), reasons.total()) == (4, 1)


#: How no log of ours begins, and how one may.
NO_LOGS = ("[12s] step", "[INFO] x", "[2024-07-10 07:36] x", "{x", "[1/20] y")
LOGS = ('{"i": 1}', '["1", "x"]', "[0, [[]]]", "[", ' { "a"', "[1]")


def test_a_folder_gives_files_that_begin_as_json_does(tmp_path: Path) -> None:
    write_log(tmp_path / "log.json", [ansor(0)])
    for number, line in enumerate([*NO_LOGS, *LOGS]):
        write_log(tmp_path / f"{number:02}.log", [line])
    logs, others = find_logs([tmp_path])
    assert [path.name for path in others] == [f"{number:02}.log" for number in range(len(NO_LOGS))]
    assert len(logs) == len(LOGS) + 1
