"""What a state file that is made again gets from the table: results, files, version, lost candidates.

Called by `fleet.state.rebuild`. The table's newest version counts, whoever wrote it. Rows in data files that
no version names, and that nothing else has, wait for the table anew: so a torn commit costs no record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agents.files import fsync_all
from agents.records import Candidate, CandidateId, DeviceId, WorkloadId, has_flag, is_imported
from fleet.errors import StoreError, disk_errors
from fleet.state.rows import (
    LOST,
    RESULT_COLUMNS,
    Result,
    TableFile,
    pack,
    results_of_piece,
    results_of_rows,
    rows_of,
    unpack,
    with_device,
)
from fleet.state.schema import state_errors
from fleet.state.state_file import StateFile
from fleet.state.table import is_left_over, is_ours
from fleet.state.table_log import TableLog, removed
from fleet.store.delta.log import TableSnapshot, file_sum, is_table, load_snapshot
from fleet.store.delta.schema import FILE_SCHEMA, check_columns, read_batches

#: Results of one turn: some MB.
_TURN_RESULTS: Final = 16_384
_CANDIDATE_COLUMNS: Final = ("workload_id", "candidate_id", "dialect", "origin", "trace", "quality")
#: What is wrong with a file that cannot be read, or with its rows.
_UNREADABLE: Final = (OSError, pa.ArrowException, StoreError, ValueError)
_DEVICE: Final = "device_id="

#: Workload and id of candidates, and whether anybody has measured them.
_Lost = dict[tuple[str, str], bool]


class RebuiltTable:
    """The part of a state file that its table gives back.

    Args:
        folder: The table's folder; without a table, the rows that wait give their results.
        state: The new file, with all rows of the old one that could be read but for results.
        families: Name by device under which candidates are shared; others' candidates do not come back.

    Attributes:
        notes: What came back and what did not, one line each.
    """

    def __init__(self, folder: Path, state: StateFile, families: Mapping[str, str]) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._state, self._families = state, families
        self._log = TableLog(folder)
        self._snapshot = TableSnapshot(version=-1, files=())
        self._results = 0

    def take_in(self) -> None:
        """Bring everything back.

        Raises:
            StoreFull: No room.
            StoreError: The table's log cannot be read, or the disk failed.
        """
        with disk_errors("reading the table", self.folder):
            has_table = is_table(self.folder)
            if has_table:
                self._settle()
                self._add_results(self._rows_of_files())
            self._take_waiting()
            if has_table:
                self._take_strays()
                self._put_files()
            self._take_candidates()
        files = len(self._snapshot.files)
        self.notes.append(f"results of {self._results} records came from {files} files and rows that wait")

    def _settle(self) -> None:
        """Decide which version counts."""
        self._log.check_checkpoints()
        self._log.set_broken_aside()
        confirmed, last = self._state.table_version(), self._log.last()
        if confirmed == last - 1 and self._log.commit_path(last).exists():
            actions = self._log.actions(last)
            if is_ours(actions) and is_left_over(actions, self._state):
                self._log.take_back(last, actions)
        self._snapshot = load_snapshot(self.folder)
        if confirmed not in (None, self._snapshot.version):
            version = self._snapshot.version
            self.notes.append(f"version {version} of the table counts; the state file named {confirmed}")
        self.notes += self._log.notes

    def _rows_of_files(self) -> Iterator[Result]:
        for file in self._snapshot.files:
            try:
                for batch in read_batches(self.folder / file.path, RESULT_COLUMNS):
                    yield from list(results_of_rows(file.device_id, batch))
            except _UNREADABLE as error:
                self.notes.append(
                    f"{file.path} cannot be read ({' '.join(str(error).split())}): the results of its records"
                    " come back when it is taken from a backup and this is done again"
                )

    def _add_results(self, results: Iterator[Result]) -> None:
        while some := list(islice(results, _TURN_RESULTS)):
            with self._state.turn() as turn:
                self._results += sum(turn.add_results(some))

    def _take_waiting(self) -> None:
        """Let rows that wait do so no more if the table has them, and get their results."""
        for piece in list(self._state.waiting()):
            try:
                rows = unpack(piece.body)
                results = list(results_of_piece(rows))
            except _UNREADABLE as error:
                self.notes.append(f"waiting rows {piece.number} have no results: {error}")
                continue
            with self._state.turn() as turn:
                flags = turn.add_results(results)
                if not all(flags):
                    turn.drop_waiting([piece.number])
                    if any(flags):
                        body = pack(rows.filter(pa.array(flags)))
                        turn.add_waiting(piece.lane, piece.device_ids, sum(flags), body, piece.since)
            self._results += sum(flags)

    def _take_strays(self) -> None:
        """Let rows wait that stand in data files which no version names, and nowhere else."""
        named = {file.path for file in self._snapshot.files} | self._removed()
        sums = {file.path: file.sha256 for file in self._state.files()}
        for path in sorted(self.folder.glob(f"{_DEVICE}*/*.parquet")):
            name = str(path.relative_to(self.folder))
            if name in named:
                continue
            count = 0
            try:
                if sums.get(name) not in (None, file_sum(path)):
                    continue
                for batch in read_batches(path):
                    rows = pa.Table.from_batches([batch]).cast(FILE_SCHEMA)
                    check_columns(rows)
                    count += self._let_wait(DeviceId(path.parent.name.removeprefix(_DEVICE)), rows)
            except _UNREADABLE:
                # Partly written when its writer was killed: its rows wait.
                pass
            if count:
                self.notes.append(f"{count} records of {name}, which no version named, wait for the table")

    def _let_wait(self, device_id: DeviceId, rows: pa.Table) -> int:
        results = list(results_of_rows(device_id, rows))
        with self._state.turn() as turn:
            flags = turn.add_results(results)
            if any(flags):
                fresh = rows.filter(pa.array(flags))
                body = pack(with_device(device_id, fresh))
                turn.add_waiting(0, [device_id], fresh.num_rows, body, 0.0)
        self._results += sum(flags)
        return sum(flags)

    def _removed(self) -> set[str]:
        """Files of earlier versions, which are deleted when nobody may read these any more."""
        paths: set[str] = set()
        for version in self._log.versions():
            # One before the checkpoint may be damaged.
            with suppress(OSError, ValueError, LookupError, TypeError):
                paths.update(removed(self._log.actions(version)))
        return paths

    def _put_files(self) -> None:
        """Say what the data files must be: as before, or as they are where that is not known."""
        before = {file.path: file for file in self._state.files()}
        files = [
            TableFile(path=file.path, device_id=DeviceId(file.device_id), rows=file.rows, sha256=was.sha256)
            if (was := before.get(file.path))
            else self._strange(file.path, file.device_id, file.rows)
            for file in self._snapshot.files
        ]
        named = {file.path for file in files}
        files += [
            before.get(path) or self._strange(path, Path(path).parent.name.removeprefix(_DEVICE), 0)
            for path in sorted(self._removed() - named)
            if (self.folder / path).exists()
        ]
        fsync_all([path for path in self._log.folder.glob("*.json") if path.stem.isdigit()])
        fsync_all([self._log.folder, self.folder, self.folder.parent])
        with self._state.turn() as turn:
            turn.drop_files(before)
            turn.drop_waiting([], files, version=self._snapshot.version, table_rows=self._snapshot.rows)

    def _strange(self, path: str, device_id: str, rows: int) -> TableFile:
        """A file of which nobody knows what it was: it is what it is, and durable from now on."""
        try:
            sha256 = file_sum(self.folder / path)
            fsync_all([self.folder / path, (self.folder / path).parent])
        except FileNotFoundError:
            sha256 = ""
        return TableFile(path=path, device_id=DeviceId(device_id), rows=rows, sha256=sha256)

    def _take_candidates(self) -> None:
        """Make candidates known again whose rows are lost: the traces stand in the records."""
        count = 0
        for family in sorted(set(self._families.values())):
            devices = {device for device, name in self._families.items() if name == family}
            lost = self._lost_candidates(family, devices)
            ids = pa.array({candidate_id for _, candidate_id in lost}, pa.string())
            for rows in self._traces(devices) if lost else ():
                of_lost = rows.filter(pc.is_in(rows.column("candidate_id"), value_set=ids))
                count += self._add_candidates(family, lost, of_lost)
        if count:
            self.notes.append(f"{count} candidates came back from the records")

    def _lost_candidates(self, family: str, devices: Collection[str]) -> _Lost:
        """Candidates with results of a family's devices that it does not know."""
        state = self._state
        find, text = state._labels.find, state._labels.text
        lost: _Lost = {}
        with state_errors("reading the state file", state.path):
            numbers = ", ".join(str(find(device)) for device in devices)
            for workload, candidate, is_measured in state._connection.execute(
                f"SELECT workload, candidate, max(outcome != ?) FROM result WHERE device IN ({numbers})"
                " AND NOT EXISTS (SELECT 1 FROM candidate WHERE family = ? AND workload = result.workload"
                " AND id = result.candidate) GROUP BY workload, candidate",
                (LOST, find(family)),
            ):
                if not is_imported(text(workload)):
                    lost[text(workload), candidate.hex()] = bool(is_measured)
        return lost

    def _traces(self, devices: Set[str]) -> Iterator[pa.RecordBatch]:
        """Yield the candidates of all rows of some devices that can be read."""
        for file in self._snapshot.files:
            if file.device_id in devices:
                try:
                    yield from read_batches(self.folder / file.path, _CANDIDATE_COLUMNS)
                except _UNREADABLE:
                    continue  # it is noted already
        for piece in list(self._state.waiting()):
            for device_id in devices & set(piece.device_ids):
                with suppress(StoreError):
                    yield from rows_of(piece.body, device_id, _CANDIDATE_COLUMNS).to_batches()

    def _add_candidates(self, family: str, lost: _Lost, rows: pa.RecordBatch) -> int:
        """Add the lost ones that some rows have, and block those that killed their worker process."""
        by_workload: dict[WorkloadId, dict[CandidateId, Candidate]] = {}
        killers: dict[WorkloadId, list[CandidateId]] = {}
        for row in rows.to_pylist():
            if has_flag(row["quality"], "quarantined"):
                killers.setdefault(WorkloadId(row["workload_id"]), []).append(
                    CandidateId(row["candidate_id"])
                )
            candidate = Candidate(
                workload_id=WorkloadId(row["workload_id"]),
                dialect=row["dialect"],
                origin=row["origin"],
                trace=row["trace"],
            )
            if (candidate.workload_id, candidate.candidate_id) in lost:
                by_workload.setdefault(candidate.workload_id, {})[candidate.candidate_id] = candidate
        with self._state.turn() as turn:
            for workload_id, candidates in by_workload.items():
                turn.add_candidates(family, workload_id, candidates.values())
                measured = [name for name in candidates if lost.pop((workload_id, name))]
                turn.settle_candidates(family, workload_id, measured)
            for workload_id, candidate_ids in killers.items():
                turn.block(family, workload_id, candidate_ids)
        return sum(map(len, by_workload.values()))
