"""What `import fleet` offers of models: heads that score schedules from their traces alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agents.records import Candidate, DeviceId, ModelRef, Workload
from fleet.errors import FleetError
from fleet.models.opponents import HeadCache, score_candidates
from fleet.models.registry_reader import RegistryReader

if TYPE_CHECKING:
    from agents.device.tvm_measure import TvmMeasure
    from transfer.adapt.base import Adapted


class DeviceModel:
    """A model version with its heads. It stays as it was loaded, whatever is published later.

    Loads torch. Not safe between threads.

    Attributes:
        version: The model version that the heads are of.
        devices: Devices that it has a head for.
        device_id: The device that it was loaded for; None where it was loaded by its version.
    """

    def __init__(self, registry: RegistryReader, version: str, device_id: str | None) -> None:
        from transfer.features.extractor import Extractor

        self._sha256, self.version = registry.sha256(version), version
        self.device_id = device_id
        self.devices = tuple(map(DeviceId, registry.manifest(version)["heads"]))
        self._heads, self._extractor = HeadCache(registry), Extractor()
        for head_device in self.devices if device_id is None else (device_id,):
            self._head(head_device)

    def __repr__(self) -> str:
        of = f"{self.device_id!r}, " if self.device_id else ""
        return f"DeviceModel({of}version={self.version!r})"

    def score(
        self,
        workload: Workload,
        traces: Sequence[str],
        *,
        device: str | None = None,
        dialect: str = "meta_schedule",
    ) -> list[float | None]:
        """Score schedules of one workload from their traces; nothing is lowered or built.

        Args:
            workload: What all of them schedule, such as one of `StoreView.workloads`.
            traces: N schedule traces as JSON texts.
            device: Whose head scores; that which the model was loaded for if None.
            dialect: Of the traces.

        Returns:
            N scores in (0, 1], higher is faster, equal to those of `fleet eval`; None where a trace cannot be
            read. Scores compare inside of a workload only.

        Raises:
            FleetError: The version has no head for the device, or none was named.
        """
        name = device or self.device_id
        if name is None or name not in self.devices:
            raise FleetError(
                f"version {self.version} has no head for device {name!r}; device= may be one of "
                f"{', '.join(self.devices)}"
            )
        candidates = [
            Candidate(workload_id=workload.workload_id, trace=trace, dialect=dialect) for trace in traces
        ]
        scores, refused = score_candidates(self._head(name), self._extractor, workload, candidates)
        return [None if place in refused else float(score) for place, score in enumerate(scores)]

    def _head(self, device_id: str) -> Adapted:
        ref = ModelRef(version=self.version, device_id=DeviceId(device_id), sha256=self._sha256)
        return self._heads.head(ref)


def load_model(ref: str, folder: str | Path = "runs/models") -> DeviceModel:
    """Load a model for scoring.

    Args:
        ref: A device, for the head that serves it now; or a version, such as `v000003` or `latest`.
        folder: Of the model versions.

    Raises:
        FleetError: There is no such version, no model serves the device, or the version is damaged.
        TransferError: The version reads other features than this release makes.
    """
    registry = RegistryReader(Path(folder))
    versions = registry.versions()
    if ref in (*versions, "latest") and versions:
        return DeviceModel(registry, versions[-1] if ref == "latest" else ref, None)
    champion = registry.champion(ref)
    if champion is None:
        served = ", ".join(registry.champions()) or "none"
        raise FleetError(
            f"no model in {folder} serves device {ref!r}; served are: {served}. "
            f"`fleet onboard {ref} --samples 0` gives a device of this host a head without a measurement"
        )
    return DeviceModel(registry, champion.version, ref)


@contextmanager
def tvm_measure(device: str, *, config: Path | None = None) -> Iterator[TvmMeasure]:
    """Give TVM's own searches our way to measure: a builder and a runner for `tune_tir` and `tune_relax`.

    Args:
        device: A device of this host, by its id.
        config: Settings file; `configs/fleet.yaml` if None.

    Yields:
        `builder` and `runner`, until the block ends.

    Raises:
        FleetError: There is no such device file.
        AgentError: This host cannot be, or reach, the device.
    """
    from agents.device.tvm_measure import tvm_measure as measure
    from fleet.config.settings import load_fleet, select_devices

    settings = load_fleet(config, {}).config.with_devices(device)
    with measure(select_devices(settings)[DeviceId(device)]) as tvm_search:
        yield tvm_search
