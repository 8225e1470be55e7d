from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from fleet.report.page import render
from tests.report_fixtures import device, full_report, onboarding

HOSTILE = "<script>alert('x')</script>\"' onload=\"#010203 url(#a) font: 9px $\\frac{"
PLOTS = {"onboarding", "pairs", "scores"}
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


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_loads_nothing(text: str, page: Page) -> None:
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


def test_references_find_their_ids_headers_have_a_scope_and_plots_say_their_numbers(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {
        attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes
    }
    assert wanted
    assert wanted <= set(ids)
    assert {cell.get("scope") for cell in page.all("th")} == {"col", "row"}
    assert len(page.all("figcaption")) == len(page.all("figure")) == len(PLOTS)
    assert all(plot["aria-hidden"] == "true" for plot in page.all("svg"))
    for said in ("0.90 \u00b7 0.97", "+0.40", "0.80 \u00b7 0.95"):
        assert said in page.text


def test_the_page_says_the_verdict_first_and_how_to_make_it_again(page: Page) -> None:
    text = page.text
    assert "new: its own model's first choice reaches 90" in text
    assert text.index("warm start is better") < text.index("Plots") < text.index("Tables")
    assert "fleet demo --seed 7" in text
    assert "2023-11-14 22:13 UTC" in text
    assert "InternalError: no such intrinsic" in text
    assert "2.00 µs" in text
    assert "The devices are profiles of one CPU." in text
    assert "by its fastest repeat" in text
    # The page and the JSON say the same sentences.
    assert all(sentence in text for sentence in full_report()["headline"])


def test_the_same_report_gives_the_same_page_with_code_between_backticks(text: str, page: Page) -> None:
    assert render(full_report()) == text
    assert "See <code>fleet doctor</code>." in text
    assert "`" not in page.text
    assert "<code>&lt;b&gt;</code>" in render(full_report(caveats=["`<b>`"]))


def test_hostile_names_stay_text() -> None:
    names = (HOSTILE, "\x00\x1b[31m\ud800\u202e", "日本語 $x_1$ & <b>")
    report = full_report(
        names,
        host={HOSTILE: HOSTILE},
        versions={HOSTILE: "1"},
        command=HOSTILE,
        caveats=[HOSTILE],
        workloads=[HOSTILE],
        devices={
            HOSTILE: device(HOSTILE, failures={HOSTILE: {"count": 1, "example": HOSTILE * 50}}),
            names[1]: device(),
        },
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
    assert len(page.all("figure")) == len(PLOTS)


def test_a_device_is_shown_as_it_is() -> None:
    only = device(failures={}, failed=0, records_per_s=None, remeasure_median_change=None)
    text = Page(render(full_report(devices={"only": only}))).text
    assert "No candidate failed." in text
    assert "not measured" in text
    # Everything failed on it.
    broken = device(ok=0, workloads=[], slowest_over_fastest_median=None)
    assert "broken: build failed" in Page(render(full_report(devices={"broken": broken}))).text


def test_the_shipped_model_has_a_row_where_it_was_judged() -> None:
    shipped = {"shipped_top1": 0.88, "shipped_top5": 0.97}
    shipped |= {"shipped_top1_interval": [0.8, 0.95], "shipped_top5_interval": [0.9, 0.99]}
    shipped |= {"served_by": "shipped"}
    page = render(full_report(onboarding=onboarding(**shipped)))
    assert "shipped model, no sample" in page
    assert "new: the shipped model&#39;s first choice reaches" in page
    assert "shipped model, no sample" not in render(full_report())
