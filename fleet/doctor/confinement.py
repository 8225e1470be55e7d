"""How far worker processes are confined on this host: a table, and what would make it better. Pure.

`SECURITY.md` promises what stands here, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agents.sandbox.confinement_trial import Aspect, Means, Trial
from fleet.doctor.words import Finding

_LANDLOCK_CURE = (
    "run Linux 5.13 or later with Landlock on (CONFIG_SECURITY_LANDLOCK, and `landlock` in "
    "/sys/kernel/security/lsm), in a container that allows it"
)
_FILTER_CURE = "run Linux with CONFIG_SECCOMP_FILTER, on x86-64 or AArch64"
_TMPDIR_CURE = "set TMPDIR to a folder on a disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinementRow:
    """How far worker processes are kept from one aspect of their host."""

    aspect: Aspect
    #: What was tried and refused, and how much was tried.
    refused: tuple[str, ...]
    tried: int
    #: What refused it.
    by: tuple[str, ...]
    #: What worker processes can do, and must not.
    missing: tuple[str, ...]


def confinement_rows(trial: Trial) -> list[ConfinementRow]:
    """Give a row for each aspect, in the order of `Aspect`."""
    rows = []
    for aspect in Aspect:
        tried = [attempt for attempt in trial.attempts if attempt.aspect is aspect]
        refused = [attempt for attempt in tried if attempt.is_refused]
        missing = [attempt.what for attempt in tried if not attempt.is_refused]
        if aspect is Aspect.MEMORY and trial.memory_folder:
            missing.append(_in_memory(trial))
        rows.append(
            ConfinementRow(
                aspect=aspect,
                refused=tuple(attempt.what for attempt in refused),
                tried=len(tried),
                by=tuple(
                    f"{means} {trial.landlock}" if means is Means.LANDLOCK else str(means)
                    for means in Means
                    if means in {attempt.by for attempt in refused}
                ),
                missing=tuple(missing),
            )
        )
    return rows


def confinement_findings(trial: Trial | str) -> Iterable[Finding]:
    """Judge a trial, or give the reason why there was none; an empty text means that it was not tried."""
    if isinstance(trial, str):
        if trial:
            yield Finding(
                what="how far worker processes are confined could not be tried",
                why=trial,
                do="look at what stands there, and run `fleet doctor` again",
            )
        return
    if trial.allowed:
        cures = [_LANDLOCK_CURE] * (not trial.landlock) + [_FILTER_CURE] * (not trial.has_filter)
        yield Finding(
            what=f"worker processes can {', '.join(trial.allowed)}",
            why="so can a program that is measured; everything else that was tried is refused",
            do="; ".join(cures) or "look at what the worker processes print when they start",
        )
    if trial.memory_folder:
        yield Finding(
            what=f"worker processes can {_in_memory(trial)}",
            why="it counts against no limit of a program that is measured",
            do=_TMPDIR_CURE,
        )


def _in_memory(trial: Trial) -> str:
    return f"fill memory with files in {trial.memory_folder}, which is not a disk"
