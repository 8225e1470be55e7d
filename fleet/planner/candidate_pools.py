"""Candidates with their traces: those that wait to be measured for the first time, and a cache of others.

A job names candidates by id; here is what an agent needs to measure them. What nobody has measured yet is in
one file a (family, workload), so that a restart finds it: `fleet.engine.coordinator` has all that is new
written once a turn, before the journal gets a job that names it. What the store has is not written again:
`fleet.store.trace_lookup` reads it back, and a few of these are kept in memory.

The files may be deleted: jobs that wait for such candidates are cancelled with a word, others are proposed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from agents.records import Candidate, CandidateId, WorkloadId, canonical_json
from agents.spool.frames import make_folder
from fleet.core.events import Origin
from fleet.durable import disk_errors, fsync, write_all_durably
from fleet.errors import FleetError

#: Layout of the files. 1: first published layout.
POOL_SCHEMA = 1
#: Traces that are kept in memory: some 20 KB each for a live device, a hundred bytes for a recorded one.
CACHE_BYTES = 96 << 20

_Key = tuple[str, WorkloadId]
_Cached = tuple[str, CandidateId]


class CandidatePools:
    """Candidates by family, workload and id.

    Args:
        folder: Where the files are; made if missing.
        cache_bytes: Most bytes of traces in memory.

    Attributes:
        notes: Files that could not be read, one line each.
        is_behind: Whether the last `flush` found no room: no job may be journalled until one does.
    """

    def __init__(self, folder: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._folder = folder
        self._cache_bytes = cache_bytes
        self._waiting: dict[_Key, dict[CandidateId, None]] = {}
        self._cache: OrderedDict[_Cached, Candidate] = OrderedDict()
        self._bytes = 0
        #: Not on the disk yet.
        self._new: dict[_Key, dict[CandidateId, Candidate]] = {}
        self.is_behind = False
        self.notes: list[str] = []
        with disk_errors("opening the pools", folder):
            make_folder(folder)
            # A kill may have come between a family's folder and the next line.
            fsync(folder)
            for path in sorted(folder.glob("*/*.json")):
                key = path.parent.name, WorkloadId(path.stem)
                self._waiting[key] = dict.fromkeys(self._read(path))

    def waiting(self) -> dict[_Key, list[CandidateId]]:
        """Candidates that nobody has measured, as far as it was told, by family and workload."""
        return {key: list(ids) for key, ids in self._waiting.items() if ids}

    def add(self, family: str, workload_id: WorkloadId, candidates: Iterable[Candidate]) -> None:
        """Keep new candidates of a workload; they are on the disk after the next `flush`."""
        key = family, workload_id
        fresh = {one.candidate_id: one for one in candidates}
        if not fresh:
            return
        self._waiting.setdefault(key, {}).update(dict.fromkeys(fresh))
        self._new.setdefault(key, {}).update(fresh)
        for one in fresh.values():
            self._remember(family, one)

    def flush(self) -> None:
        """Write every file that lacks a candidate, all with about one wait for the disk.

        Raises:
            StoreFull: No room; files are old or new, each whole, and it may be tried again.
            StoreError: The disk failed.
        """
        if not self._new:
            return
        held = {key: found for key in self._new if (found := self._held(key))}
        self.is_behind = True
        self._write(held)
        self.is_behind = False
        self._new.clear()

    def remember(self, family: str, candidates: Iterable[Candidate]) -> None:
        """Keep candidates that the store has in memory for a while; who measures them next is `paired`."""
        for one in candidates:
            is_paired = one.origin == Origin.PAIRED
            self._remember(family, one if is_paired else replace(one, origin=Origin.PAIRED.value))

    def at_hand(self, family: str, wanted: Iterable[CandidateId]) -> dict[CandidateId, Candidate]:
        """Those of some candidates that are in memory."""
        found: dict[CandidateId, Candidate] = {}
        for one in wanted:
            key = family, one
            if (candidate := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                found[one] = candidate
        return found

    def get(
        self, family: str, workload_id: WorkloadId, wanted: Collection[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Those of some candidates of a workload that are at hand, from memory or the workload's file."""
        found = self.at_hand(family, wanted)
        missing = [one for one in wanted if one not in found]
        waiting = self._waiting.get((family, workload_id), {})
        if any(one in waiting for one in missing):
            held = self._held((family, workload_id))
            found |= {one: held[one] for one in missing if one in held}
            for one in missing:
                if one in held:
                    self._remember(family, held[one])
        return found

    def measured(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Let the file of a workload go without candidates that the store has now.

        They leave the file when it is written next, which is at once only where none is left.
        """
        held = self._waiting.get((family, workload_id), {})
        gone = [one for one in candidate_ids if one in held]
        if not gone:
            return
        # Source devices measure them next: after a restart they are in the file only.
        self.remember(family, self.get(family, workload_id, gone).values())
        waiting = self._waiting[family, workload_id]
        for one in gone:
            waiting.pop(one, None)
            self._new.get((family, workload_id), {}).pop(one, None)
        if not waiting:
            del self._waiting[family, workload_id]
            with disk_errors("deleting a pool of candidates", self._folder):
                self._path((family, workload_id)).unlink(missing_ok=True)

    def _remember(self, family: str, candidate: Candidate) -> None:
        key = family, candidate.candidate_id
        known = self._cache.get(key)
        if known is not None and (candidate.origin != Origin.PAIRED or known.origin == Origin.PAIRED):
            return
        self._cache[key] = candidate
        self._bytes += len(candidate.trace) if known is None else 0
        while self._bytes > self._cache_bytes and len(self._cache) > 1:
            _, gone = self._cache.popitem(last=False)
            self._bytes -= len(gone.trace)

    def _path(self, key: _Key) -> Path:
        return self._folder / key[0] / f"{key[1]}.json"

    def _held(self, key: _Key) -> dict[CandidateId, Candidate]:
        """What of a workload nobody has measured."""
        waiting = self._waiting.get(key)
        if not waiting:
            return {}
        new = self._new.get(key, {})
        held = {one: self._cache[key[0], one] for one in waiting if (key[0], one) in self._cache} | new
        if len(held) < len(waiting):
            path = self._path(key)
            held = (self._read(path) if path.exists() else held) | new
            # Somebody may have deleted the file meanwhile: what it held is gone.
            self._waiting[key] = waiting = {one: None for one in waiting if one in held}
        return {one: held[one] for one in waiting}

    def _write(self, held: Mapping[_Key, Mapping[CandidateId, Candidate]]) -> None:
        files: dict[Path, bytes] = {}
        for key, candidates in held.items():
            value = {
                "schema": POOL_SCHEMA,
                "workload_id": key[1],
                "candidates": [[one.dialect, one.origin, one.trace] for one in candidates.values()],
            }
            files[self._path(key)] = canonical_json(value).encode()
        with disk_errors("keeping candidates", self._folder):
            for folder in {path.parent for path in files}:
                if not folder.exists():
                    make_folder(folder)
            write_all_durably(files)

    def _read(self, path: Path) -> dict[CandidateId, Candidate]:
        """The candidates of one file; a damaged one is set aside, for they can be proposed again."""
        try:
            value = json.loads(path.read_bytes())
            if value["schema"] != POOL_SCHEMA:
                raise FleetError(
                    f"{path} has layout {value['schema']}, this version knows {POOL_SCHEMA}; delete it or "
                    "upgrade tensor-fleet"
                )
            found = [
                Candidate(
                    workload_id=WorkloadId(value["workload_id"]), dialect=dialect, origin=origin, trace=trace
                )
                for dialect, origin, trace in value["candidates"]
            ]
            return {one.candidate_id: one for one in found}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = path.with_suffix(".corrupt")
            path.replace(aside)
            self.notes.append(f"{path} cannot be read ({error}): kept as {aside.name}, proposed again")
            return {}


__all__ = ["CACHE_BYTES", "POOL_SCHEMA", "CandidatePools"]
