"""What devices have measured so far, as a collection needs to know it. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agents.records import Candidate, DeviceId, DeviceSpec, Family, Record, WorkloadId
from agents.trust import is_live
from fleet.collection.batch_plan import DeviceProgress
from fleet.collection.selection import survey
from fleet.collection.trust import ours
from fleet.requests.session import EngineSession
from fleet.store.reader import StoreReader


class DeviceHistory:
    """The records of the devices of a collection.

    Attributes:
        read: What each device has measured, of those that were asked about.
    """

    def __init__(self, engine: EngineSession, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        self._engine, self._specs = engine, specs
        self.read: dict[DeviceId, DeviceProgress] = {}

    def progress(self, device_id: DeviceId) -> DeviceProgress:
        """What the device has measured in its present environment; read once, the caller keeps it up."""
        if device_id not in self.read:
            now = self._engine.environment_id(device_id)
            progress = self.read[device_id] = DeviceProgress(environment_id=now)
            for record in self._engine.store().records(device_id=device_id):
                progress.add(record)
        return self.read[device_id]

    def present(self, device_id: DeviceId) -> Iterator[Record]:
        """Records of a device in its present environment; of a live device, those of our candidates."""
        lasting, spec = self.progress(device_id).environment_id, self._specs[device_id]
        records = self._engine.store().records(device_id=device_id)
        present = (one for one in records if one.environment_id == lasting)
        return ours(present) if is_live(spec) else present

    def has_live(self, family: Family) -> bool:
        """Whether programs run for a family: not where all of its devices are replay devices."""
        return any(spec.family is family and is_live(spec) for spec in self._specs.values())


def records_of(store: StoreReader, device_ids: Iterable[DeviceId]) -> Iterator[Record]:
    """Yield the records of some devices, one device after the other."""
    for device_id in device_ids:
        yield from store.records(device_id=device_id)


def known_candidates(
    store: StoreReader, device_ids: Iterable[DeviceId], limit: int, *, live: bool
) -> dict[WorkloadId, list[Candidate]]:
    """Candidates that any of the devices has measured and none has put under quarantine.

    Args:
        store: Where the records are.
        device_ids: Devices of one family.
        limit: Most candidates of each workload, for the memory that their traces take.
        live: For a live device: only candidates of our own, which live devices have measured.

    Returns:
        By workload, in the order of their first record; workloads without any are left out.
    """
    chosen = list(device_ids)
    if live:
        entries = store.devices()
        chosen = [one for one in chosen if is_live(entries[one].spec)]
    records = records_of(store, chosen)
    if live:
        records = ours(records)
    found = survey(records, dict.fromkeys(store.workloads(), limit))
    return {one: list(known.candidates.values()) for one, known in found.items() if known.candidates}
