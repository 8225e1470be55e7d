"""Source devices' latencies, corrected by the few of the target, and a head that is trained on them.

Where source devices have measured a candidate, what they measured says more of a new device than any feature:
it is carried over by `transfer.adapt.source_model`, which k = 0 suffices for. What comes of it is an estimate
of the target's latency for every candidate that any source device measured, hundreds of times more than k;
the head, which unseen candidates are judged by, is trained on those estimates and on the few measurements. It
has a weight on measured candidates too: a source device's number is one measurement with its noise, which a
head that learnt from thousands smooths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import tune, with_target_head
from transfer.adapt.source_model import SourceModel, fit_source_model
from transfer.adapt.summary_nets import SummaryNets, fit_nets, tune_nets
from transfer.arrays import Floats, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.labels import group_min
from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.model.tlp_model import TlpModel
from transfer.train.rows import trainable_devices
from transfer.train.tree_fit import fit_trees

#: Epochs and learning rate of the head's training, as shares of the configuration's; and most updates, which
#: bounds the time where there are many workloads.
_EPOCH_SHARE, _RATE_SHARE, _MOST_STEPS = 0.4, 0.5, 240
#: What the head's score of a candidate that source devices measured counts beside the estimate (decision 25).
_HEAD_SHARE = 0.5
#: Where source devices measured fewer than this share of the samples, and samples can be compared in so many
#: workloads, estimates say little of this device: trees learn from what was measured, with a second set of
#: them from the samples alone, and the networks go on with the samples and have this share of the weight on
#: unseen candidates (decision 26).
_SHARED, _LEAST_WORKLOADS, _TUNED_SHARE = 0.5, 2, 0.5
#: A candidate that failed on every source device that tried it counts as this many times slower than the head
#: says.
_FAILED_FACTOR = 100.0


@dataclass(frozen=True, slots=True)
class SourceDevices:
    """Carry source devices' latencies over, and train the head on the result, beside the sources' heads.

    Args:
        nets: Small networks in an ensemble with the head on candidates that no source device measured.
        trains_head: Without it only candidates that source devices measured can be ranked, in a fraction of
            the time: enough to compare ways of choosing samples.
    """

    name: str = "source_devices"
    nets: int = 3
    trains_head: bool = True
    least_samples: int = 0

    def adapt(self, task: FewShotTask) -> Adapted:
        """Fit the source devices' part, then the head. Without an ok sample it does what k = 0 gives.

        Raises:
            TransferError: There is no source model, or no source device has a latency.
        """
        source, target, config, seed = task.need_source(self.name), task.target, task.config, task.seed
        part = task.visible(need_few_shot=False)
        sources = [
            str(device_id)
            for device_id in part.device_ids
            if device_id != target and len(part.rows_of(device_id)) >= 2
        ]
        if not sources:
            raise TransferError(
                f"strategy {self.name!r} needs a device beside {target!r} with latencies among the "
                "source rows; use 'finetune_head' or 'scratch'"
            )
        source_model, log_secs = fit_source_model(part, target, sources, seed)
        column = part.column(target)
        latency = part.latency_secs.copy()
        measured = np.isfinite(latency[:, column])
        latency[:, column] = np.where(measured, latency[:, column], np.exp(log_secs))
        estimated = replace(part, latency_secs=latency)
        model = with_target_head(source, part, target, seed=seed)
        everything = np.arange(len(estimated))
        able = trainable_devices(estimated, everything)
        devices = [device_id for device_id in able if device_id == target or device_id in source.device_ids]
        nets, head_share, nets_share = None, 0.0, 0.0
        if self.trains_head and target in devices:
            per_epoch = -(-len(np.unique(estimated.group)) // config.workloads_per_batch)
            epochs = min(round(config.epochs * _EPOCH_SHARE), _MOST_STEPS // per_epoch)
            how = replace(config, epochs=max(1, epochs), learning_rate=config.learning_rate * _RATE_SHARE)
            tune(model, estimated, devices, how, seed)
            alone = _stands_alone(part, target)
            fit_trees(
                model,
                part if alone else estimated,
                everything,
                devices,
                config=config,
                seed=seed,
                alone=target if alone else None,
            )
            head_share = _HEAD_SHARE
            if self.nets:
                nets = fit_nets(estimated, target, self.nets, seed)
                if alone:
                    nets = tune_nets(nets, part, target, seed)
                    nets_share = _TUNED_SHARE
        notes = {
            "sources": sources,
            "estimated": int(np.isfinite(log_secs).sum()),
            "measured": int(measured.sum()),
            "strength": source_model.strength,
        }
        return Adapted(
            device_id=target,
            model=model,
            correction=SourceCorrection(target, source_model, nets, head_share, nets_share),
            notes=notes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SourceCorrection:
    """Scores by what source devices measured and by the head, by the head alone where nobody measured.

    A plain value: two with equal arrays and settings score alike.
    """

    device_id: str
    source_model: SourceModel
    nets: SummaryNets | None = None
    #: Weight of the head on what source devices measured; 0 for a head that was not trained.
    head_share: float = 0.0
    #: Weight of the networks on what they did not; 0 where head, trees and networks count alike.
    nets_share: float = 0.0

    def arrays(self) -> dict[str, Singles]:
        """The learnt numbers, ready for safetensors."""
        values = {field.name: getattr(self.source_model, field.name) for field in fields(SourceModel)}
        if self.nets is not None:
            values |= {field.name: getattr(self.nets, field.name) for field in fields(SummaryNets)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """Everything else, as JSON values."""
        return {
            "device_id": self.device_id,
            "sources": list(self.source_model.sources),
            "strength": self.source_model.strength,
            "head_share": self.head_share,
            "nets_share": self.nets_share,
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, Singles], settings: Mapping[str, Any]) -> SourceCorrection:
        """Inverse of `arrays` and `settings`.

        Raises:
            TransferError: One of them is missing.
        """
        try:
            sources = tuple(map(str, settings["sources"]))
            names = {field.name for field in fields(SummaryNets)} & set(arrays)
            nets = SummaryNets(**{name: arrays[name] for name in names}) if names else None
            rest = {name: array for name, array in arrays.items() if name not in names}
            model = SourceModel(sources=sources, strength=int(settings["strength"]), **rest)
            head_share, nets_share = (float(settings[f"{of}_share"]) for of in ("head", "nets"))
            return cls(str(settings["device_id"]), model, nets, head_share, nets_share)
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(
                f"cannot restore what source devices say: {type(error).__name__}: {error}; "
                "adapt the device again"
            ) from error

    def score(self, model: TlpModel, dataset: Dataset, rows: Rows) -> Floats:
        """Relative speeds in (0, 1], or the head's where nobody measured. See `Adapted.score`."""
        rows = np.asarray(rows, dtype=np.int64)
        around, value = self.source_model.predict(dataset, np.unique(dataset.group[rows]))
        is_estimated = np.isfinite(value)
        is_scored = np.isin(around, rows)
        group = dataset.group[around]
        has_estimated = np.isin(group, group[is_estimated])
        scores = np.full(len(dataset), np.nan)
        # The head is asked about the rows that no source device measured, and where there are such beside
        # measured ones, or where it has a weight on these, about the measured ones too: its level in the
        # workload must be found.
        mixed = np.isin(group, group[is_scored & ~is_estimated]) | (self.head_share > 0)
        ask = (is_scored & ~is_estimated) | (mixed & has_estimated & is_estimated)
        head_values = np.full(len(around), np.nan)
        if ask.any():
            head_values[ask] = -self._log_scores(model, dataset.features.take(around[ask]))
        scores[around[is_scored & ~has_estimated]] = np.exp(-head_values[is_scored & ~has_estimated])
        apart = np.where(is_estimated & np.isfinite(head_values), value - head_values, 0.0)
        count = int(group.max(initial=-1)) + 1
        both = np.bincount(group[is_estimated], minlength=count)
        level = np.bincount(group, apart, count) / np.maximum(1, both)
        failed = dataset.failed[around].any(axis=1) & ~is_estimated
        heads = head_values + level[group]
        if self.head_share:
            value = (1 - self.head_share) * value + self.head_share * heads
        filled = np.where(is_estimated, value, heads + failed * np.log(_FAILED_FACTOR))
        usable = has_estimated & np.isfinite(filled)
        least = group_min(np.where(usable, filled, np.nan)[:, None], group, count)[group, 0]
        chosen = usable & is_scored
        scores[around[chosen]] = np.exp(least[chosen] - filled[chosen])
        return scores[rows]

    def score_unseen(self, model: TlpModel, block: FeatureBlock) -> Floats:
        """The ensemble of head and networks. See `Adapted.score_unseen`."""
        return np.asarray(np.exp(self._log_scores(model, block)))

    def _log_scores(self, model: TlpModel, block: FeatureBlock) -> Floats:
        """Logarithms of relative speeds: a weighted mean over head and trees (in one score) and networks."""
        head = np.log(np.maximum(model.score(block, self.device_id), 1e-12))
        if self.nets is None:
            return np.asarray(head)
        share = self.nets_share or 1 / (2 if model.trees is None else 3)
        return np.asarray((1 - share) * head + share * self.nets.log_scores(block.summary).mean(axis=0))


def _stands_alone(part: Dataset, target_device: str) -> bool:
    """Whether the target has samples to compare, most of which no source device measured."""
    rows = part.rows_of(target_device)
    others = np.delete(part.latency_secs[rows], part.column(target_device), axis=1)
    shared = np.isfinite(others).any(axis=1)
    _, counts = np.unique(part.group[rows], return_counts=True)
    return int((counts > 1).sum()) >= _LEAST_WORKLOADS and float(shared.mean()) < _SHARED
