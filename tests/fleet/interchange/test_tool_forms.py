"""Forms that tools really write: units, dates, order of keys, versions of one tool, files of other tools."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agents.records import Outcome, Record
from fleet.interchange.export_store import export
from fleet.interchange.import_files import find_logs
from fleet.interchange.line_reader import UNREAD_FORMAT
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.times import units_per_second, unix_secs
from fleet.store.store import Store
from tests.cli_fixtures import refusal
from tests.knob_fixtures import cache_text, cached
from tests.log_fixtures import DATA, ansor, records, run, run_lines, write_log

CASES = DATA / "cases"
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


def imported(folder: Path, result: dict[str, Any], **head: Any) -> Record:
    """The one record of a T4 file whose head stands behind its results."""
    report = run_lines(folder, json.dumps({"results": [result], **head}, indent=1))
    assert (report.imported, report.rejected) == (1, 0), report.examples
    return records(folder)[0]


@pytest.mark.parametrize(
    ("unit", "head", "per_second"),
    [
        ("", {}, 1e3),
        ("ms", {}, 1e3),
        ("Microseconds", {}, 1e6),
        ("\u00b5s", {}, 1e6),
        ("seconds", {}, 1.0),
        ("ns", {}, 1e9),
        ("", {"metadata": {"timeunit": "miliseconds"}}, 1e3),
        ("", {"metadata": {**META, "timeunit": "microseconds"}}, 1e6),
        ("", {"metadata": {**META, "time_unit": "s"}}, 1.0),
        ("", {"time_unit": "nanosecond"}, 1e9),
        ("", {"metadata": META, "TimeUnit": "Microseconds"}, 1e6),
    ],
)
def test_times_are_read_in_the_unit_that_a_t4_file_states(
    tmp_path: Path, unit: str, head: dict[str, Any], per_second: float
) -> None:
    record = imported(tmp_path, t4_result(unit=unit), **head)
    assert record.run_secs == (pytest.approx(96.256 / per_second, rel=1e-12),)
    # Compilation counts, whose key in the schema is not that of Kernel Tuner.
    assert record.timing_secs == pytest.approx(2000.0 / per_second)
    assert record.measured_at == AT


def test_each_time_of_a_result_has_the_unit_that_stands_closest(tmp_path: Path) -> None:
    own = t4_result(0.096256, "s")
    own["times"] |= {"timeunit": "ms"}
    assert imported(tmp_path, own, timeunit="s").run_secs == (pytest.approx(0.096256),)


@pytest.mark.parametrize("runs", [None, []])
def test_a_result_without_repeats_has_the_time_that_was_measured(tmp_path: Path, runs: Any) -> None:
    result = t4_result(96.256, "us")
    result["times"] = {"runtimes": runs} if runs is not None else {}
    assert imported(tmp_path, result, timeunit="milliseconds").run_secs == (pytest.approx(96.256e-6),)


@pytest.mark.parametrize(
    ("result", "head", "reason"),
    [
        (t4_result(unit="ticks"), {}, "the unit of time is not known"),
        (t4_result(), {"timeunit": "fortnights"}, "the unit of time is not known"),
        (t4_result(unit="us"), {"timeunit": "ms"}, "the units of time contradict each other"),
        (t4_result(timestamp="soon"), {}, "timestamp is not a time"),
        (t4_result(times={"runtimes": [10**400]}), {}, "a number is not finite"),
        (t4_result(times={"runtimes": [1], "validation": 10**400}), {}, "validation is out of range"),
    ],
)
def test_a_time_of_which_the_unit_is_not_certain_is_rejected(
    tmp_path: Path, result: dict[str, Any], head: dict[str, Any], reason: str
) -> None:
    report = run_lines(tmp_path, json.dumps({**head, "results": [result]}))
    assert (report.imported, dict(report.counts.rejected)) == (0, {reason: 1})


def test_a_word_of_no_unit_is_none() -> None:
    assert [units_per_second(word) for word in (None, 3, "", "x" * 1000, "GFLOP/s", "MHz", "s ", "ss")] == [
        *[None] * 6,
        1.0,
        1.0,
    ]


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
    for name, result in (("gemm", 1), ("conv", 2)):
        text = json.dumps({"results": [t4_result()], "metadata": {**META, "kernel_name": name}})
        write_log(tmp_path / "logs" / f"{result}_T4.json", [text])
    cache = json.loads(cache_text([cached(0)]))
    write_log(tmp_path / "logs" / "cache.json", [json.dumps(dict(reversed(cache.items())), indent=1)])
    key = {"configs_timings": [[{"kwargs": {"B": 1}}, [0.5, 0.5, 0.5]]], "key": [16]}
    write_log(tmp_path / "logs" / "k.autotune.json", [json.dumps(key)])
    report = run(tmp_path, tmp_path / "logs")
    assert (report.imported, report.rejected) == (4, 0), report.examples
    store = Store.read(tmp_path / "store")
    keys = [json.loads(one.module_json) for one in store.workloads().values()]
    assert {(one["kernel"], str(one["problem"])) for one in keys} == {
        *(("gemm", "[1024]"), ("conv", "[1024]"), ("convolution_kernel", "[4096, 4096]"), ("k", "[16]"))
    }
    assert report.targets == {"cuda", "opencl"}, "the device is that of the metadata; Triton names none"


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    report = run_lines(tmp_path, b"\xef\xbb\xbf" + cache_text([cached(0)]).encode())
    assert (report.imported, report.rejected) == (1, 0)


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
    keys = ([16, True, None, 0.5, "torch.bfloat16"], ["16", "True", "None", "0.5", "torch.bfloat16"])
    for name, key in zip("ab", keys, strict=True):
        write_log(
            tmp_path / name / "kernel.autotune.json", [json.dumps({"key": key, "configs_timings": pairs})]
        )
    report = run(tmp_path, tmp_path / "a", tmp_path / "b")
    assert (report.imported, report.duplicates, report.workloads) == (1, 1, 1)


def test_minus_infinity_is_no_time_and_no_failure(tmp_path: Path) -> None:
    times = "[[{}, [-Infinity, -Infinity, -Infinity]], [{}, [Infinity, Infinity, Infinity]]]"
    log = write_log(tmp_path / "k.autotune.json", [f'{{"key": [1], "configs_timings": {times}}}'])
    report = run(tmp_path, log)
    assert dict(report.counts.rejected) == {"a number is not finite": 1}
    assert report.counts.outcomes == {Outcome.BUILD_FAILED: 1}


SHAPES = [[1024, 1024], [1024, 512]]
DTYPES = ["torch.float16", "torch.float16"]


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (SHAPES, DTYPES),
        ("[(1024, 1024), (1024, 512)]", str(DTYPES)),
        ("[torch.Size([1024, 1024]), torch.Size([1024, 512])]", "[torch.float16, torch.float16]"),
    ],
)
def test_shapes_of_helion_are_known_in_each_form(tmp_path: Path, shapes: Any, dtypes: Any) -> None:
    logs = tmp_path / "logs"
    write_log(
        logs / "run.csv",
        [
            "run_id,timestamp_s,config_id,generation,status,perf_ms,compile_time_s,config",
            'r1,0.5,c1,0,ok,0.500000,1.20,"Config(block_sizes=[64], num_warps=4)"',
        ],
    )
    write_log(logs / "run.log", [f"[{second}s] step {second} of the search" for second in range(30)])
    kernel = {"run_id": "r1", "kernel_name": "matmul", "input_shapes": shapes, "dtypes": dtypes}
    write_log(logs / "run.meta.jsonl", [kernel])
    report = run(tmp_path, logs)
    assert (report.imported, report.rejected) == (1, 0), report.examples
    assert [path.name for path in report.files_skipped] == ["run.log"]
    (workload,) = Store.read(tmp_path / "store").workloads().values()
    assert json.loads(workload.module_json)["problem"] == [SHAPES, DTYPES]
    assert workload.arg_shapes == ((1024, 1024), (1024, 512))
    assert workload.arg_dtypes == ("float16", "float16")


@pytest.mark.parametrize("text", ["(1024,", "__import__('os')", "[f(1)]", "x"])
def test_text_of_helion_that_is_no_list_stays_a_text(tmp_path: Path, text: str) -> None:
    table = ["status,perf_ms,config,run_id", 'ok,0.5,"Config(b=1)",r1']
    write_log(tmp_path / "logs" / "run.csv", table)
    kernel = {"run_id": "r1", "kernel_name": "k", "input_shapes": text, "dtypes": []}
    write_log(tmp_path / "logs" / "run.meta.jsonl", [kernel])
    assert run(tmp_path, tmp_path / "logs").imported == 1
    (workload,) = Store.read(tmp_path / "store").workloads().values()
    assert json.loads(workload.module_json)["problem"] == [text, []]


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
    report = run_lines(tmp_path, text)
    assert dict(report.counts.rejected) == {UNREAD_FORMAT: 1}


@pytest.mark.usefixtures("elsewhere")
def test_the_advice_names_every_format() -> None:
    write_log(Path("ktt.json"), [json.dumps(KTT, indent=2)])
    assert refusal("import", "ktt.json", "--device", "g", "--store", "new").startswith(
        "no measurement in ktt.json: expected files of Ansor, AutoTVM, MetaSchedule, Kernel Tuner, T4, Triton"
        " or Helion"
    )


def test_a_log_whose_first_line_is_cut_stays_a_log(tmp_path: Path) -> None:
    line = json.dumps(ansor(0))
    for place, cut in enumerate((20, len(line) // 2, len(line) - 5)):
        folder = tmp_path / str(place)
        report = run_lines(folder, line[:cut], *(ansor(number) for number in range(1, 5)))
        assert report.imported == 4


@pytest.mark.parametrize(
    ("line", "is_log"),
    [
        ("[12s] step", False),
        ("[INFO] x", False),
        ("[2024-07-10 07:36] x", False),
        ("{x", False),
        ("[1/20] y", False),
        ('{"i": 1}', True),
        ('["1", "x"]', True),
        ("[0, [[]]]", True),
        ("[", True),
        (' { "a"', True),
        ("[1]", True),
    ],
)
def test_a_folder_gives_files_that_begin_as_json_does(tmp_path: Path, line: str, is_log: bool) -> None:
    write_log(tmp_path / "logs" / "log.json", [ansor(0)])
    path = write_log(tmp_path / "logs" / "other.log", [line])
    logs, others = find_logs([tmp_path / "logs"])
    assert (path in [log.path for log in logs], path in others) == (is_log, not is_log)


@pytest.mark.data
@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/data is not beside the checkout")
def test_a_database_of_an_older_tvm_loses_no_record(tmp_path: Path) -> None:
    assert run(tmp_path, CASES / "ms_old_index_map").imported == 2
    result = export(Store.read(tmp_path / "store"), tmp_path / "out", "meta_schedule")
    assert (result.records, result.skipped) == (2, {})
    log = "database_tuning_record.json"
    given, written = (
        [json.loads(line)[1][0] for line in (path / log).read_text().splitlines()]
        for path in (CASES / "ms_old_index_map", tmp_path / "out" / "dev-a")
    )
    assert given == written


@pytest.mark.data
@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/data is not beside the checkout")
def test_t4_and_cache_of_a_real_space_agree(tmp_path: Path) -> None:
    """Real T4 files say `miliseconds`; their results are those of the cache."""
    folder = DATA / "kernel_tuner_hub" / "convolution_milo"
    with gzip.open(folder / "A100_T4.json.gz", "rt") as stream:
        value = json.load(stream)
    value["metadata"]["timeunit"] = "seconds"
    for result in value["results"]:
        times = result["times"]
        times.update({name: secs / 1e3 for name, secs in times.items() if name != "runtimes"})
        times["runtimes"] = [secs / 1e3 for secs in times.get("runtimes", [])]
    value["results"] = value["results"][:200]
    write_log(tmp_path / "logs" / "A100_T4.json", [json.dumps(dict(reversed(value.items())))])
    (tmp_path / "logs" / "A100.json.gz").write_bytes((folder / "A100.json.gz").read_bytes())
    report = run(tmp_path, tmp_path / "logs" / "A100_T4.json")
    run(tmp_path, folder / "A100.json.gz", device="dev-b")
    cache = {one.candidate_id: one for one in records(tmp_path, "dev-b")}
    assert report.rejected == 0
    for one in records(tmp_path):
        assert one.run_secs == pytest.approx(cache[one.candidate_id].run_secs, rel=1e-9)


def test_a_log_whose_first_line_no_reader_takes_is_read_line_by_line(tmp_path: Path) -> None:
    """That line is an object on its own, too deep or with a number that is none; the next ones are whole."""
    report = run_lines(tmp_path, '{"i": [NaN], "r": []}', *(ansor(number) for number in range(4)))
    assert (report.imported, report.counts.rejected.total()) == (4, 1)
