"""Strategies of adaptation that tests look into, or that do harm on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.maml import Maml
from transfer.adapt.nearest import Nearest
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.rows import TrainConfig


@dataclass(frozen=True, slots=True)
class BriefMaml(Maml):
    """A start of meta-learning within seconds."""

    outer_steps: int = 2


def task_of(
    source: FleetTLP | None,
    dataset: Dataset,
    target: str,
    few_shot: np.ndarray,
    source_rows: np.ndarray,
    config: TrainConfig,
    seed: int = 0,
) -> FewShotTask:
    """The task of giving a device a head."""
    return FewShotTask(
        source=source,
        dataset=dataset,
        target=target,
        few_shot=few_shot,
        source_rows=source_rows,
        config=config,
        seed=seed,
    )


@dataclass(frozen=True)
class LikeNearest:
    """Gives the nearest head, and tells what it was made of."""

    name: str
    #: Told the data, the few-shot rows and the rows of the sources.
    sees: Callable[[Dataset, np.ndarray, np.ndarray], None] = lambda *_: None
    #: Changes the head, given with its device.
    changes: Callable[[Adapted, str], None] = lambda *_: None
    least_samples: int = 0

    def adapt(self, task: FewShotTask) -> Adapted:
        self.sees(task.dataset, task.few_shot, task.source_rows)
        adapted = Nearest().adapt(task)
        self.changes(adapted, task.target)
        return adapted


def backwards() -> LikeNearest:
    """The nearest head with its sign turned: as harmful as a head can be."""

    def turn(adapted: Adapted, device: str) -> None:
        for one in list(adapted.model.head(device).parameters())[-2:]:
            one.data.neg_()
        adapted.model.trees = None  # they would put half of it right

    return LikeNearest("backwards", changes=turn)
