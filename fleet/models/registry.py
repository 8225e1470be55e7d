"""Model versions and who serves which device: published whole, taken back in one step, pruned without harm.

The coordinator, `fleet train`, `fleet onboard`, the refresh and `fleet models` call it; batches of agents,
the API and `fleet.planner.candidate_ranker` ask it for champions. Whether a version deserves to serve is for
`fleet.models.promotion` to say. Imports no torch but to add or to load.

    models/v000007/                 a version: manifest.json, model.safetensors; never changed
    models/champions.json           device -> version: the only truth, replaced in one step
    models/history.jsonl            every change of it, for people and for whoever missed one
    models/registry.lock            held while something is changed
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from agents.files import make_folder
from agents.records import DeviceId
from fleet.durable import fsync, write_durably
from fleet.models.champion_changes import pinned, published, rolled_back, unpinned
from fleet.models.champion_changes import retained as retained_by
from fleet.models.registry_file import (
    CHAMPIONS,
    HISTORY,
    Champion,
    Change,
    State,
    appended_history,
    read_history,
    state_text,
    version_number,
)
from fleet.models.registry_reader import RegistryError, RegistryReader
from transfer.model.kinds import FLEET_TLP

if TYPE_CHECKING:
    from transfer.model.mtl_tlp import TlpModel

#: Newest versions that pruning leaves, whoever they serve.
KEEP = 8
_LOCK = "registry.lock"
_LOCK_SECS = 60.0


class PinnedError(RegistryError):
    """A device is pinned to its champion."""

    def __init__(self, champion: Champion) -> None:
        device = champion.device_id
        super().__init__(
            f"{device} is pinned to {champion.version}; let it go first: fleet models unpin {device}"
        )


class ReplacedError(RegistryError):
    """A device is served by another version than the one that was to lose its place."""


class Registry(RegistryReader):
    """The versions of a folder, to be changed. Several processes may do so at once: they wait for each other.

    The folder is made when something is added; `clock` gives Unix seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder)
        self._clock = clock

    def add(
        self, model: TlpModel, manifest: Mapping[str, Any], beside: Mapping[str, bytes] | None = None
    ) -> str:
        """Keep a model as the next version, which serves nobody yet, and give the version's name.

        Where the manifest has a `run` and a version of that run is there already (its maker was killed before
        it could say so), that version is the answer. `beside` are further files by name
        (`transfer.adapt.kept`).

        Raises:
            CheckpointError: The manifest is not plain JSON.
            OSError: There is no room, or no permission.
        """
        from transfer.model import checkpoint

        with self._changing():
            known = self.versions()
            run = manifest.get("run")
            if run is not None:
                for version in reversed(known):
                    # A damaged one is no reason to keep no more versions.
                    with suppress(RegistryError):
                        if self.manifest(version).get("run") == run:
                            return version
            # A name never comes twice: whoever was rolled back by hand, and deleted, would come back by it.
            named = {version for one in self.state().champions.values() for version in one.named} | set(known)
            number = 1 + max(map(version_number, named), default=0)
            version = f"v{number:06d}"
            told = {"created_at": self._clock(), **manifest, "version": version}
            checkpoint.save(self.folder / version, model, told, beside=beside)
            return version

    def publish(
        self,
        version: str,
        devices: Mapping[str, Mapping[str, Any]],
        *,
        reason: str = "",
        retained: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Let a version serve some devices from now on: all of them in one step.

        A pinned device keeps its champion, and so does one that the version, or a newer one, was taken from
        by hand, or one whose champion is no more the one that was looked at (`instead_of`).

        Args:
            version: A version that is there.
            devices: What is known of each device's head: `reason` (one sentence), `judged` (figures), and
                `instead_of` (the version that it was found to take the place of; empty for none).
            reason: Of those that say none.
            retained: Why the champions of further devices stay.

        Returns:
            Those of the devices that the version serves from now on.

        Raises:
            RegistryError: The version is missing or has no head of a device.
        """
        with self._changing():
            manifest, sha256 = self._manifest(version)
            missing = sorted(set(devices) - set(manifest["heads"]))
            if missing:
                raise RegistryError(f"{version} has no head for {', '.join(missing)}; nothing was published")
            state = self.state()
            done = published(state, version, sha256, devices, self._clock(), reason)
            self._commit(state, retained_by(done.champions, retained or {}), done.changes)
            return [one for one in sorted(devices) if done.champions[DeviceId(one)].version == version]

    def retain(self, reasons: Mapping[str, str]) -> None:
        """Keep why the champions of some devices stay, for people."""
        with self._changing():
            state = self.state()
            self._commit(state, retained_by(state.champions, reasons), ())

    def rollback(
        self,
        device_id: str,
        to: str | None = None,
        *,
        reason: str,
        by_hand: bool = False,
        instead_of: str | None = None,
    ) -> Champion:
        """Give a device an earlier champion back: `to`, or the one before the present one; it is returned.

        With `by_hand` a person wants it: the version that served comes back by no publication, and only a
        newer one that is judged better takes the place. With `instead_of` that version alone loses its place.

        Raises:
            PinnedError: The device is pinned.
            ReplacedError: Another version than `instead_of` serves the device.
            RegistryError: The device has no champion, there is none before it, or `to` has no such head.
        """
        with self._changing_champion(device_id, "roll back") as (state, present):
            if present.pinned_at is not None:
                raise PinnedError(present)
            if instead_of is not None and present.version != instead_of:
                raise ReplacedError(f"{device_id} is served by {present.version}, not by {instead_of}")
            there = self.versions()
            before = (version for version in reversed(present.before) if version in there)
            target = to if to is not None else next(before, None)
            if target is None:
                raise RegistryError(
                    f"{device_id} has no champion before {present.version} to go back to; name a version "
                    "with --to, or train another with `fleet train`"
                )
            sha256 = self._sha256_with_head(target, present.device_id)
            if target == present.version:
                raise RegistryError(f"{device_id} is served by {target} already")
            now = self._clock()
            done = rolled_back(state, present, target, sha256, there, now, reason=reason, by_hand=by_hand)
            self._commit(state, done.champions, done.changes)
            return done.champions[present.device_id]

    def pin(self, device_id: str, version: str | None = None, *, reason: str) -> Champion:
        """Let nobody change the champion of a device until it is unpinned, and give that champion.

        With a `version` that one serves the device from now on.

        Raises:
            PinnedError: The device is pinned to another version.
            RegistryError: The device has no champion, or the version has no head for it.
        """
        with self._changing_champion(device_id, "pin") as (state, present):
            target = version or present.version
            sha256 = self._sha256_with_head(target, present.device_id)
            if present.pinned_at is not None and target != present.version:
                raise PinnedError(present)
            now = self._clock()
            moved = replace(state, changes=())
            if target != present.version:
                moved = rolled_back(
                    state, present, target, sha256, self.versions(), now, reason=reason, by_hand=True
                )
            done = pinned(moved, present.device_id, now, reason)
            self._commit(state, done.champions, (*moved.changes, *done.changes))
            return done.champions[present.device_id]

    def unpin(self, device_id: str, *, reason: str) -> Champion:
        """Let the champion of a pinned device be changed again.

        Raises:
            RegistryError: The device has no champion, or is not pinned.
        """
        with self._changing_champion(device_id, "unpin") as (state, present):
            if present.pinned_at is None:
                raise RegistryError(f"{device_id} is not pinned; {present.version} serves it")
            done = unpinned(state, present.device_id, self._clock(), reason)
            self._commit(state, done.champions, done.changes)
            return done.champions[present.device_id]

    @contextmanager
    def _changing_champion(self, device_id: str, what: str) -> Iterator[tuple[State, Champion]]:
        """Be the only one to change anything; gives what is, and the champion of a device.

        Raises:
            RegistryError: It has none.
        """
        if not self.folder.is_dir():
            raise RegistryError(f"no model under {self.folder}; nothing to {what}")
        with self._changing():
            state = self.state()
            present = state.champions.get(DeviceId(device_id))
            if present is None:
                known = ", ".join(sorted(state.champions)) or "none"
                raise RegistryError(f"device {device_id!r} has no champion; devices with one: {known}")
            yield state, present

    def _sha256_with_head(self, version: str, device_id: DeviceId) -> str:
        """Hash of a version's manifest.

        Raises:
            RegistryError: There is no such version, or it has no head for the device.
        """
        manifest, sha256 = self._manifest(version)
        if device_id not in manifest["heads"]:
            raise RegistryError(
                f"{version} has no head for {device_id}; it has: {', '.join(manifest['heads'])}"
            )
        return sha256

    def prune(self, keep: int = KEEP) -> list[str]:
        """Remove old versions, never one that serves a device, one to go back to, or one of the last `keep`.

        The newest FleetTLP stays too: new devices start from it. Gives the names of the removed ones.
        """
        with self._changing():
            there = self.versions()
            champions = self.state().champions.values()
            safe = set(there[-max(1, keep) :]) | {one.version for one in champions}
            for one in champions:
                safe.update([version for version in one.before if version in there][-1:])
            safe.update([version for version in there if self.kind(version) == FLEET_TLP][-1:])
            gone = [version for version in there if version not in safe]
            for version in gone:
                # Out of sight in one step; a reader that has opened its files reads on.
                hidden = self.folder / f".{version}.{uuid.uuid4().hex[:8]}.part"
                (self.folder / version).rename(hidden)
                fsync(self.folder)
                shutil.rmtree(hidden, ignore_errors=True)
            return gone

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only one to change anything; clear away what killed ones left."""
        make_folder(self.folder)
        lock = filelock.FileLock(self.folder / _LOCK, timeout=_LOCK_SECS)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RegistryError(
                f"{self.folder} is being changed by another process for {_LOCK_SECS:.0f} s; try again"
            ) from error
        try:
            self._clear_leftovers()
            yield
        finally:
            lock.release()

    def _clear_leftovers(self) -> None:
        # Whoever writes such files holds the lock, which is ours now: nobody is at work on any of them.
        for pattern in (".*.part", f".{CHAMPIONS}.*.tmp"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _commit(
        self, state: State, champions: Mapping[DeviceId, Champion], changes: Iterable[Change]
    ) -> None:
        """Put new champions in place. A kill leaves the old ones or the new ones, and no change untold."""
        # A writer that was killed between file and history left a change untold; it is told now.
        appended_history(self.folder / HISTORY, state.changes)
        # An older champions.json that somebody restored knows less than the history: no number comes twice.
        told = read_history(self.folder / HISTORY)
        last = max(state.serial, told[-1].serial if told else 0)
        numbered = [replace(change, serial=last + place) for place, change in enumerate(changes, start=1)]
        if champions == state.champions and not numbered:
            return
        new = State(
            serial=last + len(numbered),
            champions=dict(champions),
            changes=tuple(numbered) or state.changes,
        )
        write_durably(self.folder / CHAMPIONS, state_text(new).encode())
        self._seen = None
        # The change is made. If there is no room to tell it, it is told before the next change.
        with suppress(OSError):
            appended_history(self.folder / HISTORY, numbered)
