"""The recorded measurements of one device, by candidate: what a replay device answers from.

`replay.py` asks it. It holds everything but the traces, about a kilobyte a record; traces are read from the
file when candidates are proposed. It decides nothing. A file of others is read whole first, in a process of
its own under a limit of memory (`check_apart`), before an agent opens it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.codec import bounded_json, check_schema, protocol_from_json
from agents.device.bounded_parquet import RowBudget, is_bounded
from agents.device.replay_file import Recorded, open_file, read_devices, read_workloads
from agents.errors import AgentError
from agents.host.limited_reader import answer, read_limited
from agents.records import (
    CandidateId,
    Descriptor,
    DeviceId,
    Outcome,
    Workload,
    WorkloadId,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of seconds; a file that did not come from `fleet export` may hold anything.
_SECONDS = ("build_secs", "wait_secs", "timing_secs", "measured_at")
_SECONDS_LISTS = ("run_secs", "warmup_secs")
#: Columns of texts and of whole numbers that every record has.
_TEXTS = ("environment_id", "candidate_id", "workload_id", "dialect", "error", "environment", "protocol")
_WHOLE = ("number", "attempt", "schema")
#: Columns that are held; `trace` is read when it is asked for.
_COLUMNS = (*_TEXTS, *_WHOLE, *_SECONDS, *_SECONDS_LISTS, "outcome", "quality", "counts")
#: Row groups whose traces are kept decoded, some 30 MB each.
_GROUPS_KEPT = 4
#: Candidates whose measurements are kept decoded, some kilobytes each.
_ANSWERS_KEPT = 8192
#: Characters of an id or of the name of a dialect at most.
_MOST_ID = 256
#: Bytes of texts that are held of a device: so many of any file, and so many more a row.
_HELD_BYTES, _HELD_BYTES_PER_ROW = 128 << 20, 1 << 10
#: A row's place: the row group above these bits, the row in it below.
_ROW_BITS = 32


class ReplayRecords:
    """Measurements of one device in one environment.

    Only records of one environment may be compared, so of several the one with the most records is taken,
    of equal ones the latest.

    Raises:
        AgentError: The file cannot be read, or holds no record of the device.

    Attributes:
        recorded: What the file says of the device.
        environment_id: The environment whose records are held.
        left_out: Records of the device in other environments.
    """

    def __init__(self, path: Path, device_id: DeviceId) -> None:
        self._path = path
        self._file = open_file(path)
        try:
            devices = read_devices(self._file, path)
            if device_id not in devices:
                device_ids = ", ".join(sorted(devices)) or "none"
                raise AgentError(f"{path} has no device {device_id!r}; it has {device_ids}")
            self.recorded: Recorded = devices[device_id]
            known_workloads = read_workloads(self._file, path)
            self._table, self.environment_id, self.left_out = self._read(device_id)
        except BaseException:
            self.close()
            raise
        #: The traces of one row group, decoded.
        self._group = lru_cache(_GROUPS_KEPT)(self._read_traces)
        self._rows: dict[CandidateId, list[int]] = {}
        #: Measurements of the candidates that were asked for last.
        self._answers: dict[CandidateId, list[dict[str, Any]]] = {}
        #: Candidates of each workload, sorted; and whether the record that counts of each has a latency.
        self._candidates: dict[WorkloadId, dict[CandidateId, bool]] = {}
        self._index()
        self.workloads: dict[WorkloadId, Workload] = {
            workload.workload_id: workload
            for workload in known_workloads
            if workload.workload_id in self._candidates
        }

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def descriptor(self) -> Descriptor:
        """What the probe saw of the recorded device; nearly empty if it was never probed."""
        return self.recorded.descriptor or Descriptor(host=self.recorded.spec.device_id)

    def candidates(self, workload_id: WorkloadId, *, failed: bool) -> list[CandidateId]:
        """List the recorded candidates of a workload by id; with `failed` those without a latency too."""
        is_ok_by_id = self._candidates.get(workload_id, {})
        return [candidate_id for candidate_id, is_ok in is_ok_by_id.items() if is_ok or failed]

    def measurements(self, candidate_ids: Iterable[CandidateId]) -> dict[CandidateId, list[dict[str, Any]]]:
        """Give the measurements of some candidates, by attempt; candidates that have none are left out.

        What is given may be given again: it must not be changed.
        """
        wanted = dict.fromkeys(candidate_ids)
        missing = [name for name in wanted if name in self._rows and name not in self._answers]
        if missing:
            groups: dict[CandidateId, list[dict[str, Any]]] = {candidate_id: [] for candidate_id in missing}
            for row in self._decoded([row for candidate_id in missing for row in self._rows[candidate_id]]):
                groups[row["candidate_id"]].append(row)
            for group in groups.values():
                group.sort(key=lambda row: row["attempt"])
            # Devices that share the records are asked for the same ones at about the same time.
            self._answers |= groups
        measurements = {name: self._answers[name] for name in wanted if name in self._answers}
        while len(self._answers) > _ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return measurements

    def schedules(self, candidate_ids: Sequence[CandidateId]) -> list[tuple[str, str]]:
        """Give (dialect, trace) of recorded candidates.

        Raises:
            AgentError: The file has become unreadable.
        """
        rows = [self._rows[candidate_id][0] for candidate_id in candidate_ids]
        chosen = self._take(rows, ("dialect", "place")).to_pydict()
        by_group: dict[int, list[int]] = {}
        for number, place in enumerate(chosen["place"]):
            by_group.setdefault(place >> _ROW_BITS, []).append(number)
        traces = [""] * len(rows)
        for group, numbers in by_group.items():
            column = self._group(group)
            for number in numbers:
                traces[number] = column[chosen["place"][number] & (1 << _ROW_BITS) - 1].as_py()
        return list(zip(chosen["dialect"], traces, strict=True))

    def _take(self, rows: Sequence[int], columns: Sequence[str] = _COLUMNS) -> pa.Table:
        import pyarrow as pa

        return self._table.select(columns).take(pa.array(rows, pa.int64()))

    def _decoded(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by column."""
        import pyarrow as pa

        table = self._take(rows)
        # One value of a dictionary after the other would take ten times as long.
        plain = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in table.columns
        ]
        return list(pa.table(plain, table.column_names).to_pylist())

    def check_traces(self) -> None:
        """Decode the traces of every row group once.

        Raises:
            AgentError: One cannot be decoded.
        """
        for group in range(self._file.num_row_groups):
            self._group(group)

    def _read(self, device_id: DeviceId) -> tuple[pa.Table, str, int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = self._file.schema_arrow.names
        missing = [name for name in ("device_id", "trace", *_COLUMNS) if name not in names]
        if missing:
            raise AgentError(f"{self._path} lacks the columns {', '.join(missing)}; export it again")
        for field in self._file.schema_arrow:
            # A plain text, a list of texts or a structure would be written out whole before it is refused.
            if field.name in ("trace", *_COLUMNS) and not is_bounded(field.type):
                what = "a whole number" if field.name in _WHOLE else "numbers or a text"
                raise AgentError(f"{self._path}: {field.name}: expected {what} in every row; export it again")
        parts = []
        budget = RowBudget(self._path, self._path.stat().st_size)
        held = 0
        try:
            for group in range(self._file.num_row_groups):
                table = self._file.read_row_group(group, columns=["device_id", *_COLUMNS], use_threads=False)
                held += table.nbytes
                for batch in table.to_batches():
                    budget.spend(batch)
                if held > _HELD_BYTES + budget.rows * _HELD_BYTES_PER_ROW:
                    raise AgentError(
                        f"{self._path}: {budget.rows:,} rows unpack to {held:,} bytes, more than records do"
                    )
                first = group << _ROW_BITS
                place = pa.array(range(first, first + table.num_rows), pa.int64())
                table = table.append_column("place", place)
                parts.append(table.filter(pc.equal(table.column("device_id"), device_id)))
            table = pa.concat_tables(parts).unify_dictionaries() if parts else None
            if table is None or not table.num_rows:
                raise AgentError(f"{self._path} holds no record of device {device_id!r}; export it again")
            environments = table.group_by("environment_id").aggregate(
                [([], "count_all"), ("measured_at", "max")]
            )
            order = [("count_all", "descending"), ("measured_at_max", "descending")]
            chosen = environments.sort_by(order).column("environment_id")[0].as_py()
            records = table.filter(pc.equal(table.column("environment_id"), chosen))
            self._check_values(records)
            self._check_seconds(records)
            unknown = set(pc.unique(records.column("outcome")).to_pylist()) - set(Outcome)
        except (OSError, pa.ArrowException) as error:
            raise AgentError(f"{self._path} is damaged: {error}; export it again") from error
        if unknown:
            raise AgentError(f"{self._path}: outcome {unknown.pop()!r} is not known; upgrade tensor-fleet")
        whole = records.drop_columns(["device_id"]).combine_chunks()
        return whole, chosen, table.num_rows - records.num_rows

    def _check_values(self, table: pa.Table) -> None:
        """Refuse what no record is made of: one such row would end every batch that asks for it.

        Raises:
            AgentError: A text or a whole number is missing or of another type, or a protocol is none.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = {name: table.column(name) for name in (*_TEXTS, *_WHOLE)}
        for name, column in columns.items():
            is_fine = _is_text(column.type) if name in _TEXTS else pa.types.is_integer(column.type)
            # Without any environment there are no rows left here.
            if column.null_count or not is_fine or not len(column):
                what = "a text" if name in _TEXTS else "a whole number"
                raise AgentError(f"{self._path}: {name}: expected {what} in every row; export it again")
        for name in ("environment_id", "candidate_id", "workload_id", "dialect"):
            lengths = [pc.max(pc.binary_length(chunk.dictionary)).as_py() for chunk in columns[name].chunks]
            if max(lengths) > _MOST_ID:
                raise AgentError(f"{self._path}: {name}: {max(lengths):,} bytes, at most {_MOST_ID} are read")
        for row in table.group_by(["protocol", "schema"]).aggregate([]).to_pylist():
            try:
                check_schema(row["schema"])
                protocol_from_json(bounded_json(row["protocol"]))
            except (AgentError, ValueError, RecursionError) as error:
                raise AgentError(f"{self._path}: a protocol cannot be read: {error}") from error

    def _check_seconds(self, table: pa.Table) -> None:
        """Refuse what no clock gives.

        Raises:
            AgentError: A number of seconds is missing or not finite, or an ok record has none above 0.
        """
        import pyarrow.compute as pc

        wrong = [name for name in _SECONDS if not _all(pc.is_finite(table.column(name)))]
        for name in _SECONDS_LISTS:
            column = table.column(name)
            if column.null_count or not _all(pc.is_finite(pc.list_flatten(column))):
                wrong.append(name)
        is_ok = pc.equal(table.column("outcome").cast("string"), Outcome.OK)
        timed = table.column("run_secs").filter(is_ok)
        is_there = pc.greater(pc.list_value_length(timed), 0)
        if not all(map(_all, (is_there, pc.greater(pc.list_flatten(timed), 0.0)))):
            wrong.append("run_secs")
        if wrong:
            names = ", ".join(dict.fromkeys(wrong))
            raise AgentError(
                f"{self._path}: {names}: expected finite seconds, above 0 where a run was ok; export it again"
            )

    def _index(self) -> None:
        columns = self._table.select(["candidate_id", "workload_id", "outcome", "counts"]).to_pydict()
        for row, values in enumerate(zip(*columns.values(), strict=True)):
            candidate_id, workload_id, outcome, counts = values
            self._rows.setdefault(candidate_id, []).append(row)
            group = self._candidates.setdefault(workload_id, {})
            group[candidate_id] = group.get(candidate_id, False) or (counts and outcome == Outcome.OK)
        self._candidates = {
            workload_id: dict(sorted(group.items())) for workload_id, group in self._candidates.items()
        }

    def _read_traces(self, group: int) -> Any:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=["trace"], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise AgentError(f"{self._path} is damaged: {error}; export it again") from error
        column = table.column("trace").combine_chunks()
        if column.null_count or not _is_text(column.type):
            raise AgentError(f"{self._path}: trace: expected a text in every row; export it again")
        return column


def check_apart(path: Path, device_id: DeviceId) -> None:
    """Read what a replay device would answer from, in a process of its own under a limit of memory.

    Raises:
        AgentError: It cannot be read, or not within the limit.
    """
    read_limited(__name__, str(path), device_id)


def _whole(path: Path, device_id: DeviceId) -> int:
    """Read all of a file; how many records it has."""
    records = ReplayRecords(path, device_id)
    records.check_traces()
    return len(records)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _all(mask: pa.ChunkedArray) -> bool:
    """Whether every value is there and true."""
    import pyarrow.compute as pc

    return mask.null_count == 0 and pc.all(mask, min_count=0).as_py() is True


if __name__ == "__main__":
    answer(lambda: _whole(Path(sys.argv[1]), DeviceId(sys.argv[2])), AgentError)
