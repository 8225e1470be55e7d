"""How a plot of a report looks, and how it becomes inline SVG that follows the page's colours.

`fleet.report.plots` draws with these parts. Colours are stand-ins that become CSS variables of the page
(`--ink`, `--faint`, `--series-0`...), texts stay texts in the page's font, ids are unique for each plot, and
the same figure gives the same bytes. Nothing here knows what is plotted.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fleet.report.values import ReportedNumber
from fleet.report.words import known

# Stand-ins: colours that no colour map gives, replaced by the page's variables after drawing.
INK, FAINT = "#010203", "#010204"
SERIES = ("#010205", "#010206", "#010207")
VARIABLES = {INK: "--ink", FAINT: "--faint", **{code: f"--series-{i}" for i, code in enumerate(SERIES)}}

#: Inches; the page scales a plot to its column (about 1.4 times).
WIDTH = 7.2

#: Settings under which every plot is drawn (`Any`: releases of matplotlib type the keys differently).
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tensor-fleet",
    "text.parse_math": False,
    # Wider than most fonts and always there: what fits in it fits in the reader's font.
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid.axis": "x",
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.edgecolor": FAINT,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot with what people read beside it."""

    key: str
    title: str
    #: How to read it, one or two sentences.
    caption: str
    svg: str


def row_plot(count: int, *, row: float, extra: float) -> tuple[Figure, Axes]:
    """Start a plot with `count` rows, `row` inches each, and `extra` inches for what is around them."""
    figure = Figure(figsize=(WIDTH, extra + row * count), layout="constrained")
    return figure, figure.subplots()


def dot(axes: Axes, estimate: ReportedNumber, y: float, *, series: int, marker: str) -> None:
    """Draw an estimate with its interval."""
    if estimate.interval is not None:
        axes.plot(estimate.interval, [y, y], color=SERIES[series], linewidth=2.4, alpha=0.5)
    if known(estimate.value):
        axes.plot([estimate.value], [y], marker, color=SERIES[series], markersize=6)


def chance(axes: Axes, value: float | None, y: float) -> None:
    """Mark what random choice would reach."""
    if known(value):
        axes.plot([value], [y], "|", color=INK, alpha=0.55, markersize=9, markeredgewidth=1.8)


def score_axis(axes: Axes, names: list[str], title: str) -> None:
    """Name the rows, first on top, and let scores run from 0 to 1."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.015)
    axes.set_xlabel(title)


def legend(axes: Axes, entries: dict[str, tuple[int, str] | None], hollow: str = "") -> None:
    """Explain marks above the plot; an entry is (series, marker), or `None` for random choice."""
    handles = []
    for name, look in entries.items():
        color, marker = (INK, "|") if look is None else (SERIES[look[0]], look[1])
        handles.append(
            Line2D(
                [],
                [],
                color=color,
                marker=marker,
                linestyle="none",
                label=name,
                fillstyle="none" if name == hollow else "full",
                alpha=0.55 if look is None else 1,
                markeredgewidth=1.8 if look is None else 1.3,
                markersize=9 if look is None else 6,
            )
        )
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles), borderaxespad=0.2
    )


def panel(figure: Figure, *, key: str, title: str, caption: str, alt: str) -> Panel:
    """Finish a plot; `alt` says in words what it shows."""
    return Panel(key=key, title=title, caption=caption, svg=_svg(figure, key, alt))


def _svg(figure: Figure, key: str, alt: str) -> str:
    """Turn a figure into an `<svg>` element for a page: no prologue, no metadata, no namespaces."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for child in [child for child in root if child.tag.endswith("}metadata")]:
        root.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update({name: _attribute(name, value, key) for name, value in attributes.items()})
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"role": "img", "aria-label": alt, "viewBox": box})
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _attribute(name: str, value: str, key: str) -> str:
    """Make ids the plot's own, colours the page's, and the font the page's; texts are never touched."""
    if name == "id":
        return f"{key}-{value}"
    if name == "href":
        return value.replace("#", f"#{key}-", 1)
    if name == "clip-path":
        return value.replace("url(#", f"url(#{key}-", 1)
    if name == "style":
        value = re.sub(r"font: (?:\d+ )?([\d.]+px) [^;]+", r"font-size: \1", value)
        return re.sub(r"#0102\d\d", lambda match: f"var({VARIABLES[match.group()]})", value)
    return value
