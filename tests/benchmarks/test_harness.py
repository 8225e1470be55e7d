"""What all benchmarks share: options from a dataclass, the JSON, the exit code, turns, tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness import Figures, benchmark, by_turns, option
from benchmarks.tables import command_of, interval, markdown_table, page, text_of
from fleet.errors import FleetError
from tests.table_fixtures import rows
from transfer.data.intervals import Estimate


@dataclass(frozen=True, slots=True)
class Options:
    """One of each kind."""

    place: Path = option(help="where, 100 % sure")
    count: int = option(3, "how many", least=1)
    quick: bool = False
    shares: tuple[float, ...] = option((0.5,), may_be_empty=True)
    names: tuple[str, ...] | None = option(None, choices=("a", "b"))
    device: tuple[str, ...] = option(())


def measure(options: Options) -> Figures:
    if options.count == 13:
        raise FleetError("13 is not counted")
    return {name: str(getattr(options, name)) for name in Options.__dataclass_fields__}


main = benchmark("sample", __doc__, Options, measure, fails=lambda found: found["count"] == "2")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--place here", Options(Path("here"))),
        ("--place here --count 1 --quick", Options(Path("here"), 1, True)),
        ("--place here --shares --names b a", Options(Path("here"), shares=(), names=("b", "a"))),
        ("--place /x/a/b/c --device x y", Options(Path("/x/a/b/c"), device=("x", "y"))),
    ],
)
def test_options_are_read_and_shown_again(
    words: str, expected: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words.replace("x y", "x --device y").split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found == {"benchmark": "sample", "secs": found["secs"], **measure(expected)}
    assert command_of("sample", expected) == f"python -m benchmarks.sample {words.replace('/x/', '')}"


#: Words of a command; the exit code that they end with, and what is printed.
ENDS = """
    --place here --count 0  -> 2 | argument --count: 0 is less than 1
    --place here --names c  -> 2 | invalid choice: 'c'
                            -> 2 | required: --place
    --place here --count 2  -> 1 |
    --place here --count 13 -> 13 is not counted |
    --help                  -> 0 |
"""


@pytest.mark.parametrize(("words", "end"), rows(ENDS))
def test_how_it_ends(words: str, end: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, printed = end.partition("|")
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert str(ended.value.code) == code.strip()
    assert printed.strip() in capsys.readouterr().err


def test_each_side_is_first_every_other_round() -> None:
    order = []
    ticks = iter(range(100))
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    secs = by_turns(sides, 3, clock=lambda: float(next(ticks)))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert secs == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_a_page_has_the_figures_of_a_result_and_a_table_of_each_part() -> None:
    assert text_of(interval(Estimate(0.5, 0.25, 1.0))) == "0.500 [0.250, 1.000]"
    rows = [("a", text_of(0.1), text_of(None)), ("b", "", "")]
    assert markdown_table(("x", "y", "z"), rows) == ["| x | y | z |", "|---|---|---|", "| a | 0.100 |  |"]
    parts = {"a": {"top1": [0.5, 0.25, 1.0], "by": {"cpu": 0.1}}, "b": {"top1": None, "runs": 3}}
    result = {"secs": 1.5, "used": ["x", "y"], "raw": [[1, 2]], "parts": {"first": [parts], "empty": []}}
    assert page("Title", "python -m it", result)[6:] == [
        *("| figure | value |", "|---|---|", "| `secs` | 1.500 |", "| `used` | x, y |", ""),
        *("## parts", "", "### first", "", "#### 1", ""),
        *("|  | top1 | by cpu | runs |", "|---|---|---|---|"),
        *("| a | 0.500 [0.250, 1.000] | 0.100 |  |", "| b |  |  | 3 |"),
    ]
