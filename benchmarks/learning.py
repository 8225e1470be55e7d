"""What the learning core is worth on held-out networks: `python -m benchmarks.learning --json`.

Trains the model of this project and its baselines on the same rows of one store, whole networks held out, and
judges them on the same candidates. The store is one that is given, else the AutoTVM logs beside the checkout
are imported. `--table FILE` writes the table that `docs/results/` keeps.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId
from benchmarks.training import LOGS, import_devices
from fleet.models.evaluation import BASELINES, make_baseline
from fleet.models.learning import Snapshot, load_snapshot, train_config
from fleet.store.store import Store, StoreReader
from transfer.baselines.base import Ranker
from transfer.compare import Finished, compare
from transfer.comparison import Comparison
from transfer.intervals import Estimate
from transfer.rankers import ModelRanker, SingleRanker
from transfer.splits import Split, SplitKind, make_splits

#: Devices of the logs that are told apart; `x86_hokusai` is the i7-3770 again.
DEVICES = ("arm-cortex-a72", "x86-amd3700x", "x86-inteli7-3770")
RANKERS = ("model", "model-single", "xgboost", "xgboost-pooled", "lightgbm", "lightgbm-pooled", "mlp")
_MEASURES = ("top1", "top5", "weighted_top1", "pairwise", "tau")


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Comparison]:
    """Run the comparison.

    Args:
        options: The command line.
        folder: For a store of imported logs.
    """
    store: Path = options.store or folder / "store"
    if options.store is None:
        import_devices(store)
    reader = Store.read(store)
    devices = [DeviceId(device_id) for device_id in options.device or DEVICES]
    snapshot = _sampled(load_snapshot(reader, device_ids=devices), options.judge, options.seed)
    kind = SplitKind(options.split)

    def splits_of(seed: int) -> list[Split]:
        found = make_splits(kind, snapshot.dataset, snapshot.workloads, folds=options.folds, seed=seed)
        wanted = [one for one in found if not options.held or one.name in options.held]
        return [replace(one, train=_few_of_each(snapshot, one.train, options.each, seed)) for one in wanted]

    started = time.perf_counter()
    comparison = compare(
        [_ranker(name, reader, snapshot, options.epochs) for name in options.rankers],
        snapshot.dataset,
        splits_of,
        range(options.seed, options.seed + options.seeds),
        workers=options.workers,
        on_progress=_tell,
    )
    result = {
        "benchmark": "learning",
        "split": options.split,
        "train_candidates_each": options.each,
        "judged_candidates_each": options.judge,
        "candidates": len(snapshot.dataset),
        "workloads": len(snapshot.dataset.workload_ids),
        "epochs": options.epochs,
        "secs": round(time.perf_counter() - started, 1),
        **comparison.as_json(),
    }
    return result, comparison


def _sampled(snapshot: Snapshot, most: int, seed: int) -> Snapshot:
    """At most so many measured candidates of each workload."""
    measured = np.flatnonzero(np.isfinite(snapshot.dataset.latency_secs).any(axis=1))
    return replace(snapshot, dataset=snapshot.dataset.take(_few_of_each(snapshot, measured, most, seed)))


def _few_of_each(snapshot: Snapshot, rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """A random choice of at most `most` rows of each workload, in ascending order."""
    random = np.random.default_rng(seed)
    group = snapshot.dataset.group[rows]
    shuffled = random.permutation(len(rows))
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    ordered = group[order]
    starts = np.searchsorted(ordered, ordered)
    return np.sort(rows[order[np.arange(len(order)) - starts < most]])


def _ranker(name: str, reader: StoreReader, snapshot: Snapshot, epochs: int) -> Ranker:
    if name == "model":
        return ModelRanker(config=train_config(epochs))
    if name == "model-single":
        return SingleRanker(config=train_config(epochs))
    return make_baseline(name, reader, snapshot)


def _tell(done: Finished) -> None:
    print(
        f"{done.done}/{done.total} {done.ranker} {done.split} seed {done.seed}: {done.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def table(comparison: Comparison, result: dict[str, Any], command: str) -> str:
    """The comparison as Markdown, the command that made it on top."""
    lines = [
        f"`{command}`",
        "",
        f"{result['candidates']} candidates of {result['workloads']} workloads; trained on at most "
        f"{result['train_candidates_each']} of each workload, judged on at most "
        f"{result['judged_candidates_each']}; held out in turn: {', '.join(comparison.splits)}; seeds "
        f"{', '.join(map(str, comparison.seeds))}. In brackets: 90 % intervals (bootstrap over workloads and "
        "seeds); the last columns are paired differences of the first ranker to this one.",
        "",
    ]
    first = comparison.rankers[0]
    for device_id in comparison.device_ids:
        judged = comparison.metrics[first, device_id][0]
        lines += [
            f"## {device_id}",
            "",
            f"{len(judged.groups)} workloads, {int(np.sum(judged.counts))} candidates; a random choice has "
            f"top-1 {judged.random_top1:.3f} and top-5 {judged.random_top5:.3f}.",
            "",
            "| ranker | top-1 | top-5 | network top-1 | pairwise | tau | top-1 less | top-5 less |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for ranker in comparison.rankers:
            cells = [_spanned(comparison.estimate(ranker, device_id, name)) for name in _MEASURES[:2]]
            cells += [f"{comparison.estimate(ranker, device_id, name).value:.3f}" for name in _MEASURES[2:]]
            cells += [
                ""
                if ranker == first
                else _spanned(comparison.difference(first, ranker, device_id, name), "+")
                for name in _MEASURES[:2]
            ]
            lines.append(f"| {ranker} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _spanned(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--table", type=Path, default=None, help="write the table to this file")
    parser.add_argument("--store", type=Path, default=None, help="store to learn from")
    parser.add_argument("--device", action="append", default=None, help="device id; may be given again")
    parser.add_argument("--split", choices=[kind.value for kind in SplitKind], default="by-network")
    parser.add_argument("--held", action="append", default=None, help="only this split; may be given again")
    parser.add_argument("--folds", type=int, default=3, help="parts of a split by workload")
    parser.add_argument("--each", type=int, default=64, help="most training candidates of a workload")
    parser.add_argument(
        "--judge", type=int, default=256, help="most candidates of a workload that are judged"
    )
    parser.add_argument("--epochs", type=int, default=40, help="epochs of the model of this project")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1, help="processes that fit side by side")
    known = ("model", "model-single", *BASELINES)
    parser.add_argument("--rankers", nargs="+", choices=known, default=list(RANKERS))
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    options = _parser().parse_args(arguments)
    if options.store is None and not LOGS.is_dir():
        print(json.dumps({"benchmark": "learning", "skipped": f"no logs at {LOGS.name} and no --store"}))
        return
    with tempfile.TemporaryDirectory() as made:
        result, comparison = measure(options, Path(made))
    if options.table is not None:
        given = [part for part in (arguments or sys.argv[1:]) if part != "--json"]
        command = f"python -m benchmarks.learning {shlex.join(given)}"
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(table(comparison, result, command))
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
