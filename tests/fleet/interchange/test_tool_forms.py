"""Forms that tools really write: units, dates, order of keys, versions of one tool, files of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.interchange.import_files import find_logs
from fleet.interchange.line_reader import UNREAD_FORMAT
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.targets import unix_secs
from tests.cli_fixtures import refusal
from tests.log_fixtures import ansor, read_lines, write_log
from tests.table_fixtures import cells

#: 10 July 2024, 07:36:36 UTC.
AT = 1720596996


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
{unit: "s "}         | {}                                       | 1
{unit: ss}           | {}                                       | 1
{unit: ticks}        | {}                                       | the unit of time is not known
{unit: GFLOP/s}      | {}                                       | the unit of time is not known
{unit: MHz}          | {}                                       | the unit of time is not known
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


DATES = """
2024-07-10T07:36:36+00:00
2024-07-10T07:36:36Z
2024-07-10 07:36:36
2024-07-10 07:36:36 UTC
2024-07-10T09:36:36.000000123+02:00
20240710T073636Z
"""


@pytest.mark.parametrize("date", [*DATES.strip().splitlines(), AT, float(AT)])
def test_dates_of_tools_are_read(date: Any) -> None:
    assert unix_secs(date) == AT


@pytest.mark.parametrize(
    "date", ["soon", "10.07.", "x" * 99, "9999-01-01", "1969-01-01", -1, AT * 1000, 10**400, True, [], {}]
)
def test_what_is_no_date_is_rejected(date: Any) -> None:
    with pytest.raises(Rejected, match="timestamp is"):
        unix_secs(date)
    assert unix_secs(None) == unix_secs("") == 0.0


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
