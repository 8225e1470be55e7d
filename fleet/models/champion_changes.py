"""Who serves after a publication, a choice by hand, a pin: pure changes of a registry's champions.

`fleet.models.registry` reads the file, asks here, and writes: each function gives champions from now on and
changes, which get serials when they are written. Here stands who may take a champion's place at all; whether
a head deserves it is for `fleet.models.promotion` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agents.records import DeviceId
from fleet.models.registry_file import MOST_BEFORE, Champion, Change, version_number


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
