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
import random
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents.host import child_process as child
from agents.records import DeviceId
from benchmarks.chaos_children import ALIVE, Forks
from benchmarks.chaos_faults import DISK_FAULTS, FaultPoints, Plan
from benchmarks.chaos_history import HistoryLog
from benchmarks.chaos_life import Load, set_defaults
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
        command: Of a refresh: its last part is the request.
        stdout, stderr: Where to write.
        forks: Forks it.
        arguments: More for `trainer_load`: `history`, `alive`, `plan`.
        log: Told when it was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: FileIO,
        stderr: FileIO,
        forks: Forks,
        arguments: Json,
        log: HistoryLog,
        **_: Any,
    ) -> None:
        self._forks, self._log = forks, log
        # It opens the files anew: those of this process are not there where it is forked.
        given = {**arguments, "request": command[-1], "stdout": _path_of(stdout), "stderr": _path_of(stderr)}
        self.pid = forks.start("trainer", given)

    def wait(self) -> int:
        """Wait for its end: its exit code."""
        code = self._forks.wait(self.pid)
        if code == -signal.SIGKILL:
            self._log.add("killed", by="trainer")
        return code

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


def _path_of(stream: FileIO) -> str:
    return str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())


def fork_trainings(forks: Forks, root: Path, plan: Json, log: HistoryLog, rng: random.Random) -> None:
    """Let every training of this process be forked, half of them with the fault of a plan at some step."""
    places = {"history": str(root / "history.jsonl"), "alive": str(root / ALIVE)}

    def opened(command: Sequence[str], **options: Any) -> ForkedProcess:
        at = rng.randint(1, _STEPS) if plan["at"] and rng.random() < _UNLUCKY else 0
        given = {**places, "plan": {**plan, "at": at, "die_at": 0}}
        return ForkedProcess(command, forks=forks, arguments=given, log=log, **options)

    made = SimpleNamespace(Popen=opened, DEVNULL=subprocess.DEVNULL)
    setattr(child, "subprocess", made)  # noqa: B010  # for the type checker it is a module


def trainer_load(arguments: JsonDict) -> None:
    """Be the process of a refresh; the arguments are those of `ForkedProcess`."""
    os.setsid()
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(arguments[name], os.O_WRONLY | os.O_APPEND), number)
    # Who cuts the power waits until nobody holds it any more.
    fcntl.flock(os.open(arguments["alive"], os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH)
    set_defaults(TrainConfig.__init__, trees=_TREES, sizes=SIZES)
    log = HistoryLog(Path(arguments["history"]))
    watch_registry(log)
    told: Callable[[], None] = partial(log.add, "trouble", by="disk fault")
    FaultPoints(Plan(**arguments["plan"]), told).install()
    code = main([arguments["request"]])
    os._exit(code)


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
        last = self.state().serial
        numbered = [replace(one, serial=last + place) for place, one in enumerate(changes, start=1)]
        names = tuple(map(name_of, numbered))
        if names:
            log.add("publication", records=names)
        real(self, champions, changes)
        if names:
            log.add("acknowledged", by="registry", records=names)

    RegistryFile.commit = commit  # type: ignore[method-assign]


def look_at_models(models: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Open everything in a folder of models.

    Returns:
        Names of all changes of champions, and what is not whole, one sentence each.
    """
    reader = RegistryReader(models)
    halves = []
    for version in reader.versions():
        try:
            checkpoint.load(models / version)
        except _NOT_READ as error:
            halves.append(f"version {version}: {error}")
    try:
        champions, changes = _champions(reader)
    except _NOT_READ as error:
        return (), (*halves, f"champions: {error}")
    last = {one.device_id: one.version for one in changes}
    for device_id, champion in champions.items():
        try:
            reader.load(champion.ref)[0].head(device_id)
        except (*_NOT_READ, KeyError) as error:
            halves.append(f"champion {champion.version} of {device_id}: {error}")
        if last.get(device_id) != champion.version:
            halves.append(f"{device_id} has {champion.version}, its last change says {last.get(device_id)}")
    return tuple(map(name_of, changes)), tuple(halves)


def _champions(reader: RegistryReader) -> tuple[dict[DeviceId, Champion], list[Change]]:
    """Who serves, and how that came about: both of one moment."""
    while True:
        serial = reader.state().serial
        found = reader.champions(), reader.history()
        if reader.state().serial == serial:
            return found


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
