"""Which workloads the devices of a daemon measure, chosen once and kept beside its journal.

To list the operators of networks takes an agent some seconds, so the choice is kept and a restart begins at
once. The file may be deleted; the same settings choose the same again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.records import DeviceSpec, Workload, WorkloadId, canonical_json, content_hash
from agents.trust import is_live
from fleet.collection.selection import choose_workloads
from fleet.durable import disk_errors, write_durably

_SCHEMA = 1
#: The group of devices that answer from records.
REPLAYED = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """What is chosen from, and how many."""

    networks: tuple[str, ...]
    count: int
    min_flops: float = 0.0
    max_flops: float = float("inf")

    def choose(self, listed: Sequence[Workload]) -> list[Workload]:
        """Choose among the workloads that an agent has listed."""
        return choose_workloads(listed, count=self.count, min_flops=self.min_flops, max_flops=self.max_flops)

    def key(self, specs: Sequence[DeviceSpec]) -> str:
        """Differs where the choice, or what replay devices were recorded from, differs."""
        sources = {(one.replay.records, one.replay.device) for one in specs if one.replay is not None}
        bounds = {name: repr(value) for name, value in asdict(self).items()}
        bounds["networks"] = repr(tuple(map(_content_of, self.networks)))
        return content_hash(canonical_json(bounds), canonical_json(sorted(sources)))


def _content_of(network: str) -> str:
    """The name of a network; of a file one that changes with its content."""
    try:
        return read_network_name(network).label()
    except NetworkRefusedError:  # whoever reads it says so
        return network


def group_of(spec: DeviceSpec) -> str:
    """Devices of one group choose from one list: programs are the same for all devices that time them."""
    return "live" if is_live(spec) else REPLAYED


class KeptChoices:
    """The file of chosen workloads, by group.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._groups: dict[str, dict[str, object]] = {}
        try:
            value = json.loads(path.read_text())
            if value["schema"] == _SCHEMA:
                self._groups = dict(value["groups"])
        except (OSError, ValueError, KeyError, TypeError):
            # The file is a cache: if it is damaged, the workloads are listed again.
            self._groups = {}

    def get(
        self,
        group: str,
        key: str,
        read: Callable[[Collection[WorkloadId]], Mapping[WorkloadId, Workload]],
    ) -> list[Workload] | None:
        """What was chosen for a group; None where nothing was, or other settings chose it.

        Args:
            group: The group.
            key: Of the settings (`WorkloadChoice.key`).
            read: Gives those of some workloads that are known.
        """
        kept = self._groups.get(group)
        ids = kept.get("ids") if isinstance(kept, dict) and kept.get("key") == key else None
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            return None
        known = read(ids)
        return [known[one] for one in ids] if all(one in known for one in ids) else None

    def put(self, group: str, key: str, chosen: Sequence[Workload]) -> None:
        """Keep a choice.

        Raises:
            StoreError: The disk is full or failed.
        """
        self._groups[group] = {"key": key, "ids": [one.workload_id for one in chosen]}
        with disk_errors("keeping the choice of workloads", self._path.parent):
            write_durably(self._path, canonical_json({"schema": _SCHEMA, "groups": self._groups}).encode())
