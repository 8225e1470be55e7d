"""What the files of workloads and devices must be: whole, with the sums that they state.

`fleet.archive.verify` calls it, a file at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fleet.errors import StoreError
from fleet.store.catalog import read_device, read_workloads, sum_fault
from fleet.store.reader import DEVICES


def catalog_faults(path: Path, folder: str) -> Iterator[str]:
    """Yield the faults of one file of the folder of workloads or of devices."""
    try:
        text = path.read_text()
        *lines, rest = text.split("\n")
        for line in lines:
            if what := sum_fault(line):
                yield what
        if rest and _begins_whole(rest):
            yield "its last line is whole but does not end as lines do"
        if folder == DEVICES:
            read_device(path)
        elif path.stem not in read_workloads(path.parent, [path.stem]):
            yield "it is of another workload than its name says"
    except (OSError, ValueError, StoreError) as error:
        yield str(error)


def _begins_whole(text: str) -> bool:
    """Whether a text begins with a whole value: a crash while it was written leaves none."""
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return True
