"""Whose a workload or candidate is: ours (trusted), or brought in by an import (untrusted).

Standard library only. A workload that came with a log has an id in a namespace of its own, which no
structural hash of TVM can equal: `imported-CLAIMED-CONTENT`. CLAIMED is the hash that its file states; nobody
has computed it. CONTENT is a hash of the module itself, so that two strangers who state the same hash for two
modules do not share a workload.
"""

from __future__ import annotations

import re
from typing import Final

from agents.records import DeviceKind, DeviceSpec, WorkloadId, content_hash

#: `Record.origin` of everything that came from a log.
IMPORTED: Final = "imported"
#: Origin of candidates that were made again in our own design space from an imported one's decisions.
DERIVED: Final = "derived"

_ID = re.compile(r"imported-([0-9a-f]{16})-[0-9a-f]{16}")


def imported_id(claimed: int, module_json: str) -> WorkloadId:
    """Id of a workload that a log brings, of the structural hash (64 bits) that the log states for it."""
    return WorkloadId(f"{IMPORTED}-{claimed:016x}-{content_hash(module_json)[:16]}")


def claimed_id(workload_id: str) -> WorkloadId | None:
    """The id that an imported workload would have if its stated hash were true; None for any other id."""
    match = _ID.fullmatch(workload_id)
    return WorkloadId(match[1]) if match is not None else None


def is_imported(workload_id: str) -> bool:
    """Whether a workload came with a log, by its id."""
    return workload_id.startswith(f"{IMPORTED}-")


def is_live(spec: DeviceSpec) -> bool:
    """Whether programs run on a device; a replay device answers from records, which anybody may bring."""
    return spec.kind is not DeviceKind.REPLAY
