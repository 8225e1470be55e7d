"""Names of versions, and the two small files of a registry: who serves which device, and how that came about.

Only `fleet.models.registry` writes them; see there for what they are for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agents.records import DeviceId, ModelRef, canonical_json
from agents.regular_files import read_regular
from fleet.durable import fsync
from fleet.errors import FleetError

#: Folder beside the versions for leave-one-device-out scores, as kept by `transfer.auto`.
DEVICE_SCORES = "standings"
_VERSION = re.compile(r"v(\d{6})")


def versions(folder: Path) -> list[str]:
    """List the versions in a folder of models, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name))


def version_number(name: str) -> int:
    """Number of a version.

    Raises:
        ValueError: The name is no version's.
    """
    found = _VERSION.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no name of a version, such as v000012")
    return int(found.group(1))


def latest(folder: Path) -> Path:
    """Folder of the newest version.

    Raises:
        FleetError: There is none.
    """
    found = versions(folder)
    if not found:
        raise FleetError(f"no model under {folder}; run `fleet train` first")
    return folder / found[-1]


CHAMPIONS, HISTORY = "champions.json", "history.jsonl"
#: Layout of both files.
FORMAT = 2
#: Earlier champions that a device remembers.
MOST_BEFORE = 8
_MOST_HISTORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """The head that serves a device."""

    device_id: DeviceId
    version: str
    #: Hash of the version's manifest.
    sha256: str
    #: Unix seconds when it took its place.
    since: float
    #: Why it did.
    reason: str
    #: What it reached on held-out workloads when it was published (`fleet.models.promotion`); None where not
    #: judged.
    judged: Mapping[str, Any] | None = None
    #: Versions that served the device before, oldest first; those after a rollback's target are gone.
    before: tuple[str, ...] = ()
    #: `judged` of the last of these.
    earlier: Mapping[str, Any] | None = None
    #: Unix seconds since when nobody may change it; None where it is not pinned.
    pinned_at: float | None = None
    #: Newest version that was rolled back by hand: it does not come back by itself, and only a better head
    #: takes the place. Empty where none was.
    rolled_back_from: str = ""
    #: Why the last version that could have taken the place did not; empty where there was none.
    retained: str = ""

    @property
    def ref(self) -> ModelRef:
        """What travels to agents and clients."""
        return ModelRef(version=self.version, device_id=self.device_id, sha256=self.sha256)

    @property
    def named(self) -> set[str]:
        """Versions that it names: its own, those before it, and the one that was rolled back."""
        return {self.version, *self.before, *([self.rolled_back_from] if self.rolled_back_from else [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One device got another champion, or its champion was pinned or let go."""

    #: Counted from 1 over all changes.
    serial: int
    at_secs: float
    #: `published`, `rolled_back`, `pinned` or `unpinned`.
    kind: str
    device_id: DeviceId
    version: str
    #: Version that served before, the same where only a pin changed; empty for a first one.
    previous: str
    reason: str
    judged: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What `champions.json` says."""

    #: Serial of the last change.
    serial: int = 0
    champions: Mapping[DeviceId, Champion] = field(default_factory=dict)
    #: Changes of the last write: they may be missing from the history.
    changes: tuple[Change, ...] = ()


_STATE, _CHANGE = TypeAdapter(State), TypeAdapter(Change)
_KEYS = ("serial", "champions", "changes")


def state_text(state: State) -> str:
    """The file of a state."""
    value = {
        "format": FORMAT,
        "serial": state.serial,
        "champions": {device_id: asdict(one) for device_id, one in state.champions.items()},
        "changes": [asdict(change) for change in state.changes],
    }
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"


def parse_state(text: str | bytes) -> State:
    """Inverse of `state_text`.

    Raises:
        ValueError: It is no such file, or one of another layout.
    """
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ValueError(f"it has layout {value['format']}, this version reads {FORMAT}")
        return _STATE.validate_json(json.dumps({key: value[key] for key in _KEYS}), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"not a list of champions ({first['loc']}: {first['msg']})") from None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a list of champions ({error!r})") from error


def appended_history(path: Path, changes: Iterable[Change]) -> None:
    """Tell changes that the history does not hold yet. A torn last line of a killed writer is cut off."""
    known = read_history(path)
    last = known[-1].serial if known else 0
    lines = [canonical_json(asdict(change)) + "\n" for change in changes if change.serial > last]
    if not lines:
        return
    is_new = not path.exists()
    with path.open("ab", buffering=0) as stream:
        whole = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(stream.fileno(), whole)
        stream.write("".join(lines).encode())
        os.fsync(stream.fileno())
    if is_new:
        fsync(path.parent)


def read_history(path: Path) -> list[Change]:
    """All changes that were told, oldest first; lines that nobody can read are passed over."""
    try:
        lines = read_regular(path, _MOST_HISTORY_BYTES).decode(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(_CHANGE.validate_json(line, strict=True))
        except ValueError:
            # The history is for people: a damaged line must not stop a publication.
            continue
    return found
