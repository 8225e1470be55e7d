"""The whole story of an onboarding in one fold: what heads are worth on workloads that they never saw.

`onboard` trains the source devices on the training workloads, adapts to the target with k samples drawn from
those workloads, and scores the held-out workloads. Beside it stand the same network without transfer
(scratch), without adaptation (nearest), and with all target data (full). Called by the demo, whose folds
`transfer.evaluate.compare` judges; knows nothing of how data were collected.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from transfer.adapt.base import FewShotTask, Strategy, unmeasured
from transfer.adapt.guard import Scratch
from transfer.adapt.heads import with_target_head
from transfer.adapt.sample_selection import draw_few_shot
from transfer.arrays import Floats
from transfer.data.dataset import Dataset
from transfer.evaluate.compare import FitScores, Fold
from transfer.model.inputs import torch_threads
from transfer.train.rows import TrainConfig, trainable_devices
from transfer.train.training import train


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingPlan:
    """What `onboard` trains, and how."""

    target: str
    #: Target measurements that adaptation may see (k).
    samples: int
    config: TrainConfig
    strategy: Strategy


def onboard(fold: Fold, dataset: Dataset, plan: OnboardingPlan) -> FitScores:
    """Onboard the target in one fold, and score its test rows, on one thread.

    Args:
        fold: Its place is added to its seed.
        dataset: Candidates of all devices, the target included; its other devices are the sources.
        plan: What to train.

    Returns:
        Scores of `source` on each source device; of `warm`, `nearest`, `scratch` and `full` on the target.

    Raises:
        TransferError: The fold cannot be trained.
    """
    started = time.perf_counter()
    split, seed, target = fold.split, fold.seed + fold.place, plan.target
    unseen = unmeasured(dataset, split.test)
    held = unseen.features
    with torch_threads(1):
        sources = [d for d in trainable_devices(dataset, split.train) if d != target]
        model = train(dataset, split.train, config=plan.config, seed=seed, devices=sources).model
        task = FewShotTask(
            source=model,
            dataset=dataset,
            target=target,
            few_shot=draw_few_shot(dataset, target, split.train, plan.samples, seed=seed),
            source_rows=split.train,
            config=plan.config,
            seed=seed,
        )
        nearest = with_target_head(model, task.visible(), target, seed=seed)
        full = train(dataset, split.train, config=plan.config, seed=seed).model
        scores: dict[tuple[str, str], Floats] = {
            **{("source", device_id): model.score(held, device_id) for device_id in sources},
            ("nearest", target): nearest.score(held, target),
            ("full", target): full.score(held, target),
        }
        for way, strategy in (("warm", plan.strategy), ("scratch", Scratch())):
            # Nobody has measured a held-out workload: source devices' labels must not help.
            scores[way, target] = strategy.adapt(task).score(unseen, np.arange(len(unseen)))
    return scores, time.perf_counter() - started
