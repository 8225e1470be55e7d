"""Imported candidates that wait: they are looked for by another thread while the fleet changes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from agents.records import CandidateId, DeviceId, Family, WorkloadId
from fleet.planner.imported_candidates import ImportedCandidates

W1, C1, LAB = WorkloadId("w1"), CandidateId("c1"), DeviceId("lab")


def test_a_search_knows_the_fleet_as_it_was_when_it_was_asked() -> None:
    families, wanted, devices = {"cpu": Family.CPU}, {W1}, [LAB]
    search = ImportedCandidates(families).search(wanted, devices)
    reader: Any = object()

    def found(_: object, family: Family, asked: Any, among: Any) -> dict[WorkloadId, list[CandidateId]]:
        # The first live device of another family comes meanwhile, with workloads of its own.
        families["gpu"] = Family.GPU
        wanted.add(WorkloadId("w2"))
        devices.append(DeviceId("late"))
        assert (family, set(asked), tuple(among)) == (Family.CPU, {W1}, (LAB,))
        return {W1: [C1]}

    with mock.patch("fleet.planner.imported_candidates.claims", found):
        assert search(reader) == {("cpu", W1): [C1]}
