"""Workloads and environments of an import, each made once however many lines name it.

The readers of the dialects fill it; `fleet.interchange.import_logs` stores what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agents.records import Family, Workload, WorkloadId, canonical_json, content_hash
from fleet.interchange.log_json import Rejected
from fleet.interchange.log_results import Result
from fleet.interchange.log_targets import Machine

#: Workloads and environments in one import at most: real logs have some thousands; each workload is a file.
MAX_WORKLOADS = 50_000
MAX_ENVIRONMENTS = 10_000

#: Digits of a workload id.
WORKLOAD_ID_DIGITS = 16


@dataclass(slots=True, eq=False)
class LoggedWorkload:
    """A workload and what makes ids of its candidates fast."""

    workload: Workload
    dialect: str
    _prefix: Any = field(init=False)

    def __post_init__(self) -> None:
        self._prefix = hashlib.sha256(framed(self.workload.workload_id) + framed(self.dialect))

    def candidate_id(self, trace: str) -> str:
        """`agents.records.content_hash(workload_id, dialect, trace)`, the constant part hashed already."""
        digest = self._prefix.copy()
        digest.update(framed(trace))
        return str(digest.hexdigest()[:32])

    def estimate_flops(self, flops: float) -> None:
        """Keep an estimate that was not there before."""
        self.workload = replace(self.workload, flops=flops)

    def forget_module(self) -> None:
        """Give the memory of the module back, once it is stored; modules may have some hundred KB."""
        self.workload = replace(self.workload, module_json="")


def framed(text: str) -> bytes:
    """One part of what `agents.records.content_hash` hashes."""
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """Where lines were measured, as far as they say."""

    #: Canonical JSON for `Record.environment`.
    text: str
    environment_id: str
    machine: Machine

    @property
    def family(self) -> Family:
        """Family of the target."""
        return self.machine.target.family


class Measurement(NamedTuple):
    """One line, read."""

    workload: LoggedWorkload
    environment: Environment
    #: Canonical text of the schedule.
    trace: str
    result: Result


class Catalog:
    """What the lines of one import name."""

    def __init__(self) -> None:
        self._workloads: dict[Hashable, LoggedWorkload] = {}
        self._by_id: dict[WorkloadId, LoggedWorkload] = {}
        self._environments: dict[Hashable, Environment] = {}

    def workload(self, key: Hashable, make: Callable[[], LoggedWorkload]) -> LoggedWorkload:
        """The workload that a reader knows under a key; made when it is new.

        Raises:
            Rejected: There are too many, or `make` says so.
        """
        found = self._workloads.get(key)
        if found is None:
            if len(self._workloads) >= MAX_WORKLOADS:
                raise Rejected(f"more than {MAX_WORKLOADS:,} workloads")
            made = make()
            found = self._workloads[key] = self._by_id.setdefault(made.workload.workload_id, made)
        return found

    def environment(self, key: Hashable, make: Callable[[], tuple[dict[str, Any], Machine]]) -> Environment:
        """The environment that a reader knows under a key; made when it is new.

        Raises:
            Rejected: There are too many, or `make` says so.
        """
        found = self._environments.get(key)
        if found is None:
            if len(self._environments) >= MAX_ENVIRONMENTS:
                raise Rejected(f"more than {MAX_ENVIRONMENTS:,} targets")
            value, machine = make()
            text = canonical_json(value)
            found = self._environments[key] = Environment(text, content_hash("imported", text), machine)
        return found


def key_id(dialect: str, key_text: str) -> WorkloadId:
    """Id of a workload that has no module: hash of its dialect and of what names it there."""
    return WorkloadId(content_hash(dialect, key_text)[:WORKLOAD_ID_DIGITS])


__all__ = ["Catalog", "Environment", "LoggedWorkload", "Measurement", "framed", "key_id"]
