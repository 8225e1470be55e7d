"""Reading a registry: which versions there are, and who serves which device. Never a half.

`fleet.models.registry` builds the writer on it. It knows files, not models: what a version holds is for
`transfer.model.checkpoint`. Imports torch only to load a model.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection
from contextlib import suppress
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from msgspec import to_builtins

from agents.files import read_regular
from agents.records import DeviceId, ModelRef
from fleet.json_types import JsonDict
from fleet.models.registry_file import (
    REGISTRY,
    Champion,
    Change,
    RegistryError,
    State,
    latest,
    opened,
    version_number,
    versions,
)
from transfer.checked_folder import MANIFEST_NAME, MOST_MANIFEST_BYTES, CheckpointError
from transfer.model.kinds import is_extensible, model_kind, reads_published
from transfer.model.manifest import parse_manifest

if TYPE_CHECKING:
    from transfer.model.tlp_model import TlpModel


#: A date of the file tells changes apart once it is older than the clock of the kernel goes by: nanoseconds
#: since then. Some file systems keep dates of whole seconds, or of two.
_SETTLED_NS, _SETTLED_WHOLE_NS = 50_000_000, 2_100_000_000
#: Inode, date and size of the file.
_Mark = tuple[int, int, int]
_NO_FILE = (0, 0, 0)


class HeadMissing(RegistryError):  # noqa: N818 - a state of what was asked for, named so
    """There is no such version, or no such head in it."""


class RegistryReader:
    """The versions of a folder, which need not be there yet. Calls may come from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: What the file said, and its mark then; no mark where the next one might be the same.
        self._latest: tuple[_Mark | None, State] = None, State()

    def versions(self) -> list[str]:
        """Names of the versions, oldest first."""
        return versions(self.folder)

    def champion(self, device_id: str) -> ModelRef | None:
        """The head that serves a device; None where none does. Costs a look at one file's date."""
        champion = self.state().champions.get(DeviceId(device_id))
        return None if champion is None else champion.ref

    def champions(self) -> dict[DeviceId, Champion]:
        """Who serves which device, sorted by device."""
        return dict(self.state().champions)

    def state(self) -> State:
        """Who serves. Where there is no file, nobody does.

        Raises:
            RegistryError: The file is damaged, or another version wrote it.
        """
        path = self.folder / REGISTRY
        mark, (last_mark, state) = _mark(path), self._latest
        if mark == last_mark:
            return state
        if mark == _NO_FILE:
            state = State()
        else:
            with opened(path) as file:
                # Nobody writes while it is open, so this is the mark of what is read.
                fresh, mark = file.state(), _mark(path)
            # The same object as before where it says the same: others keep what they worked out from it.
            state = state if fresh == state else fresh
        is_settled = time.time_ns() - mark[1] > (_SETTLED_NS if mark[1] % 10**9 else _SETTLED_WHOLE_NS)
        self._latest = mark if is_settled else None, state
        return state

    def previous(self, champion: Champion) -> str:
        """The version before a champion that can be gone back to; empty where there is none."""
        existing = self.versions()
        return next((version for version in reversed(champion.before) if version in existing), "")

    def head_ref(self, device_id: str, version: str | None) -> ModelRef:
        """The head of a device in a version; in the one that serves it if that is None.

        Raises:
            HeadMissing: Nothing serves the device, or the version is not there or has no head of it.
        """
        if version is None:
            if (champion := self.champion(device_id)) is not None:
                return champion
            served = ", ".join(self.champions()) or "none"
            raise HeadMissing(f"no model serves device {device_id!r:.80}; served: {served}")
        manifest, sha256 = self._manifest(version)
        if device_id not in manifest["heads"]:
            heads = ", ".join(manifest["heads"])
            raise HeadMissing(f"{version} has no head for {device_id:.80}; it has: {heads}")
        return ModelRef(version=version, device_id=DeviceId(device_id), sha256=sha256)

    def manifest(self, version: str) -> JsonDict:
        """What a version says of itself.

        Raises:
            RegistryError: There is no such version, or its manifest is damaged.
        """
        return self._manifest(version)[0]

    def sha256(self, version: str) -> str:
        """Hash of a version's manifest, which holds that of its tensors."""
        return self._manifest(version)[1]

    def _manifest(self, version: str) -> tuple[JsonDict, str]:
        try:
            # A name that is no version's must not lead out of the folder.
            version_number(version)
            raw = read_regular(self.folder / version / MANIFEST_NAME, MOST_MANIFEST_BYTES)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            newest_names = ", ".join(self.versions()[-5:]) or "none"
            raise HeadMissing(
                f"no model version {version!r:.80} in {self.folder}; the last: {newest_names}"
            ) from error
        except OSError as error:
            path = self.folder / version / MANIFEST_NAME
            raise RegistryError(f"{path}: {error.strerror}; restore it, or delete its folder") from error
        try:
            manifest = parse_manifest(raw, self.folder / version)
        except CheckpointError as error:
            raise RegistryError(
                f"{error}, or have others serve its devices (fleet models use DEVICE shipped) and delete its "
                "folder"
            ) from error
        return manifest, hashlib.sha256(raw).hexdigest()

    def path(self, version: str) -> Path:
        """Folder of a version.

        Raises:
            RegistryError: There is no such version.
        """
        self._manifest(version)
        return self.folder / version

    def kind(self, version: str) -> str:
        """Kind of the model of a version (`transfer.model.kinds`); empty if its manifest is damaged."""
        try:
            return model_kind(self.manifest(version))
        except RegistryError:
            return ""

    def asks_published(self, device_ids: Collection[str]) -> bool:
        """Whether a model that reads published features serves some devices, or did so before."""
        existing = set(self.versions())
        champion_versions = {
            version
            for champion in self.state().champions.values()
            if champion.device_id in device_ids
            for version in (champion.version, *champion.before)
        }
        return reads_published(self.kind(version) for version in champion_versions & existing)

    def environments_since(self) -> dict[str, float]:
        """Unix seconds at which the present environment of devices began that drifted or changed theirs.

        The onboarding that found it keeps it with its head, and each later training hands it on
        (`fleet.models.judge.training_provenance`), since versions are pruned.
        """
        since_by_device: dict[str, float] = {}
        for version in self.versions():
            with suppress(RegistryError):
                manifest = self.manifest(version)
                starts = dict(manifest.get("environments_since", {}))
                if "environment_since" in manifest:
                    starts[manifest["onboarded"]] = manifest["environment_since"]
                for device_id, at_secs in starts.items():
                    if isfinite(at_secs):
                        since_by_device[device_id] = max(at_secs, since_by_device.get(device_id, at_secs))
        return since_by_device

    def newest_fleet_tlp(self) -> Path:
        """Folder of the newest FleetTLP: what a new device starts from where none serves its family.

        Raises:
            FleetError: There is none.
        """
        for version in reversed(self.versions()):
            if is_extensible(self.kind(version)):
                return self.folder / version
        newest = latest(self.folder)
        raise RegistryError(
            f"no FleetTLP under {self.folder} ({newest.name}, the newest, is a "
            f"{self.kind(newest.name) or 'damaged one'}), and a new device starts from a FleetTLP only; run "
            "`fleet train --model fleet_tlp` first"
        )

    def load(self, ref: ModelRef) -> tuple[TlpModel, JsonDict]:
        """Read the model of a champion and check that it is the one that was published.

        Raises:
            RegistryError: The manifest is not the one that was published.
            CheckpointError: A file is missing or damaged, or it was made for other features.
        """
        from transfer.features.extractor import DEFAULT_SPEC
        from transfer.model import checkpoint

        if self.sha256(ref.version) != ref.sha256:
            raise RegistryError(
                f"{self.folder / ref.version / MANIFEST_NAME} was changed since the version was published; "
                f"restore it, or roll back: fleet models use {ref.device_id} shipped"
            )
        return checkpoint.load(self.folder / ref.version, DEFAULT_SPEC)

    def history(self, after: int = 0) -> list[Change]:
        """Changes of champions with a serial above `after`, oldest first."""
        if self.state().serial <= after:
            return []
        with opened(self.folder / REGISTRY) as file:
            return file.changes(after)


def _mark(path: Path) -> _Mark:
    """Changes whenever the file does.

    Raises:
        RegistryError: Something else is in its place.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of Path.stat, and asked for all the time
    except FileNotFoundError:
        return _NO_FILE
    if not S_ISREG(status.st_mode):
        raise RegistryError(f"{path} is no regular file; restore it, or delete it and train anew")
    return status.st_ino, status.st_mtime_ns, status.st_size


def as_json(champion: Champion) -> JsonDict:
    """A champion as plain values."""
    fields: JsonDict = to_builtins(champion)
    return fields
