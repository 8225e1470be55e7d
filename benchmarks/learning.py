"""What the learning core is worth on held-out workloads: `python -m benchmarks.learning --json`.

Trains the model of this project and other people's rankers on the same rows of one store, whole networks (or
workloads) held out, and judges them on the same candidates. The store is one that is given, else the AutoTVM
logs beside the checkout are imported. `--table FILE` writes what `docs/results/` keeps: rankers by device,
the curve of training on less (`--shares`), and joint heads against single ones.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from agents.records import DeviceId
from benchmarks.harness import Figures, Option, benchmark, command_of, working_folder, write_page
from benchmarks.learning_failures import FailuresTold, failures_table, judge_failures
from benchmarks.learning_lost import as_sentence, lost_by_published
from benchmarks.learning_parts import (
    NETWORK,
    OURS,
    THINNED,
    TVM_RANKERS,
    make_rankers,
    sampled,
    thinned_name,
)
from benchmarks.learning_tables import document, judged
from benchmarks.rivals.kept_scores import run_kept_fits
from benchmarks.rivals.named import PUBLISHED, RIVALS
from benchmarks.training import LOGS, import_devices
from fleet.models.versions import load_snapshot, train_config
from fleet.store.store import Store
from transfer.data.dataset import Dataset
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits
from transfer.evaluate.compare import Finished, fits_of, judge_fits, run_fits
from transfer.evaluate.comparison import Comparison

#: Devices of the logs that are told apart; `x86_hokusai` is the i7-3770 again.
DEVICES = ("arm-cortex-a72", "x86-amd3700x", "x86-inteli7-3770")
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
    slow_seeds: Annotated[int, Option("seeds of published TLP and of the curve", least=1)] = 1
    seed: Annotated[int, Option("the first seed")] = 0
    workers: Annotated[int, Option("processes that fit side by side", least=1)] = 1
    keep: Annotated[Path | None, Option("folder of finished fits, so that a stopped run goes on")] = None
    shares: Annotated[
        tuple[float, ...],
        Option("shares of the rows for the curve of training on less", may_be_empty=True),
    ] = ()
    failures: Annotated[bool, Option("judge the validity output too")] = False
    rankers: Annotated[
        tuple[str, ...],
        Option("who is compared", choices=(*OURS, NETWORK, *TVM_RANKERS, *RIVALS)),
    ] = RANKERS


def measure(options: Options) -> Figures:
    """Run the comparison, and write its page."""
    if options.store is None and not LOGS.is_dir():
        return {"benchmark": "learning", "skipped": f"no logs at {LOGS.name} and no --store"}
    if options.shares and OURS[0] not in options.rankers:
        raise SystemExit(f"--shares compares with {OURS[0]}: name it in --rankers")
    with working_folder() as folder:
        result, comparison = compared(options, folder)
    if options.table is not None:
        write_page(options.table, table(comparison, result, options.title, command_of("learning", options)))
    return result


def compared(options: Options, folder: Path) -> tuple[Figures, Comparison]:
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
    whole = snapshot
    snapshot = sampled(snapshot, options.judge, options.seed)
    dataset = snapshot.dataset

    # The same workloads are held out by every seed: intervals are over workloads and seeds.
    def held_out(of: Dataset) -> list[Split]:
        kind = SplitKind(options.split)
        made = make_splits(kind, of, snapshot.workloads, folds=options.folds, seed=options.seed)
        names = [one.name for one in made]
        if unknown := set(options.held) - set(names):
            raise SystemExit(
                f"--held {' '.join(sorted(unknown))}: no such split; there are {', '.join(names)}"
            )
        return [one for one in made if not options.held or one.name in options.held]

    wanted = held_out(dataset)

    def splits_of(seed: int) -> list[Split]:
        return [replace(one, train=few_of_each(dataset, one.train, options.each, seed)) for one in wanted]

    thinned = [thinned_name(by, share) for share in options.shares for by in THINNED]
    started = time.perf_counter()
    fits = fits_of(
        make_rankers(options.rankers, options.shares, reader, snapshot, train_config(options.epochs)),
        splits_of,
        range(options.seed, options.seed + options.seeds),
    )
    # Rankers that take minutes for a thousand rows run with fewer seeds.
    slow, late = {*PUBLISHED, *thinned}, options.seed + options.slow_seeds
    fits = [fit for fit in fits if fit.ranker.name not in slow or fit.seed < late]
    if options.keep is None:
        scores = run_fits(fits, dataset, workers=options.workers)
    else:
        scores = run_kept_fits(fits, dataset, options.keep, options.workers)
    comparison = judge_fits(fits, scores, dataset, on_progress=_tell)
    result = {
        "benchmark": "learning",
        "split": options.split,
        "train_candidates_each": options.each,
        "judged_candidates_each": options.judge,
        "candidates": len(dataset),
        "workloads": len(dataset.workload_ids),
        "epochs": options.epochs,
        "shares": list(options.shares),
        "slow_seeds": options.slow_seeds,
        "secs": round(time.perf_counter() - started, 1),
        **comparison.as_json(),
    }
    if reads_published:
        result["lost_by_published"] = lost_by_published(reader, snapshot)
    if options.failures:
        told = judge_failures(
            whole.dataset,
            held_out(whole.dataset),
            train_config(options.epochs),
            seed=options.seed,
            each=options.each,
        )
        result["failures"] = [asdict(one) for one in told]
    return result, comparison


def table(comparison: Comparison, result: Figures, title: str, command: str) -> list[str]:
    """Everything as Markdown, the command that made it on top."""
    head = [
        f"# {title}",
        "",
        f"`{command}`",
        "",
        f"{result['candidates']} candidates of {result['workloads']} workloads; trained on at most "
        f"{result['train_candidates_each']} of each workload, {result['epochs']} epochs of the model. "
        f"Held out in turn: {', '.join(comparison.splits)}. Seeds {', '.join(map(str, comparison.seeds))}. "
        f"Workloads (candidates) judged: {judged(comparison)}. In brackets: 90 % intervals (bootstrap over "
        f"workloads and seeds; TLP as published and the curve ran with {result['slow_seeds']}); differences "
        "are paired. `nearest-device`, where it stands, is told what other devices measured of the very "
        "candidates that are judged: it is no cost model, and not among the baselines.",
    ]
    if "lost_by_published" in result:
        head += ["", as_sentence(result["lost_by_published"])]
    lines = document(comparison, result["shares"], head)
    told = [FailuresTold(**one) for one in result.get("failures", [])]
    if told:
        lines += ["", "## Candidates that fail", "", *failures_table(told)]
    return lines


def _tell(done: Finished) -> None:
    print(
        f"{done.done}/{done.total} {done.ranker} {done.split} seed {done.seed}: {done.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


main = benchmark("learning", __doc__, Options, measure)

if __name__ == "__main__":
    main()
