"""What drivers ask of the store of a running coordinator: the table as it is now, and a place for logs.

`fleet.engine.driver_questions` calls it for what `fleet.drivers.session` and `store_proxy` ask. A driver has
read and checked the logs (`fleet.interchange.import_logs`); rows and workloads come as files in its own
folder, each durable in the store before its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from agents.codec import device_from_json, workload_from_json
from agents.records import DeviceId
from agents.trust import IMPORTED
from fleet.core import events as ev

if TYPE_CHECKING:
    from fleet.engine.composition import Composition

#: What a driver may ask for.
OPS: Final = frozenset({"flush", "import_workloads", "import_device", "import_rows", "import_end"})


def change_store(parts: Composition, question: Mapping[str, Any]) -> Any:
    """Do what a driver asks for that needs no agent.

    Returns:
        The answer, JSON-ready.

    Raises:
        StoreFull: No room; what was taken in before stays.
        StoreError: What came is nothing that the store can keep, or the disk failed.
    """
    match question["op"]:
        case "flush":  # for whoever reads the table
            parts.store.flush()
            return True
        case "import_workloads":
            lines = Path(question["file"]).read_text().splitlines()
            return parts.store.put_workloads(workload_from_json(json.loads(line)) for line in lines)
        case "import_device":
            return parts.store.put_device(*device_from_json(question["spec"], question["descriptor"]))
        case "import_rows":
            return _take_rows(parts, DeviceId(question["of"]), Path(question["file"]))
        case _:
            search = parts.imports.search(
                parts.coverage.workload_ids, parts.store.state.devices_with(IMPORTED)
            )
            parts.thread.ask(search, lambda claims: parts.imports.add(claims or {}))
            return True


def _take_rows(parts: Composition, device_id: DeviceId, path: Path) -> dict[str, int]:
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        done = parts.store.append_table(device_id, table)
        ok = sum(pc.sum(pc.equal(rows.column("outcome"), "ok")).as_py() for rows in done.rows.values())
    if done.appended:
        parts.coverage.refresh(device_id)
    if device_id in parts.roster.specs and done.appended:
        now = parts.clock()
        stored = ev.RecordsStored(at_secs=now, device_id=device_id, count=done.appended, ok=ok)
        parts.event_log.append(stored)
    return {"appended": done.appended, "duplicates": done.duplicates, "table_version": done.table_version}
