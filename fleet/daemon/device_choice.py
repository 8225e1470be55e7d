"""Which of the device files a start looks after: those asked for, or all that this host can be.

A command asks once. The daemon keeps one and has it look at the folder again and again
(`fleet.engine.device_updates.DeviceSource`).
"""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec.structs import replace

from agents.host.device_kinds import differences
from agents.host.probe import probe
from agents.records import DeviceId, DeviceKind, DeviceSpec
from fleet.config.device_changes import DeviceFiles
from fleet.config.device_files import device_paths
from fleet.config.device_folder import DeviceFolder, FoundDevices, retire_file
from fleet.config.settings import FleetConfig
from fleet.daemon import replay_files as replaying
from fleet.errors import FleetError

_LOG = logging.getLogger(__name__)


class DeviceChoice:
    """The devices of one start.

    Args:
        settings: Which devices are asked for, and where their files are.
        is_cluster: Whether other hosts reach them: these must say themselves what they can be.
        follows: Whether the folder is looked at again: one that was retired may be named, and is waited for.

    Attributes:
        files: What was found last.

    Raises:
        FleetError: One that was asked for cannot be measured, or none can.
    """

    def __init__(self, settings: FleetConfig, *, is_cluster: bool = False, follows: bool = False) -> None:
        self._folder = DeviceFolder(Path(settings.devices.folder))
        self._asked_ids = tuple(map(DeviceId, settings.devices.ids))
        self._is_cluster = is_cluster
        self._records = Path(settings.store.path).parent / replaying.REPLAY
        #: Replay devices, as described and as made ready: a store that they answer from grows, they stay.
        self._ready: dict[DeviceId, tuple[DeviceSpec, DeviceSpec]] = {}
        #: Before this process keeps itself off the cores that time something: its agents do not.
        self._usable_cores = probe().usable_cores
        folder_contents = self._folder.read()
        names = self._folder.present(folder_contents, self._asked_ids) if follows else self._asked_ids
        count = len(folder_contents.chosen(names, self._folder.path))
        self.files = self._files(folder_contents)
        if self._asked_ids:
            self._demand_all()
        elif not self.files.specs:
            raise FleetError(
                f"this host can be none of the {count} devices in {self._folder.path}; "
                "run `fleet init` to write its profiles, or name a replay device with --device"
            )

    def look(self) -> DeviceFiles | None:
        """Look at the folder again; None where nothing changed."""
        folder_contents = self._folder.look()
        if folder_contents is None:
            return None
        self.files = self._files(folder_contents)
        return self.files

    def retire(self, device_id: DeviceId) -> None:
        """Move the file of a device to where nobody reads it.

        Raises:
            FleetError: It has none, or the disk failed.
        """
        folder = self._folder.path
        mine = [path for path in device_paths(folder) if path.stem == device_id]
        if not mine:
            raise FleetError(f"device {device_id} has no file in {folder}")
        for path in mine:
            retire_file(folder, path)

    def warn(self) -> None:
        """Say which files cannot be used, one line each."""
        for fault in self.files.faults.values():
            _LOG.warning("left out: %s", fault)

    def _files(self, folder_contents: FoundDevices) -> DeviceFiles:
        specs: dict[DeviceId, DeviceSpec] = {}
        host = replace(probe(), usable_cores=self._usable_cores)
        faults = {
            device_id: "; ".join(reasons)
            for device_id, reasons in folder_contents.faults.items()
            if not self._asked_ids or device_id in (*self._asked_ids, "")
        }
        left_out: dict[DeviceId, str] = {}
        for device_id in self._asked_ids or sorted(folder_contents.specs):
            if (spec := folder_contents.specs.get(device_id)) is None:
                continue
            if spec.kind is DeviceKind.REPLAY and not self._asked_ids:
                left_out[device_id] = "not part of this run: a replay device must be asked for with --device"
            elif contradictions := [] if self._is_cluster else differences(spec, host):
                left_out[device_id] = "; ".join(contradictions)
            else:
                try:
                    specs[device_id] = self._made_ready(spec)
                except FleetError as error:
                    faults[device_id] = str(error)
        return DeviceFiles(
            specs=specs, faults=faults, left_out=left_out, selection=frozenset(self._asked_ids)
        )

    def _made_ready(self, spec: DeviceSpec) -> DeviceSpec:
        before = self._ready.get(spec.device_id)
        if before is None or before[0] != spec:
            [prepared] = replaying.ready({spec.device_id: spec}, self._records).values()
            before = self._ready[spec.device_id] = spec, prepared
        return before[1]

    def _demand_all(self) -> None:
        """Refuse to start where a device that was asked for cannot be measured."""
        files = self.files
        refused = [
            f"device {device_id}: {files.left_out[device_id]}"
            for device_id in self._asked_ids
            if device_id in files.left_out
        ]
        refused += [files.faults[device_id] for device_id in self._asked_ids if device_id in files.faults]
        if refused:
            raise FleetError("\n".join(refused))
