"""What the rows of a Parquet file of others may take, checked before they are written out.

A dictionary, a run of equal values or a long list takes a few bytes in such a file and gigabytes in memory.
Texts are therefore read as dictionaries, and the lengths of rows counted by these. Called by `replay_records`
and by `fleet.datasets`; both also read a file under a limit of memory first (`agents.host.limited_reader`),
for a file may lie of what it holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agents.errors import AgentError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

#: Bytes that a row has in a file at least: its record's id is 16 bytes at random, and no two rows share one.
ROW_BYTES = 16
#: Of one row group, as the file itself says; our own have 32 MiB.
_MOST_GROUP_BYTES = 256 << 20
_MOST_GROUP_VALUES = 1 << 24
#: Bytes of text of one row, and repeats of one timing.
_MOST_ROW_TEXT = 4 << 20
_MOST_REPEATS = 1 << 16
#: Texts and repeats of all rows: so many in any file, and so many more a row.
_TEXT_BYTES, _TEXT_BYTES_PER_ROW = 256 << 20, 64 << 10
_REPEATS, _REPEATS_PER_ROW = 1 << 20, 1 << 10


def check_claims(file: pq.ParquetFile, path: Path, size: int) -> None:
    """Refuse a file of more rows, bytes or values than one of `size` bytes has, by what it says itself.

    Raises:
        AgentError: One line that names the first.
    """
    metadata = file.metadata
    if metadata.num_rows > size // ROW_BYTES:
        raise AgentError(f"{path}: {metadata.num_rows:,} rows are more than {size:,} bytes of records hold")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        values = max((group.column(place).num_values for place in range(group.num_columns)), default=0)
        unpacked = sum(group.column(place).total_uncompressed_size for place in range(group.num_columns))
        if unpacked > _MOST_GROUP_BYTES or values > _MOST_GROUP_VALUES:
            raise AgentError(
                f"{path}: row group {number} unpacks to {unpacked:,} bytes and {values:,} values, at most "
                f"{_MOST_GROUP_BYTES:,} and {_MOST_GROUP_VALUES:,} are read; write it with smaller row groups"
            )


def is_bounded(kind: pa.DataType) -> bool:
    """Whether a column of a type takes little more room than it has values: numbers, and texts held once."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type))
    kind = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind))


class RowBudget:
    """Counts the rows of a file of others as they are read, and what they hold.

    Args:
        path: Of the file, for messages.
        size: Its bytes.

    Attributes:
        rows: Counted so far.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._most_rows = path, size // ROW_BYTES
        self.rows = self._texts = self._repeats = 0

    def spend(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Count some rows, whose texts are dictionaries.

        Returns:
            (n,) bytes of text of each row, once written out.

        Raises:
            AgentError: They hold more than rows of records do.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        lengths = np.zeros(rows.num_rows, np.int64)
        for column in rows.columns:
            if pa.types.is_dictionary(column.type):
                each = pc.fill_null(pc.binary_length(column.dictionary), 0).cast(pa.int64())
                lengths += pc.fill_null(each.take(column.indices), 0).to_numpy()
            elif pa.types.is_list(column.type):
                repeats = pc.fill_null(pc.list_value_length(column), 0)
                self._repeats += pc.sum(repeats).as_py() or 0
                self._check("repeats of one timing", pc.max(repeats).as_py() or 0, _MOST_REPEATS)
        self.rows += rows.num_rows
        self._texts += int(lengths.sum())
        self._check("rows", self.rows, self._most_rows)
        self._check("bytes of text in one row", int(lengths.max(initial=0)), _MOST_ROW_TEXT)
        self._check("bytes of text", self._texts, _TEXT_BYTES + self.rows * _TEXT_BYTES_PER_ROW)
        self._check("repeats", self._repeats, _REPEATS + self.rows * _REPEATS_PER_ROW)
        return lengths

    def _check(self, what: str, count: int, most: int) -> None:
        if count > most:
            raise AgentError(f"{self._path}: {count:,} {what}, at most {most:,} are read")
