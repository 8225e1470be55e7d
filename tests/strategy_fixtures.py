"""Strategies of adaptation that tests look into, or that do harm on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from transfer.adapt.base import Adapted
from transfer.adapt.nearest import Nearest
from transfer.data.dataset import Dataset


@dataclass(frozen=True)
class LikeNearest:
    """Gives the nearest head, and tells what it was made of."""

    name: str
    #: Told the data, the few-shot rows and the rows of the sources.
    sees: Callable[[Dataset, np.ndarray, np.ndarray], None] = lambda *_: None
    #: Changes the head, given with its device.
    changes: Callable[[Adapted, str], None] = lambda *_: None
    least_samples: int = 0

    def adapt(self, source: Any, dataset: Dataset, device: str, few_shot: np.ndarray, **how: Any) -> Adapted:
        self.sees(dataset, few_shot, how["source_rows"])
        adapted = Nearest().adapt(source, dataset, device, few_shot, **how)
        self.changes(adapted, device)
        return adapted


def backwards() -> LikeNearest:
    """The nearest head with its sign turned: as harmful as a head can be."""

    def turn(adapted: Adapted, device: str) -> None:
        for one in list(adapted.model.head(device).parameters())[-2:]:
            one.data.neg_()
        adapted.model.trees = None  # they would put half of it right

    return LikeNearest("backwards", changes=turn)
