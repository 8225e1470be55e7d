"""Two pictures of `benchmarks.unlike`: how unlike the GPUs are, and what is kept against the samples.

Plain SVG, so that a page of documents can hold them and a text editor can read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.json_types import Json

_CELL, _LEFT, _TOP = 62, 110, 60
#: Problems below which a cell of the picture is left empty: a mean of few says nothing.
_LEAST_PROBLEMS = 10
_WIDTH, _HEIGHT, _MARGIN = 460, 300, 48
_COLOURS = ("#b03a2e", "#9a7d0a", "#1f618d", "#6c3483", "#717d7e", "#b9770e", "#117a65")


def write_pictures(folder: Path, figures: Json, ways: Sequence[str]) -> None:
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
    """What the winner of the row's GPU keeps on the column's: from red at half the speed to green at all."""
    names = sorted(likeness)
    parts = [_text(_LEFT, 18, "share of the best speed that a winner of the row's GPU keeps on the column's")]
    for row, source in enumerate(names):
        at, y = _LEFT + row * _CELL, _TOP + row * _CELL
        parts += [_text(4, y + _CELL // 2, source), _text(at, _TOP - 10, source)]
        for column, target in enumerate(names):
            cell = likeness[source].get(target, {"problems": 0.0})
            x, is_known = _LEFT + column * _CELL, cell["problems"] >= _LEAST_PROBLEMS
            hue = round(240 * min(0.5, max(0.0, cell["kept"] - 0.5))) if is_known else 0
            fill = f"hsl({hue},60%,75%)" if is_known else "#eeeeee"
            parts.append(f'<rect x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}" fill="{fill}"/>')
            if is_known:
                parts.append(_text(x + _CELL // 4, y + _CELL // 2 + 4, f"{cell['kept']:.2f}"))
    return _svg(_LEFT + len(names) * _CELL + 10, _TOP + len(names) * _CELL + 10, parts)


def curves(table: Mapping[str, Json], ways: Sequence[str]) -> str:
    """Kept speed against samples, a panel a regime."""
    parts: list[str] = []
    for panel, (regime, by_way) in enumerate(table.items()):
        drawn = {way: by_way[way]["kept"] for way in ways if way in by_way}
        low = min(value for kept in drawn.values() for value in kept.values())
        left, most = panel * (_WIDTH + 20) + _MARGIN, math.log2(1 + max(map(int, next(iter(drawn.values())))))

        def across(count: str, left: int = left, most: float = most) -> float:
            return left + math.log2(1 + int(count)) / max(1.0, most) * (_WIDTH - _MARGIN - 16)

        def down(value: float, low: float = low) -> float:
            return _HEIGHT - _MARGIN - (value - low) / (1 - low) * (_HEIGHT - 2 * _MARGIN)

        parts.append(_text(left, 20, f"{regime}: speed kept, by samples"))
        for value in (low, 1.0):
            parts.append(_text(left - 40, down(value), f"{value:.2f}"))
            parts.append(f'<path d="M{left} {down(value):.1f}h{_WIDTH - _MARGIN}" stroke="#dddddd"/>')
        parts += [_text(across(count), _HEIGHT - 30, count) for count in next(iter(drawn.values()))]
        for place, (way, kept) in enumerate(drawn.items()):
            points = " ".join(f"{across(count):.1f},{down(value):.1f}" for count, value in kept.items())
            style = f'stroke="{_COLOURS[place]}" stroke-width="{3 if place == len(drawn) - 1 else 1.2}"'
            parts.append(f'<polyline points="{points}" fill="none" {style}/>')
            if not panel:
                x, y = _MARGIN + place % 4 * 230, _HEIGHT + 30 + place // 4 * 18
                parts.append(f'<path d="M{x} {y - 4}h14" {style}/>{_text(x + 20, y, way)}')
    return _svg(len(table) * (_WIDTH + 20), _HEIGHT + 60, parts)


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="11">{words}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif">', *parts, "</svg>", ""])
