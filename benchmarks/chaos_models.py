"""Model versions and champions under faults: what is there and whether it is whole. For `benchmarks.chaos`.

`watch_registry` writes down what a registry promises, in the process that changes it; `look_at_models` opens
every version and every champion; `models_load` is a process that does nothing but publish.

The process of a refresh is forked instead of started: a training takes a second then, and can be killed
often. What runs in it is `fleet.refresh.process` as it is, under fault points of its own; only its model is
smaller. `agents.host.child_process` deals with a `ForkedProcess` as with any other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents.host import child_process as child
from agents.records import DeviceId
from benchmarks.chaos_children import ALIVE, Forks
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_history import HistoryLog
from benchmarks.chaos_load import Load, fault_points, set_defaults
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.registry import Registry
from fleet.models.registry_file import Champion, Change, RegistryFile
from fleet.models.registry_reader import RegistryReader
from fleet.refresh.process import main
from transfer.errors import TransferError
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model import checkpoint
from transfer.model.encoder import ModelSizes
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed
from transfer.train.rows import TrainConfig

_TREES = 8
#: Steps on the disk of a short training, of which one is chosen.
_STEPS = 120
#: Share of the trainings that meet their fault.
_UNLUCKY = 0.5


class ForkedProcess:
    """What `agents.host.child_process` asks of a `subprocess.Popen`.

    Args:
        forks: Forks it.
        arguments: Of `trainer_load`.
        log: Gets a line when it was killed.
    """

    def __init__(self, forks: Forks, arguments: Json, log: HistoryLog) -> None:
        self._forks, self._log = forks, log
        self.pid = forks.start("trainer", arguments)

    def wait(self) -> int:
        """Wait for its end: its exit code."""
        code = self._forks.wait(self.pid)
        if code == -signal.SIGKILL:
            self._log.add("killed", by="trainer kill")
        return code


def fork_trainings(forks: Forks, load: Load, plan: Json) -> None:
    """Let every training of this process be forked, half of them with the fault of a plan at some step."""

    def opened(command: Sequence[str], **options: Any) -> ForkedProcess:
        is_unlucky = plan["at"] and load.rng.random() < _UNLUCKY
        at = load.rng.randint(1, _STEPS) if is_unlucky else 0
        arguments = {"root": str(load.root), "request": command[-1], "plan": {**plan, "at": at, "die_at": 0}}
        for name in ("stdout", "stderr"):
            # It opens the files anew: those of this process are not there where it is forked.
            arguments[name] = str(Path(f"/proc/self/fd/{options[name].fileno()}").readlink())
        return ForkedProcess(forks, arguments, load.log)

    made = SimpleNamespace(Popen=opened, DEVNULL=subprocess.DEVNULL)
    setattr(child, "subprocess", made)  # noqa: B010  # for the type checker it is a module


def trainer_load(arguments: JsonDict) -> None:
    """Be the process of a refresh.

    Args:
        arguments: `root` (of the history), `request`, `stdout` and `stderr` (files), `plan` (of the faults).
    """
    root = Path(arguments["root"])
    os.setsid()
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(arguments[name], os.O_WRONLY | os.O_APPEND), number)
    # Who cuts the power waits until nobody holds it any more.
    fcntl.flock(os.open(root / ALIVE, os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH)
    set_defaults(TrainConfig.__init__, trees=_TREES, sizes=SIZES)
    log = HistoryLog(root / "history.jsonl")
    watch_registry(log)
    fault_points(arguments["plan"], log)
    os._exit(main([arguments["request"]]))


#: So small that it is written in a few milliseconds.
SIZES = ModelSizes(
    category_width=2, step_width=8, attention_heads=1, residual_blocks=1, trunk_width=16, head_width=4
)
#: Newest versions that pruning leaves: few, so that it has something to do.
KEEP = 3
_HEADS = ("one", "two", "three")
_NOT_READ = (FleetError, TransferError, OSError)


def name_of(change: Change) -> str:
    """The name of a change in a history."""
    return f"{change.serial} {change.kind} {change.device_id} {change.version} {change.at_secs!r}"


def watch_registry(log: HistoryLog) -> None:
    """Write down what every registry of this process promises, for good."""
    real = RegistryFile.commit

    def commit(self: RegistryFile, champions: Any, changes: Sequence[Change]) -> None:
        first = self.state().serial + 1
        names = tuple(name_of(replace(one, serial=first + place)) for place, one in enumerate(changes))
        log.add("publication", records=names)
        real(self, champions, changes)
        log.add("acknowledged", by="registry", records=names)

    RegistryFile.commit = commit  # type: ignore[method-assign]


def look_at_models(models: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Open everything in a folder of models.

    Returns:
        Names of all changes of champions, and what is not whole, one sentence each.
    """
    reader = RegistryReader(models)
    halves: list[str] = []
    changes: list[Change] = []

    def attempt(what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (*_NOT_READ, KeyError) as error:
            halves.append(f"{what}: {error}")

    def read_head(champion: Champion) -> None:
        reader.load(champion.ref)[0].head(champion.device_id)

    def read_champions() -> None:
        champions, serial = reader.champions(), -1
        while serial != reader.state().serial:  # both are of one moment
            serial = reader.state().serial
            champions, changes[:] = reader.champions(), reader.history()
        last = {change.device_id: change.version for change in changes}
        for device_id, champion in champions.items():
            what = f"champion {champion.version} of {device_id}, last changed to {last.get(device_id)}"
            attempt(what, partial(read_head, champion))
            if last.get(device_id) != champion.version:
                halves.append(what)

    for version in reader.versions():
        attempt(f"version {version}", partial(checkpoint.load, models / version))
    attempt("champions", read_champions)
    return tuple(map(name_of, changes)), tuple(halves)


def models_load(arguments: JsonDict) -> None:
    """Keep versions, publish each, take every other one back for one device, prune."""
    load = Load(arguments)
    watch_registry(load.log)
    registry = Registry(load.disk / "models")
    _look(load, registry.folder)
    has_fault = arguments["plan"]["fault"] in DISK_FAULTS
    for batch in load.batches:
        with contextlib.suppress(*(_NOT_READ if has_fault else ())):
            version = registry.add(_model(batch), {"run": str(batch)})
            registry.publish(version, {one: {"reason": f"batch {batch}"} for one in _HEADS})
            champion = registry.champions()[DeviceId(_HEADS[0])]
            if batch % 2 and set(champion.before) & set(registry.versions()):
                registry.use(champion.device_id, registry.before(champion.device_id), reason="by hand")
            registry.prune(KEEP)
    _look(load, registry.folder)
    load.finish()


def _look(load: Load, models: Path) -> None:
    changes, halves = look_at_models(models)
    load.log.add("look", places={"registry": changes}, halves=halves)


def _model(seed: int) -> FleetTLP:
    with scoped_seed(seed):
        return FleetTLP(model_config(DEFAULT_SPEC, SIZES), _HEADS).eval()
