"""TLP and MTL-TLP as rankers among the rivals; trained by `transfer.train.published_procedure`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rivals.base import unknown_device
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.blocks import LAYOUTS, PublishedLayout
from transfer.model.mtl_tlp import MtlTLP
from transfer.train.trainers import TlpConfig, train_mtl_tlp


class PublishedTlp:
    """TLP: one network a device; with `multi_task`, MTL-TLP: one network with a decoder a device.

    It reads the published features of the dataset.

    Args:
        config: How to train.
        multi_task: Train all devices at once.
    """

    def __init__(self, config: TlpConfig | None = None, *, multi_task: bool = False) -> None:
        self.config = config or TlpConfig()
        self.multi_task = multi_task
        self._models: dict[str, MtlTLP] = {}

    @property
    def name(self) -> str:
        """`tlp` or `mtl-tlp`, and its batch if that is another than published."""
        batch = self.config.batch
        small = "" if batch == TlpConfig().batch else f"-batch-{batch}"
        return ("mtl-tlp" if self.multi_task else "tlp") + small

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train from nothing. See `Ranker.fit`."""
        self._models, layout = {}, self._layout(dataset)
        for members in [tuple(devices)] if self.multi_task else [(device_id,) for device_id in devices]:
            model, _ = train_mtl_tlp(
                dataset, rows, layout=layout, config=self.config, seed=seed, devices=members
            )
            self._models |= dict.fromkeys(members, model)

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """In the order of the decoder's sums over the steps. See `Ranker.score`."""
        self._layout(dataset)
        if device_id not in self._models:
            raise unknown_device(self, device_id, tuple(self._models))
        return self._models[device_id].score(dataset.features.take(rows), device_id)

    def _layout(self, dataset: Dataset) -> PublishedLayout:
        if dataset.features.published is None:
            raise TransferError(
                f"{self.name} reads published features, and the dataset has none; read it with them"
            )
        shape = dataset.features.published.shape[1:]
        return next(layout for layout in LAYOUTS.values() if (layout.steps, layout.width) == shape)
