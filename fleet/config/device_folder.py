"""The folder of device files as it is now: what each says or why it cannot be used; add one, retire one.

`fleet.config.settings` reads it once, `fleet.daemon.device_choice` again and again: names, sizes and
times are looked at first, and only what changed is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agents.files import fsync, write_durably
from agents.records import DeviceId, DeviceSpec
from fleet.config.device_files import (
    UnknownDeviceError,
    device_paths,
    load_file,
    specs_of_this_host,
    unknown_device,
)
from fleet.config.sections import DEFAULT_HARDWARE
from fleet.config.yaml_files import ConfigError
from fleet.errors import disk_errors

_LOG = logging.getLogger(__name__)
#: Folder of the files of devices that left; no reader looks into folders.
RETIRED = "retired"
#: Size, time of the last change, and number of a file.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevices:
    """What the files of a folder say."""

    specs: Mapping[DeviceId, DeviceSpec]
    #: Why files cannot be used, each fault with file and key, by the device that the file is named for. The
    #: empty id stands for the folder.
    faults: Mapping[DeviceId, tuple[str, ...]] = field(default_factory=dict)
    #: The file of each device of either.
    paths: Mapping[DeviceId, Path] = field(default_factory=dict)

    def chosen(self, names: Iterable[str], folder: Path) -> dict[DeviceId, DeviceSpec]:
        """Take devices by their names, or all that can be used where none is named.

        Raises:
            ConfigError: A name has no file or one that cannot be used, or no file can be used.
        """
        device_ids, known_ids = tuple(map(DeviceId, names)), {*self.specs, *self.faults}
        unknown = [
            str(unknown_device(device_id, known_ids, folder))
            for device_id in device_ids
            if device_id not in known_ids
        ]
        if unknown:
            raise UnknownDeviceError(*unknown)
        faults = [
            fault for device_id in device_ids or self.faults for fault in self.faults.get(device_id, ())
        ]
        if faults and (device_ids or not self.specs):
            raise ConfigError(*faults)
        return {device_id: self.specs[device_id] for device_id in device_ids or self.specs}


class DeviceFolder:
    """Reads a folder of device files, and again as it changes.

    Args:
        path: The folder. If it is the default one and does not exist, the devices are the profiles that
            `fleet init` would write for this host.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Files as they were parsed, and as the last look saw them.
        self._parsed_files: dict[Path, tuple[_Stamp, DeviceSpec | ConfigError]] = {}
        self._last_stamps: dict[Path, _Stamp] = {}
        self._gone = ""

    def read(self) -> FoundDevices:
        """Read all files.

        Raises:
            ConfigError: There is no such folder, or it holds no device file.
        """
        if self._is_implied:
            return FoundDevices(specs=specs_of_this_host())
        self._last_stamps = self._stamps()
        if not self._last_stamps:
            raise ConfigError(
                f"{self.path}: holds no device file (*.yaml): run `fleet init --folder {self.path}`"
            )
        self._parsed_files = {path: (stamp, _parsed(path)) for path, stamp in self._last_stamps.items()}
        return self._content()

    def look(self) -> FoundDevices | None:
        """Read what changed; None where nothing did.

        A change counts at the second look that sees it: a file may be half written, or on its way to another
        name. A folder that cannot be read is a fault, and its devices stay as they were.
        """
        if self._is_implied and not self._parsed_files:
            return None
        try:
            now = self._stamps()
        except ConfigError as error:
            is_news, self._gone = not self._gone, str(error)
            return self._content() if is_news else None
        before, self._last_stamps = self._last_stamps, now
        is_news, self._gone = bool(self._gone), ""
        for path, stamp in now.items():
            if before.get(path) == stamp and self._parsed_files.get(path, (None,))[0] != stamp:
                self._parsed_files[path] = stamp, _parsed(path)
                is_news = True
        for path in [path for path in self._parsed_files if path not in now and path not in before]:
            del self._parsed_files[path]
            is_news = True
        return self._content() if is_news else None

    def present(self, devices: FoundDevices, names: Iterable[str]) -> tuple[DeviceId, ...]:
        """Those of some names that were not retired, a warning for each other; all where none is left."""
        device_ids = tuple(map(DeviceId, names))
        gone = retired_devices(self.path) - devices.specs.keys() - devices.faults.keys()
        present = tuple(device_id for device_id in device_ids if device_id not in gone)
        for device_id in device_ids if present else ():
            if device_id in gone:
                _LOG.warning("left out: %s is retired; `fleet devices add` brings it back", device_id)
        return present or device_ids

    @property
    def _is_implied(self) -> bool:
        return self.path == DEFAULT_HARDWARE and not self.path.exists()

    def _stamps(self) -> dict[Path, _Stamp]:
        stamps: dict[Path, _Stamp] = {}
        for path in device_paths(self.path):
            try:
                status = path.stat()
                stamps[path] = status.st_size, status.st_mtime_ns, status.st_ino
            except FileNotFoundError:
                if path.is_symlink():
                    stamps[path] = 0, 0, 0  # reading it says that it leads nowhere
            except OSError:
                stamps[path] = 0, 0, 0
        return stamps

    def _content(self) -> FoundDevices:
        specs: dict[DeviceId, DeviceSpec] = {}
        faults: dict[DeviceId, tuple[str, ...]] = {}
        paths: dict[DeviceId, Path] = {}
        for path, (_, parsed) in sorted(self._parsed_files.items()):
            name = DeviceId(path.stem)
            if name in paths:
                faults[name] = (f"{path}: device_id: {name!r} is also in {paths[name]}: delete one",)
                specs.pop(name, None)
                continue
            paths[name] = path
            if isinstance(parsed, ConfigError):
                faults[name] = tuple(map(str, parsed.args))
            else:
                specs[name] = parsed
        if self._gone:
            faults[DeviceId("")] = (self._gone,)
        return FoundDevices(specs=specs, faults=faults, paths=paths)


def add_file(folder: Path, spec: DeviceSpec, source: Path, *, is_replaced: bool = False) -> Path:
    """Put a device file that was checked into a folder, whole or not at all; returns its place.

    The source stays. With `is_replaced` it may take the place of the device's file.

    Raises:
        ConfigError: There is no such folder, the device has a file, or the source is none.
        StoreError: The disk is full or failed.
    """
    if not source.is_file():
        # It is read a second time, and a pipe has nothing left then.
        raise ConfigError(f"{source}: is no regular file: save it as one, and add that")
    existing = [path for path in device_paths(folder) if path.stem == spec.device_id]
    if existing and not is_replaced:
        raise ConfigError(f"{existing[0]}: device {spec.device_id!r} is there already: --replace replaces it")
    path = existing[0] if existing else folder / f"{spec.device_id}.yaml"
    with disk_errors("adding a device file", folder):
        write_durably(path, source.read_bytes())
    return path


def retired_devices(folder: Path) -> frozenset[DeviceId]:
    """Devices whose files were moved away by `retire_file`, whether or not they have come back since."""
    return frozenset(DeviceId(path.name.split(".")[0]) for path in (folder / RETIRED).glob("*.y*ml"))


def retire_file(folder: Path, path: Path) -> Path:
    """Move a device file to where no reader looks; returns its new place.

    Raises:
        StoreError: The disk failed.
    """
    retired = folder / RETIRED
    with disk_errors("retiring a device file", folder):
        retired.mkdir(exist_ok=True)
        place, number = retired / path.name, 1
        while place.exists():  # it was here before, perhaps with other words
            number += 1
            place = retired / f"{path.stem}.{number}{path.suffix}"
        path.rename(place)
        fsync(retired)
        fsync(folder)
    return place


def _parsed(path: Path) -> DeviceSpec | ConfigError:
    try:
        return load_file(path)
    except ConfigError as error:
        return error
