"""The report of the main job: its verdicts, sentences, files, and the printout at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import FleetError
from fleet.report.page import print_summary, write
from fleet.report.words import (
    MIN_PAIRS,
    duration,
    headline,
    label,
    latency,
    percent,
    served_text,
    signed,
    three_digits,
    title,
    verdict,
    verdict_text,
)
from tests.report_fixtures import WORKLOADS, device, full_report, model, onboarding
from tests.scenario_fixtures import fields_of
from tests.table_fixtures import cells


def test_a_report_is_written_into_a_new_folder_and_replaced_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "demo"
    json_path, _ = write(full_report(command="fleet demo"), folder)
    assert json.loads(json_path.read_text())["command"] == "fleet demo"
    write(full_report(), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json"]
    got = json.loads(json_path.read_text())
    assert (got["command"], got["version"], got["interval_level"]) == ("fleet demo --seed 7", 1, 0.9)
    assert got["onboarding"]["verdict"] == "better"
    assert got["headline"][2].endswith(got["onboarding"]["verdict_text"])
    with pytest.raises(FleetError, match="cannot write the report to"):
        write(full_report(), json_path)


@pytest.mark.parametrize(
    ("step", "error", "told"),
    [
        ("fleet.report.page.render", ValueError("no page"), ValueError),
        ("os.fsync", OSError(28, "No space left on device"), FleetError),
    ],
)
def test_a_report_that_cannot_be_written_leaves_the_old_one_and_no_temporary_files(
    step: str, error: Exception, told: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(full_report(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(step, fail)
    with pytest.raises(told, match=r"no page|No space left on device"):
        write(full_report(command="other"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


#: An interval and the number of workloads; and the verdict.
VERDICTS = """
[[0.01, 0.2], 12]    | better
[[-0.2, -0.01], 12]  | worse
[[-0.01, 0.2], 12]   | unclear
[[0.0, 0.2], 12]     | unclear
[[0.01, 0.2], 5]     | better
[[0.01, 0.2], 4]     | unclear
[[-0.2, -0.01], 0]   | unclear
"""


def test_a_verdict_needs_an_interval_on_one_side_and_enough_workloads() -> None:
    assert MIN_PAIRS == 5
    for arguments, expected in cells(VERDICTS):
        assert verdict(*yaml.safe_load(arguments)) == expected, arguments


#: What is said of an onboarding, what of it is another, and words; `!` where they must not be there.
SENTENCES = """
verdict_text | | The warm start is better than training from scratch: top-1 +0.190 with 64 samples (90 % interval +0.080 to +0.300). It is ahead on 5 of 6 held-out workloads. The strongest rival is the nearest known head, used without any training: top-1 0.895, the warm start 0.900, difference +0.005 (90 % interval -0.020 to +0.030).
verdict_text | shipped_top1: 0.896 | The strongest rival is the shipped model's head, which takes no sample: top-1 0.896.
verdict_text | shipped_top1: 0.896 | Against the nearest known head
verdict_text | shipped_top1: 0.5   | The shipped model's head, which takes no sample: top-1 0.500.
verdict_text | shipped_top1: 0.95, served_by: shipped | !takes no sample
served_text  | shipped_top1: 0.95, served_by: shipped | The shipped model's head serves it without a sample: top-1 0.950, the warm start 0.900.
served_text  | shipped_top1: 0.88, served_by: warm    | The warm start serves it: top-1 0.900, the shipped model's head without a sample 0.880.
served_text  | served_by: ""       | !serves
verdict_text | difference: -0.1, difference_interval: [-0.2, -0.01] | The warm start is worse than training from scratch
verdict_text | difference: 0.1, difference_interval: [-0.01, 0.2]   | cannot show which is better
verdict_text | workloads: [{warm_top1: 0.9, scratch_top1: 0.5}] | too few to call a winner
title        | | its own model's first choice reaches 90 % of the best speed
title        | shipped_top1: 0.95, served_by: shipped | shipped model's first choice reaches 95 %
"""  # noqa: E501 - a sentence stands in one line


def test_each_verdict_and_its_title_are_said_plainly() -> None:
    functions = {one.__name__: one for one in (verdict_text, served_text, title)}
    for name, changes, words in cells(SENTENCES):
        said = functions[name](onboarding(**fields_of(changes)))
        assert (words.removeprefix("!") in said) is not words.startswith("!"), (name, changes, said)
    assert len(title(onboarding()).split()) < 15


def test_the_headline_says_where_repeated_measurements_were_disturbed() -> None:
    noisy = device(remeasure_median_change=0.39, remeasured_pairs=30, remeasured_disturbed=30)
    some = device(remeasured_pairs=30, remeasured_disturbed=2)
    said = headline(full_report(devices={"noisy": noisy, "quiet": device(), "other": some}))[0]
    assert "39 % at most (median, noisy)." in said
    assert said.endswith("disturbed repeated measurements: 30 of 30 on noisy, 2 of 30 on other.")
    assert "disturbed every repeated measurement" in headline(full_report(devices={"noisy": noisy}))[0]
    assert "disturbed" not in headline(full_report())[0]


def test_the_headline_claims_no_more_than_the_numbers_do() -> None:
    assert "better than random choice on 3 of 3 devices" in headline(full_report())[1]
    one = full_report(model=model("first", random_top1=0.75))
    assert "better than random choice on 0 of 1 device." in headline(one)[1]
    learned = headline(full_report(workloads=WORKLOADS[:3]))[1]
    assert "3 held-out workloads cannot show that this is more than luck" in learned
    assert "clearly" not in learned
    said = headline(full_report(onboarding=onboarding(random_top1=0.88)))[2]
    assert said.endswith("The warm start is not clearly better than random choice.")


@given(st.floats(1e-9, 1e5))
def test_a_latency_reads_back_within_half_a_percent(secs: float) -> None:
    number, unit = latency(secs).split()
    size = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(secs, rel=0.0051)


#: A function, a number, and how people say it.
SAID = """
latency      | 1.5       | 1.50 s
latency      | 0.99949   | 999 ms
latency      | 0.9996    | 1.00 s
latency      | 0.0000944 | 94.4 µs
latency      | 0.000000003 | 3.00 ns
latency      | null      | not measured
latency      | .inf      | not measured
duration     | 0.25      | 250 ms
duration     | 99.94     | 99.9 s
duration     | 431.4     | 7 min 11 s
duration     | 7260      | 2 h 01 min
percent      | 0.0031    | 0.3 %
percent      | 0.859     | 86 %
signed       | -0.0001   | +0.000
signed       | -0.25     | -0.250
three_digits | 9.996     | 10.0
three_digits | 1234      | 1,234
"""


def test_numbers_are_said_as_people_say_them() -> None:
    functions = {one.__name__: one for one in (latency, duration, percent, signed, three_digits)}
    for name, value, text in cells(SAID):
        assert functions[name](yaml.safe_load(value)) == text, value


@given(st.text(), st.integers(2, 40))
def test_a_label_is_printable_and_short(text: str, limit: int) -> None:
    got = label(text, limit)
    assert got.isprintable()
    assert len(got) <= limit


# ---- the printout at the end ----


def row(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return line.split()


PAGE = Path("runs/demo/report.html")


def test_a_row_has_the_numbers_of_its_device_and_those_of_a_warm_start_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_summary(full_report(), PAGE)
    text = capsys.readouterr().out
    assert row(text, "first ") == ["first", "10", "3", "2.50", "0.4", "%", "0.80", "0.50", "0.95", "0.60"]
    assert row(text, "new ")[6:] == ["0.80", "0.50", "0.95", "0.60"]
    assert "new: scores of the warm start" in text
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines[-4:]] == ["Measured", "Learned", "New device", "Report"]
    assert "warm start is better" in lines[-2]
    assert lines[-1] == f"Report: {PAGE}"


def test_numbers_that_were_not_measured_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    only = device(records_per_s=None, remeasure_median_change=float("nan"))
    print_summary(full_report(("only", "new"), devices={"only": only}), PAGE)
    assert row(capsys.readouterr().out, "only ")[:5] == ["only", "10", "3", "-", "-"]


@pytest.mark.parametrize("name", ["d", "a-board-with-a-very-long-name", "[red]x[/red]", "\x1b[31m"])
def test_its_table_fits_80_columns_without_colour_or_cut_numbers(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (name, "second", "new")
    big = {one: device(one, records=1_234_570, records_per_s=1234.5) for one in names}
    print_summary(full_report(names, devices=big), PAGE)
    text = capsys.readouterr().out
    assert ("[red]x[/red]" in text) == ("red" in name), "markup is shown as it is"
    assert max(len(line) for line in text.splitlines()[:4]) <= 80
    assert "\x1b" not in text
    assert text.count("1,234,570") == 3
    assert text.count("1234.50") == 3
