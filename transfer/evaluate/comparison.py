"""What a comparison of rankers found: metrics by workload and seed, intervals and paired differences.

Made by `transfer.evaluate.compare`, read by `fleet eval` and the scripts of the results. Nothing here fits or
scores.

Legend: S seeds, G workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.records import WorkloadId
from transfer.data.intervals import LEVEL, Estimate
from transfer.data.metrics import MEASURES, Metrics
from transfer.errors import DatasetError
from transfer.evaluate import evaluator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """How rankers did on the same workloads with the same seeds."""

    rankers: tuple[str, ...]
    #: Devices that were judged.
    device_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    #: Names of the splits (of the first seed).
    splits: tuple[str, ...]
    #: Workloads that the metrics' groups point at.
    workload_ids: tuple[WorkloadId, ...]
    #: Metrics of each seed by (ranker, device): the same workloads in the same order for all of a device. A
    #: ranker may have run with the first few seeds only.
    metrics: Mapping[tuple[str, str], tuple[Metrics, ...]]
    #: Why a device was not judged, by device.
    left_out: Mapping[str, str]
    #: Mean wall seconds of fitting one split and scoring its test rows, by ranker.
    seconds: Mapping[str, float]
    #: Noise floor used in `noise_regret`, by device; those not listed had none.
    noise_floors: Mapping[str, float] = field(default_factory=dict)

    def estimate(self, ranker: str, device_id: str, measure: str, level: float = LEVEL) -> Estimate:
        """One of `MEASURES` with its interval over workloads and seeds, which holds `level` of the resamples.

        Raises:
            DatasetError: Ranker, device or measure is unknown.
        """
        return evaluator.estimate(self._runs(ranker, device_id, measure), measure, level)

    def difference(
        self, ranker: str, other: str, device_id: str, measure: str, level: float = LEVEL
    ) -> Estimate:
        """`ranker` less `other`, with the interval of a paired bootstrap; arguments as for `estimate`."""
        mine, theirs = (self._runs(name, device_id, measure) for name in (ranker, other))
        return evaluator.difference(mine, theirs, measure, level)

    def _runs(self, ranker: str, device_id: str, measure: str) -> tuple[Metrics, ...]:
        if (ranker, device_id) not in self.metrics or measure not in MEASURES:
            raise DatasetError(
                f"no {measure!r} of {ranker!r} on {device_id!r}; compared were {', '.join(self.rankers)} on "
                f"{', '.join(self.device_ids)} by {', '.join(MEASURES)}"
            )
        return self.metrics[ranker, device_id]

    def as_json(self, level: float = LEVEL) -> dict[str, Any]:
        """Everything, JSON-ready: estimates as [value, low, high], and what is behind them by workload."""
        devices: dict[str, Any] = {}
        for device_id in self.device_ids:
            first = self.metrics[self.rankers[0], device_id][0]
            devices[device_id] = {
                "workloads": [self.workload_ids[index] for index in first.groups],
                "candidates": first.counts.tolist(),
                "noise_floor": self.noise_floors.get(device_id),
                # Extra time of a random choice.
                "random_regret": float((first.random_of_1_secs / first.best_secs - 1).mean()),
                "rankers": {ranker: self._ranker_json(ranker, device_id, level) for ranker in self.rankers},
                "differences": {
                    f"{self.rankers[0]} less {other}": {
                        measure: _listed(self.difference(self.rankers[0], other, device_id, measure, level))
                        for measure in MEASURES
                        if not measure.startswith("random")
                    }
                    for other in self.rankers[1:]
                },
            }
        return {
            "rankers": list(self.rankers),
            "seeds": list(self.seeds),
            "splits": list(self.splits),
            "level": level,
            "devices": devices,
            "left_out": dict(self.left_out),
            "seconds": dict(self.seconds),
        }

    def _ranker_json(self, ranker: str, device_id: str, level: float) -> dict[str, Any]:
        runs = self.metrics[ranker, device_id]
        return {
            **{name: _listed(self.estimate(ranker, device_id, name, level)) for name in MEASURES},
            "by_workload": {
                name: [getattr(run, f"{name}_by_workload").tolist() for run in runs]
                for name in ("top1", "top5", "pairwise", "tau", "regret")
            },
        }


def _listed(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]
