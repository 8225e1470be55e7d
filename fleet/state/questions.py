"""What a planner asks a state file: which candidates there are, and which a device has not measured.

`fleet.state.state_file` answers while it writes; `StateReader` beside it, from another process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId, record_id_of
from fleet.errors import StateDamaged
from fleet.state.labels import Labels
from fleet.state.rows import LOST, OK, Result, TableFile, Tally, WaitingRows, checksum, unpack_trace
from fleet.state.schema import open_reader, state_errors

_IN_GROUP = "workload = ? AND device = ? AND environment = ?"
#: Candidates of one question at most; SQLite takes some 32,000 values.
_MOST_VALUES = 1000


class Questions:
    """Questions about the rows of a state file.

    Args:
        connection: Of the file.
        labels: Its labels.
        path: The file, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, labels: Labels, path: Path) -> None:
        self._connection = connection
        self._labels = labels
        self.path = path

    def known(self, results: Sequence[Result]) -> list[bool]:
        """Say of each result whether there is one of the same five fields."""
        find, answers = self._labels.find, list[bool]()
        with state_errors("reading the state file", self.path):
            for result in results:
                row = self._connection.execute(
                    f"SELECT 1 FROM result WHERE {_IN_GROUP} AND candidate = ? AND attempt = ?",
                    (
                        *(find(result.workload_id), find(result.device_id), find(result.environment_id)),
                        *(bytes.fromhex(result.candidate_id), result.attempt),
                    ),
                ).fetchone()
                answers.append(row is not None)
        return answers

    def record_ids(self) -> Iterator[tuple[DeviceId, str]]:
        """Yield device and record id of every result, for a comparison with the table."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            for device, environment, candidate, attempt in self._connection.execute(
                "SELECT device, environment, candidate, attempt FROM result"
            ):
                device_id = DeviceId(text(device))
                yield device_id, record_id_of(candidate.hex(), device_id, text(environment), attempt)

    def tallies(self, device_id: DeviceId) -> list[Tally]:
        """Sums over the results of a device, by workload and environment."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return [
                Tally(
                    workload_id=WorkloadId(text(workload)),
                    environment_id=text(environment),
                    records=records,
                    measured=measured,
                    ok=ok,
                    measured_at=measured_at,
                    noise_at=noise_at,
                )
                for workload, _, environment, records, measured, ok, measured_at, noise_at in (
                    self._connection.execute(
                        "SELECT * FROM tally WHERE device = ?", (self._labels.find(device_id),)
                    )
                )
            ]

    def candidate_counts(self, family: str) -> dict[WorkloadId, tuple[int, int]]:
        """Candidates of each workload that a family knows, and how many of them are blocked."""
        with state_errors("reading the state file", self.path):
            return {
                WorkloadId(self._labels.text(workload)): (count, blocked)
                for workload, count, blocked in self._connection.execute(
                    "SELECT workload, count(*), sum(is_blocked) FROM candidate WHERE family = ?"
                    " GROUP BY workload",
                    (self._labels.find(family),),
                )
            }

    def gaps(
        self,
        family: str,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        limit: int,
        *,
        after: int = 0,
    ) -> list[tuple[int, CandidateId]]:
        """Candidates that a family knows and a device has not measured, oldest first.

        The order is the same for all devices, so that they measure the same ones. Lost measurements do not
        count, and blocked candidates are left out.

        Args:
            family: Whose candidates.
            workload_id: Of which workload.
            device_id: Who has not measured them.
            environment_id: In which environment.
            limit: Candidates at most.
            after: Number of a candidate before which there is no gap: the search begins behind it.

        Returns:
            Number and id of each.
        """
        find = self._labels.find
        with state_errors("reading the state file", self.path):
            rows = self._connection.execute(
                "SELECT number, id FROM candidate"
                " WHERE family = ? AND workload = ? AND number > ? AND NOT is_blocked AND NOT EXISTS"
                f" (SELECT 1 FROM result WHERE {_IN_GROUP} AND candidate = candidate.id AND outcome != ?)"
                " ORDER BY number LIMIT ?",
                (
                    *(find(family), find(workload_id), after),
                    *(find(workload_id), find(device_id), find(environment_id), LOST, limit),
                ),
            )
            return [(number, CandidateId(value.hex())) for number, value in rows]

    def measured(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str
    ) -> Iterator[tuple[CandidateId, int]]:
        """Yield the candidates of a workload that a device has measured, with the next attempt of each."""
        find = self._labels.find
        with state_errors("reading the state file", self.path):
            for value, attempt in self._connection.execute(
                f"SELECT candidate, max(attempt) + 1 FROM result WHERE {_IN_GROUP} AND outcome != ?"
                " GROUP BY candidate",
                (find(workload_id), find(device_id), find(environment_id), LOST),
            ):
                yield CandidateId(value.hex()), attempt

    def best(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str, limit: int
    ) -> list[tuple[float, CandidateId]]:
        """The fastest candidates of a workload on a device: seconds and id, the best first."""
        find = self._labels.find
        with state_errors("reading the state file", self.path):
            rows = self._connection.execute(
                f"SELECT min(latency_secs), candidate FROM result WHERE {_IN_GROUP} AND outcome = ?"
                " AND latency_secs IS NOT NULL GROUP BY candidate ORDER BY 1, 2 LIMIT ?",
                (find(workload_id), find(device_id), find(environment_id), OK, limit),
            )
            return [(secs, CandidateId(value.hex())) for secs, value in rows]

    def candidates(
        self, family: str, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Those of some candidates that a family knows, with their traces.

        Raises:
            StateDamaged: A trace cannot be read, or is that of another candidate.
        """
        space = self._labels.find(family), self._labels.find(workload_id)
        chosen = [bytes.fromhex(candidate_id) for candidate_id in candidate_ids]
        found: dict[CandidateId, Candidate] = {}
        bases: dict[int, str] = {}
        with state_errors("reading the state file", self.path):
            for start in range(0, len(chosen), _MOST_VALUES):
                part = chosen[start : start + _MOST_VALUES]
                for value, dialect, origin, trace, base in self._connection.execute(
                    "SELECT id, dialect, origin, trace, base FROM candidate WHERE family = ? AND workload = ?"
                    f" AND id IN ({', '.join('?' * len(part))})",
                    (*space, *part),
                ):
                    candidate = Candidate(
                        workload_id=workload_id,
                        dialect=dialect,
                        origin=origin,
                        trace=self._trace(value, trace, base, bases),
                    )
                    if candidate.candidate_id != value.hex():
                        raise self._damaged(value)
                    found[candidate.candidate_id] = candidate
        return found

    def waiting(self, device_id: DeviceId | None = None) -> Iterator[WaitingRows]:
        """Yield rows that wait for the table, oldest first: all, or those of a device."""
        with state_errors("reading the state file", self.path):
            for number, device, rows, since, body, total in self._connection.execute(
                "SELECT number, device, rows, since, body, sum FROM waiting WHERE ?1 IS NULL OR device = ?1"
                " ORDER BY number",
                (None if device_id is None else self._labels.find(device_id),),
            ):
                name = DeviceId(self._labels.text(device))
                self._demand(checksum(name, str(rows), body) == total, f"waiting rows {number}")
                yield WaitingRows(number=number, device_id=name, rows=rows, since=since, body=body)

    def files(self) -> list[TableFile]:
        """What the data files of the table must be."""
        with state_errors("reading the state file", self.path):
            return [
                TableFile(path=path, device_id=DeviceId(self._labels.text(device)), rows=rows, sha256=sha256)
                for path, device, rows, sha256 in self._connection.execute(
                    "SELECT path, device, rows, sha256 FROM data_file ORDER BY path"
                )
            ]

    def table_version(self) -> int | None:
        """Version of the table that holds all rows which wait no more; None before the first one."""
        with state_errors("reading the state file", self.path):
            row = self._connection.execute("SELECT version FROM table_version").fetchone()
        return None if row is None else int(row[0])

    def _trace(self, value: bytes, packed: bytes, base: int | None, bases: dict[int, str]) -> str:
        try:
            if base is not None and base not in bases:
                [first] = self._connection.execute(
                    "SELECT trace FROM candidate WHERE number = ?", (base,)
                ).fetchone()
                bases[base] = unpack_trace(first, None)
            return unpack_trace(packed, None if base is None else bases[base])
        except (ValueError, TypeError, OSError) as error:
            raise self._damaged(value) from error

    def _demand(self, is_whole: bool, what: str) -> None:
        if not is_whole:
            raise StateDamaged(
                f"{self.path} is damaged: {what}; `fleet store verify --rebuild` makes it again from the"
                " table, without what had not come there"
            )

    def _damaged(self, value: bytes) -> StateDamaged:
        return StateDamaged(
            f"{self.path} is damaged: the trace of candidate {value.hex()}; `fleet store verify --rebuild`"
            " makes it again from the table"
        )


class StateReader(Questions):
    """The file as it is at one moment, read beside the process that writes it.

    Args:
        path: The file.

    Raises:
        StoreError: It is missing, damaged, or has another layout.
    """

    def __init__(self, path: Path) -> None:
        connection = open_reader(path)
        try:
            with state_errors("reading the state file", path):
                connection.execute("BEGIN")
                super().__init__(connection, Labels(connection), path)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Let the log of the writer start over: a reader that stays keeps it growing."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
