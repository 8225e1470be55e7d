"""What the learning core is worth on held-out workloads: `python -m benchmarks.learning --json`.

Trains the model of this project and other people's rankers on the same rows of one store, whole networks (or
workloads) held out, and judges them on the same candidates. The store is one that is given, else the AutoTVM
logs beside the checkout are imported. `--table FILE` writes what `docs/results/` keeps.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from agents.records import DeviceId
from benchmarks.harness import Figures, Option, benchmark, command_of, working_folder
from benchmarks.learning_parts import NETWORK, OURS, TVM_RANKERS, make_rankers, sampled
from benchmarks.rivals.kept_scores import run_kept_fits
from benchmarks.rivals.named import PUBLISHED, RIVALS
from benchmarks.tables import page, write_page
from benchmarks.training import LOGS, import_devices
from fleet.models.versions import load_snapshot, train_config
from fleet.store.store import Store
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits
from transfer.evaluate.compare import Finished, fits_of, judge_fits, run_fits

#: Devices of the logs that are told apart; `x86_hokusai` is the i7-3770 again.
DEVICES = ("arm-cortex-a72", "x86-amd3700x", "x86-inteli7-3770")
_NOTE = (
    "In brackets: 90 % intervals (bootstrap over workloads and seeds); differences are paired. "
    "`nearest-device` and `mean-rank` know what other devices measured of the very candidates that are "
    "judged: they are no cost models."
)
RANKERS = (*OURS, "xgboost", "lightgbm", "lightgbm-pooled", "mlp")


@dataclass(frozen=True, slots=True)
class Options:
    """Who learns from what, and on what they are judged."""

    table: Annotated[Path | None, Option("write the tables to this file")] = None
    title: Annotated[str, Option("title of the tables")] = "Learning"
    store: Annotated[Path | None, Option("store to learn from")] = None
    device: Annotated[tuple[str, ...], Option("only this device", is_repeated=True)] = ()
    split: Annotated[str, Option("what is held out", choices=[kind.value for kind in SplitKind])] = (
        "by-network"
    )
    held: Annotated[tuple[str, ...], Option("only this split", is_repeated=True)] = ()
    folds: Annotated[int, Option("parts of a split by workload", least=2)] = 3
    each: Annotated[int, Option("most training candidates of a workload", least=1)] = 64
    judge: Annotated[int, Option("most candidates of a workload that are judged", least=2)] = 256
    epochs: Annotated[int, Option("epochs of the model of this project", least=1)] = 40
    seeds: Annotated[int, Option(least=1)] = 3
    slow_seeds: Annotated[int, Option("seeds of published TLP", least=1)] = 1
    seed: Annotated[int, Option("the first seed")] = 0
    workers: Annotated[int, Option("processes that fit side by side", least=1)] = 1
    keep: Annotated[Path | None, Option("folder of finished fits, so that a stopped run goes on")] = None
    rankers: Annotated[
        tuple[str, ...],
        Option("who is compared", choices=(*OURS, NETWORK, *TVM_RANKERS, *RIVALS)),
    ] = RANKERS


def measure(options: Options) -> Figures:
    """Run the comparison, and write its page."""
    if options.store is None and not LOGS.is_dir():
        return {"benchmark": "learning", "skipped": f"no logs at {LOGS.name} and no --store"}
    with working_folder() as folder:
        result = compared(options, folder)
    if options.table is not None:
        write_page(options.table, page(options.title, command_of("learning", options), result, _NOTE))
    return result


def compared(options: Options, folder: Path) -> Figures:
    """Run the comparison.

    Args:
        options: The command line.
        folder: For a store of imported logs.
    """
    store: Path = options.store or folder / "store"
    if options.store is None:
        import_devices(store)
    reader = Store.read(store)
    chosen = options.device or (DEVICES if options.store is None else ())
    reads_published = bool(set(options.rankers) & set(PUBLISHED))
    snapshot = load_snapshot(
        reader, device_ids=[DeviceId(device_id) for device_id in chosen], published=reads_published
    )
    snapshot = sampled(snapshot, options.judge, options.seed)
    dataset = snapshot.dataset

    # The same workloads are held out by every seed: intervals are over workloads and seeds.
    kind = SplitKind(options.split)
    made = make_splits(kind, dataset, snapshot.workloads, folds=options.folds, seed=options.seed)
    names = [one.name for one in made]
    if unknown := set(options.held) - set(names):
        raise SystemExit(f"--held {' '.join(sorted(unknown))}: no such split; there are {', '.join(names)}")
    wanted = [one for one in made if not options.held or one.name in options.held]

    def splits_of(seed: int) -> list[Split]:
        return [replace(one, train=few_of_each(dataset, one.train, options.each, seed)) for one in wanted]

    started = time.perf_counter()
    fits = fits_of(
        make_rankers(options.rankers, reader, snapshot, train_config(options.epochs)),
        splits_of,
        range(options.seed, options.seed + options.seeds),
    )
    # Rankers that take minutes for a thousand rows run with fewer seeds.
    late = options.seed + options.slow_seeds
    fits = [fit for fit in fits if fit.ranker.name not in PUBLISHED or fit.seed < late]
    if options.keep is None:
        scores = run_fits(fits, dataset, workers=options.workers)
    else:
        scores = run_kept_fits(fits, dataset, options.keep, options.workers)
    comparison = judge_fits(fits, scores, dataset, on_progress=_tell)
    return {
        "benchmark": "learning",
        "split": options.split,
        "train_candidates_each": options.each,
        "judged_candidates_each": options.judge,
        "candidates": len(dataset),
        "workloads": len(dataset.workload_ids),
        "epochs": options.epochs,
        "slow_seeds": options.slow_seeds,
        "secs": time.perf_counter() - started,
        **comparison.as_json(),
    }


def _tell(done: Finished) -> None:
    print(
        f"{done.done}/{done.total} {done.ranker} {done.split} seed {done.seed}: {done.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


main = benchmark("learning", __doc__, Options, measure)

if __name__ == "__main__":
    main()
