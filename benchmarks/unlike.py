"""Solvers for unlike GPUs: what a few samples of a new one are worth: `python -m benchmarks.unlike --json`.

MIOpen's find databases tell which solvers of a convolution were timed on seven AMD GPUs of seven years. Each
GPU is left out in turn. *device new*: the judged problems are known on the others. *both new*: their
convolutions are held out there, too. A way of choosing sees k samples of the new GPU, of other convolutions,
whole problems at a time. `kept` is the speed of its choice over the fastest solver that was timed there, mean
over problems, seeds and GPUs; `right` is the share of problems with the fastest one. Only solvers that were
timed on the GPU can be chosen and judged. Intervals are of 90 %, paired, over problems within each GPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Figures, benchmark, option, say
from benchmarks.unlike_ways import (
    OURS,
    SIMPLE,
    WAYS,
    WITHOUT_SAMPLES,
    FindData,
    Pool,
    View,
    first_of,
    read_databases,
)
from fleet.json_types import Json
from transfer.adapt.base import Regime
from transfer.arrays import Floats, Groups, Mask, Rows, Singles
from transfer.data.labels import group_min
from transfer.features.flat import flat_inputs
from transfer.model.trees import Trees, pack, tree_inputs
from transfer.train.tree_fit import grow

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


DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "miopen_find_db"


#: Share of the convolutions that are judged.
_HELD = 4
_REGIMES = (Regime.DEVICE_NEW, Regime.BOTH_NEW)
_RESAMPLES = 1000
_LEAST_WEIGHT, _SLOWEST = 0.1, 12.0


@dataclass(frozen=True)
class Options:
    """How much is run."""

    quick: bool = option(False, "a sixteenth of the problems, two seeds")
    data: Path = option(DATA, "folder of find databases")
    one_in: int = option(16, "take one convolution in so many", least=1, quick=256)
    samples: tuple[int, ...] = option(
        (
            0,
            16,
            64,
            256,
            1024,
        ),
        "numbers of samples (k)",
        quick=(0, 64),
    )
    seeds: int = option(5, "draws of the samples", least=1, quick=2)
    trees: int = option(200, "trees that the sources teach", least=1, quick=30)
    learnt: int = option(40000, "measurements of the sources that teach trees", least=100, quick=5000)
    judged: int = option(1000, "most problems of a GPU that are judged", least=10, quick=200)
    pictures: Path | None = option(None, "write the two pictures into this folder")


#: What a way reached: (problems,) by seed, for each regime, way and k, and then for each GPU.
Reached = dict[tuple[Regime, str, int], dict[str, list[tuple[Floats, Floats]]]]


def measure(options: Options) -> Figures:
    """Run everything, where the databases are there."""
    if not options.data.is_dir():
        return {
            "skipped": f"{options.data} is absent: it lies beside the checkout; or name a folder with --data",
        }
    data = read_databases(options.data, options.one_in)
    flat = flat_inputs(data.dataset.features, data.dataset.spec.category_sizes)
    flat = flat[:, flat.min(axis=0) < flat.max(axis=0)]
    reached: Reached = defaultdict(lambda: defaultdict(list))
    is_held = (data.convolution // 65536 % _HELD == 0)[data.dataset.group]
    for target, device_id in enumerate(data.dataset.device_ids):
        say(f"{device_id} left out")
        trees, learnt = _source_trees(data, flat, target, ~is_held, options)
        for regime in _REGIMES:
            pool, free = _pool(data, flat, target, regime, is_held, (trees, learnt), options)
            for k in options.samples:
                # Without a sample there is nothing to draw.
                for seed in range(options.seeds if k else 1):
                    view = View(pool, _samples(data, free, k, seed), seed)
                    for name, way in WAYS.items():
                        earlier = reached[regime, name, options.samples[0]][device_id]
                        if earlier and name in WITHOUT_SAMPLES:
                            reached[regime, name, k][device_id] = earlier
                        else:
                            reached[regime, name, k][device_id].append(_judged(view, way(view)))
    figures = {
        "quick": options.quick,
        **_figures(reached, options),
        "devices": {
            device_id: int(np.isfinite(data.dataset.latency_secs[:, column]).sum())
            for column, device_id in enumerate(data.dataset.device_ids)
        },
        "likeness": likeness(data),
        "table": _table(reached, options),
    }
    if options.pictures is not None:
        write_pictures(options.pictures, figures, tuple(WAYS))
    return figures


def _pool(
    data: FindData,
    flat: Singles,
    target: int,
    regime: Regime,
    is_held: Mask,
    taught: tuple[Trees, Rows],
    options: Options,
) -> tuple[Pool, Rows]:
    """What all ways share, and the rows that the target may measure."""
    dataset = data.dataset
    known = np.isfinite(dataset.latency_secs)
    visible = known.copy()
    visible[:, target] = False
    several = _has_several(known[:, target], dataset.group)
    judged = np.flatnonzero(is_held & several)
    if regime is Regime.DEVICE_NEW:
        judged = judged[_has_several(visible.any(axis=1) & known[:, target], dataset.group)[judged]]
    else:
        visible[is_held] = False
    problems = np.random.default_rng(target).permutation(np.unique(dataset.group[judged]))[: options.judged]
    judged = judged[np.isin(dataset.group[judged], problems)]
    pool = Pool(data, target, visible, flat, *taught, judged, options.trees)
    return pool, np.flatnonzero(~is_held & several)


def _has_several(measured: Mask, group: Groups, least: int = 2) -> Mask:
    """(N,) measured rows of problems with two of them at least."""
    counts = np.bincount(group[measured], minlength=int(group.max()) + 1)
    return np.asarray(measured & (counts[group] >= least))


def _source_trees(
    data: FindData, flat: Singles, target: int, may_learn: Mask, options: Options
) -> tuple[Trees, Rows]:
    """Trees of what sources measured: logarithm of the relative speed less its mean over the problem.

    Returns:
        The trees, and the rows that they were taught.
    """
    dataset = data.dataset
    visible = np.isfinite(dataset.latency_secs) & may_learn[:, None]
    visible[:, target] = False
    rows, columns = np.nonzero(visible)
    if len(rows) > options.learnt:
        chosen = np.sort(np.random.default_rng(target).permutation(len(rows))[: options.learnt])
        rows, columns = rows[chosen], columns[chosen]
    secs = np.log(dataset.latency_secs[rows, columns])
    place = dataset.group[rows] * np.int64(len(dataset.device_ids)) + columns
    _, place = np.unique(place, return_inverse=True)
    least = group_min(secs[:, None], place, int(place.max()) + 1)[place, 0]
    speed = -np.minimum(secs - least, np.log(_SLOWEST))
    mean = np.bincount(place, speed) / np.bincount(place)
    x = tree_inputs(flat[rows], dataset.hardware[columns])
    weight = np.maximum(np.exp(speed), _LEAST_WEIGHT)
    raw = grow(x, speed - mean[place], weight, count=options.trees, seed=0)
    return Trees(pack(raw)), np.unique(rows)


def _samples(data: FindData, free: Rows, k: int, seed: int) -> Rows:
    """At most k rows, of whole problems in random order."""
    group = data.dataset.group[free]
    problems, sizes = np.unique(group, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(problems))
    taken = problems[order[np.cumsum(sizes[order]) <= k]]
    return np.asarray(free[np.isin(group, taken)])


def _judged(view: View, cost: Floats) -> tuple[Floats, Floats]:
    """(problems,) speed that is kept, and whether the fastest was chosen."""
    rows, dataset = view.pool.judged, view.data.dataset
    secs, group = dataset.latency_secs[rows, view.pool.target], dataset.group[rows]
    chosen, fastest = secs[first_of(cost, group)], secs[first_of(secs, group)]
    return fastest / chosen, (chosen <= fastest).astype(np.float64)


def likeness(data: FindData) -> dict[str, dict[str, dict[str, float]]]:
    """How alike two GPUs are: what the winner of the one keeps on the other, of solvers timed on both.

    Only problems with three such solvers count.
    """
    dataset, found = data.dataset, defaultdict[str, dict[str, dict[str, float]]](dict)
    known = np.isfinite(dataset.latency_secs)
    for place, source in enumerate(dataset.device_ids):
        for other, target in enumerate(dataset.device_ids):
            both = np.flatnonzero(_has_several(known[:, place] & known[:, other], dataset.group, 3))
            if place == other or not len(both):
                continue
            secs, group = dataset.latency_secs[both], dataset.group[both]
            chosen = secs[first_of(secs[:, place], group), other]
            fastest = secs[first_of(secs[:, other], group), other]
            found[source][target] = {
                "kept": float((fastest / chosen).mean()),
                "same_winner": float((chosen <= fastest).mean()),
                "problems": len(chosen),
            }
    return dict(found)


def _figures(reached: Reached, options: Options) -> Figures:
    """Ours beside the best simple answer at each k, paired."""
    found: Figures = {}
    for regime in _REGIMES:
        for k in options.samples:
            means = {name: _mean(reached, regime, name, k) for name in SIMPLE}
            best = max(means, key=means.__getitem__)
            name = f"{regime.value.replace('-', '_')}_k{k}"
            found[f"{name}_kept"] = _mean(reached, regime, OURS, k)
            found[f"{name}_best_simple"] = {best: means[best]}
            found[f"{name}_gain"] = gain(reached, regime, k, OURS, best)
    return found


def _mean(reached: Reached, regime: Regime, name: str, k: int, part: int = 0) -> float:
    """Mean over GPUs of the mean over problems and seeds."""
    devices = reached[regime, name, k].values()
    return float(np.mean([np.mean([seed[part] for seed in several]) for several in devices]))


def gain(reached: Reached, regime: Regime, k: int, name: str, other: str) -> list[float]:
    """Difference of the kept speed of two ways, and its 90 % interval over problems within each GPU."""
    random = np.random.default_rng(0)
    draws, value = np.zeros(_RESAMPLES), []
    devices = reached[regime, name, k]
    for device, several in devices.items():
        apart = np.mean([seed[0] for seed in several], axis=0)
        apart -= np.mean([seed[0] for seed in reached[regime, other, k][device]], axis=0)
        value.append(apart.mean())
        counts = random.multinomial(len(apart), np.full(len(apart), 1 / len(apart)), size=_RESAMPLES)
        draws += counts @ apart / len(apart) / len(devices)
    low, high = np.quantile(draws, [0.05, 0.95])
    return [float(np.mean(value)), float(low), float(high)]


def _table(reached: Reached, options: Options) -> Figures:
    return {
        regime.value: {
            name: {
                "kept": {str(k): _mean(reached, regime, name, k) for k in options.samples},
                "right": {str(k): _mean(reached, regime, name, k, 1) for k in options.samples},
                "by_device": {
                    device: {
                        str(k): float(np.mean([seed[0] for seed in reached[regime, name, k][device]]))
                        for k in options.samples
                    }
                    for device in reached[regime, name, options.samples[0]]
                },
            }
            for name in WAYS
        }
        for regime in _REGIMES
    }


main = benchmark("unlike", __doc__, Options, measure)

if __name__ == "__main__":
    main()
