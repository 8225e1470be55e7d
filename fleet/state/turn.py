"""What one transaction changes: results, candidates, waiting rows, events, letters; all of it or nothing.

`fleet.state.state_file` begins and ends it. Nothing here waits for the disk.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.state.rows import (
    FASTEST,
    LOST,
    OK,
    OUTCOME_NUMBERS,
    Result,
    TableFile,
    checksum,
    pack_trace,
    unpack_trace,
)
from fleet.state.schema import IN_GROUP, Group, Labels, attempts_of, packed_id

_ADD_TALLY = """
INSERT INTO tally VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    records = records + excluded.records, measured = measured + excluded.measured, ok = ok + excluded.ok,
    measured_at = max(measured_at, excluded.measured_at), noise_at = max(noise_at, excluded.noise_at)
"""
#: Share of a bound of letters that stays when the oldest go: not a deletion for each new delivery.
_KEPT_SHARE = 0.9


class Turn:
    """An open transaction of a state file; it ends with the `with` block of `StateFile.turn`."""

    def __init__(self, connection: sqlite3.Connection, labels: Labels) -> None:
        self._connection = connection
        self._labels = labels

    def add_results(self, results: Iterable[Result]) -> list[bool]:
        """Note what was measured, and say of each whether it is new.

        What is there already stays as it is, whatever its outcome.
        """
        number = self._labels.number
        flags: list[bool] = []
        groups: dict[Group, list[tuple[int, Result]]] = defaultdict(list)
        for place, result in enumerate(results):
            group = number(result.workload_id), number(result.device_id), number(result.environment_id)
            groups[group].append((place, result))
            flags.append(False)
        for group, placed in groups.items():
            for place in self._add_group(group, placed):
                flags[place] = True
        return flags

    def _add_group(self, group: Group, placed: Sequence[tuple[int, Result]]) -> list[int]:
        """Note results of one group, and say at which places the new ones stood."""
        candidates = [packed_id(result.candidate_id) for _, result in placed]
        attempts = attempts_of(self._connection, group, candidates)
        added: list[int] = []
        rows: list[tuple[int, int, int, bytes, int, int, float | None]] = []
        secs: dict[bytes, float] = {}
        measured = ok = 0
        measured_at = noise_at = 0.0
        for candidate, (place, result) in zip(candidates, placed, strict=True):
            before, outcome = attempts[candidate], OUTCOME_NUMBERS[result.outcome]
            if result.attempt in before:
                continue
            added.append(place)
            rows.append((*group, candidate, result.attempt, outcome, result.latency_secs))
            measured += outcome != LOST and all(earlier == LOST for earlier in before.values())
            before[result.attempt] = outcome
            ok += outcome == OK
            measured_at = max(measured_at, result.measured_at)
            if result.is_noise and outcome != LOST:
                noise_at = max(noise_at, result.measured_at)
            if outcome == OK and result.latency_secs is not None:
                secs[candidate] = min(result.latency_secs, secs.get(candidate, result.latency_secs))
        if rows:
            self._connection.executemany("INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            total = *group, len(rows), measured, ok, measured_at, noise_at
            self._connection.execute(_ADD_TALLY, total)
        if secs:
            self._keep_fastest(group, secs)
        return added

    def add_candidates(self, family: str, workload_id: WorkloadId, candidates: Iterable[Candidate]) -> None:
        """Make candidates of a workload known to a family; what is known of them stays as it is."""
        space = self._labels.number(family), self._labels.number(workload_id)
        base: tuple[int, str] | None = None
        for candidate in candidates:
            base = base or self._base(space)
            number, text = base or (None, None)
            self._connection.execute(
                "INSERT INTO candidate (family, workload, id, dialect, origin, trace, base)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    *(*space, bytes.fromhex(candidate.candidate_id), candidate.dialect, candidate.origin),
                    *(pack_trace(candidate.trace, text), number),
                ),
            )

    def settle_candidates(
        self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]
    ) -> None:
        """Note that somebody has measured candidates: they wait no more, and keep their traces."""
        self._set("is_waiting", 0, family, workload_id, candidate_ids)

    def block(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Plan candidates no more: they kill what measures them, or nobody can make them again."""
        self._set("is_blocked", 1, family, workload_id, candidate_ids)

    def _set(
        self,
        column: str,
        value: int,
        family: str,
        workload_id: WorkloadId,
        candidate_ids: Iterable[CandidateId],
    ) -> None:
        space = self._labels.number(family), self._labels.number(workload_id)
        self._connection.executemany(
            f"UPDATE candidate SET {column} = {value}"
            f" WHERE family = ? AND workload = ? AND id = ? AND {column} != {value}",
            ((*space, bytes.fromhex(candidate_id)) for candidate_id in candidate_ids),
        )

    def add_waiting(
        self, lane: int, device_ids: Iterable[DeviceId], rows: int, body: bytes, since: float
    ) -> None:
        """Keep rows for the table.

        Args:
            lane: They go into the table together with others of the same lane.
            device_ids: Their devices.
            rows: How many.
            body: An Arrow stream (`fleet.state.rows`).
            since: Unix seconds.
        """
        names = " ".join(device_ids)
        row = (lane, names, rows, since, body, checksum(names, str(rows), body))
        self._connection.execute(
            "INSERT INTO waiting (lane, devices, rows, since, body, sum) VALUES (?, ?, ?, ?, ?, ?)", row
        )

    def drop_waiting(
        self,
        numbers: Iterable[int],
        files: Iterable[TableFile] = (),
        *,
        version: int | None = None,
        table_rows: int = 0,
    ) -> None:
        """Forget rows that the table has now.

        Args:
            numbers: The rows.
            files: Data files that hold them.
            version: Version of the table with these files; None leaves it as it is.
            table_rows: All rows of that version.
        """
        self._connection.executemany(
            "DELETE FROM waiting WHERE number = ?", ((number,) for number in numbers)
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO data_file VALUES (?, ?, ?, ?, ?)",
            (
                (file.path, self._labels.number(file.device_id), file.rows, file.sha256, file.sum)
                for file in files
            ),
        )
        if version is not None:
            row = version, table_rows
            self._connection.execute("INSERT OR REPLACE INTO table_version VALUES (0, ?, ?)", row)

    def drop_files(self, paths: Iterable[str]) -> None:
        """Forget data files that no version of the table in use names."""
        self._connection.executemany("DELETE FROM data_file WHERE path = ?", ((path,) for path in paths))

    def put_note(self, name: str, body: bytes) -> None:
        """Keep a small text in place of the one of the same name."""
        self._connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, body))

    def add_events(self, body: bytes) -> None:
        """Add a group of events."""
        self._connection.execute("INSERT INTO event (body, sum) VALUES (?, ?)", (body, checksum(body)))

    def put_snapshot(self, body: bytes) -> None:
        """Put the state after all events so far in their place."""
        last = self._connection.execute(
            "SELECT max((SELECT coalesce(max(number), 0) FROM event),"
            " (SELECT coalesce(max(number), 0) FROM snapshot))"
        ).fetchone()[0]
        self._connection.execute(
            "INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?, ?)", (last, body, checksum(str(last), body))
        )
        self._connection.execute("DELETE FROM event")

    def keep_letter(
        self, kind: str, name: str, rows: int, body: bytes, *, most_rows: int, most_bytes: int
    ) -> tuple[bool, int]:
        """Set a delivery aside; the oldest of its kind go where there are too many.

        Args:
            kind: `late` or `refused`.
            name: The same delivery always has the same.
            rows: Records in it.
            body: A JSON object a line.
            most_rows: Deliveries of a kind that are kept.
            most_bytes: Bytes of a kind that are kept; the newest delivery stays, however long it is.

        Returns:
            Whether it is new, and how many went.
        """
        added = self._connection.execute(
            "INSERT OR IGNORE INTO dead_letter (kind, name, rows, body, sum) VALUES (?, ?, ?, ?, ?)",
            (kind, name, rows, body, checksum(kind, name, body)),
        )
        if not added.rowcount:
            return False, 0
        sizes = self._connection.execute(
            "SELECT number, length(body) FROM dead_letter WHERE kind = ? ORDER BY number", (kind,)
        ).fetchall()
        total = sum(size for _, size in sizes)
        if len(sizes) <= most_rows and total <= most_bytes:
            return True, 0
        gone: list[int] = []
        for number, size in sizes[:-1]:
            if len(sizes) - len(gone) <= _KEPT_SHARE * most_rows and total <= _KEPT_SHARE * most_bytes:
                break
            gone.append(number)
            total -= size
        self._connection.executemany(
            "DELETE FROM dead_letter WHERE number = ?", ((number,) for number in gone)
        )
        return True, len(gone)

    def _base(self, space: tuple[int, int]) -> tuple[int, str] | None:
        """The first candidate of a workload: the traces of all others are packed with its trace."""
        first = self._connection.execute(
            "SELECT number, trace FROM candidate WHERE family = ? AND workload = ? ORDER BY number LIMIT 1",
            space,
        ).fetchone()
        return None if first is None else (first[0], unpack_trace(first[1], None))

    def _keep_fastest(self, group: Group, secs: dict[bytes, float]) -> None:
        """Put candidates among the fastest of their group if they belong there."""
        rows: list[tuple[bytes, float]] = self._connection.execute(
            f"SELECT candidate, latency_secs FROM fastest WHERE {IN_GROUP}", group
        ).fetchall()
        before = dict(rows)
        merged = before | {
            candidate: min(number, before.get(candidate, number)) for candidate, number in secs.items()
        }
        best = sorted((number, candidate) for candidate, number in merged.items())[:FASTEST]
        after = {candidate: number for number, candidate in best}
        if after != before:
            self._connection.execute(f"DELETE FROM fastest WHERE {IN_GROUP}", group)
            self._connection.executemany(
                "INSERT INTO fastest VALUES (?, ?, ?, ?, ?)", ((*group, *row) for row in after.items())
            )
