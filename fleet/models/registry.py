"""Model versions and who serves which device: published whole, taken back in one step, pruned without harm.

The coordinator, `fleet train`, `fleet onboard`, the refresh and `fleet models` call it; batches of agents,
the API and `fleet.planner.candidate_ranker` ask it for champions. Whether a version deserves to serve is for
`fleet.models.promotion` to say. Imports no torch but to add or to load.

    models/v000007/                 a version: manifest.json, model.safetensors; never changed
    models/registry.sqlite          who serves which device, and every change of that; one transaction each
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

from agents.files import fsync, make_folder
from agents.records import DeviceId
from fleet.models.registry_file import (
    MOST_BEFORE,
    REGISTRY,
    Champion,
    Change,
    RegistryError,
    RegistryFile,
    opened,
    version_number,
)
from fleet.models.registry_reader import RegistryReader
from transfer.model.kinds import is_extensible

if TYPE_CHECKING:
    from transfer.model.tlp_model import TlpModel


# Who serves after a publication, a choice by hand, a pin: pure changes of a registry's champions.
#
# `Registry` reads the file, asks here, and writes: each function gives champions from now on and changes,
# which get serials when they are written. Here stands who may take a champion's place at all;
# whether a head deserves it is for `fleet.models.promotion` to say.


def hold_reason(champion: Champion, version: str) -> str:
    """Why a version may not take a champion's place by itself; empty where it may."""
    if champion.pinned_at is not None:
        return f"{champion.device_id} is pinned to {champion.version} (fleet models unpin lets it go)"
    rolled_back_version = champion.rolled_back_from
    if rolled_back_version and version_number(version) <= version_number(rolled_back_version):
        return f"{rolled_back_version} was rolled back by hand, and {version} is no newer"
    return ""


def published(
    champions: Mapping[DeviceId, Champion],
    version: str,
    sha256: str,
    devices: Mapping[str, Mapping[str, Any]],
    at_secs: float,
    reason: str = "",
) -> tuple[dict[DeviceId, Champion], list[Change]]:
    """Let a version serve devices; where it may not (`hold_reason`), the champion stays and says why.

    So does one that came after the decision. Arguments are those of `Registry.publish`; `sha256` is of the
    version's manifest, `at_secs` Unix seconds.
    """
    done, changes = dict(champions), []
    for device_id in sorted(map(DeviceId, devices)):
        before, decision = champions.get(device_id), devices[device_id]
        if before is not None and before.version == version:
            continue
        held = "" if before is None else hold_reason(before, version)
        if before is not None and before.version != decision.get("instead_of", before.version):
            # Nobody knew of it when its place was given away.
            held = held or f"{before.version} took the place meanwhile"
        if before is not None and held:
            done[device_id] = replace(before, retained=f"{version}: {held}")
            continue
        done[device_id] = champion = Champion(
            device_id=device_id,
            version=version,
            sha256=sha256,
            since=at_secs,
            reason=str(decision.get("reason", reason)),
            judged=dict(decision["judged"]) if decision.get("judged") else None,
            before=() if before is None else (*before.before, before.version)[-MOST_BEFORE:],
            earlier=None if before is None else before.judged,
        )
        changes.append(_change("published", champion, "" if before is None else before.version))
    return done, changes


def rolled_back(
    present: Champion,
    target: str,
    sha256: str,
    versions: Iterable[str],
    at_secs: float,
    *,
    reason: str,
    by_hand: bool,
) -> tuple[Champion, Change]:
    """Let `target` serve a device in place of its present champion, as `Registry.use` does.

    `sha256` is of its manifest, `versions` are those that can be gone back to, `at_secs` Unix seconds.
    """
    available = set(versions)
    before = [version for version in present.before if version in available]
    rolled_back_versions = [
        version for version in (present.rolled_back_from, present.version if by_hand else "") if version
    ]
    champion = Champion(
        device_id=present.device_id,
        version=target,
        sha256=sha256,
        since=at_secs,
        reason=reason,
        # Figures of before hold for the version that they were taken of only.
        judged=present.earlier if target == next(reversed(present.before), None) else None,
        before=tuple(before[: before.index(target)] if target in before else before),
        rolled_back_from=max(rolled_back_versions, key=version_number, default=""),
    )
    return champion, _change("rolled_back", champion, present.version)


def pinned(champion: Champion, now: float, reason: str, *, lets_go: bool = False) -> tuple[Champion, Change]:
    """Let nobody change a champion from now on (Unix seconds), or let it be changed again."""
    change = _change("unpinned" if lets_go else "pinned", champion, champion.version)
    return (
        replace(champion, pinned_at=None if lets_go else now),
        replace(change, at_secs=now, reason=reason),
    )


def with_reasons(
    champions: Mapping[DeviceId, Champion], reasons: Mapping[str, str]
) -> dict[DeviceId, Champion]:
    """Keep why champions stayed, in one sentence each; devices without a champion are passed over."""
    return {
        device_id: replace(champion, retained=reasons.get(device_id, champion.retained))
        for device_id, champion in champions.items()
    }


def _change(kind: str, champion: Champion, previous: str) -> Change:
    return Change(
        at_secs=champion.since,
        kind=kind,
        device_id=champion.device_id,
        version=champion.version,
        previous=previous,
        reason=champion.reason,
        judged=champion.judged,
    )


#: Newest versions that pruning leaves, whoever they serve.
KEEP = 8


class ChampionHeldError(RegistryError):
    """A device is pinned to its champion, or is served by another version than was to lose its place."""


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

        with self._changing() as file:
            names = self.versions()
            run = manifest.get("run")
            if run is not None:
                for version in reversed(names):
                    # A damaged one is no reason to keep no more versions.
                    with suppress(RegistryError):
                        if self.manifest(version).get("run") == run:
                            return version
            # A name never comes twice: whoever was rolled back by hand, and deleted, would come back by it.
            for champion in file.state().champions.values():
                names += (champion.version, *champion.before, champion.rolled_back_from)
            number = 1 + max((version_number(name) for name in names if name), default=0)
            version = f"v{number:06d}"
            full_manifest = {"created_at": self._clock(), **manifest, "version": version}
            checkpoint.save(self.folder / version, model, full_manifest, beside=beside)
            return version

    def publish(
        self,
        version: str,
        devices: Mapping[str, Mapping[str, Any]],
        *,
        retained: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Let a version serve some devices from now on: all of them in one step.

        A pinned device keeps its champion, and so does one that the version, or a newer one, was taken from
        by hand, or one whose champion is no more the one that was looked at (`instead_of`).

        Args:
            version: A version that is there.
            devices: What is known of each device's head: `reason` (one sentence), `judged` (figures), and
                `instead_of` (the version that it was found to take the place of; empty for none).
            retained: Why the champions of further devices stay.

        Returns:
            Those of the devices that the version serves from now on.

        Raises:
            RegistryError: The version is missing or has no head of a device.
        """
        with self._changing() as file:
            manifest, sha256 = self._manifest(version)
            missing = sorted(set(devices) - set(manifest["heads"]))
            if missing:
                raise RegistryError(f"{version} has no head for {', '.join(missing)}; nothing was published")
            champions = file.state().champions
            done, changes = published(champions, version, sha256, devices, self._clock())
            file.commit(with_reasons(done, retained or {}).values(), changes)
            return [device for device in sorted(devices) if done[DeviceId(device)].version == version]

    def retain(self, reasons: Mapping[str, str]) -> None:
        """Keep why the champions of some devices stay, for people."""
        with self._changing() as file:
            file.commit(with_reasons(file.state().champions, reasons).values(), ())

    def use(
        self,
        device_id: str,
        version: str,
        *,
        reason: str,
        by_hand: bool = False,
        pins: bool = False,
        instead_of: str | None = None,
    ) -> Champion:
        """Let a version serve a device, whoever serves it now, and give that champion.

        With `by_hand` a person wants it: the version that served comes back by no publication, and only a
        newer one that is judged better takes the place. With `pins` nobody changes the champion until it is
        unpinned. With `instead_of` that version alone loses its place.

        Raises:
            ChampionHeldError: The device is pinned, or another version than `instead_of` serves it.
            RegistryError: The version is missing, has no head of the device, or serves it already.
        """
        if not self.folder.is_dir():
            raise RegistryError(f"no model under {self.folder}; nothing to use")
        with self._changing() as file:
            sha256 = self.head_ref(device_id, version).sha256
            champions, now = file.state().champions, self._clock()
            present = champions.get(DeviceId(device_id))
            if present is not None and present.pinned_at is not None and version != present.version:
                raise ChampionHeldError(
                    f"{device_id} is pinned to {present.version}; let it go first: "
                    f"fleet models unpin {device_id}"
                )
            if instead_of is not None and (present is None or present.version != instead_of):
                served_by = present.version if present is not None else "nothing"
                raise ChampionHeldError(f"{device_id} is served by {served_by}, not by {instead_of}")
            changes: list[Change] = []
            if present is None:
                done, changes = published(champions, version, sha256, {device_id: {}}, now, reason)
                champion = done[DeviceId(device_id)]
            elif version != present.version:
                champion, change = rolled_back(
                    present, version, sha256, self.versions(), now, reason=reason, by_hand=by_hand
                )
                changes.append(change)
            elif pins:
                champion = present
            else:
                raise RegistryError(f"{device_id} is served by {version} already")
            if pins and champion.pinned_at is None:
                champion, change = pinned(champion, now, reason)
                changes.append(change)
            file.commit((champion,), changes)
            return champion

    def before(self, device_id: str) -> str:
        """The version that served a device before its champion, and is still there.

        Raises:
            RegistryError: The device has no champion, or there is none before it.
        """
        present = _champion_of(device_id, self.champions())
        if version := self.previous(present):
            return version
        raise RegistryError(
            f"{device_id} has no champion before {present.version} to go back to; name a version, or "
            "`shipped`"
        )

    def unpin(self, device_id: str, *, reason: str) -> Champion:
        """Let the champion of a pinned device be changed again.

        Raises:
            RegistryError: The device has no champion, or is not pinned.
        """
        with self._changing() as file:
            present = _champion_of(device_id, file.state().champions)
            if present.pinned_at is None:
                raise RegistryError(f"{device_id} is not pinned; {present.version} serves it")
            champion, change = pinned(present, self._clock(), reason, lets_go=True)
            file.commit((champion,), (change,))
            return champion

    def prune(self, keep: int = KEEP) -> list[str]:
        """Remove old versions, never one that serves a device, one to go back to, or one of the last `keep`.

        The newest FleetTLP stays too: new devices start from it. Gives the names of the removed ones.
        """
        with self._changing() as file:
            existing = self.versions()
            champions = file.state().champions.values()
            safe = set(existing[-max(1, keep) :]) | {champion.version for champion in champions}
            safe.update(map(self.previous, champions))
            safe.update([version for version in existing if is_extensible(self.kind(version))][-1:])
            gone = [version for version in existing if version not in safe]
            for version in gone:
                # Out of sight in one step; a reader that has opened its files reads on.
                hidden = self.folder / f".{version}.{uuid.uuid4().hex[:8]}.part"
                (self.folder / version).rename(hidden)
                fsync(self.folder)
                shutil.rmtree(hidden, ignore_errors=True)
            return gone

    @contextmanager
    def _changing(self) -> Iterator[RegistryFile]:
        """Be the only one to change anything; clear away what killed ones left."""
        make_folder(self.folder)
        with opened(self.folder / REGISTRY, is_change=True) as file:
            # Who writes a version has the file open, and it is ours now: nobody is at work on any of them.
            for path in self.folder.glob(".*.part"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            yield file


def _champion_of(device_id: str, champions: Mapping[DeviceId, Champion]) -> Champion:
    if champion := champions.get(DeviceId(device_id)):
        return champion
    served = ", ".join(champions) or "none"
    raise RegistryError(f"device {device_id!r} has no champion; devices with one: {served}")
