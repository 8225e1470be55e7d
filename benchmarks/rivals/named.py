"""The rivals by their names, and comparisons that go on where they stopped: scores lie in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from benchmarks.harness import Figures, kept, read_kept
from benchmarks.rivals.base import NearestDevice
from benchmarks.rivals.mlp import SummaryMlp
from benchmarks.rivals.tlp import PublishedTlp
from benchmarks.rivals.trees import BoostedTrees
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.evaluate.compare import Fit, FitScores, run_fits
from transfer.evaluate.rankers import Ranker
from transfer.train.state import digest
from transfer.train.trainers import TlpConfig

#: Attributes of rankers that tell how they learn, beside their name.
_SETTINGS = ("config", "grid", "rounds")


def run_kept_fits(fits: Sequence[Fit], dataset: Dataset, folder: Path, workers: int) -> Iterator[FitScores]:
    """As of `run_fits`, but what is kept in the folder is read, and the rest is done and kept.

    A file holds what one ranker said of the test rows of one split with one seed. Its name follows from
    everything that scores follow from (dataset, rows, ranker, settings, seed) but the code: delete the folder
    when a ranker was changed.
    """
    arrays = (getattr(dataset.features, field.name) for field in fields(dataset.features))
    data = digest(
        np.array(dataset.candidate_ids),
        np.array(dataset.device_ids),
        dataset.group,
        dataset.latency_secs,
        dataset.failed,
        dataset.hardware,
        *(array for array in arrays if array is not None),
    )
    # Before any ranker is fitted: names follow from what it was told.
    paths = [folder / f"{fit.ranker.name}-{_name(fit, data)}.json" for fit in fits]
    missing = [fit for fit, path in zip(fits, paths, strict=True) if read_kept(path) is None]
    made = run_fits(missing, dataset, workers=workers)
    for path in paths:
        found = kept(path, lambda: _values(next(made)))
        yield {name: np.array(values) for name, values in found["scores"].items()}, found["seconds"]


def _name(fit: Fit, data: str) -> str:
    ranker, split = fit.ranker, fit.split
    settings = {name: repr(getattr(ranker, name)) for name in _SETTINGS if hasattr(ranker, name)}
    told = repr((data, ranker.name, settings, split.sources, split.targets, fit.fit_seed))
    parts = (told, digest(split.train), digest(split.test))
    return hashlib.blake2b("".join(parts).encode(), digest_size=12).hexdigest()


def _values(found: FitScores) -> Figures:
    scores, seconds = found
    return {"scores": {name: values.tolist() for name, values in scores.items()}, "seconds": seconds}


#: A thousand rows are one published batch, so 50 epochs are 50 steps: MTL-TLP with batches that give more.
_SMALL_BATCH = 64
SMALL_BATCHES = f"mtl-tlp-batch-{_SMALL_BATCH}"
#: Those that read the published features of TLP; they take minutes for a thousand rows.
_PUBLISHED: dict[str, Callable[[], Ranker]] = {
    "tlp": PublishedTlp,
    "mtl-tlp": lambda: PublishedTlp(multi_task=True),
    SMALL_BATCHES: lambda: PublishedTlp(TlpConfig(batch=_SMALL_BATCH), multi_task=True),
}
PUBLISHED = tuple(_PUBLISHED)
#: All that need nothing but a store; TVM's own need its programs built again (`benchmarks.learning_tvm`).
RIVALS: dict[str, Callable[[], Ranker]] = {
    "xgboost": lambda: BoostedTrees("xgboost"),
    "lightgbm": lambda: BoostedTrees("lightgbm"),
    "xgboost-pooled": lambda: BoostedTrees("xgboost", pooled=True),
    "lightgbm-pooled": lambda: BoostedTrees("lightgbm", pooled=True),
    "mlp": SummaryMlp,
    "nearest-device": lambda: NearestDevice("nearest"),
    "mean-rank": lambda: NearestDevice("mean"),
    **_PUBLISHED,
}


def make_rival(name: str) -> Ranker:
    """The ranker with a name of `RIVALS`.

    Raises:
        TransferError: There is none.
    """
    if name not in RIVALS:
        raise TransferError(f"unknown rival {name!r}; known: {', '.join(RIVALS)}")
    return RIVALS[name]()
