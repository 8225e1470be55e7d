"""Scenarios of trainings, looks and decisions of people: who serves a device then, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from agents.records import DeviceId, Workload
from fleet.config.settings import load_fleet
from fleet.models.registry import Registry
from fleet.models.shipped_model import SHIPPED_KEY
from fleet.models.training import train_version
from fleet.refresh.freshness_look import run_watch
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.cli_fixtures import said
from tests.dataset_fixtures import cpu_device
from tests.refresh_fixtures import DEVICES, records_for, request_in, small_model
from tests.scenario_fixtures import fields_of, place_in, play
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP


def upside_down(model: FleetTLP) -> FleetTLP:
    """A model that puts slow candidates first."""
    bad = model.copy()
    for device in bad.device_ids:
        last = bad.head(device)[-1]
        last.weight.data.neg_()
        last.bias.data.neg_()
    bad.trees = None  # they would put half of it right
    return bad


class ModelScenario:
    """A folder with a store and its models, and what was found there last."""

    def __init__(self, folder: Path, workloads: Sequence[Workload]) -> None:
        self.folder, self.workloads = folder, workloads
        self.store, self.registry = folder / "store", Registry(folder / "models")
        self.found: dict[str, Any] = {}

    def play(self, lines: list[str]) -> None:
        play(lines, self.act, self.value)

    def act(self, action: str) -> None:
        words, _, fields = action.partition(" | ")
        told = fields_of(fields)
        match words.split():
            case ["store", *_]:
                with Store.open(self.store) as store:
                    for device in DEVICES:
                        store.put_device(*cpu_device(device))
                    store.put_workloads(self.workloads)
                self.act(action.replace("store", "measure", 1))
            case ["measure", count, candidates]:
                self.measure(int(count), int(candidates), told)
            case ["add", *devices]:
                self.registry.add(small_model(*devices), told)
            case ["negated", version]:
                model, about = checkpoint.load(self.registry.path(version))
                names = ("table_version", "trained_workloads", "data_until")
                self.registry.add(upside_down(model), {name: about[name] for name in names})
            case ["old", version]:
                model, _ = checkpoint.load(self.registry.path(version))
                self.registry.add(model, {"table_version": Store.read(self.store).version})
            case ["publish", version, *devices]:
                self.registry.publish(version, dict.fromkeys(devices, told))
            case ["use", device, version]:
                self.registry.use(device, version, **told)
            case ["unpin", device]:
                self.registry.unpin(device, **told)
            case ["refresh", name]:
                request = request_in(self.folder, request_id=name, **told)
                self.found = run_refresh(replace(request, folder=f"{request.folder}-{name}"))
            case ["watch"]:
                self.found = run_watch(request_in(self.folder, kind="watch", request_id="watch"))
            case ["train"]:
                told_settings = {"store.path": str(self.store), "training.epochs": 1}
                settings = load_fleet(None, told_settings).config
                self.found = train_version(settings, self.registry.folder, (), **told)
            case ["text", path, text]:
                (self.folder / path).write_text(text)
            case ["json", path]:
                file = self.folder / path
                file.write_text(json.dumps(json.loads(file.read_text()) | told))
            case ["fleet", *arguments]:
                where = ("--store", str(self.store), "--models", str(self.registry.folder))
                self.found = {"said": said(*arguments, *where)}

    def measure(self, count: int, candidates: int, told: dict[str, Any]) -> None:
        """Records of the first workloads on both devices; `after` is so many seconds from now."""
        changes = {name: told.pop(name) for name in ("origin", "quality") if name in told}
        if "after" in told:
            told["measured_at"] = time.time() + told.pop("after")
        records = records_for(self.workloads[:count], candidates, **told)
        with Store.open(self.store) as store:
            store.append([structs.replace(one, **changes) for one in records])

    def value(self, path: str) -> Any:
        champions, history = self.registry.champions(), self.registry.history()
        if path.startswith("shipped "):
            version = champions[DeviceId(path.split()[1])].version
            return self.registry.manifest(version)[SHIPPED_KEY]
        values = {
            "found": self.found,
            "versions": self.registry.versions(),
            "last": asdict(history[-1]) if history else None,
            **{device: asdict(champion) for device, champion in champions.items()},
        }
        found = place_in(values, path, "/")
        return list(found) if isinstance(found, tuple) else found
