"""Two pictures of `benchmarks.unlike`: how unlike the GPUs are, and what is kept against the samples.

Plain SVG, so that a page of documents can hold them and a text editor can read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CELL, _LEFT, _TOP = 62, 110, 60
#: Problems below which a cell of the picture is left empty: a mean of few says nothing.
_LEAST_PROBLEMS = 10
_WIDTH, _HEIGHT, _MARGIN = 460, 300, 48
_COLOURS = ("#b03a2e", "#9a7d0a", "#1f618d", "#6c3483", "#717d7e", "#b9770e", "#117a65")


def write_pictures(folder: Path, figures: Mapping[str, Any], ways: Sequence[str]) -> None:
    """Write `unlike-devices.svg` and `unlike-curve.svg`.

    Args:
        folder: Made if need be.
        figures: What the benchmark found.
        ways: Which ones are drawn; the last one is ours, drawn thick.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unlike-devices.svg").write_text(heat_map(figures["likeness"]))
    (folder / "unlike-curve.svg").write_text(curves(figures["table"], ways))


def heat_map(likeness: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """What the winner of the row's GPU keeps on the column's."""
    names = sorted(likeness)
    parts = [
        _text(_LEFT, 18, "share of the best speed that the winner of the row's GPU keeps on the column's")
    ]
    for row, source in enumerate(names):
        y = _TOP + row * _CELL
        parts += [
            _text(_LEFT - 8, y + _CELL // 2, source, anchor="end"),
            _text(_LEFT + row * _CELL + _CELL // 2, _TOP - 10, source, anchor="middle", size=9),
        ]
        for column, target in enumerate(names):
            x = _LEFT + column * _CELL
            cell = likeness[source].get(target)
            if row == column or cell is None or cell["problems"] < _LEAST_PROBLEMS:
                parts.append(_box(x, y, "#eeeeee"))
                continue
            # From red at half the speed to green at all of it.
            share = min(1.0, max(0.0, (cell["kept"] - 0.5) / 0.5))
            parts.append(_box(x, y, f"hsl({round(120 * share)},60%,75%)"))
            middle = x + _CELL // 2
            parts.append(_text(middle, y + _CELL // 2 + 4, f"{cell['kept']:.2f}", anchor="middle"))
    return _svg(_LEFT + len(names) * _CELL + 10, _TOP + len(names) * _CELL + 10, parts)


def curves(table: Mapping[str, Mapping[str, Any]], ways: Sequence[str]) -> str:
    """Kept speed against samples, a panel a regime."""
    parts: list[str] = []
    for place, (regime, by_way) in enumerate(table.items()):
        drawn = {way: by_way[way]["kept"] for way in ways if way in by_way}
        parts += _panel(place * (_WIDTH + 20), regime, drawn)
    for place, way in enumerate(ways):
        x, y = _MARGIN + place % 4 * 230, _HEIGHT + 30 + place // 4 * 18
        colour = _COLOURS[place % len(_COLOURS)]
        parts += [f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{colour}"/>', _text(x + 20, y, way)]
    return _svg(len(table) * (_WIDTH + 20), _HEIGHT + 60, parts)


def _panel(left: int, regime: str, drawn: Mapping[str, Mapping[str, float]]) -> list[str]:
    counts = [int(count) for count in next(iter(drawn.values()))]
    values = [value for kept in drawn.values() for value in kept.values()]
    low, high = math.floor(min(values) * 10) / 10, 1.0

    def at(count: int, value: float) -> tuple[float, float]:
        across = math.log2(1 + count) / max(1.0, math.log2(1 + max(counts)))
        x = left + _MARGIN + across * (_WIDTH - _MARGIN - 16)
        return x, _HEIGHT - _MARGIN - (value - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)

    parts = [_text(left + _WIDTH // 2, 20, f"{regime}: speed kept, by samples", anchor="middle")]
    for tenth in range(round(low * 10), 11):
        x, y = at(0, tenth / 10)
        parts.append(f'<path d="M{x:.0f} {y:.1f}H{left + _WIDTH - 16}" stroke="#dddddd"/>')
        parts.append(_text(round(x) - 6, round(y) + 4, f"{tenth / 10:.1f}", anchor="end"))
    for count in counts:
        parts.append(_text(round(at(count, low)[0]), _HEIGHT - _MARGIN + 16, str(count), anchor="middle"))
    for place, (_, kept) in enumerate(drawn.items()):
        points = " ".join("{:.1f},{:.1f}".format(*at(int(count), value)) for count, value in kept.items())
        width = 3 if place == len(drawn) - 1 else 1.2
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return parts


def _box(x: int, y: int, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}" fill="{colour}"/>'


def _text(x: int, y: int, words: str, *, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif">', *parts, "</svg>", ""])
