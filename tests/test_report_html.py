from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import matplotlib
import pytest

from agents.records import Outcome
from fleet.report.html import render
from fleet.report.plots import panels
from fleet.report.report import (
    FailureGroup,
    Report,
    ReportedNumber,
    Similarity,
    WallTime,
    WorkloadLatencies,
    to_json,
)
from tests.report_fixtures import device, full_report, onboarding

HOSTILE = "<script>alert('x')</script>\"' onload=\"#010203 url(#a) font: 9px $\\frac{"
PLOTS = {"onboarding", "pairs", "scores", "points", "spread", "similarity", "timing"}
#: Elements that HTML never closes.
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page strictly enough to notice broken nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def text() -> str:
    """The page of the full report (drawing takes a second)."""
    return render(full_report())


def test_the_page_loads_nothing(text: str) -> None:
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "link", "img", "image", "iframe", "object", "embed", "video", "base"})
    assert "http" not in text
    assert "@import" not in text
    assert "@font-face" not in text
    assert re.findall(r"url\((?!#)", text) == []
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]


def test_every_reference_finds_its_own_id(text: str) -> None:
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r"url\(#([^)]+)\)", text)) | {
        attributes["href"][1:] for _, attributes in page.elements if "href" in attributes
    }
    wanted |= {
        attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes
    }
    assert wanted
    assert wanted <= set(ids)


def test_all_plots_are_there_with_words_for_those_who_cannot_see_them(text: str) -> None:
    page = Page(text)
    plots = page.all("svg")
    assert len(plots) == len(PLOTS)
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 30 for plot in plots)
    assert len(page.all("figcaption")) == 7


def test_headers_of_tables_have_a_scope(text: str) -> None:
    page = Page(text)
    assert {cell.get("scope") for cell in page.all("th")} == {"col", "row"}


def test_the_page_says_the_verdict_first_and_how_to_make_it_again(text: str) -> None:
    text = Page(text).text
    assert "New device new: the warm start is better than training from scratch" in text
    assert text.index("warm start is better") < text.index("Plots") < text.index("Tables")
    assert "fleet demo --seed 7" in text
    assert "2023-11-14 22:13 UTC" in text
    assert "InternalError: no such intrinsic" in text
    assert "2.00 µs" in text
    assert "The devices are profiles of one CPU." in text


def test_the_page_and_the_json_say_the_same_sentences(text: str) -> None:
    words = Page(text).text
    for sentence in to_json(full_report())["headline"]:
        assert sentence in words


def test_the_page_and_the_json_say_the_same_median_of_an_even_count() -> None:
    found = full_report(
        devices=(
            device(
                "a",
                latencies=(
                    WorkloadLatencies(workload="one", latency_secs=(1.0, 2.0)),
                    WorkloadLatencies(workload="two", latency_secs=(1.0, 10.0)),
                ),
            ),
        )
    )
    assert to_json(found)["devices"]["a"]["slowest_over_fastest_median"] == 6.0
    assert "<td>6.00\N{MULTIPLICATION SIGN}</td>" in re.sub(r"<td[^>]*>", "<td>", render(found))


def test_the_page_says_which_latency_it_shows(text: str) -> None:
    assert "by its fastest repeat" in text


def test_the_same_report_gives_the_same_bytes(text: str) -> None:
    assert render(full_report()) == text


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(matplotlib.rcParams)
    assert panels(full_report())
    assert dict(matplotlib.rcParams) == before


def test_plots_use_only_colours_that_the_page_defines(text: str) -> None:
    plots = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    used = set(re.findall(r"var\((--[\w-]+)\)", plots))
    assert used == {"--ink", "--faint", "--series-0", "--series-1", "--series-2"}
    assert re.findall(r"(?:fill|stroke): #(?!000000\b)\w+", plots) == []
    # Once for light, dark and print.
    assert all(len(re.findall(rf"{name}: #", text)) == 3 for name in used)


def test_hostile_names_stay_text() -> None:
    names = (HOSTILE, "\x00\x1b[31m\ud800\u202e", "日本語 $x_1$ & <b>")
    report = full_report(names, host=((HOSTILE, HOSTILE),), versions=((HOSTILE, "1"),), command=HOSTILE)
    report = replace(
        report,
        caveats=(HOSTILE,),
        workloads=(HOSTILE,),
        devices=(
            device(
                HOSTILE,
                note=HOSTILE,
                failures=(FailureGroup(outcome=Outcome.LOST, count=1, example=HOSTILE * 50),),
            ),
            *report.devices[1:],
        ),
    )
    text = render(report)
    page = Page(text)
    text.encode()
    assert "script" not in {tag for tag, _ in page.elements}
    assert "b" not in {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert HOSTILE in page.text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert len(page.all("svg")) == 7


def test_two_names_that_are_cut_alike_keep_their_rows() -> None:
    names = tuple(f"{'board-' * 10}{place}{'-lab' * 10}" for place in range(3))
    plots = {panel.key: panel.svg for panel in panels(full_report(names))}
    assert "#2" in plots["spread"]
    assert "#3" in plots["similarity"]


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ({"model": None}, {"scores"}),
        ({"onboarding": None}, {"onboarding", "pairs"}),
        ({"points": ()}, {"points"}),
        ({"similarity": None}, {"similarity"}),
        ({"timing": None}, {"timing"}),
        ({"timing": WallTime(parts=())}, {"timing"}),
        ({"similarity": Similarity(device_ids=("first",), tau=((1.0,),))}, {"similarity"}),
        ({"onboarding": onboarding(pairs=())}, {"pairs"}),
    ],
)
def test_a_missing_part_leaves_out_its_plot_and_nothing_else(missing: dict[str, Any], gone: set[str]) -> None:
    page = Page(render(full_report(**missing)))
    drawn = {a["id"].removeprefix("plot-") for a in page.all("h3") if a.get("id", "").startswith("plot-")}
    assert drawn == PLOTS - gone


def test_one_device_without_model_or_failures_is_told_as_it_is() -> None:
    only = device("only", failures=(), records_per_s=None, remeasure_median_change=None)
    text = Page(render(Report(devices=(only,)))).text
    assert "One device measured" in text
    assert "No candidate failed." in text
    assert "not measured" in text
    assert "No model was trained." in text


def test_a_device_on_which_everything_failed_is_still_listed() -> None:
    broken = device("broken", ok=0, latencies=())
    report = Report(devices=(broken,))
    assert panels(report) == ()
    assert "build failed" in Page(render(report)).text


def test_a_workload_with_a_single_candidate_can_be_drawn() -> None:
    one = device("one")
    one = replace(one, latencies=(replace(one.latencies[0], latency_secs=(1e-3,)),))
    assert [panel.key for panel in panels(Report(devices=(one,)))] == ["spread"]


def test_estimates_without_an_interval_are_drawn_as_dots_only() -> None:
    bare = ReportedNumber(value=0.5)
    new = onboarding(
        top1=bare, top5=bare, scratch_top1=ReportedNumber(), full_top1=bare, difference=ReportedNumber()
    )
    text = Page(render(full_report(onboarding=new))).text
    assert "the warm start was not compared with training from scratch" in text


def test_many_points_are_thinned_and_the_caption_says_so() -> None:
    report = Report(devices=(), points=full_report().points)
    many = tuple(replace(report.points[0], score=float(i)) for i in range(2000))
    [panel] = [panel for panel in panels(replace(report, points=many)) if panel.key == "points"]
    assert panel.svg.count("<use") < 600
    assert "only some are drawn" in panel.caption
