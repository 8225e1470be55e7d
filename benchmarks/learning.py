"""What the learning core is worth on held-out workloads: `python -m benchmarks.learning --json`.

Trains the model of this project and other people's rankers on the same rows of one store, whole networks (or
workloads) held out, and judges them on the same candidates. The store is one that is given, else the AutoTVM
logs beside the checkout are imported. `--table FILE` writes what `docs/results/` keeps: rankers by device,
the curve of training on less (`--shares`), and joint heads against single ones.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agents.records import DeviceId
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
from fleet.errors import FleetError
from fleet.models.versions import load_snapshot, train_config
from fleet.store.store import Store
from transfer.data.dataset import Dataset
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits
from transfer.errors import TransferError
from transfer.evaluate.compare import Finished, fits_of, judge_fits, run_fits
from transfer.evaluate.comparison import Comparison

#: Devices of the logs that are told apart; `x86_hokusai` is the i7-3770 again.
DEVICES = ("arm-cortex-a72", "x86-amd3700x", "x86-inteli7-3770")
RANKERS = (*OURS, "xgboost", "lightgbm", "lightgbm-pooled", "mlp")
#: Options that say where something lies, and change no figure.
_PLACES = ("--store", "--table", "--keep")


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
        if unknown := set(options.held or ()) - set(names):
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
        "shares": options.shares,
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


def table(comparison: Comparison, result: dict[str, Any], title: str, command: str) -> str:
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
    text = document(comparison, result["shares"], head)
    told = [FailuresTold(**one) for one in result.get("failures", [])]
    if told:
        text += "\n".join(["", "## Candidates that fail", "", *failures_table(told), ""])
    return text


def _tell(done: Finished) -> None:
    print(
        f"{done.done}/{done.total} {done.ranker} {done.split} seed {done.seed}: {done.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _shown(arguments: Sequence[str]) -> str:
    """The command line without the names of this host's folders."""
    shown: list[str] = []
    for part in arguments:
        if shown and shown[-1] in _PLACES:
            shown.append(Path(part).name if shown[-1] == "--table" else shown[-1].strip("-").upper())
        elif part != "--json":
            shown.append(part)
    return shlex.join(shown)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--table", type=Path, default=None, help="write the tables to this file")
    parser.add_argument("--title", default="Learning", help="title of the tables")
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
    parser.add_argument("--slow-seeds", type=int, default=1, help="seeds of published TLP and of the curve")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1, help="processes that fit side by side")
    parser.add_argument(
        "--keep", type=Path, default=None, help="folder of finished fits, so that a stopped run goes on"
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        default=[],
        help="shares of the rows for the curve of training on less",
    )
    parser.add_argument("--failures", action="store_true", help="judge the validity output too")
    known = (*OURS, NETWORK, *TVM_RANKERS, *RIVALS)
    parser.add_argument("--rankers", nargs="+", choices=known, default=list(RANKERS))
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.store is None and not LOGS.is_dir():
        print(json.dumps({"benchmark": "learning", "skipped": f"no logs at {LOGS.name} and no --store"}))
        return
    if options.shares and OURS[0] not in options.rankers:
        raise SystemExit(f"--shares compares with {OURS[0]}: name it in --rankers")
    with tempfile.TemporaryDirectory() as made:
        try:
            result, comparison = measure(options, Path(made))
        except (FleetError, TransferError) as error:  # no such store, or a ranker without its package
            raise SystemExit(str(error)) from error
    if options.table is not None:
        command = f"python -m benchmarks.learning {_shown(given)}"
        options.table.parent.mkdir(parents=True, exist_ok=True)
        options.table.write_text(table(comparison, result, options.title, command))
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
