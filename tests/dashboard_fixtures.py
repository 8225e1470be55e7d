"""A real coordinator over replay devices that turns in a thread, with its API and dashboard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from agents.records import DeviceId, DeviceKind, DeviceSpec, Outcome, Replay, Workload
from benchmarks.made_up import FixedDevices
from fleet.api.app import ApiSources
from fleet.api.client import TOKEN
from fleet.api.score_service import ScoreSettings
from fleet.api.server import ApiServer
from fleet.config.sections import WorkloadsSection
from fleet.core.words import Limits
from fleet.dashboard.dashboard import Dashboard
from fleet.engine.context import CoordinatorSettings, EngineContext, Launch, no_driver
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.interchange.export_store import export
from fleet.models.registry import Registry
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.dataset_fixtures import cpu_device
from tests.refresh_fixtures import records_for, small_model, some_workloads
from tests.transport_fixtures import PROTOCOL

#: Name of a workload that would be markup where somebody took it for that.
EVIL = '<script>document.title="owned"</script><img src=x onerror=document.title="owned">'
CANDIDATES = 24


def recorded_workloads() -> list[Workload]:
    """Real schedules' workloads; one of them has an evil name."""
    found = [replace(one, networks=(("bert-tiny", 1),)) for one in some_workloads(5, 1)]
    return [replace(found[0], name=EVIL), *found[1:]]


def recorded_file(folder: Path, workloads: list[Workload]) -> Path:
    """What the devices answer from: two unlike devices, with some failures."""
    path = folder / "recorded.parquet"
    with Store.open(folder / "recorded-store") as store:
        for name in ("box.a", "box.b"):
            store.put_device(*cpu_device(name))
        store.put_workloads(workloads, own=True)
        records = [
            # Repeats that differ, so that replayed ones do.
            replace(one, run_secs=tuple(one.run_secs[0] * factor for factor in (1.004, 1.0, 1.009, 1.02)))
            for one in records_for(workloads, CANDIDATES)
        ]
        for place in range(3, len(records), 11):
            failed = {"outcome": Outcome.RUN_FAILED, "run_secs": (), "error": f"boom\n{EVIL}"}
            records[place] = replace(records[place], **failed)
        store.append(records)
        export(store, path, "parquet")
    return path


def replayed(path: Path, name: str, number: int) -> DeviceSpec:
    """A device that replays one of the two."""
    spec, _ = cpu_device(("box.a", "box.b")[number % 2])
    replay = Replay(records=str(path), device=spec.device_id, seed=number, noise=True)
    return replace(spec, device_id=DeviceId(name), kind=DeviceKind.REPLAY, replay=replay)


@dataclass
class LiveFleet:
    """A coordinator that turns in a thread, and its server."""

    server: ApiServer
    registry: Registry
    token: str

    def client(self) -> httpx.Client:
        """A client with the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.server.url, headers=headers, trust_env=False, timeout=30)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a path."""
        with self.client() as client:
            answer = client.get(path, params=query)
            assert answer.status_code == 200, (path, answer.text)
            return answer.json()


@contextmanager
def live_fleet(
    folder: Path,
    names: tuple[str, ...],
    *,
    launch: Launch = no_driver,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda view: view,
) -> Iterator[LiveFleet]:
    """Run a coordinator with its API until the block ends.

    Args:
        folder: Gets everything.
        names: Of the devices.
        launch: Starts the drivers of requests.
        change: What becomes of each view before it is shown.
    """
    workloads = recorded_workloads()
    path = recorded_file(folder, workloads)
    specs = {DeviceId(name): replayed(path, name, number) for number, name in enumerate(names)}
    told = CoordinatorSettings(
        protocol=PROTOCOL,
        choice=WorkloadsSection(networks=("bert-tiny",), count=10, min_flops=0, max_flops=1e30),
        limits=Limits(job_candidates=8),
        noise=6,
    )
    registry = Registry(folder / "models")
    over, errors = threading.Event(), list[BaseException]()
    with Store.open(folder / "store") as store:
        transport = LocalTransport(protocol=PROTOCOL, spool_root=folder / "spool", heartbeat_secs=0.2)
        coordinator = Coordinator(
            EngineContext(
                root=folder / "root",
                store=store,
                transport=transport,
                source=FixedDevices(specs),
                settings=told,
                notices=Notices(),
                launch=launch,
            )
        )
        seen: list[Mapping[str, Any]] = [{}, {}]

        def view() -> Mapping[str, Any]:
            shown = coordinator.view()
            if seen[0] is not shown:
                seen[:] = [shown, change(shown)]
            return seen[1]

        def turn() -> None:
            try:
                while not over.is_set():
                    coordinator.turn(0.05)
            except BaseException as error:
                errors.append(error)
                raise

        shown = Dashboard(view, registry, folder / "store", coordinator.desk.listed)
        scoring = ScoreSettings(models=registry.folder, store=folder / "store")
        sources = ApiSources(
            view=view, registry=registry, desk=coordinator.desk, scoring=scoring, dashboard=shown
        )
        server = ApiServer(sources, folder / "root")
        thread = threading.Thread(target=turn)
        thread.start()
        try:
            token = (folder / "root" / TOKEN).read_text().strip()
            yield LiveFleet(server, registry, token)
        finally:
            server.close()
            over.set()
            thread.join(30)
            transport.close(1.0)
            coordinator.close()
    assert not errors


def publish(registry: Registry, *names: str) -> None:
    """Publish a small model that serves some devices."""
    judged = {"top1": [0.71, 0.65, 0.76], "pairs": [0.83, 0.8, 0.86], "level": 0.9}
    told = {name: {"reason": "first head: 83 % of the pairs right", "judged": judged} for name in names}
    registry.publish(registry.add(small_model(*names), {"table_version": 1}), told)


def alarm(kind: str, at: float, device: str = "one") -> dict[str, Any]:
    """An alarm as a coordinator or a registry shows it."""
    return {"at": at, "device_id": device, "text": f"{kind} at {at}", "kind": kind}
