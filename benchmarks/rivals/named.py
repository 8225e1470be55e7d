"""Published TLP, all rivals by their names, and fits whose scores lie in a folder, so that a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from agents.records import content_hash
from benchmarks.harness import Figures, run_kept
from benchmarks.rivals.base import EachDevice, of_device
from benchmarks.rivals.trees import BoostedTrees
from transfer.adapt.summary_nets import SummaryNets, fit_nets
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.evaluate.compare import Fit, FitScores, run_fits
from transfer.evaluate.rankers import Ranker
from transfer.features.blocks import LAYOUTS, PublishedLayout
from transfer.model.mtl_tlp import MtlTLP
from transfer.train.state import digest
from transfer.train.trainers import TlpConfig, train_mtl_tlp


class PublishedTlp:
    """MTL-TLP: one network with a decoder a device; of one device it is TLP.

    It reads the published features of the dataset.

    Args:
        config: How to train.
    """

    def __init__(self, config: TlpConfig | None = None) -> None:
        self.config = config or TlpConfig()
        self._models: dict[str, MtlTLP] = {}

    @property
    def name(self) -> str:
        """`mtl-tlp`, and its batch if that is another than published."""
        batch = self.config.batch
        return "mtl-tlp" if batch == TlpConfig().batch else f"mtl-tlp-batch-{batch}"

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train from nothing. See `Ranker.fit`."""
        model, _ = train_mtl_tlp(
            dataset,
            rows,
            layout=self._layout(dataset),
            config=self.config,
            seed=seed,
            devices=tuple(devices),
        )
        self._models = dict.fromkeys(devices, model)

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """In the order of the decoder's sums over the steps. See `Ranker.score`."""
        self._layout(dataset)
        return of_device(self, self._models, device_id).score(dataset.features.take(rows), device_id)

    def _layout(self, dataset: Dataset) -> PublishedLayout:
        if dataset.features.published is None:
            raise TransferError(
                f"{self.name} reads published features, and the dataset has none; read it with them"
            )
        shape = dataset.features.published.shape[1:]
        return next(layout for layout in LAYOUTS.values() if (layout.steps, layout.width) == shape)


class Perceptron:
    """A plain network on the summary of a candidate, one for each device: features without a sequence."""

    name = "mlp"

    def __init__(self) -> None:
        self._nets: dict[str, SummaryNets] = {}

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train from nothing. See `Ranker.fit`."""
        part = dataset.take(rows)
        self._nets = {device_id: fit_nets(part, device_id, 1, seed) for device_id in devices}

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Logarithms of relative speeds. See `Ranker.score`."""
        nets = of_device(self, self._nets, device_id)
        return np.asarray(nets.log_scores(dataset.features.take(rows).summary)[0])


#: Attributes of rankers that tell how they learn, beside their name.
_SETTINGS = ("config", "grid", "rounds")


def run_kept_fits(fits: Sequence[Fit], dataset: Dataset, folder: Path, workers: int) -> Iterator[FitScores]:
    """As of `run_fits`, but what is kept in the folder is read, and the rest is done and kept.

    A file holds what one ranker said of the test rows of one split with one seed. Its name follows from
    everything that scores follow from (candidates, rows, ranker, settings, seed) but the code: delete the
    folder when a ranker was changed.
    """
    names = np.array(dataset.candidate_ids), np.array(dataset.device_ids)
    data = digest(*names, dataset.group, dataset.latency_secs, dataset.failed, dataset.hardware)
    # Before any ranker is fitted: names follow from what it was told.
    jobs = {folder / f"{fit.ranker.name}-{_name(fit, data)}.json": fit for fit in fits}
    values = run_kept(partial(_fitted, dataset), jobs, workers, of="the comparison")
    for fit, found in zip(fits, values, strict=True):
        scores = {(fit.ranker.name, name): np.array(values) for name, values in found["scores"].items()}
        yield scores, found["seconds"]


def _name(fit: Fit, data: str) -> str:
    split, like = fit.split, getattr(fit.ranker, "like", fit.ranker)
    settings = [repr(getattr(like, name, None)) for name in _SETTINGS]
    told = repr((fit.ranker.name, settings, split.sources, split.targets, fit.fit_seed))
    return content_hash(told, data, digest(split.train, split.test))


def _fitted(dataset: Dataset, fit: Fit) -> Figures:
    [(scores, seconds)] = run_fits([fit], dataset)
    return {"scores": {name: values.tolist() for (_, name), values in scores.items()}, "seconds": seconds}


#: A thousand rows are one published batch, so 50 epochs are 50 steps: MTL-TLP with batches that give more.
_SMALL_BATCH = 64
SMALL_BATCHES = f"mtl-tlp-batch-{_SMALL_BATCH}"
#: Those that read the published features of TLP; they take minutes for a thousand rows.
_PUBLISHED: dict[str, Callable[[], Ranker]] = {
    "tlp": lambda: EachDevice(PublishedTlp(), "tlp"),
    "mtl-tlp": PublishedTlp,
    SMALL_BATCHES: lambda: PublishedTlp(TlpConfig(batch=_SMALL_BATCH)),
}
PUBLISHED = tuple(_PUBLISHED)
#: All that need nothing but a store; TVM's own need its programs built again (`benchmarks.learning`).
RIVALS: dict[str, Callable[[], Ranker]] = {
    "xgboost": lambda: EachDevice(BoostedTrees("xgboost")),
    "lightgbm": lambda: EachDevice(BoostedTrees("lightgbm")),
    "xgboost-pooled": lambda: BoostedTrees("xgboost", pooled=True),
    "lightgbm-pooled": lambda: BoostedTrees("lightgbm", pooled=True),
    "mlp": Perceptron,
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
