"""What `import fleet` offers of models: the head that serves a device, as a thing that scores schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.records import Candidate, ModelRef, Workload
from fleet.errors import FleetError
from fleet.models.head_scores import HeadCache, score_candidates
from fleet.models.registry_reader import RegistryReader


class DeviceModel:
    """The head that serves a device. It stays as it was loaded, whatever is published later.

    Loads torch. Not safe between threads.
    """

    def __init__(self, registry: RegistryReader, ref: ModelRef) -> None:
        from transfer.features.extractor import Extractor

        self._ref, self._head, self._extractor = ref, HeadCache(registry).head(ref), Extractor()

    def __repr__(self) -> str:
        return f"DeviceModel({self.device_id!r}, version={self.version!r})"

    @property
    def device_id(self) -> str:
        """The device."""
        return self._ref.device_id

    @property
    def version(self) -> str:
        """The model version that the head is of."""
        return self._ref.version

    def score(
        self, workload: Workload, traces: Sequence[str], dialect: str = "meta_schedule"
    ) -> list[float | None]:
        """Score schedules of one workload from their traces; nothing is lowered or built.

        Args:
            workload: What all of them schedule, such as one of `StoreView.workloads`.
            traces: N schedule traces as JSON texts.
            dialect: Of the traces.

        Returns:
            N scores in (0, 1], higher is faster, equal to those of `fleet eval`; None where a trace cannot be
            read. Scores compare inside of a workload only.
        """
        candidates = [
            Candidate(workload_id=workload.workload_id, trace=trace, dialect=dialect) for trace in traces
        ]
        scores, refused = score_candidates(self._head, self._extractor, workload, candidates)
        return [None if place in refused else float(score) for place, score in enumerate(scores)]


def load_model(device_id: str, folder: str | Path = "runs/models") -> DeviceModel:
    """Load the head that serves a device now.

    Args:
        device_id: The device.
        folder: Of the model versions.

    Raises:
        FleetError: No model serves the device, or its version is damaged.
        TransferError: The version reads other features than this one makes.
    """
    registry = RegistryReader(Path(folder))
    ref = registry.champion(device_id)
    if ref is None:
        served = ", ".join(registry.champions()) or "none"
        raise FleetError(f"no model in {folder} serves device {device_id!r}; served are: {served}")
    return DeviceModel(registry, ref)


__all__ = ["DeviceModel", "load_model"]
