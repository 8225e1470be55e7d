"""Scenarios of versions, trainings, looks and decisions of people: who serves a device then, and why."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from agents.records import DeviceId, Family, Workload
from fleet.config.settings import load_fleet
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY, RegistryError
from fleet.models.shipped_model import SHIPPED_KEY
from fleet.models.training import train_version
from fleet.refresh.freshness_look import run_watch
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.cli_fixtures import run, said
from tests.coordinator_fixtures import Killed
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
        action, _, refusal = action.partition(" !! ")
        if refusal:
            before = (self.registry.folder / REGISTRY).read_bytes()
            with pytest.raises(RegistryError, match=refusal):
                self.act(action)
            assert (self.registry.folder / REGISTRY).read_bytes() == before
            return
        words, _, fields = action.partition(" | ")
        told = fields_of(fields)
        match words.split():
            case ["store", *_]:
                with Store.open(self.store) as store:
                    for device in DEVICES:
                        store.put_device(*cpu_device(device))
                    store.put_workloads(self.workloads)
                self.act(action.replace("store", "measure", 1))
            case ["device", name]:
                spec, descriptor = cpu_device(name)
                family = Family(told.get("family", spec.family))
                with Store.open(self.store) as store:
                    store.put_device(structs.replace(spec, family=family), descriptor)
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
                self.found = {"published": self.registry.publish(version, dict.fromkeys(devices, told))}
            case ["use", device, version]:
                chosen = self.registry.before(device) if version == "previous" else version
                self.registry.use(device, chosen, **{"reason": "", **told})
            case ["unpin", device]:
                self.registry.unpin(device, **{"reason": "", **told})
            case ["gone", version]:
                shutil.rmtree(self.registry.path(version))
            case ["prune", keep]:
                self.found = {"gone": self.registry.prune(int(keep))}
            case ["copy", source, target]:
                shutil.copyfile(self.folder / source, self.folder / target)
            case ["delete", path]:
                (self.folder / path).unlink()
            case ["again"]:
                self.registry = Registry(self.registry.folder)
            case ["refresh", name]:
                request = request_in(self.folder, request_id=name, **told)
                self.found = run_refresh(replace(request, folder=f"{request.folder}-{name}"))
            case ["die", name, *places]:
                with ExitStack() as stack:
                    for place in places:
                        stack.enter_context(mock.patch(place, side_effect=Killed))
                    with pytest.raises(Killed):
                        self.act(f"refresh {name}")
            case ["watch"]:
                self.found = run_watch(request_in(self.folder, kind="watch", request_id="watch"))
            case ["train"]:
                changes = {"store.path": str(self.store), "training.epochs": 1}
                changes["onboarding.shipped"] = told.pop("shipped", True)
                settings = load_fleet(None, changes).config
                self.found = train_version(settings, self.registry.folder, (), **told)
            case ["text", path, text]:
                (self.folder / path).write_text(text)
            case ["json", path]:
                file = self.folder / path
                file.write_text(json.dumps(json.loads(file.read_text()) | told))
            case ["fleet" | "fleet!" as verb, *arguments]:
                where = ("--store", str(self.store), "--models", str(self.registry.folder))
                if verb == "fleet":
                    self.found = {"said": said(*arguments, *where)}
                else:
                    self.found = {"said": str(run(*arguments, *where).exception)}

    def measure(self, count: int, candidates: int, told: dict[str, Any]) -> None:
        """Records of the first workloads on both devices; `after` is so many seconds from now."""
        changes = {name: told.pop(name) for name in ("origin", "quality", "attempt") if name in told}
        if "after" in told:
            told["measured_at"] = time.time() + told.pop("after")
        records = records_for(self.workloads[:count], candidates, **told)
        with Store.open(self.store) as store:
            store.append([structs.replace(one, **changes) for one in records])

    def value(self, path: str) -> Any:
        champions, history = self.registry.champions(), self.registry.history()
        what, _, device = path.partition(" ")
        if what in ("shipped", "kind"):
            version = champions[DeviceId(device)].version
            return (
                self.registry.manifest(version)[SHIPPED_KEY]
                if what == "shipped"
                else self.registry.kind(version)
            )
        if path.startswith("v0"):
            version, _, inside = path.partition("/")
            return place_in(self.registry.manifest(version), inside, "/")
        values = {
            "found": self.found,
            "versions": self.registry.versions(),
            "last": asdict(history[-1]) if history else None,
            "since": self.registry.environments_since(),
            "serials": [change.serial for change in history],
            "has_file": (self.registry.folder / REGISTRY).exists(),
            **{device: asdict(champion) for device, champion in champions.items()},
        }
        found = place_in(values, path, "/")
        return list(found) if isinstance(found, tuple) else found
