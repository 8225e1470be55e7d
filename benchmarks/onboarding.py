"""What a new device's head is worth after k measured candidates: `python -m benchmarks.onboarding --json`.

Leaves out each device of a store in turn and onboards it from the others' records, in regimes that are
never mixed (`transfer.evaluate.onboarding_cases`), by every strategy and the baselines that must stand beside
it. Nothing is measured: stored records answer. Stores are those given, else that of `make run` and the
AutoTVM logs beside the checkout, as far as they are there. `--quick` gives the same keys in about ten
minutes; `--table FILE` writes the page that `docs/results/` keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.onboarding_baselines import FewShot, baselines
from benchmarks.onboarding_curve import SAMPLES, CurvePlan, run_curve
from benchmarks.onboarding_extras import COVERED, How, across, breadth, coverage, selectors, tell
from benchmarks.onboarding_page import page
from benchmarks.onboarding_parts import DeviceSet, as_json, device_sets, listed
from benchmarks.onboarding_table import CurveTable
from fleet.errors import StoreError
from transfer.adapt.base import Strategy
from transfer.adapt.registry import CHOICES, NAMES, strategies
from transfer.adapt.sample_selection import SELECTORS, selector_named
from transfer.auto.strategy import Auto
from transfer.errors import DatasetError
from transfer.evaluate.onboarding_cases import CasePlan, Regime, networks_to_hold_out
from transfer.evaluate.onboarding_contenders import Adapting
from transfer.train.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """How much is run where the command line does not say."""

    samples: tuple[int, ...]
    #: Candidates of a workload: kept, and judged.
    most: int
    judge: int
    #: Epochs of source models.
    epochs: int
    #: Seeds of the curve, and of what stands beside it.
    seeds: int
    part_seeds: int
    #: Networks held out in turn; 0 for all.
    splits: int
    #: What stands beside the curve.
    parts: tuple[str, ...]
    #: Samples at which stated intervals are compared with the truth.
    covered: tuple[int, ...]
    #: What `auto` chooses from, and the strategies beside it.
    choices: tuple[str, ...]
    strategies: tuple[str, ...]


_FULL = _Bounds(
    samples=SAMPLES,
    most=320,
    judge=256,
    epochs=24,
    seeds=5,
    part_seeds=3,
    splits=0,
    parts=("selectors", "coverage", "breadth", "across"),
    covered=COVERED,
    choices=CHOICES,
    strategies=NAMES,
)
#: The same figures from fewer candidates, epochs and seeds; `auto` has one choice, and guards that.
_QUICK = _Bounds(
    samples=(0, 64, 256),
    most=24,
    judge=64,
    epochs=12,
    seeds=1,
    part_seeds=1,
    splits=1,
    parts=("selectors", "coverage"),
    covered=(64, 256),
    choices=CHOICES[:1],
    strategies=("scratch",),
)
#: Families of networks held out of imported logs: the others have too few workloads to be judged by.
_LOGGED_HELD = ("inception", "mobilenet", "vgg")
#: Most candidates of a workload that the target may measure and source devices did, of imported logs: they
#: have hundreds of workloads.
_LOGGED_POOL = 8
#: The strategy that users get.
_DEFAULT = "auto"
#: What a run compares with, unless it names fewer.
_BASELINES = tuple(one.name for one in baselines())


@dataclass(frozen=True, slots=True)
class _Run:
    """One set of devices with everything that was run on it."""

    devices: DeviceSet
    table: CurveTable


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[_Run]]:
    """Run everything.

    Args:
        options: The command line.
        folder: For what lasts as long as the run: a store of imported logs, leave-one-device-out scores.
    """
    started = time.monotonic()
    sets = device_sets(options.store, options.device, folder, options.most, options.seed)
    until = started + (options.seconds or float("inf"))
    runs = [_run(one, options, folder, until) for one in sets]
    parts = _parts(sets, options)
    result: dict[str, Any] = {
        "benchmark": "onboarding",
        "quick": options.quick,
        **figures(runs),
        **part_figures(parts),
        "parts": parts,
    }
    result["used"] = [one.name for one in sets]
    if not sets:
        result["skipped"] = "no store: run `make run` first, or give --store"
    result["default"] = _DEFAULT
    result["secs"] = round(time.monotonic() - started, 1)
    result["tables"] = [as_json(run.devices, run.table) for run in runs]
    return result, runs


def _run(one: DeviceSet, options: argparse.Namespace, folder: Path, until: float) -> _Run:
    """The curve of one set, regime by regime: `auto` chooses by what it will be asked."""
    known = tuple(str(device_id) for device_id in one.dataset.device_ids)
    targets = tuple(name for name in known if not options.target or name in options.target)
    if not targets:
        raise SystemExit(
            f"--target {' '.join(options.target)}: no such device in {one.name}; there are {', '.join(known)}"
        )
    wanted = _regimes(one, options)
    held = _held(one, options)
    points = []
    for place, regime in enumerate(wanted):
        plan = CurvePlan(
            cases=CasePlan(
                regimes=(regime,),
                targets=targets,
                seeds=tuple(range(options.seed, options.seed + options.seeds)),
                held=held,
                most_pool=options.pool if one.is_own else min(options.pool, _LOGGED_POOL),
                most_judged=options.judge,
                most_splits=options.splits,
            ),
            contenders=_contenders(options, regime, folder),
            selector=selector_named(options.selector),
            config=TrainConfig(epochs=options.epochs, device="cpu"),
            samples=tuple(options.samples),
            # What a device of the logs has in all is thousands of candidates.
            with_all=one.is_own or not options.quick,
        )
        # Each regime gets its share of what is left.
        now = time.monotonic()
        points += run_curve(
            one.dataset,
            one.workloads,
            plan,
            workers=options.workers,
            until=now + (until - now) / (len(wanted) - place),
            on_case=tell,
            kept=options.keep,
        )
    names = tuple(one.name for one in _strategies(options, Regime.DEVICE_NEW, folder))
    chosen = tuple(f"{_DEFAULT} by {name}" for name in options.selectors)
    return _Run(one, CurveTable(points=points, strategies=(*names, *chosen), default=_DEFAULT))


def _regimes(one: DeviceSet, options: argparse.Namespace) -> list[Regime]:
    """What is new in a set."""
    if options.regime:
        return [Regime(name) for name in options.regime]
    # Other people's tuners searched each device by itself.
    return list(Regime) if one.is_own else [Regime.BOTH_NEW]


def _held(one: DeviceSet, options: argparse.Namespace) -> tuple[str, ...]:
    """Networks to hold out of a set; all in turn where empty."""
    if options.held or one.is_own:
        return tuple(options.held)
    there = networks_to_hold_out(one.dataset, one.workloads)
    return tuple(name for name in _LOGGED_HELD if name in there)


def _strategies(options: argparse.Namespace, regime: Regime, folder: Path) -> list[Strategy]:
    """`auto` and those it is compared with."""
    known = strategies()
    choices = tuple(known[one] for one in options.choices)
    auto = Auto(strategies=choices, regime=regime, cache=folder / "standings")
    return [auto, *(known[name] for name in options.strategies)]


def _contenders(options: argparse.Namespace, regime: Regime, folder: Path) -> tuple[Adapting | FewShot, ...]:
    strategies = _strategies(options, regime, folder)
    selector = selector_named(options.selector)
    found: list[Adapting | FewShot] = [Adapting(one, selector, one.name) for one in strategies]
    found += [
        Adapting(strategies[0], selector_named(name), f"{_DEFAULT} by {name}") for name in options.selectors
    ]
    return (*found, *(one for one in baselines() if one.name in options.baselines))


def figures(runs: Sequence[_Run]) -> dict[str, Any]:
    """The figures that the project is judged by: gains over own devices where there are any.

    Shares of full data are the least over all sets and regimes.
    """
    own = next((run for run in runs if run.devices.is_own), runs[0] if runs else None)
    found: dict[str, Any] = dict.fromkeys(
        (
            "device_new_gain_k64",
            "both_new_gain_k256",
            "k256_of_full",
            "k64_of_full",
            "worst_warm_minus_scratch",
            "adapt_seconds_k256",
        )
    )
    if own is None:
        return found
    for name, regime, k in (
        ("device_new_gain_k64", Regime.DEVICE_NEW, 64),
        ("both_new_gain_k256", Regime.BOTH_NEW, 256),
    ):
        gain = own.table.gain(regime, k)
        found[name] = None if gain is None else round(gain.value, 4)
        found[f"{name}_interval"] = listed(gain)
        found[f"{name}_best_baseline"] = own.table.best_baseline(regime, k)
    for k in (256, 64):
        shares = [
            share
            for run in runs
            for regime in run.table.regimes
            if (share := run.table.share_of_full(regime, k)) is not None
        ]
        found[f"k{k}_of_full"] = round(min(shares), 4) if shares else None
    worst = [one for run in runs if (one := run.table.worst_less_scratch()) is not None]
    if worst:
        found["worst_warm_minus_scratch"], found["worst_warm_minus_scratch_at"] = min(worst)
    spent = [secs for run in runs if (secs := run.table.seconds(_DEFAULT, 256)) is not None]
    found["adapt_seconds_k256"] = round(max(spent), 2) if spent else None
    return found


def _parts(sets: Sequence[DeviceSet], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What stands beside the curve, by name: an entry for each set that it applies to."""
    wanted = {*options.parts, *(["breadth"] if options.breadth else [])}
    names = [name for name in _FULL.parts if name in wanted]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for one in sets:
        how = How(
            seeds=tuple(range(options.seed, options.seed + options.part_seeds)),
            epochs=options.epochs,
            workers=options.workers,
            keep=options.keep,
            selector=options.selector,
            held=_held(one, options),
            most_pool=options.pool if one.is_own else min(options.pool, _LOGGED_POOL),
            most_judged=options.judge,
            most_splits=options.splits if one.is_own else options.splits or 1,
        )
        for name in names:
            if name == "selectors" and one.is_own:
                found[name].append(selectors(one, how))
            elif name == "coverage":
                found[name] += [
                    coverage(one, how, regime, options.covered)
                    for regime in _regimes(one, options)
                    if regime is not Regime.CANDIDATE_NEW
                    and (regime is Regime.DEVICE_NEW or options.regime or not options.quick)
                ]
            elif name == "breadth" and one.is_own:
                found[name].append(breadth(one, how, options.breadth_samples))
            elif name == "across" and not one.is_own and (told := across(one, how)) is not None:
                found[name].append(told)
    return found


def part_figures(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Figures of what stands beside the curve; None where it was not run."""
    found: dict[str, Any] = dict.fromkeys(
        ("interval_coverage", "interval_coverage_runs", "best_selector", "chosen_samples_share")
    )
    stated = [part["by_k"]["all of these"] for part in parts.get("coverage", ()) if part["by_k"]]
    runs = sum(one["runs"] for one in stated)
    if runs:
        covered = sum(one["runs"] * one["top1_covered"] for one in stated)
        found["interval_coverage"], found["interval_coverage_runs"] = round(covered / runs, 4), runs
    for part in parts.get("selectors", ()):
        found["best_selector"], found["chosen_samples_share"] = part["best"], part["share"]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onboarding", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="the same keys from less, in about ten minutes")
    parser.add_argument("--table", type=Path, default=None, help="write the page to this file")
    parser.add_argument("--keep", type=Path, default=None, help="folder of finished cases, not run again")
    parser.add_argument("--store", type=Path, action="append", default=[], help="may be given again")
    parser.add_argument("--device", action="append", default=[], help="device id; may be given again")
    parser.add_argument("--target", action="append", default=[], help="leave out only this device")
    parser.add_argument("--regime", action="append", default=[], choices=[one.value for one in Regime])
    parser.add_argument("--strategies", nargs="*", choices=NAMES)
    parser.add_argument("--choices", nargs="+", choices=NAMES, help="what auto chooses from")
    parser.add_argument("--selector", default=next(iter(SELECTORS)), choices=list(SELECTORS))
    parser.add_argument(
        "--selectors",
        nargs="*",
        default=[],
        choices=list(SELECTORS),
        help="to compare by the default strategy",
    )
    parser.add_argument(
        "--baselines",
        nargs="*",
        choices=_BASELINES,
        default=_BASELINES,
        help="only these; none without a name",
    )
    parser.add_argument("--samples", nargs="+", type=int, help="numbers of samples (k)")
    parser.add_argument("--held", action="append", default=[], help="only this network; may be given again")
    parser.add_argument("--splits", type=int, help="most networks held out in turn; 0 for all")
    parser.add_argument("--pool", type=int, default=64, help="most candidates of a workload learnt from")
    parser.add_argument("--judge", type=int, help="most candidates of a workload judged")
    parser.add_argument("--most", type=int, help="most candidates of a workload kept")
    parser.add_argument("--parts", nargs="*", choices=_FULL.parts, help="beside the curve")
    parser.add_argument("--part-seeds", type=int, help="seeds of what stands beside the curve")
    parser.add_argument("--covered", nargs="+", type=int, help="k at which stated intervals are checked")
    parser.add_argument("--breadth", action="store_true", help="the same as among --parts")
    parser.add_argument("--breadth-samples", nargs="*", type=int, default=[0, 64])
    parser.add_argument("--epochs", type=int, help="epochs of source models")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no further seed after these")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    return parser


def _shown(part: str) -> str:
    """An argument of the command line; of a path the last folders."""
    return str(Path(*Path(part).parts[-3:])) if part.startswith(os.sep) else part


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, run, print."""
    options = _parser().parse_args(arguments)
    for bound, value in asdict(_QUICK if options.quick else _FULL).items():
        if getattr(options, bound) is None:
            setattr(options, bound, value)
    with tempfile.TemporaryDirectory() as made:
        try:
            result, runs = measure(options, Path(made))
        except (DatasetError, StoreError) as error:
            raise SystemExit(str(error)) from error
    if options.table is not None:
        given = [part for part in (arguments or sys.argv[1:]) if part != "--json"]
        # Where things lie on this host is nobody's business.
        shown_arguments = [_shown(part) for part in given]
        command = f"python -m benchmarks.onboarding {shlex.join(shown_arguments)}"
        shown = {
            name: value
            for name, value in result.items()
            if name not in {"tables", "parts", "benchmark", "secs"}
        }
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(
            page([(run.devices, run.table) for run in runs], shown, result["parts"], command)
        )
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
