"""The store of a running coordinator, as an import inside of a driver writes to it.

Has of `fleet.store.store.Store` what `fleet.interchange.import_logs` needs. The coordinator alone writes
(`fleet.engine.driver_questions`): rows and workloads go to it as files, which are deleted after its answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from agents.records import Descriptor, DeviceId, DeviceSpec, Workload, as_json_dict
from fleet.drivers.session import EngineSession
from fleet.errors import StoreFull, disk_errors
from fleet.store.catalog import DeviceEntry
from fleet.store.store import AppendResult

#: Seconds between two tries to write a file on a full disk.
_RETRY_SECS = 2.0


class StoreProxy:
    """A way into the store, by files in a folder of the driver's own."""

    def __init__(self, session: EngineSession, folder: Path) -> None:
        self._session, self._folder = session, folder
        reader = session.store()
        self._devices: dict[DeviceId, DeviceEntry] = dict(reader.devices())
        #: Folder of the store, and version of its table after the last answer.
        self.path, self.version = reader.path, reader.version

    def devices(self) -> Mapping[DeviceId, DeviceEntry]:
        """What the store knows of devices."""
        return self._devices

    def put_device(self, spec: DeviceSpec, descriptor: Descriptor | None = None) -> bool:
        """See `fleet.store.store.Store.put_device`."""
        descriptor_json = None if descriptor is None else as_json_dict(descriptor)
        question = {"op": "import_device", "spec": as_json_dict(spec), "descriptor": descriptor_json}
        return bool(self._session.ask(question).result())

    def put_workloads(self, workloads: Iterable[Workload]) -> int:
        """See `fleet.store.store.Store.put_workloads`; not as our own."""
        lines = [json.dumps(as_json_dict(workload)) for workload in workloads]
        if not lines:
            return 0
        path = self._folder / "workloads.jsonl"
        question = {"op": "import_workloads"}
        return int(self._hand_on(path, lambda: path.write_text("\n".join(lines)), question))

    def append_table(self, device_id: str, table: pa.Table) -> AppendResult:
        """See `fleet.store.store.Store.append_table`."""
        path = self._folder / "rows.arrow"

        def write() -> None:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)

        done = AppendResult(**self._hand_on(path, write, {"op": "import_rows", "of": device_id}))
        self.version = done.table_version
        return done

    def finish(self) -> None:
        """Have the coordinator look at what came."""
        self._session.ask({"op": "import_end"}).result()

    def _hand_on(self, path: Path, write: Callable[[], object], question: dict[str, Any]) -> Any:
        """Write a file, and have the coordinator take it up; on a full disk both wait."""
        is_waiting = False
        try:
            while not self._is_written(path, write):
                if not is_waiting:
                    self._session.say(f"waits for room on the disk, in {self._folder}")
                    is_waiting = True
                time.sleep(_RETRY_SECS)
                # Its answer comes once the store has room, and none of a coordinator that is gone.
                self._session.ask({"op": "flush"}).result()
            return self._session.ask({**question, "file": str(path)}).result()
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def _is_written(path: Path, write: Callable[[], object]) -> bool:
        """Whether there was room for a file; what was written of it takes none away."""
        try:
            with disk_errors("handing on what was read", path):
                write()
        except StoreFull:
            path.unlink(missing_ok=True)
            return False
        return True
