"""Candidates with their traces: those that wait to be measured for the first time, and a cache of others.

A job names candidates by id; here is what an agent needs to measure them. What nobody has measured yet is in
a file of rows (`agents.row_file`), so that a restart finds it: `fleet.engine.coordinator` has all that is new
written once a turn, before the journal gets a job that names it. What the store has is not written again:
`fleet.store.trace_lookup` reads it back, and a few of these are kept in memory.

The file may be deleted: jobs that wait for such candidates are cancelled with a word, others are proposed.

Beside it lies which design spaces of live devices are used up: to draw from one in vain takes a while. It is
a cache, and only for the versions that have drawn.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agents.files import free_name, write_durably
from agents.records import Candidate, CandidateId, WorkloadId, canonical_json
from agents.row_file import RowFile
from fleet.core.events import Origin
from fleet.durable import disk_errors
from fleet.errors import FleetError
from fleet.transport.host_versions import own_versions

#: Layout of the rows, and of the earlier files. 1: first published layout.
POOL_SCHEMA = 1
#: File of the spaces that are used up, and its layout. 1: first published layout.
USED_UP, USED_UP_SCHEMA = "used_up.json", 1
#: Traces that are kept in memory: some 20 KB each for a live device, a hundred bytes for a recorded one.
CACHE_BYTES = 96 << 20
#: Rows of measured candidates that wait to be deleted with the next new ones, at most.
_GONE_ROWS = 1000
#: Ends the name under which replay devices share candidates where others of their family are live.
REPLAY_SUFFIX = "-replay"

_Key = tuple[str, WorkloadId]
_Cached = tuple[str, CandidateId]


class CandidatePools:
    """Candidates by family, workload and id.

    Args:
        folder: Where the file is; made if missing.
        cache_bytes: Most bytes of traces in memory.
        live: Families with live devices; more may come. What was drawn where a family had none is of its
            replay devices, also in a later life: live ones must not measure it. None: all are.

    Attributes:
        notes: Damage that was found, one line each.
        is_behind: Whether the last `flush` found no room: no job may be journalled until one does.
    """

    def __init__(
        self, folder: Path, *, cache_bytes: int = CACHE_BYTES, live: Collection[str] | None = None
    ) -> None:
        self._folder, self._live = folder, live
        self._cache_bytes = cache_bytes
        #: With the number of the row, or None of one that is not on the disk yet.
        self._waiting: dict[_Key, dict[CandidateId, int | None]] = {}
        self._cache: OrderedDict[_Cached, Candidate] = OrderedDict()
        self._bytes = 0
        #: Not on the disk yet.
        self._new: dict[_Key, dict[CandidateId, Candidate]] = {}
        #: Rows of what was measured.
        self._gone: list[int] = []
        #: Spaces that are used up, and how many candidates of each were known then.
        self._used_up, self._is_used_up_new = self._read_used_up(), False
        self.is_behind = False
        with disk_errors("opening the pools", folder):
            self._rows = RowFile(folder / "pools.sqlite", layout=POOL_SCHEMA)
            self.notes = self._rows.notes
            try:
                self._open()
            except BaseException:
                self._rows.close()
                raise

    def waiting(self) -> dict[_Key, list[CandidateId]]:
        """Candidates that nobody has measured, as far as it was told, by family and workload."""
        return {key: list(ids) for key, ids in self._waiting.items() if ids}

    def add(self, family: str, workload_id: WorkloadId, candidates: Iterable[Candidate]) -> None:
        """Keep new candidates of a workload; they are on the disk after the next `flush`."""
        key = family, workload_id
        known = self._waiting.get(key, {})
        fresh = {one.candidate_id: one for one in candidates if one.candidate_id not in known}
        if not fresh:
            return
        self._waiting.setdefault(key, {}).update(dict.fromkeys(fresh))
        self._new.setdefault(key, {}).update(fresh)
        for one in fresh.values():
            self._remember(family, one)

    def flush(self) -> None:
        """Write every candidate that the disk lacks, all with one wait for it.

        Raises:
            StoreFull: No room; nothing was written, and it may be tried again.
            StoreError: The disk failed.
        """
        if self._new or len(self._gone) > _GONE_ROWS:
            self.is_behind = True
            self._write()
            self.is_behind = False
        if self._is_used_up_new:
            self._write_used_up()

    def close(self) -> None:
        """Let another one open the file; what is not on the disk is lost."""
        if self._gone:
            with suppress(OSError):
                self._rows.change([], self._gone)
        self._rows.close()

    def use_up(self, family: str, workload_id: WorkloadId, known: int) -> None:
        """Note that live devices of a family find no candidate beside the known ones, whose number is given.

        What replay devices draw from may be another file at the next start, and drawing takes them no time.
        """
        if self._live is None or family in self._live:
            self._used_up[family, workload_id] = known
            self._is_used_up_new = True

    def used_up(self) -> dict[_Key, int]:
        """How many candidates of each space were known when it was used up."""
        return dict(self._used_up)

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
        """Those of some candidates of a workload that are at hand, from memory or the file."""
        found = self.at_hand(family, wanted)
        key = family, workload_id
        waiting, new = self._waiting.get(key, {}), self._new.get(key, {})
        found |= {one: new[one] for one in wanted if one in new and one not in found}
        numbers = [number for one in wanted if one not in found and (number := waiting.get(one))]
        with disk_errors("reading candidates", self._folder):
            read = [_unpacked(workload_id, row.body) for row in self._rows.get(numbers)]
        for one in read:
            self._remember(family, one)
        return found | {one.candidate_id: one for one in read}

    def measured(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Wait no more for candidates that the store has now; their rows go with the next new ones."""
        held = self._waiting.get((family, workload_id), {})
        gone = [one for one in candidate_ids if one in held]
        if not gone:
            return
        # Source devices measure them next: after a restart they are in the file only.
        self.remember(family, self.get(family, workload_id, gone).values())
        for one in gone:
            if (number := held.pop(one)) is not None:
                self._gone.append(number)
            self._new.get((family, workload_id), {}).pop(one, None)
        if not held:
            del self._waiting[family, workload_id]
            self._new.pop((family, workload_id), None)

    def part(self, family: str) -> None:
        """Let its replay devices keep what waits for a family: its first live device comes."""
        for key in [one for one in self._waiting if one[0] == family]:
            replayed = f"{family}{REPLAY_SUFFIX}", key[1]
            self._waiting[replayed] = self._waiting.pop(key)
            if key in self._new:
                self._new[replayed] = self._new.pop(key)

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

    def _write(self) -> None:
        new = [(key, one) for key, candidates in self._new.items() for one in candidates.values()]
        with disk_errors("keeping candidates", self._folder):
            numbers = self._rows.change([(self._name(key), _packed(one)) for key, one in new], self._gone)
        for number, (key, one) in zip(numbers, new, strict=True):
            self._waiting[key][one.candidate_id] = number
        self._new.clear()
        self._gone.clear()

    def _write_used_up(self) -> None:
        self._is_used_up_new = False  # whatever becomes of the file: nobody waits for it
        spaces = [[*key, known] for key, known in self._used_up.items()]
        value = {"schema": USED_UP_SCHEMA, "versions": own_versions(), "spaces": spaces}
        with suppress(OSError):
            write_durably(self._folder / USED_UP, canonical_json(value).encode())

    def _read_used_up(self) -> dict[_Key, int]:
        try:
            value = json.loads((self._folder / USED_UP).read_bytes())
            # Other versions may have other spaces.
            if value["schema"] == USED_UP_SCHEMA and value["versions"] == own_versions():
                return {(str(one), WorkloadId(of)): int(known) for one, of, known in value["spaces"]}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # they are drawn from once more
        return {}

    def _open(self) -> None:
        if self._rows.layout != POOL_SCHEMA:
            raise _newer(self._rows.path, self._rows.layout)
        for row in self._rows.rows():
            name, _, workload = row.key.partition("/")
            key = self._waits_for(name), WorkloadId(workload)
            self._waiting.setdefault(key, {})[_unpacked(key[1], row.body).candidate_id] = row.number
        earlier = sorted(self._folder.glob("*/*.json"))
        for path in earlier:
            self.add(path.parent.name, WorkloadId(path.stem), self._earlier(path))
        if self._new:
            self._write()
        for path in earlier:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def _name(self, key: _Key) -> str:
        """Key of a row: it tells whose the candidates are, whatever devices the next start has."""
        family, workload_id = key
        is_told = self._live is None or family in self._live or family.endswith(REPLAY_SUFFIX)
        return f"{family}{'' if is_told else REPLAY_SUFFIX}/{workload_id}"

    def _waits_for(self, name: str) -> str:
        """Under which name candidates wait: without live devices the family's own is that of the others."""
        family = name.removesuffix(REPLAY_SUFFIX)
        return name if self._live is None or family in self._live else family

    def _earlier(self, path: Path) -> list[Candidate]:
        """Candidates of an earlier version's file of one workload; a damaged one is set aside."""
        try:
            value = json.loads(path.read_bytes())
            if value["schema"] != POOL_SCHEMA:
                raise _newer(path, value["schema"])
            workload_id = WorkloadId(value["workload_id"])
            return [_candidate(workload_id, *one) for one in value["candidates"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = free_name(path, ".corrupt")
            path.replace(aside)
            self.notes.append(f"{path} cannot be read ({error}): kept as {aside.name}, proposed again")
            return []


def _packed(one: Candidate) -> bytes:
    return canonical_json([one.dialect, one.origin, one.trace]).encode()


def _unpacked(workload_id: WorkloadId, body: bytes) -> Candidate:
    return _candidate(workload_id, *json.loads(body))


def _candidate(workload_id: WorkloadId, dialect: str, origin: str, trace: str) -> Candidate:
    return Candidate(workload_id=workload_id, dialect=dialect, origin=origin, trace=trace)


def _newer(path: Path, layout: object) -> FleetError:
    return FleetError(
        f"{path} has layout {layout}, this version knows {POOL_SCHEMA}; delete it or upgrade tensor-fleet"
    )
